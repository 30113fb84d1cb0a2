#include "master/core/core.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/core/checks.h"
#include "master/core/convert.h"
#include "master/core/door.h"
#include "master/core/job_fixture.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

using Job = JobFixture;

// --- starting ---

TEST(Start, AtOnceWhenAllAreThere) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  EXPECT_THAT(job.told[a].notices, ElementsAre("waiting for 1 more node: 1 of 2 is there"));
  const uint64_t b = job.Attach("b", 3);
  ASSERT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
  const v1::StartRound& first = job.told[a].rounds.at(0);
  const v1::StartRound& second = job.told[b].rounds.at(0);
  EXPECT_EQ(first.world_size(), 5U);
  EXPECT_EQ(first.rank_base(), 0U);
  EXPECT_EQ(second.rank_base(), 2U);
  EXPECT_EQ(second.group_rank(), 1U);
  EXPECT_EQ(second.store_port(), 20'001U);
  EXPECT_EQ(second.store_address(), "10.0.0.1");
  EXPECT_EQ(second.restart_count(), 0U);
  EXPECT_EQ(second.max_restarts(), 3U);
  EXPECT_THAT(first.member_addresses(), ElementsAre("10.0.0.1"));
  EXPECT_THAT(second.member_addresses(), IsEmpty());
  EXPECT_EQ(job.told[b].reason, "all 2 nodes are there");
}

TEST(Start, AfterAGatherWindowWithoutArrival) {
  Job job(1, 3);
  const uint64_t a = job.Attach("a");
  job.Pass(250);
  const uint64_t b = job.Attach("b");
  job.Pass(299);
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  job.Pass(1);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
  EXPECT_EQ(job.told[a].reason, "2 of 1:3 nodes are there");
}

