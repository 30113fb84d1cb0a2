#include "agent/workers/ends.h"

#include <utility>

namespace phalanx::agent::ends {
namespace {

class Stepper {
 public:
  explicit Stepper(State& state) : s_(state) {}

  std::vector<Decision> Take() { return std::move(decisions_); }

  void On(const KilledByUs& /*event*/) { s_.killed_by_us = true; }

  // Of a signal there is nothing more to know. An exit code may still be followed by last words, and one that we have
  // killed is awaited by nobody.
  void On(const Dying& event) {
    if (s_.over || !IsOpen(s_) || !event.cause || event.cause->signal == 0) return;
    Do(CountKills{}, "the out-of-memory killer sends the same signal as anyone");
  }

  // Where memory ran out, the end is told with the kernel's own figures, which it has when the process is reaped.
  void On(const KillsCounted& event) {
    if (s_.over || !IsOpen(s_) || event.kills > 0) return;
    s_.told = true;
    Do(TellEnd{false}, "a signal of somebody else's ends it: its peers need not wait until the kernel is done");
  }

  void On(const Reaped& event) {
    if (s_.over) return;
    s_.over = true;
    if (!std::exchange(s_.told, true)) {
      const bool failed = event.cause.exit_code != 0 || event.cause.signal != 0;
      Do(TellEnd{failed && !s_.killed_by_us}, "its process has ended");
    }
    Do(LookAfterGroup{}, "a new life waits for the whole group");
  }

 private:
  void Do(Action action, std::string reason) { decisions_.push_back({action, std::move(reason)}); }

  State& s_;
  std::vector<Decision> decisions_;
};

}  // namespace

std::vector<Decision> Step(State& state, const Event& event) {
  Stepper stepper(state);
  std::visit([&stepper](const auto& e) { stepper.On(e); }, event);
  return stepper.Take();
}

bool IsOpen(const State& state) { return !state.told && !state.killed_by_us; }

}  // namespace phalanx::agent::ends
