#include "agent/replay/frames.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <variant>

#include "agent/replay/events.h"
#include "base/signal_name.h"
#include "replay/text.h"

namespace phalanx::agent {
namespace {

// Longer than any job; keeps sums of times far from overflow.
constexpr int64_t kMaxSpanMs = int64_t{1'000} * 365 * 24 * 3'600'000;

std::string Text(const Dial& /*action*/) { return "dial the master"; }
std::string Text(const SendHello& /*action*/) { return "send Hello"; }
std::string Text(const SendBeat& action) { return fmt::format("send a beat of epoch {}", action.epoch); }
std::string Text(const Send& action) { return fmt::format("send {}", replay::OneLine(action.message)); }
std::string Text(const OpenStore& action) {
  return fmt::format("open the store of epoch {} for world {} on port {}, to {}", action.epoch, action.world_size,
                     action.port, fmt::join(action.member_addresses, " "));
}
std::string Text(const CloseStore& /*action*/) { return "close the store"; }
std::string Text(const OpenBoard& action) {
  return fmt::format("open the board of epoch {}, highest step {}", action.epoch, action.highest_step);
}
std::string Text(const StartWorker& action) {
  return fmt::format("start local rank {}: {}", action.local_rank, replay::OneLine(action.round));
}
std::string Text(const EndGroup& action) {
  return fmt::format("end local rank {} by {}", action.local_rank, SignalName(action.signal));
}
std::string Text(const KillGroup& action) { return fmt::format("kill local rank {}", action.local_rank); }
std::string Text(const SignalWorker& action) {
  return fmt::format("send {} to local rank {}", SignalName(action.signal), action.local_rank);
}
std::string Text(const AskForSafePoint& action) {
  return fmt::format("ask ranks of epoch {} for a safe point behind step {}", action.epoch, action.at_step);
}
std::string Text(const WantSpares& action) { return fmt::format("want {} spares", action.count); }
std::string Text(const KillStrays& /*action*/) { return "kill strays"; }
std::string Text(const RestartMaster& /*action*/) { return "start the master again"; }
std::string Text(const Say& action) { return fmt::format("say: {}", action.text); }
std::string Text(const ReportFailure& action) {
  return fmt::format("report the failure: {}", replay::OneLine(action.finish));
}
std::string Text(const Exit& action) { return fmt::format("exit with {}", action.code); }

}  // namespace

v1::AgentStart StartOf(const CoreOptions& options, const std::string& node_id, const std::string& hostname) {
  v1::AgentStart start;
  start.set_node_id(node_id);
  start.set_hostname(hostname);
  start.set_max_nodes(options.max_nodes);
  start.set_stop_timeout_ms(options.stop_timeout_ms);
  start.set_restart_grace_ms(options.restart_grace_ms);
  start.set_rescale_grace_ms(options.rescale_grace_ms);
  start.set_join_timeout_ms(options.join_timeout_ms);
  return start;
}

StatusOr<CoreOptions> OptionsAtStart(const v1::AgentStart& start) {
  CoreOptions options;
  options.max_nodes = start.max_nodes();
  options.stop_timeout_ms = start.stop_timeout_ms();
  options.restart_grace_ms = start.restart_grace_ms();
  options.rescale_grace_ms = start.rescale_grace_ms();
  options.join_timeout_ms = start.join_timeout_ms();
  for (const int64_t span_ms :
       {options.stop_timeout_ms, options.restart_grace_ms, options.rescale_grace_ms, options.join_timeout_ms}) {
    if (span_ms >= 0 && span_ms <= kMaxSpanMs) continue;
    return absl::DataLossError(fmt::format("the log contradicts itself: a time of {} ms", span_ms));
  }
  return options;
}

v1::ReplayFrame EventFrame(Instant now, const Event& event) {
  v1::ReplayFrame frame;
  frame.mutable_event()->set_now_ms(now);
  *frame.mutable_event()->mutable_agent() = MessageOf(event);
  return frame;
}

v1::ReplayDecisions DecisionsOf(const std::vector<Decision>& decisions) {
  v1::ReplayDecisions wire;
  for (const Decision& decision : decisions) {
    const std::string action = std::visit([](const auto& a) { return Text(a); }, decision.action);
    *wire.add_decisions() = replay::DecisionOf(action, decision.reason);
  }
  return wire;
}

v1::ReplayFrame DecisionsFrame(const std::vector<Decision>& decisions) {
  v1::ReplayFrame frame;
  *frame.mutable_decisions() = DecisionsOf(decisions);
  return frame;
}

}  // namespace phalanx::agent
