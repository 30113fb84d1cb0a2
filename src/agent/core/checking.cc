#include "agent/core/checking.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace phalanx::agent::checking {
namespace {

class Stepper {
 public:
  Stepper(State& state, Instant now) : s_(state), now_(now) {}

  std::vector<Decision> Take() { return std::move(decisions_); }

  void On(const Wanted& /*event*/) { WakeHelper("the nodes of this job are checked"); }

  void On(const Ordered& event) {
    Close();
    s_.ordered = true;
    s_.order = event.order;
    s_.check.clear();
    s_.report = {};
    s_.report.set_run(event.order.run());
    s_.report.set_part(event.order.part());
    s_.ordered_at = now_;
    s_.due = now_ + kHelperStartMs + event.order.limit_ms() + kHelperAnswerMs;
    if (event.order.group_rank() == 0 && event.order.group_size() > 1) {
      s_.store_open = true;
      Do(OpenStore{event.order.store_port(),
                   {event.order.member_addresses().begin(), event.order.member_addresses().end()}},
         "the others meet here");
    }
    if (s_.helper == Helper::kReady) return Hand();
    WakeHelper(event.order.reason());
    s_.hurry_at = now_ + std::clamp(event.order.limit_ms() / 2, kHelperStartMs - kOwnImportsMs, kMostZygoteMs);
  }

  void On(const HelperReady& /*event*/) {
    if (s_.helper != Helper::kStarting) return;
    s_.helper = Helper::kReady;
    s_.hurry_at = kNever;
    if (s_.ordered) Hand();
  }

  void On(const HelperEnded& event) {
    s_.helper = Helper::kNone;
    s_.hurry_at = kNever;
    if (s_.ordered) Answer(fmt::format("the program that checks has ended{}: {}", InText(), event.why));
  }

  void On(const CheckBegun& event) {
    if (IsMeant(event.id)) s_.check = event.check;
  }

  void On(const CheckTold& event) {
    if (!IsMeant(event.id) || s_.report.results_size() == kMostResults) return;
    *s_.report.add_results() = event.result;
    s_.check.clear();
  }

  void On(const CheckDone& event) {
    if (IsMeant(event.id)) Answer(event.ended);
  }

  // A master that was started anew may number its checks as the one before: to it this would be an answer of its own.
  void On(const Unasked& /*event*/) {
    s_.ordered = false;
    s_.due = s_.hurry_at = kNever;
    Close();
  }

  void On(const Over& /*event*/) {
    On(Unasked{});
    if (std::exchange(s_.helper, Helper::kNone) != Helper::kNone) Do(EndHelper{}, "nothing is checked any more");
  }

  void On(const Tick& /*event*/) {
    if (now_ >= s_.hurry_at) {
      s_.hurry_at = kNever;
      Do(HurryHelper{}, "the zygote still imports, or does not answer");
    }
    if (!s_.ordered || now_ < s_.due) return;
    const bool began = s_.helper == Helper::kReady;
    s_.helper = Helper::kNone;
    Do(EndHelper{}, "it does not answer");
    const int64_t waited_s = (now_ - s_.ordered_at) / 1'000;
    Answer(began ? fmt::format("the program that checks has not answered within {} s{}", waited_s, InText())
                 : fmt::format("the program that checks has not begun within {} s", waited_s));
  }

 private:
  void Do(Action action, const std::string& reason) { decisions_.push_back({std::move(action), reason}); }

  bool IsMeant(uint64_t id) const { return s_.ordered && id == s_.id; }

  std::string InText() const { return s_.check.empty() ? "" : fmt::format(" in {}", s_.check); }

  void WakeHelper(const std::string& reason) {
    if (s_.helper != Helper::kNone) return;
    s_.helper = Helper::kStarting;
    Do(StartHelper{}, reason);
  }

  // One that was long in coming has the less time for it: its own end of an order comes before this node's, and says
  // more.
  void Hand() {
    v1::CheckOrder order = s_.order;
    order.set_limit_ms(std::clamp<int64_t>(s_.due - kHelperAnswerMs - now_, 1, order.limit_ms()));
    s_.due = now_ + order.limit_ms() + kHelperAnswerMs;
    Do(Give{++s_.id, std::move(order)}, s_.order.reason());
  }

  void Close() {
    if (std::exchange(s_.store_open, false)) Do(CloseStore{}, "they have met");
  }

  void Answer(const std::string& ended) {
    s_.ordered = false;
    s_.due = kNever;
    s_.report.set_ended(ended);
    Close();
    Do(Report{s_.report}, ended.empty() ? "all is checked" : ended);
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

Instant NextDeadline(const State& state) { return std::min(state.due, state.hurry_at); }

}  // namespace phalanx::agent::checking