// As torchrun's: the time runs from when enough nodes are there.
TEST(Start, NewcomersDoNotRenewALastCallThatWasGiven) {
  for (const bool fixed : {true, false}) {
    Job job(1, 4);
    job.spec.set_last_call_ms(5'000);
    job.spec.set_last_call_fixed(fixed);
    job.state = JobState("job", job.spec);
    job.Attach("a");
    job.Pass(3'000);
    job.Attach("b");
    job.Pass(1'999);
    EXPECT_EQ(job.state.phase, Phase::kGathering);
    job.Pass(1);
    EXPECT_EQ(job.state.phase, fixed ? Phase::kRunning : Phase::kGathering);
  }
}

TEST(Start, LastCallSetsTheWindow) {
  Job job(1, 3);
  job.spec.set_last_call_ms(5'000);
  job.state = JobState("job", job.spec);
  job.Attach("a");
  job.Pass(4'999);
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  job.Pass(1);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

TEST(Start, BelowMinWaitsWithANoticeAndGivesUp) {
  Job job(2, 4);
  const uint64_t a = job.Attach("a");
  job.Pass(599'999);
  EXPECT_EQ(job.told[a].notices.size(), 20U);  // one at arrival, one each 30 s
  EXPECT_EQ(job.told[a].notices.at(1), "waiting for 1 more node: 1 of at least 2 is there; giving up in 570 s");
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  job.Pass(1);
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->exit_code(), 1);
  EXPECT_EQ(job.told[a].outcome->reason(), "1 of at least 2 nodes came within 600 s (--rdzv-conf join_timeout)");
}

TEST(Start, EnoughNodesEndTheWaitEvenWhereOneGoesAgain) {
  Job job(2, 4);
  const uint64_t a = job.Attach("a");
  job.Pass(599'900);
  job.Detach(job.Attach("b"));
  job.Pass(599'999);
  EXPECT_FALSE(job.told[a].outcome);
  job.Pass(1);
  EXPECT_TRUE(job.told[a].outcome);
}

TEST(Start, ANodeIsToldWhichOfItsFlagsDoNotCount) {
  Job job(3, 3);
  job.state = JobState();
  job.state.job_id = "job";
  job.Attach("a");
  v1::Hello other = job.Info("b");
  other.mutable_spec()->set_max_restarts(7);
  other.mutable_spec()->set_join_timeout_ms(60'000);
  const uint64_t b = job.Attach(other);
  EXPECT_EQ(job.told[b].notices.at(0),
            "what the job's first node was given counts: --max-restarts (not given there, 7 here), --rdzv-conf "
            "join_timeout (600 s there, 60 s here)");
  EXPECT_TRUE(job.told[b].welcome);
  EXPECT_FALSE(job.state.spec->has_max_restarts());
  EXPECT_EQ(job.told[job.Attach("c")].notices.size(), 0U);
}

TEST(Start, AMastersOwnFlagsCountForAllWithoutAWord) {
  Job job(2, 2);
  v1::Hello other = job.Info("a");
  other.mutable_spec()->set_max_restarts(7);
  EXPECT_EQ(job.told[job.Attach(other)].notices.size(), 1U);  // that one more is waited for
}

TEST(Start, NodesBeyondMaxAreSpares) {
  Job job(2, 2);
  job.Attach("a");
  job.Attach("b");
  const uint64_t c = job.Attach("c");
  EXPECT_TRUE(job.told[c].welcome);
  EXPECT_THAT(job.told[c].rounds, IsEmpty());
  EXPECT_THAT(job.told[c].notices, ElementsAre("all 2 places of job 'job' are taken: this node waits as a spare"));
  EXPECT_EQ(NodeStateText(job.state, job.state.nodes.at(c)), "spare");
  job.Pass(60'000);
  EXPECT_EQ(job.Epoch(), 1U);
}

// A token closes the job, and what its nodes call it is theirs.
TEST(Start, NodesMayCallAJobAsTheyLikeWhereTheirMasterSaysSo) {
  JobState state;
  state.job_id = "job";
  state.any_job_id = true;
  v1::Hello hello = TestHello("a", 1, TestSpec(2, 2));
  hello.set_job_id("fine-tuning");
  AgentAttached attached = AttachedOf(1, FirstMessage(hello), "");
  EXPECT_EQ(Refusal(state, attached, 0), std::nullopt);
  state.any_job_id = false;
  ASSERT_NE(Refusal(state, attached, 0), std::nullopt);
  EXPECT_TRUE(Refusal(state, attached, 0)->other_job());
}

// A node that was welcomed before has met the wrong master, and need not end.
TEST(Start, WhoIsOfAnotherJobIsToldSo) {
  Job job(2, 2);
  v1::Hello other = job.Info("a");
  other.set_job_id("other");
  EXPECT_TRUE(job.told[job.Attach(other)].other_job);
  v1::Hello wrong = job.Info("c", 0);
  const uint64_t c = job.Attach(wrong);
  EXPECT_THAT(job.told[c].refused, HasSubstr("0 workers on one node"));
  EXPECT_FALSE(job.told[c].other_job);
}

TEST(Start, OfManyRefusalsTheRecordHasTheFirstOfAMinute) {
  Job job(2, 2);
  v1::Hello other = job.Info("a");
  other.set_job_id("other");
  for (int i = 0; i < 100; ++i) job.Attach(other);
  ASSERT_EQ(job.Records("node-refused").size(), 8U);
  EXPECT_THAT(job.Records("node-refused")[7], HasSubstr("further ones within this minute are not told"));
  job.Pass(60'000);
  job.Attach(other);
  EXPECT_EQ(job.Records("node-refused").size(), 9U);
}

TEST(Start, StaticPlacesAreHonouredAndTakenOnce) {
  Job job(2, 2);
  v1::Hello first = job.Info("first");
  first.set_node_rank_wanted(0);
  v1::Hello second = job.Info("second");
  second.set_node_rank_wanted(1);
  const uint64_t b = job.Attach(second);
  v1::Hello again = job.Info("again");
  again.set_node_rank_wanted(1);
  const uint64_t c = job.Attach(again);
  EXPECT_EQ(
      job.told[c].refused,
      "--node-rank=1 is already taken by node second in job 'job': give each node its own, and another job another "
      "port");
  const uint64_t a = job.Attach(first);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
  // A free place may be taken again.
  job.Detach(b);
  const uint64_t d = job.Attach(again);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, d}));
}

TEST(Start, EpochsRiseAboveAllThatAgentsHaveSeen) {
  Job job(2, 2);
  job.Attach("a");
  v1::Hello old = job.Info("b");
  old.set_seen_epoch(41);
  const uint64_t b = job.Attach(old);
  EXPECT_EQ(job.told[b].rounds.at(0).epoch(), 42U);
  EXPECT_EQ(job.told[b].rounds.at(0).restart_count(), 0U);
}

// --- failures ---

TEST(Failure, CostsOneRestartAndKeepsRanks) {
  Job job(2, 2, 3);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.AllStep();
  job.Kill(b, 1);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
  EXPECT_EQ(job.Epoch(), 2U);
  EXPECT_EQ(job.told[a].reason, "rank 3 died (SIGKILL) on node b, restart 1 of 3");
  EXPECT_EQ(job.told[a].rounds.at(1).restart_count(), 1U);
  EXPECT_EQ(job.told[b].rounds.at(1).restart_count(), 1U);
  // Others of the round that is over cost nothing.
  job.Exit(a, Job::Collateral(0), 1);
  job.Kill(a, 1, 1);
  EXPECT_EQ(job.Epoch(), 2U);
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 2U);
}

TEST(Failure, AReportIsCountedOnce) {
  Job job(1, 1, 3);
  const uint64_t a = job.Attach("a");
  job.Kill(a, 0);
  job.Kill(a, 0, 1);
  job.Kill(a, 7);  // no such rank
  EXPECT_EQ(job.Epoch(), 2U);
}

TEST(Failure, NamesNodesOfOneHostByAddress) {
  Job job(2, 2);
  v1::Hello one = job.Info("a");
  v1::Hello two = job.Info("b");
  two.set_hostname("a");
  two.set_address("127.0.0.2");
  job.Attach(one);
  const uint64_t b = job.Attach(two);
  job.Kill(b, 1);
  EXPECT_EQ(job.told[b].reason, "rank 3 died (SIGKILL) on node 127.0.0.2, restart 1 of 3");
}

struct BudgetCase {
  std::optional<uint32_t> max_restarts;
  uint32_t survived;
  const char* verdict;
};

class MaxRestarts : public ::testing::TestWithParam<BudgetCase> {};

TEST_P(MaxRestarts, IsTheNumberOfFailuresSurvived) {
  Job job(1, 1, GetParam().max_restarts);
  const uint64_t a = job.Attach("a");
  for (uint32_t i = 0; i < GetParam().survived; ++i) {
    job.AllStep();
    job.Kill(a, 0);
    ASSERT_EQ(job.state.phase, Phase::kRunning) << i;
  }
  job.AllStep();
  job.Kill(a, 0);
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->exit_code(), 1);
  EXPECT_EQ(job.told[a].outcome->reason(), fmt::format("rank 0 died (SIGKILL) on node a; {}", GetParam().verdict));
  EXPECT_EQ(job.told[a].outcome->first_cause().exited().signal(), 9);
  EXPECT_EQ(job.told[a].outcome->restart_count(), GetParam().survived);
}

INSTANTIATE_TEST_SUITE_P(Table, MaxRestarts,
                         ::testing::Values(BudgetCase{0, 0, "--max-restarts=0 allows no restart"},
                                           BudgetCase{1, 1, "--max-restarts=1 is used up"},
                                           BudgetCase{5, 5, "--max-restarts=5 is used up"},
                                           BudgetCase{std::nullopt, 3, "all 3 restarts are used up"}));

TEST(Failure, TwoLivesWithoutAStepAreACrashLoopUnlessMaxRestartsWasGiven) {
  Job job(1, 1);
  const uint64_t a = job.Attach("a");
  job.Exit(a, Job::Ended(0, 3));
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  job.Exit(a, Job::Ended(0, 3));
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->reason(),
            "rank 0 failed (exit code 3) on node a; crash loop: 2 lives in a row ended without a step");

  Job given(1, 1, 5);
  const uint64_t b = given.Attach("b");
  for (int i = 0; i < 5; ++i) given.Exit(b, Job::Ended(0, 3));
  EXPECT_EQ(given.state.phase, Phase::kRunning);
}

TEST(Failure, StepsOfTheFailedRankCount) {
  Job job(1, 1);
  const uint64_t a = job.Attach("a");
  for (int i = 0; i < 3; ++i) {
    v1::WorkerExited exit = Job::Ended(0, 3);
    exit.set_steps(1);
    job.Exit(a, exit);
    EXPECT_EQ(job.state.phase, Phase::kRunning);
  }
}

TEST(Failure, AnHourOfStepsRenewsTheBudget) {
  Job job(1, 1);
  const uint64_t a = job.Attach("a");
  for (int i = 0; i < 3; ++i) {
    job.AllStep();
    job.Kill(a, 0);
  }
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 0U);
  job.AllStep();
  job.Pass(3'600'000 - 1);
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 0U);
  job.Pass(1);
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 3U);
  job.Kill(a, 0);
  EXPECT_EQ(job.told[a].reason, "rank 0 died (SIGKILL) on node a, restart 1 of 3");
}

TEST(Failure, AScriptThatCannotStartEndsTheJobAtOnce) {
  Job job(1, 1, 3);
  const uint64_t a = job.Attach("a");
  v1::WorkerExited exit = Job::Ended(1, 2);
  exit.set_script_started(false);
  job.Exit(a, exit);
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->reason(), "the script could not be started: rank 1 failed (exit code 2) on node a");
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 3U);
}

