#include "master/rules/stall.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

namespace phalanx::master {
namespace {

class StallTest : public testing::Test {
 protected:
  // Sees `count` steps, each `gap_ms` after the one before.
  void Steps(int count, int64_t gap_ms) {
    for (int i = 0; i < count; ++i) SawStep(watch_, ++step_, usual_ms_, now_ += gap_ms);
  }
  int64_t Patience() const { return StallsAt(watch_, usual_ms_) - now_; }

  StallWatch watch_;
  int64_t usual_ms_ = 0;
  int64_t step_ = 0;
  Instant now_ = 1'000;
};

TEST_F(StallTest, NobodyKnowsBeforeTheFirstStep) { EXPECT_EQ(StallsAt(watch_, usual_ms_), kNever); }

TEST_F(StallTest, BehindTheEndOfARankNothingElseIsLong) {
  EXPECT_EQ(StallsBehindEndAt(watch_, usual_ms_), kNever);
  Steps(20, 1'000);
  EXPECT_EQ(StallsBehindEndAt(watch_, usual_ms_) - now_, kStallFirstMs);
  EXPECT_EQ(StallsBehindEndAt(watch_, kStallFirstMs) - now_, kStallTimesUsual * kStallFirstMs);
  watch_.told = true;
  EXPECT_EQ(StallsBehindEndAt(watch_, usual_ms_), kNever);
}

TEST_F(StallTest, TheFirstStepsMayTakeLong) {
  Steps(1, 0);
  EXPECT_EQ(Patience(), kStallFirstMs);
  Steps(kStallUnusualSteps, 200'000);
  EXPECT_EQ(Patience(), kStallFirstMs);
  Steps(kStallKnownSteps - kStallUnusualSteps - 1, 1'000);
  EXPECT_EQ(Patience(), kStallEarlyMs) << "what the very first took says nothing of the others";
  Steps(1, 1'000);
  EXPECT_EQ(Patience(), kStallLeastMs);
}

TEST_F(StallTest, AFewStepsSayLittleOfTheOthers) {
  Steps(1 + kStallUnusualSteps, 1'000);
  Steps(1, 20'000);
  EXPECT_EQ(Patience(), 200'000);
  Steps(1, 40'000);
  EXPECT_EQ(Patience(), kStallFirstMs) << "no more than behind the very first";
}

TEST_F(StallTest, ItsOwnUsualGapCounts) {
  Steps(1 + kStallKnownSteps, 1'000);
  Steps(3, 1'000);
  EXPECT_EQ(Patience(), kStallLeastMs);
  Steps(1, 9'000);
  Steps(3, 1'000);
  EXPECT_EQ(Patience(), 18'000);
}

TEST_F(StallTest, OneIsToldOnceAndIsAGapWhenItIsOver) {
  Steps(20, 1'000);
  now_ += kStallLeastMs;
  watch_.told = true;
  EXPECT_EQ(StallsAt(watch_, usual_ms_), kNever);
  EXPECT_FALSE(SawStep(watch_, step_, usual_ms_, now_)) << "the same step, of another node";
  EXPECT_TRUE(watch_.told);
  now_ += 30'000;
  EXPECT_EQ(SawStep(watch_, ++step_, usual_ms_, now_), kStallLeastMs + 30'000);
  EXPECT_EQ(Patience(), 2 * (kStallLeastMs + 30'000));
}

// Steps of 10 ms to a minute, each of which takes half its usual time to twice that, seen in beats.
TEST_F(StallTest, NoJobWithJitteryStepsIsTold) {
  std::mt19937 random(7);
  for (int job = 0; job < 1'000; ++job) {
    const double mean_ms = 10 * std::pow(6'000, std::uniform_real_distribution<>(0, 1)(random));
    std::uniform_real_distribution<> jitter(0.5, 2.0);
    StallWatch watch;
    int64_t usual_ms = 0;
    double next_step_at = 5'000;
    int64_t step = 0;
    for (Instant now = 0; now < 3'000'000; now += 1'000) {
      for (; next_step_at <= static_cast<double>(now); next_step_at += mean_ms * jitter(random)) ++step;
      if (step > 0) SawStep(watch, step, usual_ms, now);
      ASSERT_LT(now, StallsAt(watch, usual_ms)) << "job " << job << ", " << mean_ms << " ms a step, step " << step;
    }
  }
}

TEST_F(StallTest, ASaveIsNone) {
  Steps(20, 1'000);
  now_ += 11'000;
  SawSaving(watch_, now_);
  EXPECT_EQ(Patience(), kStallLeastMs);
  Steps(1, 1'000);
  EXPECT_EQ(usual_ms_, 1'000);
}

TEST_F(StallTest, ANewLifeKnowsWhatIsUsual) {
  Steps(20, 20'000);
  watch_ = StallWatch();
  Steps(1 + kStallKnownSteps, 1'000);
  EXPECT_EQ(Patience(), 40'000);
}

}  // namespace
}  // namespace phalanx::master
