#include "master/rules/pace.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <random>
#include <set>
#include <string>
#include <vector>

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

// A world whose ranks work so many milliseconds of their own in each step, and tell of it every ten seconds.
class PaceTest : public ::testing::Test {
 protected:
  // Twenty seconds of steps of that length. What is told, as "rank 3: 300 ms, usual 100 ms" or "rank 3: over".
  std::vector<std::string> Window(const std::vector<int64_t>& own_ms, int64_t step_ms = 400) {
    std::vector<std::string> told;
    sums_.resize(own_ms.size());
    if (now_ == 0) Say(own_ms.size());
    for (int part = 0; part < 2; ++part) {
      now_ += kPaceWindowMs / 2;
      const int64_t steps = std::max<int64_t>(1, kPaceWindowMs / 2 / step_ms);
      for (size_t i = 0; i < own_ms.size(); ++i) {
        sums_[i].steps += static_cast<uint64_t>(steps);
        sums_[i].own_us += steps * own_ms[i] * 1'000;
        sums_[i].waited_us += steps * (step_ms - own_ms[i]) * 1'000;
      }
      Say(own_ms.size());
      for (const Laggard& each : CloseWindow(watch_, now_)) {
        if (each.again) continue;
        told.push_back(each.over ? fmt::format("rank {}: over", each.rank)
                                 : fmt::format("rank {}: {} ms, usual {} ms", each.rank, each.own_us / 1'000,
                                               each.usual_us / 1'000));
      }
    }
    return told;
  }

  void Say(size_t world_size) {
    for (size_t i = 0; i < world_size; ++i) {
      if (!silent_.contains(i)) SawSplit(watch_, world_size, i, First(sums_[i]), now_);
    }
  }
  // The first word of a rank comes with a step.
  static RankSplit First(RankSplit split) {
    ++split.steps;
    return split;
  }

  std::set<size_t> silent_;  // nothing is known of them
  PaceWatch watch_;
  std::vector<RankSplit> sums_;
  Instant now_ = 0;
};

TEST_F(PaceTest, WhoIsSlowForThreeWindowsIsTold) {
  const std::vector<int64_t> own = {100, 104, 300, 98};
  EXPECT_THAT(Window(own), IsEmpty());
  EXPECT_THAT(Window(own), IsEmpty());
  EXPECT_THAT(Window(own), ElementsAre("rank 2: 300 ms, usual 100 ms"));
  for (int i = 0; i < 10; ++i) EXPECT_THAT(Window(own), IsEmpty()) << "once";
}

TEST_F(PaceTest, AMomentIsNone) {
  EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 101, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
}

TEST_F(PaceTest, ThatItIsOverIsToldBehindThreeWindows) {
  for (int i = 0; i < 3; ++i) Window({100, 300, 100});
  EXPECT_THAT(Window({100, 100, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 100, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 100, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 100, 100}), ElementsAre("rank 1: over"));
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 300, 100}), ElementsAre("rank 1: 300 ms, usual 100 ms")) << "again";
}

TEST_F(PaceTest, OfTwoTheSlowerOne) {
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window({200, 100}), IsEmpty());
  EXPECT_THAT(Window({200, 100}), ElementsAre("rank 0: 200 ms, usual 100 ms"));
}

TEST_F(PaceTest, AWorldOfUnequalRanksHasNoSlowOne) {
  // Stages of a pipeline: each works for another time.
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Window({40, 80, 120, 160, 200, 240}), IsEmpty());
}

TEST_F(PaceTest, AHalfMoreIsSlowAndLessIsNot) {
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Window({100, 100, 150, 100}), IsEmpty());
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window({100, 100, 152, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 100, 152, 100}), ElementsAre("rank 2: 152 ms, usual 100 ms"));
}

TEST_F(PaceTest, BelowTheFloorNobodyIsSlow) {
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Window({1, 1, 5, 1}, 50), IsEmpty());
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window({1, 1, 6, 1}, 50), IsEmpty());
  EXPECT_THAT(Window({1, 1, 6, 1}, 50), ElementsAre("rank 2: 6 ms, usual 1 ms"));
}

TEST_F(PaceTest, LongStepsMakeLongWindows) {
  // One step in ten seconds: a window has two, and goes on until there are three.
  const std::vector<int64_t> own = {4'000, 9'000, 4'000};
  int told = 0;
  for (int i = 0; i < 9; ++i) told += static_cast<int>(Window(own, 10'000).size());
  EXPECT_EQ(told, 1);
}

TEST_F(PaceTest, WhoTellsNothingIsNeitherSlowNorCounted) {
  silent_ = {1};
  for (int i = 0; i < 2; ++i) EXPECT_THAT(Window({100, 0, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 0, 300, 100}), ElementsAre("rank 2: 300 ms, usual 100 ms"));
}

TEST_F(PaceTest, WhoTellsNoMoreHoldsUpNoWindowForEver) {
  Window({100, 100, 300, 100});
  silent_ = {1};
  int told = 0;
  for (int i = 0; i < 20; ++i) told += static_cast<int>(Window({100, 0, 300, 100}).size());
  EXPECT_EQ(told, 1);
}

TEST_F(PaceTest, OneAloneIsNotSlow) {
  for (int i = 0; i < 5; ++i) EXPECT_THAT(Window({300}), IsEmpty());
}

TEST_F(PaceTest, SumsThatGoBackBeginAnew) {
  for (int i = 0; i < 2; ++i) Window({100, 300, 100});
  sums_[1] = {};
  EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 300, 100}), IsEmpty());
  EXPECT_THAT(Window({100, 300, 100}), ElementsAre("rank 1: 300 ms, usual 100 ms"));
}

TEST_F(PaceTest, ARankBeyondTheWorldIsNone) {
  SawSplit(watch_, 2, 2, {1, 1, 1}, 0);
  EXPECT_TRUE(watch_.ranks.empty());
}

// Ranks differ by a tenth from step to step: in 2,000 windows of 64 none is told of.
TEST_F(PaceTest, NoiseIsNotTold) {
  std::mt19937 random(7);
  std::uniform_int_distribution<int64_t> around(90, 110);
  for (int i = 0; i < 2'000; ++i) {
    std::vector<int64_t> own(64);
    for (int64_t& each : own) each = around(random);
    EXPECT_THAT(Window(own), IsEmpty());
  }
}

}  // namespace
}  // namespace phalanx::master
