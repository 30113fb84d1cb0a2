#include "agent/workers/ends.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace phalanx::agent::ends {
namespace {

constexpr Cause kKilled{0, SIGKILL};
constexpr Cause kFailed{3, 0};
constexpr Cause kDone{0, 0};

// What one event leads to, as letters: c counts kills, t tells, m tells with what memory has to do with it, g looks
// after the group.
std::string On(State& state, const Event& event) {
  std::string letters;
  for (const Decision& decision : Step(state, event)) {
    EXPECT_NE(decision.reason, "");
    if (std::holds_alternative<CountKills>(decision.action)) letters += 'c';
    if (const auto* told = std::get_if<TellEnd>(&decision.action)) letters += told->asks_memory ? 'm' : 't';
    if (std::holds_alternative<LookAfterGroup>(decision.action)) letters += 'g';
  }
  return letters;
}

TEST(WorkersEnd, EachIsToldOnceAtTheFirstSignThatSaysAll) {
  struct Case {
    const char* what;
    std::vector<Event> events;
    std::vector<std::string> decided;
  };
  for (const Case& c : {
           Case{"a signal of others'", {Dying{kKilled}, KillsCounted{0}, Reaped{kKilled}}, {"c", "t", "g"}},
           Case{"memory ran out", {Dying{kKilled}, KillsCounted{1}, Reaped{kKilled}}, {"c", "", "mg"}},
           Case{"an exit code", {Dying{kFailed}, Reaped{kFailed}}, {"", "mg"}},
           Case{"success", {Dying{kDone}, Reaped{kDone}}, {"", "tg"}},
           Case{"another program in its place", {Dying{std::nullopt}, Reaped{kKilled}}, {"", "mg"}},
           Case{"no lock on a board", {Reaped{kKilled}}, {"mg"}},
           Case{"killed by us", {KilledByUs{}, Dying{kKilled}, Reaped{kKilled}}, {"", "", "tg"}},
           Case{"killed by us meanwhile", {Dying{kKilled}, KilledByUs{}, KillsCounted{0}}, {"c", "", ""}},
           Case{"killed by us while it fails", {Dying{kFailed}, KilledByUs{}, Reaped{kFailed}}, {"", "", "tg"}},
           Case{"dying twice", {Dying{kKilled}, KillsCounted{0}, Dying{kKilled}, KillsCounted{0}}, {"c", "t", "", ""}},
           Case{"dying when it is over", {Reaped{kKilled}, Dying{kKilled}, KillsCounted{0}}, {"mg", "", ""}},
           Case{"over twice", {Reaped{kKilled}, Reaped{kKilled}}, {"mg", ""}},
       }) {
    State state;
    for (size_t i = 0; i < c.events.size(); ++i) EXPECT_EQ(On(state, c.events[i]), c.decided[i]) << c.what << ", " << i;
  }
}

TEST(WorkersEnd, OnlyOneThatIsNotToldAndNotOursMayBeMistakenForAnothers) {
  State state;
  EXPECT_TRUE(IsOpen(state));
  Step(state, KilledByUs{});
  EXPECT_FALSE(IsOpen(state));
  state = State();
  Step(state, Reaped{kKilled});
  EXPECT_FALSE(IsOpen(state));
  EXPECT_TRUE(state.over);
}

}  // namespace
}  // namespace phalanx::agent::ends
