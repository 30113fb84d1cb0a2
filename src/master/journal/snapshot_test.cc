#include "master/journal/snapshot.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/core/job_fixture.h"
#include "master/core/test_random_life.h"
#include "master/journal/restarted.h"
#include "phalanx/v1/journal.pb.h"

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;

class AfterRestart : public ::testing::TestWithParam<bool> {
 protected:
  AfterRestart() {
    for (const char* name : {"a", "b", "c"}) sessions_.push_back(job_.Attach(name));
    job_.AllStep();
  }

  JobFixture job_{2, 3, 2};
  std::vector<uint64_t> sessions_;
};

TEST_P(AfterRestart, NobodyIsRestarted) {
  Restarted next(job_, GetParam());
  next.AllComeBack();
  EXPECT_EQ(next.Rounds(), 0U);
  EXPECT_EQ(next.Epoch(), 1U);
  EXPECT_EQ(next.state.phase, Phase::kRunning);
  EXPECT_EQ(next.Records("job-resumed").size(), 1U);
  next.Pass(60'000);
  EXPECT_EQ(next.Rounds(), 0U);
}

TEST(AfterRestart, WhoIsLeftOutIsKnown) {
  JobFixture job(1, 2);
  v1::LeftOut told;
  told.set_hostname("b");
  told.set_address("10.0.0.2");
  told.set_node("node-b");
  told.set_reason("disk_write: No space left on device");
  told.set_rest_ms(400'000);
  told.set_times(2);
  RestoreLeftOut(job.state.health, told, job.now);
  const auto restored = RestoreState(SaveState(job.state, job.now + 100'000), "job", job.now + 7);
  ASSERT_TRUE(restored.ok()) << restored.status();
  const LeftOutMachine* const entry = WhyLeftOut(restored->health, {"b", "10.0.0.2"}, job.now + 8);
  ASSERT_NE(entry, nullptr);
  EXPECT_EQ(entry->reason, told.reason());
  EXPECT_EQ(entry->until, job.now + 7 + 300'000);
  EXPECT_EQ(entry->times, 2u);
  // What has passed since it was written counts, however seldom that was; not after the machine's clock began anew.
  for (const auto& [later_ms, rest_ms] : {std::pair(50'000, 250'000), std::pair(-1, 300'000)}) {
    const auto later = RestoreState(SaveState(job.state, job.now + 100'000), "job", job.now + 100'000 + later_ms);
    ASSERT_TRUE(later.ok()) << later.status();
    EXPECT_EQ(later->health.left_out.begin()->second.until, job.now + 100'000 + later_ms + rest_ms);
  }
}

// `phalanx status --check` of a new master has it, unless every snapshot would be the longer for it.
TEST(AfterRestart, ARoundThatMayRunUnseenIsKnown) {
  JobFixture job(1, 2);
  Voters round(3, 8, 2);
  round.Add("a", "10.0.0.2", 7'000);
  job.state.voters.Begin(round);
  const auto restored = RestoreState(SaveState(job.state, job.now), "job", job.now);
  ASSERT_TRUE(restored.ok()) << restored.status();
  ASSERT_EQ(restored->voters.begun.size(), 1U);
  const Voters& known = restored->voters.begun.front();
  EXPECT_EQ(known.term(), 3U);
  EXPECT_EQ(known.epoch(), 8U);
  EXPECT_TRUE(known.HasSameMembersAs(round));
}

TEST(AfterRestart, TheLastCheckIsKnown) {
  for (const int nodes : {64, 10'000}) {
    JobFixture job(1, 2);
    std::vector<HealthMember> members;
    for (int i = 0; i < nodes; ++i) {
      members.push_back(
          {static_cast<uint64_t>(i) + 1, fmt::format("node-{}", i), fmt::format("host-{}", i), "10.0.0.1"});
    }
    HealthState& health = job.state.health;
    BeginCheck(health, job.spec.check(), members, 1, false, job.now);
    while (health.run) {
      const std::vector<CheckGroup> groups = health.run->groups;
      for (const CheckGroup& group : groups) {
        for (const size_t node : group.nodes) {
          v1::CheckReport report;
          report.set_run(health.run->id);
          report.set_part(health.run->part);
          report.add_results()->set_check("matmul");
          OnCheckReport(health, members[node].session, report, job.now);
          if (!health.run) break;
        }
      }
    }
    const auto restored = RestoreState(SaveState(job.state, job.now), "job", job.now + 7);
    ASSERT_TRUE(restored.ok()) << restored.status();
    const bool is_kept = nodes == 64;
    EXPECT_EQ(restored->health.last.nodes_size(), is_kept ? nodes : 0);
    EXPECT_EQ(restored->health.last.sentence(), is_kept ? health.last.sentence() : "");
    EXPECT_EQ(restored->health.runs, is_kept ? health.runs : 0) << "the next one has another number";
    EXPECT_EQ(SaveState(*restored, job.now).size(), SaveState(job.state, job.now).size());
  }
}

// A held round lives on in no agent: what it was is told by who waits.
TEST(HeldRound, IsCountedOnWithoutAJournal) {
  JobFixture job(2, 3, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Pass(500);
  job.AllStep();
  job.Kill(b, 0);
  v1::Hello waits = ComingBack(job.state, a);
  *waits.mutable_last_round() = waits.live_round();
  waits.clear_live_round();
  JobFixture next(2, 3, 2);
  next.Attach(waits);
  next.Attach("c");
  next.Pass(500);
  EXPECT_EQ(next.Epoch(), 3U);
  EXPECT_EQ(next.state.round->restart_count, 2U);
  EXPECT_EQ(next.state.budget.used, 1U);
}

TEST_P(AfterRestart, AFailureMeanwhileIsServedWhenAllAreBack) {
  Restarted next(job_, GetParam());
  const uint64_t a = next.ComeBack(sessions_[0]);
  next.Kill(a, 1);
  EXPECT_EQ(next.Epoch(), 1U) << "the others may come back";
  next.ComeBack(sessions_[2]);
  next.ComeBack(sessions_[1]);
  EXPECT_EQ(next.Epoch(), 2U);
  EXPECT_EQ(next.Ranks().size(), 3U);
  EXPECT_EQ(next.state.budget.used, 1U);
  EXPECT_THAT(next.told[a].reason, HasSubstr("rank 1 died (SIGKILL) on node a, restart 1 of 2"));
}

TEST_P(AfterRestart, WhoDoesNotComeBackIsLost) {
  Restarted next(job_, GetParam());
  next.ComeBack(sessions_[0]);
  next.ComeBack(sessions_[2]);
  next.Pass(2'900);
  EXPECT_EQ(next.Epoch(), 1U);
  next.Pass(200);
  EXPECT_EQ(next.Epoch(), 2U);
  EXPECT_EQ(next.Ranks().size(), 2U);
  EXPECT_EQ(next.state.budget.used, 0U) << "a lost node costs no restart";
}

TEST_P(AfterRestart, WhoSufferedFromALostNodeCostsNoRestart) {
  Restarted next(job_, GetParam());
  const uint64_t a = next.ComeBack(sessions_[0]);
  next.Exit(a, JobFixture::Collateral(1));
  next.ComeBack(sessions_[1]);
  next.Pass(3'100);
  EXPECT_EQ(next.Epoch(), 2U);
  EXPECT_EQ(next.Ranks().size(), 2U);
  EXPECT_EQ(next.state.budget.used, 0U) << "its master and its peer's node went together";
  EXPECT_THAT(next.told[a].reason, HasSubstr("did not come back"));
}

TEST_P(AfterRestart, TheBudgetIsNotForgotten) {
  job_.Kill(sessions_[0], 0);
  job_.AllStep();
  Restarted next(job_, GetParam());
  next.AllComeBack();
  EXPECT_EQ(next.state.budget.used, 1U);
  next.Kill(next.Ranks()[0], 0);
  EXPECT_EQ(next.state.phase, Phase::kRunning);
  next.AllStep();
  next.Kill(next.Ranks()[0], 0);
  EXPECT_EQ(next.state.phase, Phase::kFinished) << "two restarts are all there are";
}

TEST_P(AfterRestart, ReportsThatAreRepeatedCountOnce) {
  job_.Exit(sessions_[0], JobFixture::Ended(0, 0));
  Restarted next(job_, GetParam());
  next.AllComeBack();
  const std::vector<uint64_t> ranks = next.Ranks();
  for (int repeat = 0; repeat < 2; ++repeat) {
    for (const uint64_t session : ranks) {
      for (const uint32_t local : {0U, 1U}) next.Exit(session, JobFixture::Ended(local, 0), 1);
    }
  }
  EXPECT_EQ(next.state.phase, Phase::kFinished);
  EXPECT_EQ(next.state.outcome->exit_code, 0);
  EXPECT_EQ(next.state.round->ranks_done, 6U);
}

// A master that died between two StartRounds: those that got it, and those that did not, begin the next one together.
TEST_P(AfterRestart, ARoundThatSomeWereNotToldOf) {
  const v1::Hello old = ComingBack(job_.state, sessions_[0]);
  job_.Kill(sessions_[1], 0);
  Restarted next(job_, GetParam());
  next.Attach(old);
  next.ComeBack(sessions_[1]);
  next.ComeBack(sessions_[2]);
  EXPECT_EQ(next.Epoch(), 3U) << "nobody else is missing, so nobody is waited for";
  EXPECT_EQ(next.Ranks().size(), 3U);
  EXPECT_EQ(next.state.budget.used, 1U);
}

TEST_P(AfterRestart, AStrangerWithTheSameRankDoesNotGetIn) {
  Restarted next(job_, true);
  v1::Hello stranger = next.Info("d");
  *stranger.mutable_live_round() = ComingBack(job_.state, sessions_[0]).live_round();
  const uint64_t d = next.Attach(stranger);
  EXPECT_EQ(next.told[d].holds.size(), 1U);
  EXPECT_EQ(next.state.round->away, 3U);
}

INSTANTIATE_TEST_SUITE_P(From, AfterRestart, ::testing::Bool(),
                         [](const auto& from) { return from.param ? "TheJournal" : "TheAgents"; });

TEST(Resume, ALostTailIsMadeGoodByTheAgents) {
  JobFixture job(2, 2, 3);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  const std::string bytes = SaveState(job.state, job.now);
  job.AllStep();
  job.Kill(a, 0);
  ASSERT_EQ(job.Epoch(), 2U);
  const v1::Hello infos[] = {ComingBack(job.state, a), ComingBack(job.state, b)};
  job.state = *RestoreState(bytes, "job", job.now);
  Resume(job.state, job.now);
  for (const v1::Hello& info : infos) job.Attach(info);
  EXPECT_EQ(job.Epoch(), 2U);
  EXPECT_EQ(job.state.round->away, 0U);
  EXPECT_EQ(job.state.budget.used, 1U);
}

TEST(Resume, AnEndIsToldToThoseWhoHaveNotHeardIt) {
  JobFixture job(2, 2, 0);
  const uint64_t a = job.Attach("a");
  job.Attach("b");
  job.Kill(a, 0);
  ASSERT_EQ(job.state.phase, Phase::kFinished);
  Restarted next(job);
  const uint64_t again = next.ComeBack(a);
  ASSERT_TRUE(next.told[again].outcome);
  EXPECT_EQ(next.told[again].outcome->exit_code(), 1);
  EXPECT_EQ(next.told[again].outcome->first_cause().rank(), 0U);
  EXPECT_NE(next.state.back_by, kNever) << "b is waited for";
  next.Pass(4'000);
  EXPECT_EQ(next.state.back_by, kNever);
}

TEST(Resume, PlacesAreKeptWhileTheJobIsHeld) {
  JobFixture job(2, 3);
  std::vector<uint64_t> sessions;
  for (const char* name : {"a", "b", "c"}) sessions.push_back(job.Attach(name, 1));
  job.Detach(sessions[0]);
  job.Detach(sessions[1]);
  ASSERT_EQ(job.state.phase, Phase::kGathering);
  Restarted next(job);
  next.Attach("d", 1);
  const uint64_t c = next.ComeBack(sessions[2]);
  next.Pass(1'000);
  ASSERT_EQ(next.Ranks().size(), 2U);
  EXPECT_EQ(next.state.nodes.at(c).group_rank, 0) << "rank 2 of 3 moves into the hole; the newcomer comes behind";
}

TEST(Resume, AStandstillIsNoReasonToLoseANode) {
  JobFixture job(2, 2, 0);
  const uint64_t a = job.Attach("a");
  job.Attach("b");
  job.AllStep();
  const v1::Hello info = ComingBack(job.state, a);
  job.now += 60'000;
  job.Detach(a);
  EXPECT_EQ(job.Records("node-away").size(), 1U);
  job.Attach(info);
  EXPECT_EQ(job.Epoch(), 1U);
  EXPECT_EQ(job.Records("node-back").size(), 1U);
  job.Pass(60'000);
  EXPECT_EQ(job.Epoch(), 1U);
}

// A node dies while the master stands still, and its peers report what that does to them.
TEST(Resume, ANodeLostInAStandstillCostsNothing) {
  JobFixture job(2, 3, 3);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  const uint64_t c = job.Attach("c");
  job.AllStep();
  job.now += 60'000;
  job.Detach(c);
  EXPECT_EQ(job.Records("node-away").size(), 1U);
  job.Exit(a, JobFixture::Collateral(0));
  job.Exit(b, JobFixture::Collateral(0));
  job.Exit(b, JobFixture::Collateral(1));
  EXPECT_EQ(job.state.budget.used, 1U) << "one failure, whoever is away meanwhile";
  EXPECT_EQ(job.Epoch(), 1U);
  job.Pass(10'000);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{a, b}));
  EXPECT_EQ(job.state.budget.used, 0U);
  EXPECT_EQ(job.told[a].reason, "node c was lost (its stream broke while the master stood still): 3 -> 2 nodes");
}

// Of three nodes one leaves, which its peers suffer from, while another one is away.
class LeftMeanwhile : public ::testing::TestWithParam<uint32_t> {
 protected:
  // b leaves, and c comes back.
  void LeaveAndComeBack() {
    const v1::Hello info = ComingBack(job_.state, c_);
    job_.now += 60'000;
    job_.Detach(c_);
    job_.Exit(a_, JobFixture::Collateral(0));
    job_.Leave(b_);
    job_.Pass(kBlameMs + 500);
    EXPECT_EQ(job_.Epoch(), 1U) << "c may come back";
    c_ = job_.Attach(info);
  }

  JobFixture job_{1, 3, GetParam()};
  uint64_t a_ = job_.Attach("a");
  uint64_t b_ = job_.Attach("b");
  uint64_t c_ = job_.Attach("c");
};

// With and without a restart left: the node was the cause, not the rank that suffered from it.
INSTANTIATE_TEST_SUITE_P(Restarts, LeftMeanwhile, testing::Values(0, 3));

TEST_P(LeftMeanwhile, IsTheFirstCauseAndCostsNothing) {
  LeaveAndComeBack();
  EXPECT_EQ(job_.state.phase, Phase::kRunning);
  EXPECT_EQ(job_.Epoch(), 2U);
  EXPECT_EQ(job_.Ranks(), (std::vector<uint64_t>{a_, c_}));
  EXPECT_EQ(job_.state.budget.used, 0U);
  EXPECT_EQ(job_.told[a_].reason, "node b left (SIGTERM): 3 -> 2 nodes");
}

class TwoNodes : public ::testing::Test {
 protected:
  TwoNodes() {
    a_ = job_.Attach("a");
    b_ = job_.Attach("b");
    job_.Pass(1'000);
    job_.AllStep();
  }

  JobFixture job_{1, 2, 0};
  uint64_t a_ = 0;
  uint64_t b_ = 0;
};

using ResumeStandstill = TwoNodes;

TEST_F(ResumeStandstill, BehindARestartWhoIsAwayIsWaitedForAnew) {
  Restarted next(job_);
  const uint64_t a = next.ComeBack(a_);
  next.now += 60'000;
  next.Say(a, v1::Beat());
  next.ComeBack(b_);
  EXPECT_EQ(next.Rounds(), 0U);
  EXPECT_EQ(next.Records("job-resumed").size(), 1U);
}

TEST_F(ResumeStandstill, BeforeAnybodyIsBackAllAreWaitedForAnew) {
  Restarted next(job_);
  next.now += 60'000;
  next.AllComeBack();
  EXPECT_EQ(next.Rounds(), 0U);
  EXPECT_EQ(next.Epoch(), 1U);
  EXPECT_EQ(next.state.round->away, 0U);
}

TEST_F(ResumeStandstill, ASecondOneMakesTheWaitLonger) {
  const v1::Hello info = ComingBack(job_.state, b_);
  job_.now += 60'000;
  job_.Detach(b_);
  job_.now += 60'000;
  job_.Say(a_, v1::Beat());
  job_.Attach(info);
  EXPECT_EQ(job_.Epoch(), 1U);
  EXPECT_EQ(job_.Records("node-back").size(), 1U);
}

TEST_F(ResumeStandstill, WhoDoesNotComeBackIsGivenUpALeaseLater) {
  Restarted next(job_);
  const uint64_t a = next.ComeBack(a_);
  next.now += 60'000;
  next.Say(a, v1::Beat());
  next.Pass(2'900);
  EXPECT_EQ(next.Epoch(), 1U);
  next.Pass(200);
  EXPECT_EQ(next.Ranks(), std::vector<uint64_t>{a});
}

using ResumeLeft = TwoNodes;

TEST_F(ResumeLeft, ANodeThatIsAwayTrainsOnWhenTheOthersLeave) {
  Restarted next(job_);
  next.Leave(next.ComeBack(a_));
  EXPECT_EQ(next.state.phase, Phase::kRunning);
  const uint64_t b = next.ComeBack(b_);
  EXPECT_FALSE(next.told[b].outcome);
  EXPECT_EQ(next.Ranks(), std::vector<uint64_t>{b});
  EXPECT_EQ(next.told[b].reason, "node a left (SIGTERM): 2 -> 1 nodes");
  next.Pass(60'000);
  EXPECT_EQ(next.state.phase, Phase::kRunning);
}

TEST_F(ResumeLeft, TheJobEndsWhenNobodyComesBackToIt) {
  Restarted next(job_);
  next.Leave(next.ComeBack(a_));
  next.Pass(4'000);
  ASSERT_EQ(next.state.phase, Phase::kFinished);
  EXPECT_EQ(next.state.reason, "job stopped: all nodes left (SIGTERM)");
  EXPECT_EQ(next.state.outcome->exit_code, 128 + 15);
}

TEST_F(ResumeLeft, AHeldJobWaitsForThoseThatDial) {
  JobFixture job(2, 2);
  job.Detach(job.Attach("a"));
  const uint64_t b = job.Attach("b");
  Restarted next(job);
  next.Leave(next.Attach("c"));
  EXPECT_EQ(next.state.phase, Phase::kGathering);
  next.ComeBack(b);
  next.Pass(4'000);
  EXPECT_EQ(next.state.phase, Phase::kGathering);
}

// The job fails while a node is away that has written its part of the last save.
TEST_F(ResumeLeft, ANodeThatIsAwayWhenTheJobEndsIsHeldAndThenTold) {
  job_.SealForStorage(10);
  job_.PrepareStore(a_, 1, 10);
  job_.WriteShards(b_, 1, 10);
  const v1::Hello info = ComingBack(job_.state, b_);
  job_.now += 60'000;
  job_.Detach(b_);
  ASSERT_EQ(job_.state.round->away, 1U);
  v1::WorkerExited exit = JobFixture::Ended(0, 1);
  exit.set_script_started(false);
  job_.Exit(a_, exit);
  ASSERT_EQ(job_.state.phase, Phase::kFinished);
  EXPECT_LE(NextDeadline(job_.state), job_.now + kStoreAtEndMs);
  const uint64_t again = job_.Attach(info);
  EXPECT_THAT(job_.told[again].holds, ::testing::ElementsAre(1U));
  EXPECT_FALSE(job_.told[again].outcome) << "its save is not stored yet";
  job_.WriteShards(a_, 1, 10);
  job_.WriteManifest(a_, 1, 10);
  ASSERT_TRUE(job_.told[again].outcome);
  EXPECT_EQ(job_.told[again].outcome->exit_code(), 1);
}

TEST(Resume, ANodeThatLeftIsNotAwaitedAtTheEnd) {
  JobFixture job(2, 2);
  const uint64_t a = job.Attach("a", 1);
  const uint64_t b = job.Attach("b", 1);
  job.Exit(a, JobFixture::Ended(0, 0));
  job.Leave(a);
  job.Detach(a);
  Restarted running(job);
  const uint64_t again = running.ComeBack(b);
  running.Exit(again, JobFixture::Ended(0, 0));
  EXPECT_EQ(running.state.phase, Phase::kFinished);
  EXPECT_EQ(running.state.back_by, kNever);

  job.Exit(b, JobFixture::Ended(0, 0));
  Restarted over(job);
  EXPECT_EQ(over.state.round->away, 1U) << "b may not have heard of it";
  over.ComeBack(b);
  EXPECT_EQ(over.state.back_by, kNever);
}

TEST(Resume, NothingIsDueBeforeThoseThatAreAwayAreBack) {
  JobFixture job(2, 2, 0);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.AllStep();
  job.now += 60'000;
  job.Detach(b);
  job.Exit(a, JobFixture::Collateral(0));
  ASSERT_EQ(job.state.phase, Phase::kBlaming);
  job.now += kBlameMs;
  job.Send(Tick{});
  EXPECT_GT(NextDeadline(job.state), job.now);
}

TEST(Resume, ReasonsNameWhoCameBackToAJobThatWasHeld) {
  JobFixture job(2, 2);
  job.Attach("a");
  job.Detach(job.Attach("b"));
  ASSERT_EQ(job.state.phase, Phase::kGathering);
  StatusOr<JobState> restored = RestoreState(SaveState(job.state, job.now), "job", job.now);
  ASSERT_TRUE(restored.ok());
  job.state = *std::move(restored);  // another master
  Resume(job.state, job.now);
  job.Attach("a");
  job.Attach("b");
  EXPECT_EQ(job.state.reason, "nodes a, b joined: all 2 nodes are there");
}

TEST(Resume, ANodeThatCameBeforeTheFirstMemberIsTakenIn) {
  JobFixture job(2, 3, 0);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.Pass(1'000);
  job.AllStep();
  const v1::Hello info_a = ComingBack(job.state, a);
  const v1::Hello info_b = ComingBack(job.state, b);
  JobFixture next(2, 3, 0);  // a new master without a journal
  next.Attach("c");
  next.Attach(info_a);
  next.Attach(info_b);
  next.Pass(10'000);
  EXPECT_EQ(next.Ranks().size(), 3U);
}

TEST(Resume, AnAgentThatDialsAgainBeforeItsOldStreamBreaksGoesOn) {
  JobFixture job(2, 2, 0);
  const uint64_t a = job.Attach("a");
  job.Attach("b");
  const uint64_t again = job.Attach(ComingBack(job.state, a));
  EXPECT_TRUE(job.told[a].dropped);
  EXPECT_EQ(job.Ranks()[0], again);
  EXPECT_EQ(job.Epoch(), 1U);
}

// The journal holds the config and when the round began; with them min_time counts on.
TEST(Resume, AnElasticJobGoesOn) {
  JobFixture job(1, 4);
  job.UseElasticConfig(
      R"({"enabled":true,"max_train_batch_size":4,"micro_batch_sizes":[1],"version":0.1,"min_gpus":2,"min_time":1})");
  for (const char* name : {"a", "b", "c"}) job.Attach(name, 1);
  job.Pass(300);
  job.Pass(10'000);
  Restarted next(job);
  ASSERT_TRUE(next.state.sizes);
  EXPECT_EQ(next.state.sizes->world_sizes, (std::vector<uint32_t>{2, 4}));
  next.AllComeBack();
  EXPECT_EQ(next.Records("node-spare").size(), 1U);
  next.Attach("d", 1);
  next.Pass(60'000 - 10'000 - 300);
  EXPECT_EQ(next.Epoch(), 1U);
  next.Pass(300);
  EXPECT_EQ(next.Epoch(), 2U);
  EXPECT_EQ(next.Ranks().size(), 4U);
}

// It is not taken for one that lost its place, which would end the waiting for the other.
TEST(Resume, ANodeWhoseRanksHadEndedWellComesBackFirst) {
  JobFixture job(2, 2);
  const uint64_t a = job.Attach("a", 1);
  const uint64_t b = job.Attach("b", 1);
  job.Exit(a, JobFixture::Ended(0, 0));
  job.journal_state = job.state;
  Restarted next(job);
  next.ComeBack(a);
  next.ComeBack(b);
  EXPECT_EQ(next.Epoch(), 1U);
  EXPECT_EQ(next.Rounds(), 0U);
}

TEST(Snapshot, AnotherJobsIsRefused) {
  JobFixture job(1, 1);
  EXPECT_TRUE(absl::IsFailedPrecondition(RestoreState(SaveState(job.state, 0), "other", 0).status()));
}

TEST(Snapshot, ContradictionsAreRefused) {
  JobFixture job(2, 2);
  job.Attach("a");
  job.Attach("b");
  const auto broken = [&](auto&& change) {
    v1::Snapshot wire;
    wire.ParseFromString(SaveState(job.state, job.now));
    change(wire);
    return RestoreState(wire.SerializeAsString(), "job", job.now).status();
  };
  EXPECT_TRUE(broken([](v1::Snapshot&) {}).ok());
  EXPECT_FALSE(broken([](auto& w) { w.clear_round(); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.set_phase(v1::Snapshot::GATHERING); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.set_phase(v1::Snapshot::FINISHED); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.set_phase(v1::Snapshot::BLAMING); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.set_phase(static_cast<v1::Snapshot::Phase>(9)); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.clear_spec(); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_spec()->set_min_nodes(0); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_spec()->set_elastic_config("{}"); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_round()->mutable_slots(1)->set_rank_base(1); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_round()->mutable_slots(1)->add_done(2); }).ok());
  EXPECT_FALSE(broken([](auto& w) {
                 w.mutable_round()->mutable_slots(1)->add_done(1);
                 w.mutable_round()->mutable_slots(1)->add_done(1);
               }).ok());
  EXPECT_FALSE(broken([](auto& w) {
                 w.mutable_round()->mutable_slots(1)->add_done(1);
                 w.mutable_round()->mutable_slots(1)->add_failed(1);
               }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_round()->mutable_slots(1)->set_local_world_size(5'000); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_round()->set_world_size(5); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_round()->set_epoch(9); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_round()->clear_slots(); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.mutable_round()->add_failures()->set_group_rank(2); }).ok());
  EXPECT_FALSE(broken([](auto& w) { w.set_highest_step(7); }).ok());
  EXPECT_FALSE(broken([](auto& w) {
                 w.set_phase(v1::Snapshot::BLAMING);  // a failure that nothing was charged for
                 w.mutable_round()->add_failures();
               }).ok());
  EXPECT_FALSE(RestoreState("\xff\xff\xff", "job", 0).ok());
}

// Random lives, cut short by the master's death at any event.
TEST(Property, AnySnapshotGoesOn) {
  for (uint64_t seed = 1; seed <= 1'000; ++seed) {
    RandomLife life(seed);
    for (int i = 0; i < 40; ++i) life.Act();
    const JobState& state = life.job().state;
    const std::string bytes = SaveState(state, life.job().now);
    const StatusOr<JobState> restored = RestoreState(bytes, "job", life.job().now);
    ASSERT_TRUE(restored.ok()) << "seed " << seed << ": " << restored.status();
    ASSERT_EQ(SaveState(*restored, life.job().now), bytes) << "seed " << seed;

    for (const bool journal : {true, false}) {
      Restarted next(life.job(), journal);
      const uint64_t epoch = next.Epoch();
      next.MembersComeBack();
      if (!journal || state.phase != Phase::kRunning) continue;
      EXPECT_EQ(next.Epoch(), epoch) << "seed " << seed;
      EXPECT_EQ(next.Rounds(), 0U) << "seed " << seed;
      next.Pass(10'000);
    }
    if (HasFailure()) {
      for (const std::string& line : life.story()) std::cerr << line << "\n";
      FAIL() << "seed " << seed;
    }
  }
}

}  // namespace
}  // namespace phalanx::master
