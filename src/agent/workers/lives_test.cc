#include "agent/workers/lives.h"

#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

using Pids = std::vector<int64_t>;

// --- beginnings ---------------------------------------------------------------------------------------------------

TEST(WarmStartTest, WhereSparesCanBeHad) {
  struct Case {
    bool warm;
    ScriptKind kind;
    bool interpreter_given;
    bool has_bootstrap;
    bool possible;
    const char* warning;
  };
  constexpr const char* kNotBesideUs = "warm start is off: Phalanx's Python files are not beside this program";
  constexpr const char* kAnotherPython = "warm start is off: PYTHON_EXEC names another interpreter";
  for (const Case& c : {
           Case{true, ScriptKind::kScript, false, true, true, ""},
           Case{true, ScriptKind::kModule, false, true, true, ""},
           Case{true, ScriptKind::kScript, true, true, true, ""},
           Case{true, ScriptKind::kScript, false, false, false, kNotBesideUs},
           Case{true, ScriptKind::kScript, true, false, false, kAnotherPython},
           Case{true, ScriptKind::kProgram, false, true, false, ""},
           Case{true, ScriptKind::kProgram, false, false, false, ""},
           Case{false, ScriptKind::kScript, false, true, false, ""},
           Case{false, ScriptKind::kScript, false, false, false, ""},
       }) {
    LaunchConfig config;
    config.warm = c.warm;
    config.kind = c.kind;
    config.interpreter_given = c.interpreter_given;
    const WarmStart start = WarmStartOf(config, c.has_bootstrap);
    const testing::Message about = testing::Message()
                                   << c.warm << static_cast<int>(c.kind) << c.interpreter_given << c.has_bootstrap;
    EXPECT_EQ(start.possible, c.possible) << about;
    EXPECT_EQ(start.warning.substr(0, start.warning.find_first_of(",;")), c.warning) << about;
  }
}

TEST(BeginningTest, WarmWhereASpareIsOrMayBeHad) {
  EXPECT_EQ(BeginningOf(false, true, true), Beginning::kFromSpare);
  EXPECT_EQ(BeginningOf(false, true, false), Beginning::kFromSpare) << "those that wait serve when no more can come";
  EXPECT_EQ(BeginningOf(false, false, true), Beginning::kAwaitsSpare);
  EXPECT_EQ(BeginningOf(false, false, false), Beginning::kCold);
}

TEST(BeginningTest, NoLifeBeginsBesideTheLast) {
  for (const bool spare_waits : {false, true}) {
    EXPECT_EQ(BeginningOf(true, spare_waits, true), Beginning::kRefused);
  }
}

// --- process groups -----------------------------------------------------------------------------------------------

TEST(GroupTest, IsGoneWhenNothingOfItRuns) {
  struct Case {
    const char* what;
    GroupLook look;
    GroupNow now;
  };
  for (const Case& c : {
           Case{"its worker lives", {false, true, {}}, GroupNow::kThere},
           Case{"nothing is there, but the worker's end has not been told", {false, false, 0}, GroupNow::kThere},
           Case{"the kernel knows no process of it", {true, false, {}}, GroupNow::kGone},
           Case{"something is there, and may be a zombie", {true, true, {}}, GroupNow::kNotKnown},
           Case{"a child outlives the worker", {true, true, 1}, GroupNow::kThere},
           Case{"zombies are not waited for", {true, true, 0}, GroupNow::kGone},
       }) {
    EXPECT_EQ(GroupOf(c.look), c.now) << c.what;
  }
}

TEST(GroupTest, ItsLiveMembers) {
  const std::vector<SeenProcess> processes = {
      {10, 1, 10, true}, {11, 10, 10, false}, {12, 1, 12, false}, {13, 11, 10, true}, {14, 12, 10, false}};
  EXPECT_EQ(LiveMembers(processes, 10), (Pids{11, 14}));
  EXPECT_EQ(LiveMembers(processes, 11), Pids{});
}

// --- strays -------------------------------------------------------------------------------------------------------

TEST(StraysTest, WhichChildrenAre) {
  struct Case {
    const char* what;
    SeenProcess child;
    bool is_of_pool;
    bool has_mark;
    bool is_stray;
    int asked;
  };
  for (const Case& c : {
           Case{"it has left its worker's group", {20, 1, 20, false}, false, true, true, 2},
           Case{"it is of a worker's group", {20, 1, 10, false}, false, true, false, 0},
           Case{"it is dead", {20, 1, 20, true}, false, true, false, 0},
           Case{"it is a spare, or the zygote", {20, 1, 20, false}, true, true, false, 1},
           Case{"it is of another job, or of the user's", {20, 1, 20, false}, false, false, false, 2},
       }) {
    int asked = 0;
    const auto answer = [&asked](bool value) {
      return [&asked, value](int64_t pid) {
        EXPECT_EQ(pid, 20);
        ++asked;
        return value;
      };
    };
    EXPECT_EQ(StraysAmong({c.child}, {10}, answer(c.is_of_pool), answer(c.has_mark)).size(), c.is_stray ? 1u : 0u)
        << c.what;
    EXPECT_EQ(asked, c.asked) << c.what << ": each question costs a file";
  }
}

TEST(StraysTest, GoWithTheirDescendants) {
  const std::vector<SeenProcess> processes = {{20, 1, 20, false},  {21, 20, 20, false}, {22, 21, 22, false},
                                              {23, 20, 20, false}, {30, 1, 30, false},  {31, 30, 30, false}};
  EXPECT_EQ(WithDescendants({20}, processes), (Pids{20, 23, 21, 22}));
  EXPECT_EQ(WithDescendants({20, 21}, processes), (Pids{21, 22, 20, 23})) << "each of them once";
  EXPECT_EQ(WithDescendants({}, processes), Pids{});
  EXPECT_EQ(WithDescendants({99}, processes), Pids{99}) << "one that has gone meanwhile";
}

}  // namespace
}  // namespace phalanx::agent
