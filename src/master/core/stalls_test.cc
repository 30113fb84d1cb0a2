#include "master/core/stalls.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/core/convert.h"
#include "master/core/job_fixture.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

class Stalls : public testing::Test {
 protected:
  Stalls() {
    a_ = job_.Attach("a");
    b_ = job_.Attach("b");
    job_.AllStep();
  }

  void Beat(uint64_t session, int64_t min_step, int64_t max_step) {
    v1::Beat beat;
    beat.set_epoch(job_.Epoch());
    beat.set_min_step(min_step);
    beat.set_max_step(max_step);
    job_.Say(session, beat);
  }
  // Both nodes make a step a second, up to `step`.
  void StepTo(int64_t step) {
    for (int64_t at = step_ + 1; at <= step; ++at) {
      Tell(at);
      Tell(at);
    }
    step_ = step;
  }
  // Half a second; both nodes beat.
  void Tell(int64_t step) {
    job_.now += 500;
    if (NextDeadline(job_.state) <= job_.now) job_.Send(Tick{});
    Beat(a_, step, step);
    Beat(b_, step, step);
  }
  std::vector<std::string> Told(const std::string& kind) const { return job_.Records(kind); }
  // Rank 0, of node a, alone calls phalanx.step, and its training began at step 1,000. Some ranks of node b come no
  // farther than their step `least_of_b`.
  std::vector<std::string> HangWhereOneRankTells(int64_t least_of_b) {
    for (int i = 0; i < 80; ++i) {
      job_.now += 500;
      const int64_t made = std::min<int64_t>(2 + i / 2, 21);
      BeatOf(a_, 1, made, made);
      BeatOf(b_, 0, std::min(made, least_of_b), made);
    }
    return Told("stalled");
  }
  void BeatOf(uint64_t session, uint32_t told, int64_t least, int64_t most) {
    v1::Beat beat;
    beat.set_epoch(job_.Epoch());
    beat.set_told_ranks(told);
    beat.set_min_step(told > 0 ? 1'000 + most : least);
    beat.set_max_step(told > 0 ? 1'000 + most : most);
    if (told > 0) beat.mutable_progress()->set_step(1'000 + most);
    beat.set_min_optimizer_steps(least);
    beat.set_max_optimizer_steps(most);
    job_.Say(session, beat);
  }

  JobFixture job_{2, 2};
  uint64_t a_ = 0;
  uint64_t b_ = 0;
  int64_t step_ = 1;
};

TEST_F(Stalls, IsToldOnceOnAllNodesWithWhatIsUsual) {
  StepTo(20);
  for (int i = 0; i < 22; ++i) Tell(20);
  EXPECT_THAT(Told("stalled"), IsEmpty());
  for (int i = 0; i < 5; ++i) Tell(20);
  EXPECT_THAT(Told("stalled"), ElementsAre("no step for 12 s (usually within 1 s): all ranks are at step 20"));
  for (const uint64_t session : {a_, b_}) {
    EXPECT_EQ(job_.told[session].notices.back(), "no step for 12 s (usually within 1 s): all ranks are at step 20");
  }
  EXPECT_THAT(StatusOf(job_.state, job_.now).reason(),
              HasSubstr("; no step for 14 s (usually within 1 s): all ranks are at step 20"));
  StepTo(21);
  EXPECT_THAT(Told("stall-over"), ElementsAre("steps go on, after 14.5 s without one"));
  EXPECT_THAT(StatusOf(job_.state, job_.now).reason(), testing::Not(HasSubstr("no step")));
  StepTo(30);
  for (int i = 0; i < 50; ++i) Tell(30);
  EXPECT_EQ(Told("stalled").size(), 1U) << "25 s are not long where 14.5 s were usual";
}

TEST_F(Stalls, NamesWhoIsBehind) {
  StepTo(20);
  for (int i = 0; i < 30; ++i) {
    job_.now += 500;
    Beat(a_, 21, 21);
    Beat(b_, 20, 21);
  }
  EXPECT_THAT(Told("stalled"), ElementsAre(HasSubstr("the others are at step 21, some ranks of node b at step 20")));
}

TEST_F(Stalls, RanksThatTellAreComparedWithOthersByTheirOptimizers) {
  EXPECT_THAT(HangWhereOneRankTells(21), ElementsAre(HasSubstr(": all ranks are at step 21 of the optimizer")));
}

TEST_F(Stalls, WhoIsBehindByItsOptimizerIsNamed) {
  EXPECT_THAT(HangWhereOneRankTells(19),
              ElementsAre(HasSubstr("the others are at step 21 of the optimizer, some ranks of node b at its "
                                    "19")));
}

TEST_F(Stalls, OfALifeThatHasJustBegunNothingIsUsual) {
  StepTo(3);
  for (int i = 0; i < 100; ++i) Tell(3);
  EXPECT_THAT(Told("stalled"), IsEmpty());
}

TEST_F(Stalls, TrainingThatWaitsForACheckpointDoesNotStall) {
  StepTo(20);
  for (int i = 0; i < 60; ++i) {
    job_.now += 500;
    v1::Beat beat;
    beat.set_epoch(job_.Epoch());
    beat.set_min_step(20);
    beat.set_max_step(20);
    beat.mutable_progress()->set_saving_ms(1'000 + i * 500);
    job_.Say(a_, beat);
    Beat(b_, 20, 20);
  }
  EXPECT_THAT(Told("stalled"), IsEmpty());
}

TEST_F(Stalls, ARankThatHasEndedMakesNoSteps) {
  StepTo(20);
  job_.Exit(b_, JobFixture::Ended(0, 0));
  for (int i = 0; i < 60; ++i) Tell(20);
  EXPECT_THAT(Told("stalled"), IsEmpty());
}

// A last export takes its time, and hung ranks look the same: it is told, and nothing is decided by it.
TEST_F(Stalls, BehindARankThatEndedWellTheOthersAreToldOfLater) {
  job_.state.spec->set_hang_timeout_ms(60'000);
  StepTo(20);
  const uint64_t before = job_.Epoch();
  job_.Exit(b_, JobFixture::Ended(0, 0));
  for (int i = 0; i < 590; ++i) Tell(20);
  EXPECT_THAT(Told("stalled-behind-end"), IsEmpty());
  for (int i = 0; i < 200; ++i) Tell(20);
  const std::string text =
      " has ended with 0 and 3 of 4 ranks have not, with no step for 300 s: they do their last work, or wait for a "
      "rank "
      "that has ended";
  EXPECT_THAT(Told("stalled-behind-end"), ElementsAre(HasSubstr(text)));
  EXPECT_THAT(job_.told[a_].notices.back(), HasSubstr(text));
  EXPECT_THAT(StatusOf(job_.state, job_.now).reason(),
              HasSubstr("; rank 2 has ended with 0 and 3 of 4 ranks have not"));
  EXPECT_THAT(Told("stalled"), IsEmpty());
  EXPECT_EQ(job_.Epoch(), before);
}

TEST_F(Stalls, AHangTimeoutEndsTheLifeAsAFailureDoes) {
  job_.state.spec->set_hang_timeout_ms(60'000);
  StepTo(20);
  const uint64_t before = job_.Epoch();
  for (int i = 0; i < 118; ++i) Tell(20);
  EXPECT_EQ(job_.Epoch(), before);
  for (int i = 0; i < 4; ++i) Tell(20);
  EXPECT_EQ(job_.Epoch(), before + 1);
  EXPECT_EQ(
      job_.state.round->reason,
      "no step for 60 s (usually within 1 s): all ranks are at step 20: --hang-timeout=60 s is over, restart 1 of 3");
  EXPECT_EQ(Told("hang").size(), 1U);
  EXPECT_EQ(NextDeadline(job_.state) > job_.now, true);
}

TEST_F(Stalls, AHangBeforeTheFirstStepIsOneAndTheBudgetEnds) {
  job_.state.spec->set_hang_timeout_ms(60'000);
  job_.state.spec->set_max_restarts(1);
  job_.state.SetSpec(v1::JobSpec(*job_.state.spec));
  for (int life = 0; life < 2; ++life) {
    for (int i = 0; i < 122; ++i) Tell(0);
  }
  ASSERT_TRUE(job_.state.outcome);
  EXPECT_EQ(job_.state.outcome->exit_code, 1);
  EXPECT_THAT(job_.state.outcome->reason, HasSubstr("--hang-timeout=60 s is over; --max-restarts=1 is used up"));
}

TEST_F(Stalls, WhatSaysNothingAboutRanksIsNoHang) {
  job_.state.spec->set_hang_timeout_ms(60'000);
  StepTo(20);
  const uint64_t before = job_.Epoch();
  for (int i = 0; i < 300; ++i) {  // a stall was told of, and then training waits for a checkpoint
    job_.now += 500;
    v1::Beat beat;
    beat.set_epoch(job_.Epoch());
    beat.set_min_step(20);
    beat.set_max_step(20);
    if (i > 60) beat.mutable_progress()->set_saving_ms(i * 500);
    job_.Say(a_, beat);
    Beat(b_, 20, 20);
  }
  EXPECT_EQ(job_.Epoch(), before);
  job_.now += 100'000;  // the master itself stood still
  Beat(a_, 20, 20);
  Beat(b_, 20, 20);
  EXPECT_EQ(job_.Epoch(), before);
}

// A network that is away for less than a lease that is longer than the hang's time.
TEST_F(Stalls, WhoIsSilentAndBelievedHasNotHung) {
  job_.state.spec->set_hang_timeout_ms(5'000);
  StepTo(20);
  const uint64_t before = job_.Epoch();
  for (auto& [session, node] : job_.state.nodes) node.lease_ms = 15'000;
  job_.Pass(10'000, {a_, b_});
  EXPECT_EQ(job_.Epoch(), before);
  EXPECT_TRUE(job_.Records("hang").empty());
}

// What its nodes have told meanwhile, it has not read yet; and the next gap is not as long as it stood still.
TEST_F(Stalls, AMasterThatStoodStillSeesNoStallInThat) {
  StepTo(40);
  const int64_t usual_ms = job_.state.usual_gap_ms;
  job_.now += 60'000;
  job_.Send(Tick{});
  EXPECT_EQ(job_.Records("master-stalled").size(), 1U);
  EXPECT_TRUE(job_.Records("stalled").empty());
  Tell(41);
  EXPECT_LT(job_.state.usual_gap_ms, usual_ms + 10'000);
}

// Saves are numbered by epochs: a minute from one to the next, in which the optimizers step.
TEST_F(Stalls, WhoTellsOfSavesAloneTrainsBetweenThem) {
  job_.state.spec->set_hang_timeout_ms(20'000);
  const uint64_t before = job_.Epoch();
  for (int i = 0; i < 240; ++i) {
    job_.now += 500;
    if (NextDeadline(job_.state) <= job_.now) job_.Send(Tick{});
    for (const uint64_t session : {a_, b_}) {
      v1::Beat beat;
      beat.set_epoch(job_.Epoch());
      beat.set_told_ranks(1);
      beat.mutable_progress()->set_step(1 + i / 120);
      beat.set_min_step(1 + i / 120);
      beat.set_max_step(1 + i / 120);
      beat.set_min_optimizer_steps(2 + i);
      beat.set_max_optimizer_steps(2 + i);
      job_.Say(session, beat);
    }
  }
  EXPECT_THAT(Told("stalled"), IsEmpty());
  EXPECT_EQ(job_.Epoch(), before);
}

TEST_F(Stalls, WithoutATimeoutAHangIsOnlyTold) {
  StepTo(20);
  const uint64_t before = job_.Epoch();
  for (int i = 0; i < 2'000; ++i) Tell(20);
  EXPECT_EQ(job_.Epoch(), before);
}

}  // namespace
}  // namespace phalanx::master