TEST(Failure, AScriptThatWasKilledBeforeItsFirstLineIsRestarted) {
  Job job(1, 1, 3);
  const uint64_t a = job.Attach("a");
  v1::WorkerExited exit = Job::Ended(1, 0);
  exit.set_signal(9);
  exit.set_script_started(false);
  job.Exit(a, exit);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  exit.set_signal(0);
  exit.set_exit_code(1);
  job.Exit(a, exit);  // a later life: it counts as any failure
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

// --- first cause ---

TEST(FirstCause, IsTheOwnDeathEvenWhereTheVictimWasFaster) {
  Job job(2, 2, 0);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Exit(a, Job::Collateral(0));
  EXPECT_EQ(job.state.phase, Phase::kBlaming);
  EXPECT_FALSE(job.told[a].outcome);
  job.Pass(50);
  job.Kill(b, 0);
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->SerializeAsString(), job.told[b].outcome->SerializeAsString());
  EXPECT_EQ(job.told[a].outcome->reason(), "rank 2 died (SIGKILL) on node b; --max-restarts=0 allows no restart");
  EXPECT_EQ(job.told[a].outcome->first_cause().rank(), 2U);
  EXPECT_EQ(job.told[a].outcome->others(0).rank(), 0U);
}

TEST(FirstCause, IsWhoEndedWellBeforeTheOthersHadLostIt) {
  Job job(2, 2, 1);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  v1::WorkerExited early = Job::Ended(0, 0);
  early.set_steps(12);
  job.Exit(b, early);
  job.Exit(a, Job::Collateral(0));
  EXPECT_EQ(job.told[a].reason,
            "rank 2 ended early (exit code 0, after step 12) on node b, then rank 0 failed (exit code 1) on node a, "
            "restart 1 of 1");
  EXPECT_THAT(job.Records("cause-refined"), ElementsAre(HasSubstr("rank 2 ended early")));
  job.Exit(b, Job::Ended(1, 0));  // of this life
  job.Exit(a, Job::Collateral(0));
  job.Pass(kBlameMs);
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->exit_code(), 1);
  EXPECT_EQ(job.told[a].outcome->first_cause().rank(), 3U);
  EXPECT_EQ(job.told[a].outcome->others(0).rank(), 0U);

  Job killed(2, 2, 0);
  const uint64_t c = killed.Attach("c");
  const uint64_t d = killed.Attach("d");
  killed.Exit(d, early);
  killed.Kill(c, 0);
  ASSERT_TRUE(killed.told[c].outcome);
  EXPECT_EQ(killed.told[c].outcome->first_cause().rank(), 0U) << "nobody but itself";
}

TEST(FirstCause, IsNotWaitedForWithoutEnd) {
  Job job(2, 2, 0);
  const uint64_t a = job.Attach("a");
  job.Attach("b");
  job.Exit(a, Job::Collateral(0));
  job.Pass(kBlameMs - 1);
  EXPECT_EQ(job.state.phase, Phase::kBlaming);
  job.Pass(1);
  EXPECT_EQ(job.state.phase, Phase::kFinished);
}

TEST(FirstCause, IsNotWaitedForWhenAllRanksHaveEnded) {
  Job job(1, 1, 0);
  const uint64_t a = job.Attach("a");
  job.Exit(a, Job::Collateral(0));
  job.Exit(a, Job::Ended(1, 0));
  EXPECT_EQ(job.state.phase, Phase::kFinished);
}

TEST(FirstCause, LateReportsRefineTheRecord) {
  Job job(2, 2, 3);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Exit(a, Job::Collateral(0));
  EXPECT_EQ(job.Epoch(), 2U);
  job.Kill(b, 1, 1);
  EXPECT_THAT(job.Records("cause-refined"),
              ElementsAre("the first cause of the end of epoch 1: rank 3 died (SIGKILL) on node b"));
  EXPECT_EQ(job.Epoch(), 2U);
}

TEST(FirstCause, CollateralOfALostNodeCostsNothing) {
  Job job(1, 2, 0);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Exit(a, Job::Collateral(0));
  EXPECT_EQ(job.state.phase, Phase::kBlaming);
  job.Detach(b);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a}));
  EXPECT_EQ(job.told[a].reason, "node b was lost (its stream broke): 2 -> 1 nodes");

  Job kept(1, 2, 1);
  const uint64_t c = kept.Attach("c");
  const uint64_t d = kept.Attach("d");
  kept.Exit(c, Job::Collateral(0));
  EXPECT_EQ(RestartsLeft(kept.state.budget, kept.now), 0U);
  kept.Detach(d);
  EXPECT_EQ(RestartsLeft(kept.state.budget, kept.now), 1U);
}

TEST(FirstCause, CollateralOfANodeThatLeavesCostsNothing) {
  Job job(1, 2, 0);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Exit(a, Job::Collateral(0));
  EXPECT_EQ(job.state.phase, Phase::kBlaming);
  job.Leave(b);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a}));
  EXPECT_EQ(job.told[a].reason, "node b left (SIGTERM): 2 -> 1 nodes");
}

// --- the end ---

TEST(End, IsAtOnceWhenAllRanksEndedWell) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a", 1);
  const uint64_t b = job.Attach("b", 1);
  const uint64_t spare = job.Attach("c", 1);
  job.Exit(a, Job::Ended(0, 0));
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  job.Exit(b, Job::Ended(0, 0));
  for (const uint64_t session : {a, b, spare}) {
    ASSERT_TRUE(job.told[session].outcome);
    EXPECT_EQ(job.told[session].outcome->exit_code(), 0);
  }
  // Who comes now hears the same.
  const uint64_t late = job.Attach("d", 1);
  ASSERT_TRUE(job.told[late].outcome);
  EXPECT_EQ(job.told[late].outcome->exit_code(), 0);
}

