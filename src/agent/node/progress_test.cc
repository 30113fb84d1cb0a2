#include "agent/node/progress.h"

#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

constexpr int64_t kMs = 1'000'000;
constexpr int64_t kNow = 10'000 * kMs;

RankProgress Rank(int64_t step, int64_t from_step) {
  RankProgress rank;
  rank.slot.pid = 7;
  rank.slot.step = step;
  rank.slot.from_step = from_step;
  return rank;
}

TEST(Progress, ABeatTellsTheFirstAndTheLastOfTheRanks) {
  RankProgress counted = Rank(-1, -1);  // it tells nothing itself
  counted.slot.optimizer_steps = 4;
  v1::Beat beat;
  FillBeat({Rank(120, 101), counted, Rank(119, 100)}, kNow, beat);
  EXPECT_EQ(beat.min_step(), 119) << "the optimizer's steps of the others count otherwise";
  EXPECT_EQ(beat.max_step(), 120);
  EXPECT_EQ(beat.told_ranks(), 2U);
  EXPECT_EQ(beat.min_optimizer_steps(), 0);
  EXPECT_EQ(beat.max_optimizer_steps(), 4);
  EXPECT_EQ(beat.progress().step(), 120);
  v1::Beat untold;
  FillBeat({counted, Rank(-1, -1)}, kNow, untold);
  EXPECT_EQ(untold.min_step(), 0);
  EXPECT_EQ(untold.max_step(), 4);
  EXPECT_EQ(untold.told_ranks(), 0U);
  v1::Beat nothing;
  FillBeat({}, kNow, nothing);
  EXPECT_FALSE(nothing.has_progress());
}

TEST(Progress, PacesAreOfThoseThatKnowTheirSplit) {
  RankProgress split = Rank(120, 101);
  split.slot.split_steps = 18;
  split.slot.own_ns = 1'800 * kMs;
  split.slot.waited_ns = 200 * kMs;
  RankProgress untaken = split;
  untaken.slot.pid = 0;
  v1::Beat beat;
  FillPaces({Rank(120, 101), split, untaken}, beat);
  ASSERT_EQ(beat.paces_size(), 1);
  EXPECT_EQ(beat.paces(0).local_rank(), 1u);
  EXPECT_EQ(beat.paces(0).steps(), 18u);
  EXPECT_EQ(beat.paces(0).own_us(), 1'800'000);
  EXPECT_EQ(beat.paces(0).waited_us(), 200'000);
}

TEST(Progress, SaysNothingOfStepsThatNobodyTold) {
  RankProgress silent = Rank(-1, -1);
  silent.slot.optimizer_steps = 50;
  const v1::Progress progress = ProgressOf({silent, RankProgress{}}, kNow);
  EXPECT_FALSE(progress.has_step());
  EXPECT_FALSE(progress.has_from_step());
  EXPECT_FALSE(progress.has_caught_up_ms_ago());
  EXPECT_EQ(progress.saving_ms(), 0);
}

TEST(Progress, StepsAreThoseOfTheRanksThatTellThem) {
  RankProgress ahead = Rank(120, 101);
  ahead.slot.caught_up_ns = kNow - 700 * kMs;
  RankProgress behind = Rank(119, 100);
  behind.slot.caught_up_ns = kNow - 600 * kMs;
  const v1::Progress progress = ProgressOf({Rank(-1, -1), ahead, behind}, kNow);
  EXPECT_EQ(progress.step(), 120);
  EXPECT_EQ(progress.from_step(), 100);
  EXPECT_EQ(progress.caught_up_ms_ago(), 700);
}

TEST(Progress, AStepOfZeroIsTold) {
  const v1::Progress progress = ProgressOf({Rank(0, 0)}, kNow);
  EXPECT_TRUE(progress.has_step());
  EXPECT_TRUE(progress.has_from_step());
}

TEST(Progress, ASaveUnderWayCountsUpToNowAndThatOfADeadRankUpToItsEnd) {
  RankProgress saving = Rank(5, 0);
  saving.slot.saving_ns = 1'000 * kMs;
  saving.slot.saving_since_ns = kNow - 500 * kMs;
  EXPECT_EQ(ProgressOf({saving}, kNow).saving_ms(), 1'500);
  saving.ended_ns = kNow - 300 * kMs;
  EXPECT_EQ(ProgressOf({saving}, kNow).saving_ms(), 1'200);
  RankProgress other = Rank(5, 0);
  other.slot.saving_ns = 1'300 * kMs;
  EXPECT_EQ(ProgressOf({saving, other}, kNow).saving_ms(), 1'300) << "the rank with the most, not the sum";
}

}  // namespace
}  // namespace phalanx::agent
