// Planned changes: ranks that want to come to a safe point first.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/core/job_fixture.h"

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;

class Rescale : public ::testing::Test {
 protected:
  Rescale() {
    job_.spec.set_rescale_grace_ms(5'000);
    job_.state.SetSpec(job_.spec);
    job_.wants_safe_point = true;
    a_ = job_.Attach("a");
    job_.Pass(300);
    job_.AllStep();
  }

  // A second node comes, and is to be taken in.
  void Grow() {
    b_ = job_.Attach("b");
    job_.Pass(kGrowQuietMs);
  }

  void Step(uint64_t session, int64_t step, bool told = false) {
    v1::Beat beat;
    beat.set_epoch(job_.Epoch());
    beat.set_min_step(step);
    beat.set_max_step(step);
    if (told) beat.mutable_progress()->set_step(step);
    job_.Say(session, beat);
  }

  void Leave(uint64_t session) {
    v1::Leaving leaving;
    leaving.set_signal(15);
    leaving.set_waits(true);
    job_.Say(session, leaving);
  }

  void Yield(uint64_t session, uint32_t local_rank) {
    v1::WorkerExited exit = JobFixture::Ended(local_rank, 0);
    exit.set_for_rescale(true);
    job_.Exit(session, exit);
  }

  // Every node that was asked answers so.
  void AllAnswer(uint32_t asked, bool reached) {
    const std::vector<ToldRescale> announced = job_.announced;  // an answer may bring another
    for (const ToldRescale& announce : announced) job_.SafePoint(announce, asked, reached);
  }

  // The step that was announced when all nodes had told how far they are; 0: none was.
  int64_t SafeStep() const { return job_.announced.empty() ? 0 : job_.announced.back().at_step; }

  JobFixture job_{1, 3, 0};
  uint64_t a_ = 0;
  uint64_t b_ = 0;
};

TEST_F(Rescale, GrowthWaitsForTheSafePoint) {
  Grow();
  ASSERT_EQ(job_.announced.size(), 1U);
  EXPECT_EQ(job_.announced[0].session, a_);
  AllAnswer(2, false);
  job_.Pass(1'000);
  EXPECT_EQ(job_.Epoch(), 1U);
  AllAnswer(2, true);
  EXPECT_EQ(job_.Epoch(), 2U);
  EXPECT_EQ(job_.state.round->reason, "node b joined: 1 -> 2 nodes");
  EXPECT_EQ(job_.state.round->rescale_by, kNever);
}

TEST_F(Rescale, ANodeThatIsReadyMeanwhileIsTakenInWithTheOthers) {
  Grow();
  AllAnswer(2, false);
  const uint64_t c = job_.Attach("c");
  job_.Pass(kGrowQuietMs);
  job_.Send(Tick{});
  EXPECT_GT(NextDeadline(job_.state), job_.now);
  AllAnswer(2, true);
  EXPECT_EQ(job_.Ranks(), (std::vector<uint64_t>{a_, b_, c}));
}

TEST_F(Rescale, CollateralOfANodeThatIsAboutToLeaveCostsNothing) {
  Grow();
  AllAnswer(0, true);
  ASSERT_EQ(job_.Epoch(), 2U);
  Leave(b_);
  job_.Exit(a_, JobFixture::Collateral(0));  // b has not waited for the others
  job_.Detach(b_);
  EXPECT_EQ(job_.Epoch(), 3U);
  EXPECT_EQ(job_.Ranks(), (std::vector<uint64_t>{a_}));
  EXPECT_EQ(job_.state.budget.used, 0U);
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
}

TEST_F(Rescale, GrowthCostsNothingWhereNobodyHearsOfIt) {
  Grow();
  AllAnswer(0, true);
  EXPECT_EQ(job_.Epoch(), 2U);
}

TEST_F(Rescale, TheGraceIsAllThatIsWaited) {
  Grow();
  AllAnswer(2, false);
  job_.Pass(4'999);
  EXPECT_EQ(job_.Epoch(), 1U);
  job_.Pass(1);
  EXPECT_EQ(job_.Epoch(), 2U);
  EXPECT_EQ(job_.Records("rescale-grace-over").size(), 1U);
}

TEST_F(Rescale, WithoutAGraceNobodyIsAsked) {
  job_.spec.set_rescale_grace_ms(0);
  job_.state.SetSpec(job_.spec);
  Grow();
  EXPECT_TRUE(job_.announced.empty());
  EXPECT_EQ(job_.Epoch(), 2U);
}

TEST_F(Rescale, ANodeThatLeavesIsWaitedFor) {
  Grow();
  AllAnswer(0, true);
  job_.announced.clear();
  Leave(b_);
  ASSERT_EQ(job_.announced.size(), 2U);
  EXPECT_EQ(job_.Epoch(), 2U);
  AllAnswer(1, true);
  EXPECT_EQ(job_.Epoch(), 3U);
  EXPECT_EQ(job_.Ranks(), std::vector<uint64_t>{a_});
  EXPECT_THAT(job_.told[b_].holds, ::testing::ElementsAre(2U));
  EXPECT_EQ(job_.state.round->reason, "node b left (SIGTERM): 2 -> 1 nodes");
  EXPECT_EQ(job_.state.budget.used, 0U);
}

TEST_F(Rescale, ANodeThatGoesWhileItIsWaitedForIsNotWaitedForAnyMore) {
  Grow();
  AllAnswer(0, true);
  job_.announced.clear();
  Leave(b_);
  AllAnswer(1, false);
  job_.Detach(b_);
  EXPECT_EQ(job_.Epoch(), 3U);
  EXPECT_EQ(job_.Ranks(), std::vector<uint64_t>{a_});
}

// It is a member as long as it waits.
TEST_F(Rescale, ANodeThatWaitsToLeaveHearsOfTheEnd) {
  Grow();
  AllAnswer(0, true);
  Leave(b_);
  job_.Kill(a_, 0);
  ASSERT_EQ(job_.state.phase, Phase::kFinished) << "--max-restarts=0";
  ASSERT_TRUE(job_.told[b_].outcome);
  EXPECT_EQ(job_.told[b_].outcome->exit_code(), 1);
}

TEST_F(Rescale, ANodeThatWaitsToLeaveIsHeldWhileTheLastSaveIsStored) {
  Grow();
  AllAnswer(0, true);
  job_.SealForStorage(10);
  Leave(b_);
  job_.Kill(a_, 0);
  ASSERT_EQ(job_.state.phase, Phase::kFinished);
  EXPECT_FALSE(job_.told[b_].outcome);
  EXPECT_THAT(job_.told[b_].holds, ::testing::ElementsAre(2U));
}

TEST_F(Rescale, TheLastNodeLeavesWhenItsRanksAreSafe) {
  Leave(a_);
  AllAnswer(2, false);
  job_.Pass(1'000);
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
  AllAnswer(2, true);
  EXPECT_EQ(job_.state.phase, Phase::kFinished);
  ASSERT_TRUE(job_.told[a_].outcome);
  EXPECT_EQ(job_.told[a_].outcome->exit_code(), 143);
}

TEST_F(Rescale, TheLastNodeLeavesAtOnceWhereNobodyHearsOfIt) {
  Leave(a_);
  AllAnswer(0, true);
  EXPECT_EQ(job_.state.phase, Phase::kFinished);
}

TEST_F(Rescale, TheLastNodeIsNotWaitedForForEver) {
  Leave(a_);
  AllAnswer(2, false);
  job_.Pass(5'000);
  EXPECT_EQ(job_.state.phase, Phase::kFinished);
}

TEST_F(Rescale, AllNodesLeaveTogetherWhenAllAreSafe) {
  Grow();
  AllAnswer(0, true);
  ASSERT_EQ(job_.Epoch(), 2U);
  job_.AllStep();
  job_.announced.clear();
  Leave(a_);
  Leave(b_);
  AllAnswer(2, false);
  job_.Pass(1'000);
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
  AllAnswer(2, true);
  EXPECT_EQ(job_.state.phase, Phase::kFinished);
  EXPECT_TRUE(job_.told[a_].outcome && job_.told[b_].outcome);
}

TEST_F(Rescale, AnotherNodeTakesOverFromTheLastThatLeaves) {
  Leave(a_);
  AllAnswer(2, false);
  b_ = job_.Attach("b");
  AllAnswer(2, true);
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
  EXPECT_EQ(job_.Epoch(), 2U);
}

TEST_F(Rescale, AWorkThatIsDoneIsNotBegunAgain) {
  Grow();
  const std::vector<ToldRescale> announced = job_.announced;
  job_.Exit(a_, JobFixture::Ended(0, 0));  // before anybody has been told where to save
  for (const ToldRescale& announce : announced) job_.SafePoint(announce, 2, false);
  EXPECT_EQ(job_.state.round->rescale_by, kNever);
  job_.Exit(a_, JobFixture::Ended(1, 0));
  EXPECT_EQ(job_.Epoch(), 1U);
  EXPECT_EQ(job_.state.phase, Phase::kFinished);
}

TEST_F(Rescale, ExitCodeZeroIsNotSuccess) {
  Grow();
  AllAnswer(2, false);
  Yield(a_, 0);
  Yield(a_, 1);
  EXPECT_EQ(job_.state.phase, Phase::kRunning) << "all ranks have ended with 0";
  EXPECT_EQ(job_.state.round->ranks_done, 0U);
  AllAnswer(2, true);
  EXPECT_EQ(job_.Epoch(), 2U);
}

TEST_F(Rescale, APeerOfARankThatMadeRoomHasNotFailed) {
  Grow();
  AllAnswer(2, false);
  Yield(a_, 0);
  job_.Exit(a_, JobFixture::Collateral(1));
  EXPECT_EQ(job_.state.phase, Phase::kRunning) << "--max-restarts=0";
  AllAnswer(2, true);
  EXPECT_EQ(job_.Epoch(), 2U);
}

TEST_F(Rescale, AFailureMeanwhileIsOne) {
  Grow();
  AllAnswer(2, false);
  job_.Kill(a_, 0);
  EXPECT_NE(job_.state.phase, Phase::kRunning) << "--max-restarts=0";
}

TEST_F(Rescale, ThosePlansThatNobodyHeardOfAreDropped) {
  Grow();
  job_.Detach(b_);
  AllAnswer(0, true);
  EXPECT_EQ(job_.Epoch(), 1U);
  EXPECT_EQ(job_.state.round->rescale_by, kNever);
  Grow();
  EXPECT_EQ(job_.announced.size(), 2U) << "asked anew for the next one";
}

TEST_F(Rescale, RanksThatHaveStoppedDoNotWaitForNodesThatWent) {
  Grow();
  AllAnswer(2, false);
  job_.Detach(b_);
  AllAnswer(2, true);
  EXPECT_EQ(job_.Epoch(), 2U);
  EXPECT_THAT(job_.state.round->reason, HasSubstr("have gone"));
}

TEST_F(Rescale, AMasterThatDoesNotKnowOfItEndsTheRound) {
  job_.SafePoint({a_, 1, 0}, 2, false);
  ASSERT_EQ(job_.announced.size(), 1U);
  AllAnswer(2, true);
  EXPECT_EQ(job_.Epoch(), 2U);
}

TEST_F(Rescale, TheSafePointLiesAheadOfAllRanks) {
  Step(a_, 100, true);
  job_.Pass(1'000);
  Step(a_, 150, true);  // 50 a second
  job_.now += 400;
  b_ = job_.Attach("b");
  job_.state.grow_at = job_.now;
  job_.Send(Tick{});
  ASSERT_EQ(job_.announced.size(), 1U);
  EXPECT_EQ(SafeStep(), 0) << "what beats have told is old";
  Step(a_, 170, true);
  AllAnswer(2, false);
  ASSERT_EQ(job_.announced.size(), 2U);
  EXPECT_EQ(SafeStep(), 170 + 1 + 26);  // 70 steps in 1.4 s, and one that may be almost done: 0.5 s ahead
  AllAnswer(2, false);
  EXPECT_EQ(job_.announced.size(), 2U) << "it is chosen once";
}

TEST_F(Rescale, StepsThatNoJobComesToGiveANumberYet) {
  Step(a_, 100, true);
  job_.Pass(1'000);
  Step(a_, INT64_MAX, true);
  job_.Pass(60'000);
  Grow();
  AllAnswer(2, false);
  AllAnswer(2, false);
  ASSERT_FALSE(job_.announced.empty());
  EXPECT_GT(SafeStep(), int64_t{1} << 48);
}

TEST_F(Rescale, TheSafePointIsChosenWhenAllNodesHaveAnswered) {
  Grow();
  AllAnswer(0, true);
  ASSERT_EQ(job_.Epoch(), 2U);
  job_.AllStep();
  job_.Pass(1'000);
  Step(a_, 80);
  job_.announced.clear();
  Leave(b_);
  ASSERT_EQ(job_.announced.size(), 2U);
  job_.SafePoint({a_, 2, 0}, 2, false);
  EXPECT_EQ(job_.announced.size(), 2U);
  Step(b_, 90);
  job_.SafePoint({b_, 2, 0}, 2, false);
  ASSERT_EQ(job_.announced.size(), 4U);
  EXPECT_EQ(SafeStep(), 90 + 1 + 45);
  EXPECT_EQ(job_.Records("safe-step").size(), 1U);
}

TEST_F(Rescale, ANodeThatIsLostBeforeItAnswersIsNotWaitedFor) {
  Grow();
  AllAnswer(0, true);
  job_.AllStep();
  job_.Pass(1'000);
  job_.announced.clear();
  const uint64_t c = job_.Attach("c");
  job_.Pass(kGrowQuietMs);
  ASSERT_EQ(job_.announced.size(), 2U);
  job_.SafePoint({a_, 2, 0}, 2, false);
  job_.Detach(b_);
  EXPECT_EQ(job_.Epoch(), 3U) << "its loss ends the round";
  EXPECT_EQ(job_.Ranks(), (std::vector<uint64_t>{a_, c}));
}

TEST_F(Rescale, ARoundTooYoungToHaveAPaceIsAskedAgain) {
  job_.now += 60;
  Step(a_, 7);
  b_ = job_.Attach("b");
  job_.state.grow_at = job_.now;
  job_.Send(Tick{});
  AllAnswer(2, false);
  ASSERT_EQ(job_.announced.size(), 1U) << "60 ms give no pace";
  EXPECT_EQ(NextDeadline(job_.state), job_.now + 440);
  job_.Pass(440);
  ASSERT_EQ(job_.announced.size(), 2U);
  EXPECT_EQ(SafeStep(), 0);
  Step(a_, 51);  // 100 a second since the first step
  AllAnswer(2, false);
  ASSERT_EQ(job_.announced.size(), 3U);
  EXPECT_EQ(SafeStep(), 51 + 1 + 51);
}

TEST_F(Rescale, RanksWithoutStepsComeToTheirSafePointAtOnce) {
  JobFixture job(1, 3, 0);
  job.spec.set_rescale_grace_ms(5'000);
  job.state.SetSpec(job.spec);
  job.wants_safe_point = true;
  const uint64_t a = job.Attach("a");
  job.Pass(300);
  job.Attach("b");
  job.state.grow_at = job.now;
  job.Send(Tick{});
  ASSERT_EQ(job.announced.size(), 1U);
  job.SafePoint({a, 1, 0}, 2, false);
  ASSERT_EQ(job.announced.size(), 2U);
  EXPECT_EQ(job.announced[1].at_step, 1);
}

TEST_F(Rescale, StepsOfTwoKindsGiveNoPace) {
  job_.now += 400;
  Step(a_, 10'000, true);  // a script that goes on from there: it has not made so many in 0.4 s
  Step(a_, 2);
  job_.Pass(600);
  b_ = job_.Attach("b");
  job_.state.grow_at = job_.now;
  job_.Send(Tick{});
  Step(a_, 10'004, true);
  AllAnswer(2, false);
  EXPECT_EQ(SafeStep(), 10'004 + 1 + 5);
}

}  // namespace
}  // namespace phalanx::master