TEST(End, ARankThatEndedWellIsCountedOnce) {
  Job job(1, 1);
  const uint64_t a = job.Attach("a");
  job.Exit(a, Job::Ended(0, 0));
  job.Exit(a, Job::Ended(0, 0));
  EXPECT_EQ(job.state.phase, Phase::kRunning);
}

TEST(End, SomeWellAndOneFailedIsFailed) {
  Job job(1, 1, 0);
  const uint64_t a = job.Attach("a");
  job.Exit(a, Job::Ended(0, 0));
  job.Exit(a, Job::Ended(1, 3));
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->exit_code(), 1);
}

TEST(End, AFinishedNodeMayGo) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a", 1);
  const uint64_t b = job.Attach("b", 1);
  job.Exit(a, Job::Ended(0, 0));
  job.Detach(a);
  EXPECT_EQ(job.Epoch(), 1U);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  job.Exit(b, Job::Ended(0, 0));
  ASSERT_TRUE(job.told[b].outcome);
  EXPECT_EQ(job.told[b].outcome->exit_code(), 0);
}

TEST(End, AFinishedNodeWhoseStreamBrokeIsAwaited) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a", 1);
  const uint64_t b = job.Attach("b", 1);
  job.Exit(a, Job::Ended(0, 0));
  job.Detach(a);
  job.Exit(b, Job::Ended(0, 0));
  EXPECT_NE(job.state.back_by, kNever);
  const uint64_t again = job.Attach("a", 1);
  ASSERT_TRUE(job.told[again].outcome);
  EXPECT_EQ(job.state.back_by, kNever) << "all have been told";
}

TEST(End, AFinishedNodeThatLeftIsNotAwaited) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a", 1);
  const uint64_t b = job.Attach("b", 1);
  job.Exit(a, Job::Ended(0, 0));
  job.Leave(a);
  job.Detach(a);
  job.Exit(b, Job::Ended(0, 0));
  EXPECT_EQ(job.state.phase, Phase::kFinished);
  EXPECT_EQ(job.state.back_by, kNever);
}

// All ranks of two nodes have ended well, and their last save is on its way to storage. The manifest is a's to write.
class EndThatStores : public ::testing::Test {
 protected:
  EndThatStores() {
    a_ = job_.Attach("a", 1);
    b_ = job_.Attach("b", 1);
    job_.SealForStorage(10);
    for (const uint64_t session : {a_, b_}) job_.Exit(session, Job::Ended(0, 0));
  }

  Job job_{2, 2};
  uint64_t a_ = 0;
  uint64_t b_ = 0;
};

TEST_F(EndThatStores, ANodeWhoseStreamBreaksMeanwhileIsAwaited) {
  ASSERT_EQ(job_.state.phase, Phase::kFinished);
  EXPECT_FALSE(job_.told[a_].outcome) << "its save is not stored yet";
  job_.Detach(b_);  // which ends the store
  EXPECT_TRUE(job_.told[a_].outcome);
  EXPECT_NE(job_.state.back_by, kNever);
  const uint64_t again = job_.Attach("b", 1);
  ASSERT_TRUE(job_.told[again].outcome);
  EXPECT_EQ(job_.told[again].outcome->exit_code(), 0);
  EXPECT_EQ(job_.state.back_by, kNever) << "all have been told";
}

TEST_F(EndThatStores, ANodeThatIsBackBeforeItIsStoredIsToldWithTheOthers) {
  job_.PrepareStore(a_, 1, 10);
  job_.WriteShards(b_, 1, 10);
  job_.Detach(b_);
  EXPECT_FALSE(job_.told[a_].outcome) << "the store goes on without it";
  const uint64_t again = job_.Attach("b", 1);
  job_.Detach(again);
  const uint64_t third = job_.Attach("b", 1);
  EXPECT_FALSE(job_.told[third].outcome);
  job_.WriteShards(a_, 1, 10);
  job_.WriteManifest(a_, 1, 10);
  for (const uint64_t session : {a_, third}) EXPECT_TRUE(job_.told[session].outcome);
  EXPECT_EQ(job_.state.back_by, kNever) << "nobody is waited for";
}

TEST_F(EndThatStores, ANodeThatLeavesMeanwhileIsNotAwaited) {
  job_.Leave(b_);
  job_.Detach(b_);
  EXPECT_TRUE(job_.told[a_].outcome);
  EXPECT_EQ(job_.state.back_by, kNever);
}

TEST_F(EndThatStores, ItIsTimeForTheEndThoughANodeIsAway) {
  job_.PrepareStore(a_, 1, 10);
  job_.WriteShards(b_, 1, 10);
  job_.Detach(b_);
  job_.Pass(kStoreAtEndMs);
  EXPECT_TRUE(job_.told[a_].outcome);
  job_.Pass(4'000);
  EXPECT_EQ(job_.state.back_by, kNever) << "it has not come back";
}

TEST(End, AllNodesLeft) {
  Job job(1, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Leave(a);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{b}));
  job.Leave(b);
  EXPECT_EQ(job.state.phase, Phase::kFinished);
  EXPECT_EQ(job.state.reason, "job stopped: all nodes left (SIGTERM)");
  EXPECT_EQ(job.state.outcome->exit_code, 128 + 15);
}

// --- membership ---

TEST(Membership, ALostNodeIsReplacedByASpareAtOnce) {
  Job job(2, 2, 0);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  const uint64_t c = job.Attach("c");
  job.Detach(a);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{c, b}));
  EXPECT_EQ(job.told[b].reason, "node a was lost (its stream broke): node c takes over");
  EXPECT_EQ(job.told[b].rounds.at(1).store_port(), 20'003U);
  EXPECT_THAT(job.told[c].rounds.at(0).member_addresses(), ElementsAre("10.0.0.1"));
}

TEST(Membership, OnAShrinkTheHighestMovesIntoTheHole) {
  Job job(1, 4);
  std::vector<uint64_t> s;
  for (const char* name : {"a", "b", "c", "d"}) s.push_back(job.Attach(name));
  job.Leave(s[1]);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{s[0], s[3], s[2]}));
  EXPECT_EQ(job.told[s[0]].reason, "node b left (SIGTERM): 4 -> 3 nodes");
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 3U);
}

TEST(Membership, BelowMinTheRoundIsHeldUntilANodeComes) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Detach(a);
  EXPECT_THAT(job.told[b].holds, ElementsAre(1U));
  EXPECT_EQ(job.told[b].reason,
            "node a was lost (its stream broke): 1 of at least 2 nodes left, waiting up to 600 s for more");
  job.Pass(60'000);
  EXPECT_EQ(job.told[b].notices.size(), 2U);
  const uint64_t c = job.Attach("c");
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{c, b}));  // the survivor keeps its rank
  EXPECT_EQ(job.told[b].rounds.at(1).restart_count(), 1U);
  EXPECT_EQ(job.told[b].reason, "node c joined: all 2 nodes are there");
}

