#include "agent/core/leaving.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace phalanx::agent::leaving {
namespace {

class Stepper {
 public:
  Stepper(State& state, Instant now) : s_(state), now_(now) {}

  std::vector<Decision> Take() { return std::move(decisions_); }

  void On(const Begun& event) {
    if (s_.phase != Phase::kHere) return;
    s_.begun = event;
    s_.phase = Phase::kSettling;
    Do(SettleStorage{event.asked, event.exit_code == 0}, "what is on its way to storage needs this node");
  }

  // What is on its way to storage needs this node, its memory and its word.
  void On(const StorageSettled& event) {
    if (s_.phase != Phase::kSettling) return;
    if (!event.storing && !event.lending) return Leave("nothing is on its way to storage");
    if (!s_.begun.attached) return LeaveUnheard(event.what);
    s_.phase = Phase::kStoring;
    const int64_t longest_ms = event.what.empty() ? kTidyMs : kStorageAtEndMs;
    s_.leave_by = now_;
    if (event.storing) s_.leave_by += s_.begun.asked ? s_.options.stop_timeout_ms : longest_ms;
    if (event.lending) {
      s_.lend_by = now_ + s_.options.rescale_grace_ms;
      s_.leave_by = std::max(s_.leave_by, s_.lend_by);
    }
    if (!event.what.empty()) {
      Do(Say{fmt::format("checkpoint: waiting for storage to take {}, for up to {} s{}", event.what,
                         (s_.leave_by - now_) / 1'000, s_.begun.asked ? "; a second signal ends that" : "")},
         "who waits wants to know for what");
    }
    BeatOrGiveUp(event.what);
  }

  void On(const StorageIdle& /*event*/) {
    if (s_.phase == Phase::kStoring) Leave("storage has taken all, and nobody needs this node's memory");
  }

  void On(const AskedAgain& /*event*/) {
    if (s_.phase == Phase::kStoring) Leave("whoever asks twice does not wait");
  }

  // Nobody dials any more. The master gives up what this node was still to write, and of what it goes on with it would
  // tell by the stream: neither can be waited for. What is only tidied up needs no master.
  void On(const StreamBroken& event) {
    if (s_.phase == Phase::kSettling) s_.begun.attached = false;
    if (s_.phase != Phase::kStoring) return;
    if (!event.storing.empty() || s_.lend_by != kNever || s_.lend_over) LeaveUnheard(event.storing);
  }

  void On(const StreamClosed& /*event*/) {
    if (s_.phase == Phase::kClosing) LeaveMaster();
  }

  // A master that was killed at the job's end may not have told all nodes: a job of one may have spares. The next one
  // does, and ends after that.
  void On(const MasterEnded& event) {
    if (s_.phase != Phase::kMasterEnds) return;
    const bool told_all = !s_.begun.finished || !event.killed;
    if (told_all) return End("its master has told all nodes");
    s_.phase = Phase::kMasterStarts;
    s_.leave_by = now_ + kGoodbyeMs;
    Do(StartMaster{}, "the master was killed, and other nodes may not have heard of the job's end");
  }

  void On(const MasterAnswered& /*event*/) {
    if (s_.phase == Phase::kMasterStarts) End("the next master tells the other nodes, or nobody can");
  }

  void On(const Tick& event) {
    if (s_.phase == Phase::kMasterStarts && now_ >= s_.leave_by) return End("the next master takes too long to start");
    if (s_.phase == Phase::kStoring && now_ >= NextDeadline(s_)) BeatOrGiveUp(event.storing);
  }

 private:
  void Do(Action action, std::string reason) { decisions_.push_back({std::move(action), std::move(reason)}); }

  void BeatOrGiveUp(const std::string& storing) {
    if (now_ >= s_.lend_by) {
      s_.lend_by = kNever;
      s_.lend_over = true;
    }
    if (s_.lend_over && storing.empty()) return Leave("the time for those that read this node's memory is over");
    if (now_ >= s_.leave_by) {
      Do(Warn{storing.empty() ? "checkpoint: storage has not removed its recycled files in time"
                              : fmt::format("checkpoint: storage has not taken {}", storing)},
         "what is lost is said");
      return Leave("the time for storage is over");
    }
    const bool only_lends = storing.empty() && s_.lend_by != kNever && s_.next_beat != kNever;
    if (only_lends && !std::exchange(s_.lending_told, true)) {
      Do(Say{fmt::format("checkpoint: other nodes read what they go on from in this node's memory, for up to {} s{}",
                         (s_.lend_by - now_) / 1'000, s_.begun.asked ? "; a second signal ends that" : "")},
         "who waits wants to know for what");
    }
    s_.next_beat = now_ + s_.begun.beat_interval_ms;
    Do(Beat{}, "the lease is renewed: the master must hear what storage has taken");
  }

  // `storing` is empty where storage only tidies.
  void LeaveUnheard(const std::string& storing) {
    if (!storing.empty()) {
      Do(Warn{fmt::format("checkpoint: whether storage takes {} is not known: the stream to the master has broken",
                          storing)},
         "what may be lost is said");
    }
    Leave("the master, which would say what storage has taken, hears this node no more");
  }

  void Leave(const std::string& reason) {
    s_.leave_by = s_.lend_by = s_.next_beat = kNever;
    Do(Depart{s_.begun.exit_code}, reason);
    if (!s_.begun.has_workers) return End("nothing of it was started yet");
    s_.phase = Phase::kClosing;
    if (!s_.begun.has_stream) return LeaveMaster();
    Do(CloseStream{kGoodbyeMs}, "the master must have the last words");
  }

  // A master that serves nobody else ends with us; its record is whole when this program is over.
  void LeaveMaster() {
    const bool ends_with_us = s_.begun.finished || s_.options.max_nodes == 1;
    if (!s_.begun.has_master || !ends_with_us) return End("no master ends with this node");
    s_.phase = Phase::kMasterEnds;
    Do(AwaitMaster{kGoodbyeMs}, "its master's record must be whole");
  }

  void End(const std::string& reason) {
    s_.phase = Phase::kGone;
    s_.leave_by = kNever;
    Do(EndProgram{}, reason);
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

Instant NextDeadline(const State& state) { return std::min({state.leave_by, state.lend_by, state.next_beat}); }

}  // namespace phalanx::agent::leaving
