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

// The first beat tells of twenty steps of 0.02 s, 8 s behind the begin of the life; then one hangs.
TEST_F(StallTest, QuickStepsAreKnownInOneBeat) {
  watch_ = StallWatch{.begun_at = now_, .behind = 0};
  SawStep(watch_, 20, usual_ms_, now_ += 8'000);
  EXPECT_EQ(Patience(), 16'000);
}

TEST_F(StallTest, QuickStepsAreKnownByTheLongestTimeToABeat) {
  watch_ = StallWatch{.begun_at = now_, .behind = 1'000};
  SawStep(watch_, 1'001, usual_ms_, now_ += 5'000);
  EXPECT_EQ(Patience(), kStallFirstMs);
  SawStep(watch_, 1'000 + kStallKnownSteps - 1, usual_ms_, now_ += 1'000);
  EXPECT_EQ(Patience(), kStallFirstMs);
  SawStep(watch_, 1'000 + kStallKnownSteps, usual_ms_, now_ += 1'000);
  EXPECT_EQ(Patience(), kStallLeastMs);
  SawStep(watch_, 1'100, usual_ms_, now_ += 40'000);
  EXPECT_EQ(Patience(), 80'000);
  SawStep(watch_, 1'200, usual_ms_, now_ += 200'000);
  EXPECT_EQ(Patience(), 2 * 200'000) << "taken for usual, as of the third beat with steps";
}

TEST_F(StallTest, ALongStartMakesQuickStepsNoLessKnownThanOthers) {
  watch_ = StallWatch{.begun_at = now_, .behind = 0};
  SawStep(watch_, 1, usual_ms_, now_ += 100'000);
  for (int beat = 1; beat <= kStallUnusualSteps + 1; ++beat) SawStep(watch_, 1 + 20 * beat, usual_ms_, now_ += 1'000);
  EXPECT_EQ(Patience(), kStallEarlyMs);
}

// Saves alone tell steps, a hundred at a time: what a life took to the first is no less than to the next.
TEST_F(StallTest, SavesAloneAreKnownByTheTimeToTheFirst) {
  watch_ = StallWatch{.begun_at = now_, .behind = 0};
  SawStep(watch_, 100, usual_ms_, now_ += 70'000);
  EXPECT_EQ(Patience(), 140'000);
}

TEST_F(StallTest, WithoutItsBeginALifeIsKnownFromTheStepThatIsSeenFirst) {
  SawStep(watch_, 500, usual_ms_, now_);
  EXPECT_EQ(Patience(), kStallFirstMs);
  SawStep(watch_, 510, usual_ms_, now_ += 1'000);
  EXPECT_EQ(Patience(), kStallLeastMs);
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

// Steps of 10 ms to a minute, each of which takes half its usual time to twice that, seen in beats. The first three may
// compile for up to three minutes each.
TEST_F(StallTest, NoJobWithJitteryStepsIsTold) {
  std::mt19937 random(7);
  for (int job = 0; job < 1'000; ++job) {
    const double mean_ms = 10 * std::pow(6'000, std::uniform_real_distribution<>(0, 1)(random));
    std::uniform_real_distribution<> jitter(0.5, 2.0);
    std::uniform_real_distribution<> compile_ms(0, job % 2 == 0 ? 180'000 : 0);
    StallWatch watch = job % 4 < 2 ? StallWatch{.begun_at = 0, .behind = 0} : StallWatch();
    int64_t usual_ms = 0;
    double next_step_at = 5'000;
    int64_t step = 0;
    for (Instant now = 0; now < 3'000'000; now += 1'000) {
      while (next_step_at <= static_cast<double>(now)) {
        next_step_at += mean_ms * jitter(random) + (++step < 3 ? compile_ms(random) : 0);
      }
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