TEST(Membership, HeldTooLongEndsTheJob) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Pass(1'000'000);  // a deadline begins with the loss, not with the job
  job.Leave(a);
  job.Pass(599'999);
  EXPECT_FALSE(job.told[b].outcome);
  job.Pass(1);
  ASSERT_TRUE(job.told[b].outcome);
  EXPECT_EQ(job.told[b].outcome->exit_code(), 1);
}

TEST(Membership, GrowthIsGathered) {
  Job job(1, 4);
  const uint64_t a = job.Attach("a");
  job.Pass(1'000);
  const uint64_t b = job.Attach("b");
  job.Pass(2'000);
  const uint64_t c = job.Attach("c");
  job.Pass(2'999);
  EXPECT_EQ(job.Epoch(), 1U);
  job.Pass(1);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b, c}));
  EXPECT_EQ(job.told[a].reason, "nodes b, c joined: 1 -> 3 nodes");
  // The last place is filled at once.
  const uint64_t d = job.Attach("d");
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b, c, d}));
}

TEST(Membership, AJobThatTrainsDoesNotStopForANodeThatWarmsUp) {
  Job job(1, 3);
  const uint64_t a = job.Attach("a");
  job.Pass(1'000);
  v1::Hello info = job.Info("b");
  info.set_warming(true);
  const uint64_t b = job.Attach(info);
  job.Pass(20'000);
  EXPECT_EQ(job.Epoch(), 1U);
  job.Kill(a, 0);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a}));  // not for a failure either
  job.Say(b, v1::Ready());
  job.Pass(kGrowQuietMs);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
}

TEST(Membership, WarmingNodesStartAJobThatHasNobodyElse) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  v1::Hello info = job.Info("b");
  info.set_warming(true);
  const uint64_t b = job.Attach(info);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
  job.Detach(a);
  v1::Hello third = job.Info("c");
  third.set_warming(true);
  const uint64_t c = job.Attach(third);
  job.Pass(1'000);
  EXPECT_EQ(job.Ranks().size(), 2U);
  EXPECT_EQ(job.Ranks().front(), c);  // the fallen one's rank
}

TEST(Membership, NodesTrainInUnits) {
  Job job(2, 4, std::nullopt, 2);
  const uint64_t a = job.Attach("a");
  job.Pass(1'000);
  EXPECT_EQ(job.Epoch(), 0U);
  const uint64_t b = job.Attach("b");
  job.Pass(1'000);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
  const uint64_t c = job.Attach("c");
  job.Pass(60'000);
  EXPECT_EQ(job.Epoch(), 1U);  // a third makes no unit
  const uint64_t d = job.Attach("d");
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b, c, d}));
  // Of three that are left one waits, told to end its workers; a newcomer makes the unit whole again.
  job.Detach(b);
  EXPECT_EQ(job.Ranks().size(), 2U);
  const uint64_t spare = job.Ranks() == std::vector<uint64_t>{a, c} ? d : c;
  EXPECT_EQ(job.Ranks().front(), a);
  EXPECT_EQ(job.told[spare].holds, (std::vector<uint64_t>{2}));
  EXPECT_NE(job.told[spare].reason.find("--node-unit=2"), std::string::npos) << job.told[spare].reason;
  // What it tells last of the round that it was a member of still counts.
  v1::Beat last_words;
  last_words.set_epoch(2);
  last_words.mutable_progress()->set_step(77);
  job.Say(spare, last_words);
  EXPECT_EQ(job.state.last_step, 77);
  const uint64_t e = job.Attach("e");
  EXPECT_EQ(job.Ranks().size(), 4U);
  EXPECT_EQ(job.Ranks().front(), a);
  job.Detach(e);
  job.Detach(c);
  job.Detach(d);
  EXPECT_EQ(job.Epoch(), 0U);  // one of two: held
}

