#include "agent/core/joining.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace phalanx::agent::joining {
namespace {

class Stepper {
 public:
  Stepper(State& state, Instant now) : s_(state), now_(now) {}

  std::vector<Decision> Take() { return std::move(decisions_); }

  void On(const Begun& event) {
    if (s_.phase != Phase::kBefore) return;
    s_.resolve_until = event.since + s_.options.join_timeout_ms;
    if (!s_.options.standalone) return Ask("the endpoint tells who starts the master");
    StartHere({true, "127.0.0.1", "127.0.0.1"}, "the job has no other node");
  }

  void On(const Resolved& event) {
    if (s_.phase != Phase::kFinding) return;
    if (event.hosting.here && !s_.options.has_own_master) {
      return StartHere(event.hosting, "the endpoint is this node's, or this node was told to");
    }
    JoinAt(s_.options.endpoint_host, s_.options.endpoint_port, "another node, or nobody of the job, starts the master");
  }

  void On(const NotResolved& event) {
    if (s_.phase != Phase::kFinding) return;
    if (now_ >= s_.resolve_until) {
      return GiveUp(fmt::format("--rdzv-endpoint: {} (--rdzv-conf join_timeout)", event.why));
    }
    if (!std::exchange(s_.told, true)) {
      Do(Say{fmt::format("--rdzv-endpoint: {}; asking again until it is known, for up to {} s", event.why,
                         (s_.resolve_until - now_) / 1'000)},
         "who waits wants to know for what");
    }
    s_.resolve_at = std::min(now_ + kResolveAgainMs, s_.resolve_until);
  }

  // One that is started again is dialled when it is time (agent/core/core.h).
  void On(const MasterReady& event) {
    if (s_.phase == Phase::kStarting) JoinAt(s_.dial_host, event.port, "its own master is ready");
  }

  void On(const MasterNotReady& event) {
    if (s_.joined) return Do(TellMasterDied{event.sentence}, "a master that was started again is not there");
    if (s_.phase != Phase::kStarting) return;
    if (event.address_in_use && s_.options.endpoint_port != 0) {
      // Another phalanx-run of this machine was first, or something else holds the port: the dial will tell.
      return JoinAt(s_.options.endpoint_host, s_.options.endpoint_port, "somebody else serves at the endpoint");
    }
    GiveUp(fmt::format("the job's master could not be started: {}", event.sentence));
  }

  void On(const GivenUp& /*event*/) { End(); }

  void On(const Tick& /*event*/) {
    if (now_ >= s_.resolve_at) Ask("names come late in a cluster that starts up");
    if (now_ >= s_.start_by) {
      GiveUp(fmt::format("the job's master could not be started: it has not said within {} s where it listens",
                         kMasterStartMs / 1'000));
    }
  }

 private:
  void Do(Action action, std::string reason) { decisions_.push_back({std::move(action), std::move(reason)}); }

  void Ask(const std::string& reason) {
    s_.phase = Phase::kFinding;
    s_.resolve_at = kNever;
    Do(Resolve{}, reason);
  }

  void StartHere(const Hosting& hosting, const std::string& reason) {
    s_.phase = Phase::kStarting;
    s_.dial_host = hosting.dial_host;
    s_.start_by = now_ + kMasterStartMs;
    Do(StartMaster{hosting.bind_address, s_.options.endpoint_port}, reason);
  }

  void JoinAt(const std::string& host, uint16_t port, const std::string& reason) {
    End();
    s_.joined = true;
    Do(Join{host, port}, reason);
  }

  void GiveUp(const std::string& why) {
    End();
    Do(Fail{why}, "there is no master to join");
  }

  void End() {
    s_.phase = Phase::kOver;
    s_.resolve_at = s_.start_by = kNever;
  }

  State& s_;
  const Instant now_;
  std::vector<Decision> decisions_;
};

}  // namespace

std::vector<Decision> Step(State& state, const Event& event, Instant now) {
  Stepper stepper(state, now);
  std::visit([&stepper](const auto& e) { stepper.On(e); }, event);
  return stepper.Take();
}

Instant NextDeadline(const State& state) { return std::min(state.resolve_at, state.start_by); }

}  // namespace phalanx::agent::joining