// Of an open job: a stranger must not wait for the rank of the next node that is lost.
TEST(Door, AnOpenJobTakesNoSparesFromElsewhere) {
  Job job(1, 2);
  job.state.open = true;
  uint64_t sessions = 100;
  const auto come = [&](const std::string& name, const std::string& peer) {
    job.Send(AttachedOf(++sessions, FirstMessage(job.Info(name), 20'000), peer));
    return sessions;
  };
  const uint64_t a = come("a", "10.0.0.1");
  const uint64_t b = come("b", "10.0.0.2");
  ASSERT_TRUE(job.told[a].welcome);
  ASSERT_TRUE(job.told[b].welcome) << "a place of --nnodes that nobody has";
  const std::string said = job.told[come("stranger", "10.0.0.66")].refused;
  EXPECT_THAT(said, HasSubstr("all 2 places of job 'job' are taken, and it is open"));
  EXPECT_FALSE(job.told[come("nobody knows from where", "")].welcome);
  EXPECT_TRUE(job.told[come("spare", "10.0.0.2")].welcome) << "its machine has a node";

  job.Pass(1'000);
  job.Detach(b);
  job.Pass(60'000);
  const uint64_t stranger = come("stranger", "10.0.0.66");
  EXPECT_FALSE(job.told[stranger].welcome) << "the spare has the place";
  EXPECT_TRUE(job.told[come("b", "10.0.0.3")].welcome) << "it was one of them";
  job.Detach(a);
  job.Pass(60'000);

  Job closed(1, 1);
  closed.Attach("a");
  EXPECT_TRUE(closed.told[closed.Attach("spare")].welcome);
}

// A machine may be replaced before the lease of the one that fell silent is over.
TEST(Door, AnOpenJobTakesWhoComesInTheSteadOfASilentNode) {
  Job job(2, 2);
  job.state.open = true;
  job.Send(AttachedOf(101, FirstMessage(job.Info("a"), 20'000), "10.0.0.1"));
  job.Send(AttachedOf(102, FirstMessage(job.Info("b"), 20'000), "10.0.0.2"));
  job.Pass(1'900, {102});
  job.Send(AttachedOf(103, FirstMessage(job.Info("early"), 20'000), "10.0.0.66"));
  EXPECT_FALSE(job.told[103].welcome) << "one beat may be late";
  job.Pass(500, {102});
  ASSERT_TRUE(job.state.nodes.contains(102)) << "it is not lost yet";
  job.Send(AttachedOf(104, FirstMessage(job.Info("c"), 20'000), "10.0.0.67"));
  EXPECT_TRUE(job.told[104].welcome);
}

TEST(Door, UnitsMustFit) {
  Job job(2, 4, std::nullopt, 2);
  v1::Hello odd = job.Info("odd");
  odd.mutable_spec()->set_max_nodes(5);
  EXPECT_EQ(job.told[job.Attach(odd)].refused, "--nnodes=2:5: expected multiples of --node-unit=2");
  v1::Hello other = job.Info("other");
  other.mutable_spec()->set_node_unit(1);
  EXPECT_EQ(job.told[job.Attach(other)].refused,
            "--node-unit=1 differs from the job's --node-unit=2: give the same on all nodes");
}

TEST(Membership, GrowthIsNotPutOffForEver) {
  Job job(1, 100);
  job.Attach("first");
  job.Pass(1'000);
  int nodes = 0;
  const Instant begin = job.now;
  while (job.Epoch() == 1) {
    job.Attach("n" + std::to_string(++nodes));
    job.Pass(2'000);
  }
  EXPECT_LE(job.now - begin, kGrowLimitMs + 2'000);
}

TEST(Membership, NoGrowthOnceAWorkerEndedWell) {
  Job job(1, 2);
  const uint64_t a = job.Attach("a");
  job.Pass(1'000);
  job.Exit(a, Job::Ended(0, 0));
  job.Attach("b");
  job.Pass(60'000);
  EXPECT_EQ(job.Epoch(), 1U);
}

TEST(Membership, WaitingNodesAreTakenWithAnyNewRound) {
  Job job(1, 4);
  const uint64_t a = job.Attach("a");
  job.Pass(1'000);
  const uint64_t b = job.Attach("b");
  job.Kill(a, 0);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
}

// --- leases ---

TEST(Lease, ASilentNodeIsLost) {
  Job job(1, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Pass(kLeaseMs - 1, {b});
  EXPECT_EQ(job.Epoch(), 1U);
  job.Pass(1, {b});
  EXPECT_TRUE(job.told[b].dropped);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a}));
  EXPECT_EQ(job.told[a].reason, "node b was lost (silent for 3 s): 2 -> 1 nodes");
}

TEST(Lease, ASilentSpareIsForgotten) {
  Job job(1, 1);
  job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Pass(5'000, {b});
  EXPECT_TRUE(job.told[b].dropped);
  EXPECT_EQ(job.Epoch(), 1U);
}

// For long, or for a moment behind a lease: whoever spoke long before is not lost by it.
TEST(Lease, AMasterThatStoodStillBlamesNobody) {
  for (const int64_t ms : {int64_t{60'000}, kLeaseMs + kMasterStallMs}) {
    Job job(1, 2);
    job.Attach("a");
    job.Attach("b");
    job.now += ms;
    job.Send(Tick{});
    EXPECT_EQ(job.Epoch(), 1U) << ms;
    EXPECT_EQ(job.Records("master-stalled").size(), 1U) << ms;
  }
}

// Else one that is late each time would never miss anybody.
TEST(Lease, AMasterThatStandsStillAgainAndAgainForgivesASilentNodeOnce) {
  Job job(1, 2);
  job.Attach("a");
  const uint64_t b = job.Attach("b");
  const uint64_t a = job.Ranks()[0] == b ? job.Ranks()[1] : job.Ranks()[0];
  job.now += kLeaseMs + kMasterStallMs;
  job.Send(Tick{});
  EXPECT_EQ(job.Epoch(), 1U);
  job.Say(a, v1::Beat());
  job.now += kLeaseMs + kMasterStallMs;
  job.Send(Tick{});
  EXPECT_TRUE(job.told[b].dropped);
  EXPECT_FALSE(job.told[a].dropped);
}

// Nobody has given up its stream within that: who goes now is lost at once.
TEST(Lease, AMasterThatStoodStillForAMomentWaitsForNobodyToComeBack) {
  Job job(1, 2);
  job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.AllStep();
  job.now += kLeaseMs + kMasterStallMs;
  job.Send(Tick{});
  job.Detach(b);
  EXPECT_EQ(job.Records("node-lost").size(), 1U);
}

// ... however long a silent node is believed.
TEST(Lease, AMasterLooksAsOftenAsUsuallyWhetherItStoodStill) {
  Job job(1, 2);
  job.state.spec->set_lease_ms(15'000);
  job.Attach("a");
  job.Attach("b");
  job.now += 5'000;
  job.Send(Tick{});
  EXPECT_EQ(job.Records("master-stalled").size(), 1U);
}

TEST(Lease, AJobMayAskForALongerOne) {
  Job job(1, 2);
  job.state.spec->set_lease_ms(15'000);
  job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Pass(15'000 - 1, {b});
  EXPECT_FALSE(job.told[b].dropped);
  job.Pass(1, {b});
  EXPECT_TRUE(job.told[b].dropped);
}

TEST(Lease, BeatsComeNoLessOftenForALongerOne) {
  EXPECT_EQ(LeaseMs(2, 15'000), 15'000);
  EXPECT_EQ(BeatIntervalMs(2, 15'000), 1'000);
  EXPECT_EQ(LeaseMs(2, 1'500), 1'500);
  EXPECT_EQ(BeatIntervalMs(2, 1'500), 500);
  EXPECT_EQ(LeaseMs(10'000, 1'500), LeaseMs(10'000));
  EXPECT_EQ(LeaseMs(10'000, 60'000), 60'000);
  EXPECT_EQ(BeatIntervalMs(10'000, 60'000), LeaseMs(10'000) / 3);
}

TEST(Lease, TheOnlyNodeOfAJobMayStandStill) {
  Job job(1, 1);
  const uint64_t a = job.Attach("a");
  job.AllStep();
  job.Pass(600'000, {a});
  EXPECT_EQ(job.Epoch(), 1U);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a}));
  // A spare would take over.
  const uint64_t b = job.Attach("b");
  job.Pass(10'000, {a});
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{b}));
}

TEST(Lease, GrowsWithTheJob) {
  EXPECT_EQ(LeaseMs(1), 3'000);
  EXPECT_EQ(LeaseMs(2'000), 3'000);
  EXPECT_EQ(LeaseMs(10'000), 15'000);
}

// --- streams ---

TEST(Stream, ANodeThatComesAgainIsANewcomerAndEndsItsOldWorkers) {
  Job job(2, 3);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  const uint64_t c = job.Attach("c");
  job.Detach(b);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, c}));
  v1::Hello again = job.Info("b");
  again.set_seen_epoch(1);
  again.mutable_live_round()->set_epoch(1);
  const uint64_t back = job.Attach(again);
  EXPECT_THAT(job.told[back].holds, ElementsAre(1U));
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, c, back}));  // max is reached: at once
  // It cannot fail the round that it is no part of.
  job.Kill(back, 0, 1);
  EXPECT_EQ(job.state.phase, Phase::kRunning);
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 3U);
}

TEST(Stream, ASecondStreamOfANodeReplacesTheFirst) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  const uint64_t again = job.Attach("b");
  EXPECT_TRUE(job.told[b].dropped);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, again}));
  job.Kill(b, 0);  // what the old stream says is void
  EXPECT_EQ(job.Epoch(), 2U);
}

TEST(Stream, TheStorePortOfTheLastMessageCounts) {
  Job job(1, 1);
  const uint64_t a = job.Attach("a");
  v1::AgentMessage beat = MessageWith(v1::Beat());
  beat.set_next_store_port(31'000);
  job.Send(EventOf(a, beat));
  job.Kill(a, 0);
  EXPECT_EQ(job.told[a].rounds.at(1).store_port(), 31'000U);
}

TEST(Stream, TheFirstHelloGivesTheSpecOfAnEmbeddedMaster) {
  Job job(1, 1);
  job.state.spec.reset();
  v1::Hello info = job.Info("a");
  info.mutable_spec()->set_min_nodes(2);
  info.mutable_spec()->set_max_nodes(2);
  info.mutable_spec()->set_max_restarts(7);
  job.Attach(info);
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  EXPECT_EQ(job.state.spec->max_nodes(), 2U);
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), 7U);
}

TEST(Store, WhoWasTurnedAwayIsRecordedAsItsHolderSays) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  v1::StoreRefused refused;
  refused.set_epoch(job.Epoch());
  refused.set_sentence("store refused 10.0.0.7 port 4711: no member");
  job.Say(b, refused);
  EXPECT_THAT(job.Records("store-refused"), IsEmpty()) << "it holds none";
  job.Say(a, refused);
  EXPECT_THAT(job.Records("store-refused"), ElementsAre("store refused 10.0.0.7 port 4711: no member"));
  EXPECT_EQ(job.records.back().first.node, "a");
  refused.set_epoch(job.Epoch() + 1);
  job.Say(a, refused);
  EXPECT_EQ(job.Records("store-refused").size(), 1U) << "of no round that there is";
}

// A beat may be told twice, and a stream may break: nobody is counted twice.
TEST(Store, HowManyWereTurnedAwayIsAddedUp) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  const auto tell = [&job](uint64_t session, uint64_t epoch, uint64_t refused) {
    v1::Beat beat;
    beat.set_epoch(epoch);
    beat.set_store_refused(refused);
    job.Say(session, beat);
    return StatusOf(job.state, job.now, false).refused_store_clients();
  };
  const uint64_t first = job.Epoch();
  EXPECT_EQ(tell(a, first, 0), 0U);
  EXPECT_EQ(tell(a, first, 20), 20U);
  EXPECT_EQ(tell(a, first, 20), 20U);
  EXPECT_EQ(tell(b, first, 3), 23U) << "by its relay";
  job.Kill(b, 0);
  ASSERT_NE(job.Epoch(), first);
  EXPECT_EQ(tell(a, first, 21), 23U) << "of no round that there is";
  EXPECT_EQ(tell(a, job.Epoch(), 2), 25U) << "of another store";
  const uint64_t many = tell(a, job.Epoch(), UINT64_MAX);
  EXPECT_EQ(many, 23U + (uint64_t{1} << 40)) << "a number that nobody believes does not turn the sum over";
  v1::StoreRefused refused;
  refused.set_epoch(job.Epoch());
  refused.set_sentence("store refused 10.0.0.7 port 4711: no member");
  job.Say(a, refused);
  EXPECT_EQ(StatusOf(job.state, job.now, false).last_refused_store_client(), refused.sentence());
}

TEST(Console, ItsLossIsRecordedOnceForEachStream) {
  Job job(1, 1);
  const uint64_t a = job.Attach("a");
  v1::ConsoleLost lost;
  lost.set_sentence("nobody reads stdout");
  job.Say(a, lost);
  EXPECT_THAT(job.Records("console-lost"), ElementsAre("nobody reads stdout"));
  EXPECT_EQ(job.records.back().first.node, "a");
  for (int i = 0; i < 9; ++i) job.Say(a, lost);
  EXPECT_EQ(job.Records("console-lost").size(), 2U) << "a node has no more streams";
}

TEST(Facts, WhatANodeTellsOfItsHardwareIsRecorded) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  v1::NodeFact fact;
  fact.set_kind("xid");
  fact.set_device("GPU 3");
  fact.set_sentence("XID 79 on GPU 3: GPU has fallen off the bus");
  fact.set_source("NVML");
  fact.set_unix_ms(77);
  fact.set_grave(true);
  const size_t notices = job.told[a].notices.size() + job.told[b].notices.size();
  job.Say(b, fact);
  EXPECT_THAT(job.Records("node-fact"), ElementsAre("XID 79 on GPU 3: GPU has fallen off the bus"));
  const Record& row = job.records.back().first;
  EXPECT_EQ(row.node, "b");
  EXPECT_EQ(std::get<std::string>(row.detail.at(0).second), "xid");
  EXPECT_EQ(std::get<int64_t>(row.detail.at(4).second), 1);
  EXPECT_EQ(job.told[a].notices.size() + job.told[b].notices.size(), notices) << "nobody is told";
}

TEST(Facts, OfAMinuteEachNodeHasFew) {
  Job job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  v1::NodeFact fact;
  fact.set_sentence("a link flaps");
  for (int i = 0; i < 1'000; ++i) job.Say(a, fact);
  EXPECT_EQ(job.Records("node-fact").size(), kMostFacts);
  EXPECT_EQ(job.Records("node-fact").back(), "a link flaps; others of this minute are not kept");
  job.Say(b, fact);
  EXPECT_EQ(job.Records("node-fact").size(), kMostFacts + 1) << "another node's are its own";
  job.now += kFactsOfMs;
  job.Say(a, fact);
  EXPECT_EQ(job.Records("node-fact").size(), kMostFacts + 2);
}

// --- what the ledger is made from ---

class Told : public ::testing::Test {
 protected:
  void Tell(uint64_t session, const v1::Progress& progress, uint64_t epoch = 0) {
    v1::Beat beat;
    beat.set_epoch(epoch != 0 ? epoch : job_.Epoch());
    *beat.mutable_progress() = progress;
    job_.Say(session, beat);
  }
  static v1::Progress Steps(int64_t step, int64_t from_step) {
    v1::Progress progress;
    progress.set_step(step);
    progress.set_from_step(from_step);
    return progress;
  }
  static v1::Progress Saving(int64_t ms) {
    v1::Progress progress;
    progress.set_saving_ms(ms);
    return progress;
  }
  int64_t Number(const std::string& kind, const std::string& key) const {
    for (auto row = job_.records.rbegin(); row != job_.records.rend(); ++row) {
      if (row->first.kind != kind) continue;
      for (const auto& [name, value] : row->first.detail) {
        if (name == key) return std::get<int64_t>(value);
      }
    }
    return -1;
  }
  size_t Count(const std::string& kind) const { return job_.Records(kind).size(); }

  Job job_{2, 2, 1'000};
  const uint64_t a_ = job_.Attach("a");
  const uint64_t b_ = job_.Attach("b");
};

TEST_F(Told, StepsThatAreDoneAgainAreNotedUntilTheyAreDone) {
  EXPECT_FALSE(job_.told[a_].rounds.at(0).has_highest_step());
  Tell(a_, Steps(1, 0));
  EXPECT_EQ(Count("steps-told"), 1U);
  EXPECT_EQ(Number("steps-told", "highest_step"), -1);
  Tell(a_, Steps(50, 0));
  job_.Kill(b_, 0);
  EXPECT_EQ(job_.told[a_].rounds.at(1).highest_step(), 50);
  Tell(b_, Steps(52, 0), 1);  // the last words of the round before
  Tell(a_, Steps(41, 40));
  EXPECT_EQ(Number("steps-told", "from_step"), 40);
  EXPECT_EQ(Number("steps-told", "last_step"), 52);
  EXPECT_EQ(Number("steps-told", "highest_step"), 52);
  EXPECT_THAT(job_.Records("steps-told").back(), HasSubstr("12 are done again"));
  Tell(a_, Steps(51, 40));
  EXPECT_EQ(Count("caught-up"), 0U);
  v1::Progress done = Steps(60, 40);
  done.set_caught_up_ms_ago(700);
  Tell(a_, done);
  Tell(b_, done);
  EXPECT_EQ(Count("caught-up"), 1U);
  EXPECT_EQ(Number("caught-up", "ms_ago"), 700);
  // A round that falls behind again is measured by the highest, and by the one before it.
  job_.Kill(b_, 0);
  Tell(a_, Steps(11, 10));
  job_.Kill(b_, 0);
  Tell(a_, Steps(6, 5));
  EXPECT_EQ(Number("steps-told", "last_step"), 11);
  EXPECT_EQ(Number("steps-told", "highest_step"), 60);
}

TEST_F(Told, ARoundThatGoesOnWhereTheLastOneEndedHasNothingToCatchUpWith) {
  Tell(a_, Steps(50, 0));
  job_.Kill(b_, 0);
  v1::Progress told = Steps(51, 50);
  told.set_caught_up_ms_ago(5);
  Tell(a_, told);
  EXPECT_EQ(Count("steps-told"), 2U);
  EXPECT_EQ(Count("caught-up"), 0U);
}

TEST_F(Told, SavesAreThoseOfTheSlowestNodeAndNotedOnceAMinuteAndAtTheEnd) {
  Tell(a_, Saving(1'000));
  Tell(b_, Saving(3'000));
  Tell(a_, Saving(2'000));
  EXPECT_EQ(Count("saving"), 0U);
  job_.AllStep();
  EXPECT_EQ(Number("round-stepping", "saving_ms"), 3'000);
  job_.Pass(kSavingNoticeMs);
  Tell(b_, Saving(4'000));
  EXPECT_EQ(Number("saving", "saving_ms"), 4'000);
  Tell(b_, Saving(5'000));
  EXPECT_EQ(Count("saving"), 1U);
  job_.Kill(b_, 0);
  EXPECT_EQ(Number("saving", "saving_ms"), 5'000);
  EXPECT_EQ(Count("saving"), 2U);
  Tell(a_, Saving(5'500), 1);
  Tell(a_, Saving(5'400), 1);
  EXPECT_EQ(Count("saving"), 3U);
  EXPECT_EQ(job_.records.back().first.epoch, 1U);
  // The next round begins anew.
  Tell(a_, Saving(100));
  for (const uint64_t session : {a_, b_}) {
    for (const uint32_t local_rank : {0U, 1U}) job_.Exit(session, JobFixture::Ended(local_rank, 0));
  }
  EXPECT_EQ(Number("saving", "saving_ms"), 100);
  EXPECT_EQ(Number("job-finished", "exit_code"), 0);
}

TEST_F(Told, WhatAWorkersEndTellsIsNotedBeforeIt) {
  v1::WorkerExited exit = JobFixture::Ended(0, 3);
  *exit.mutable_progress() = Steps(7, 0);
  exit.mutable_progress()->set_saving_ms(900);
  job_.Exit(a_, exit);
  EXPECT_EQ(job_.told[a_].rounds.at(1).highest_step(), 7);
  EXPECT_EQ(Number("saving", "saving_ms"), 900);
}

TEST_F(Told, StrangersAndOldRoundsChangeNothing) {
  const uint64_t spare = job_.Attach("c");
  Tell(spare, Steps(70, 0));
  Tell(a_, Steps(50, 0), 99);
  job_.Kill(b_, 0);
  job_.Kill(b_, 0);
  Tell(a_, Steps(80, 0), 1);
  job_.Kill(b_, 0);
  EXPECT_FALSE(job_.told[a_].rounds.back().has_highest_step());
}

TEST_F(Told, ALostNodeSaysWhetherItBrokeTheRoundAndHowLongItWasSilent) {
  const uint64_t spare = job_.Attach("c");
  job_.Leave(spare);
  EXPECT_EQ(Number("node-left", "broke_round"), -1);
  job_.Pass(4'000, {b_});
  EXPECT_EQ(Number("node-lost", "broke_round"), 1);
  EXPECT_EQ(Number("node-lost", "silent_ms"), 3'000);
  job_.Detach(a_);
  EXPECT_EQ(job_.records.back().first.detail.size(), 0U) << "it was no member, and nobody knows since when it was gone";
}

}  // namespace
}  // namespace phalanx::master
