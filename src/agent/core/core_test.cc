#include "agent/core/core.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

namespace phalanx::agent {
namespace {

v1::MasterMessage Welcome() {
  v1::MasterMessage m;
  m.mutable_welcome()->set_beat_interval_ms(1'000);
  return m;
}

v1::MasterMessage Round(uint64_t epoch, uint32_t group_rank = 0) {
  v1::MasterMessage m;
  v1::StartRound& round = *m.mutable_start_round();
  round.set_epoch(epoch);
  round.set_group_rank(group_rank);
  round.set_world_size(4);
  round.set_store_port(5000 + static_cast<uint32_t>(epoch));
  round.set_reason("the test says so");
  return m;
}

v1::MasterMessage Hold(uint64_t epoch) {
  v1::MasterMessage m;
  m.mutable_hold_round()->set_epoch(epoch);
  return m;
}

v1::MasterMessage Finished(int code) {
  v1::MasterMessage m;
  m.mutable_finish()->set_exit_code(code);
  return m;
}

WorkerEnded Ended(int local_rank, uint64_t epoch, int code, int signal = 0) {
  WorkerEnded e;
  e.exited.set_local_rank(static_cast<uint32_t>(local_rank));
  e.exited.set_epoch(epoch);
  e.exited.set_exit_code(code);
  e.exited.set_signal(signal);
  return e;
}

constexpr char kMasterAddress[] = "127.0.0.1:29400";

// A node of two local ranks, driven by hand.
class AgentCore : public ::testing::Test {
 protected:
  AgentCore() { On(Prepared{2, 2}); }

  std::vector<Decision> On(const Event& event) { return last_ = Step(state_, event, now_); }

  void Attach() {
    On(Begin{kMasterAddress, 0});
    On(LinkUp{});
    On(FromMaster{Welcome()});
  }

  void RunRound(uint64_t epoch) {
    On(FromMaster{Round(epoch)});
    for (int rank : {0, 1}) On(WorkerStarted{rank, epoch, 100 * static_cast<int64_t>(epoch) + rank});
  }

  void LoseMaster() {
    for (int death = 0; death <= kMasterStartsInVain; ++death) On(MasterChildDied{"SIGKILL"});
  }

  template <typename T>
  std::vector<T> All() const {
    std::vector<T> found;
    for (const Decision& d : last_) {
      if (const T* action = std::get_if<T>(&d.action)) found.push_back(*action);
    }
    return found;
  }

  template <typename T>
  bool Has() const {
    return !All<T>().empty();
  }

  bool Sent(v1::AgentMessage::BodyCase what) const {
    for (const Send& send : All<Send>()) {
      if (send.message.body_case() == what) return true;
    }
    return false;
  }

  CoreState state_;
  Instant now_ = 1'000;
  std::vector<Decision> last_;
};

TEST_F(AgentCore, SaysHelloOnEveryStreamAndBeatsInTime) {
  On(Begin{kMasterAddress, 0});
  EXPECT_TRUE(Has<Dial>());
  On(LinkUp{});
  EXPECT_TRUE(Has<SendHello>());
  On(FromMaster{Welcome()});
  EXPECT_EQ(NextDeadline(state_), now_ + 1'000);
  now_ += 1'000;
  On(Tick{});
  EXPECT_TRUE(Has<SendBeat>());
}

TEST_F(AgentCore, TakesNoRoundThatMemoryOfAnEarlierAgentHasSeen) {
  On(Begin{kMasterAddress, 7});
  On(LinkUp{});
  On(FromMaster{Welcome()});
  On(FromMaster{Round(7)});
  EXPECT_FALSE(Has<StartWorker>());
  On(FromMaster{Round(8)});
  EXPECT_EQ(All<StartWorker>().size(), 2u);
}

TEST_F(AgentCore, NamesTheMasterThatDoesNotAnswer) {
  On(Begin{kMasterAddress, 0});
  On(LinkDown{"refused", false});
  now_ += kFirstNoticeMs - 1;
  On(Tick{});
  EXPECT_FALSE(Has<Say>());
  now_ += 1;
  On(Tick{});
  ASSERT_TRUE(Has<Say>());
  EXPECT_EQ(All<Say>()[0].text, fmt::format("no answer from the master at {} for 2 s (refused); dialling on, for up to "
                                            "600 s",
                                            kMasterAddress));
  now_ += kWaitingNoticeMs - 1;
  On(Tick{});
  EXPECT_FALSE(Has<Say>());
  now_ += 1;
  On(Tick{});
  EXPECT_TRUE(Has<Say>());
}

TEST_F(AgentCore, TellsTheMasterOnceThatItIsWarm) {
  Attach();
  EXPECT_TRUE(state_.warming);
  On(Warm{});
  EXPECT_TRUE(Sent(v1::AgentMessage::kReady));
  On(Warm{});
  EXPECT_TRUE(last_.empty());
}

TEST_F(AgentCore, TellsThatItIsWarmThoughItBecameSoBeforeTheMastersAnswer) {
  On(Begin{kMasterAddress, 0});
  On(LinkUp{});  // its Hello says that it warms up
  On(Warm{});
  EXPECT_FALSE(Sent(v1::AgentMessage::kReady));
  On(FromMaster{Welcome()});
  EXPECT_TRUE(Sent(v1::AgentMessage::kReady));
  On(LinkDown{"reset", false});
  On(LinkUp{});  // this Hello says that it does not
  On(FromMaster{Welcome()});
  EXPECT_FALSE(Sent(v1::AgentMessage::kReady));
}

TEST_F(AgentCore, OpensTheStoreBeforeItStartsWorkers) {
  Attach();
  On(FromMaster{Round(1)});
  ASSERT_FALSE(last_.empty());
  EXPECT_TRUE(std::holds_alternative<OpenStore>(last_.front().action));
  EXPECT_EQ(All<StartWorker>().size(), 2u);
}

TEST_F(AgentCore, TellsHowFarTheOldRoundCameBeforeItsBoardGoes) {
  Attach();
  RunRound(1);
  v1::MasterMessage next = Round(2, 1);
  next.mutable_start_round()->set_highest_step(50);
  On(FromMaster{next});
  std::vector<std::string> order;
  for (const Decision& d : last_) {
    if (std::holds_alternative<SendBeat>(d.action)) order.push_back("beat");
    if (std::holds_alternative<OpenBoard>(d.action)) order.push_back("board");
  }
  EXPECT_EQ(order, (std::vector<std::string>{"beat", "board"}));
  EXPECT_EQ(All<OpenBoard>()[0].highest_step, 50);
  On(FromMaster{Round(3, 1)});
  EXPECT_EQ(All<OpenBoard>()[0].highest_step, -1);
}

TEST_F(AgentCore, TheLastBeatOfARoundIsOfThatRound) {
  Attach();
  RunRound(1);
  for (int rank : {0, 1}) {
    On(Ended(rank, 1, 0));
    On(GroupGone{rank, 1});
  }
  On(FromMaster{Round(2)});  // begins at once
  EXPECT_EQ(All<StartWorker>().size(), 2U);
  EXPECT_EQ(All<SendBeat>().at(0).epoch, 1U);
}

TEST_F(AgentCore, OnlyGroupRankZeroHoldsTheStore) {
  Attach();
  On(FromMaster{Round(1, 1)});
  EXPECT_FALSE(Has<OpenStore>());
  EXPECT_TRUE(Has<CloseStore>());
}

TEST_F(AgentCore, ANewLifeWaitsForTheWholeOldGroup) {
  Attach();
  RunRound(1);
  On(Ended(1, 1, 0, SIGKILL));
  EXPECT_TRUE(Sent(v1::AgentMessage::kWorkerExited));
  On(FromMaster{Round(2)});
  EXPECT_EQ(All<EndGroup>().size(), 2u);  // local rank 0 lives, local rank 1's children may, and may save
  EXPECT_FALSE(Has<KillGroup>());
  EXPECT_FALSE(Has<StartWorker>());
  On(GroupSignalled{1, 1, false});
  EXPECT_EQ(All<KillGroup>().size(), 1u) << "none of them handles the signal";
  On(GroupGone{1, 1});
  EXPECT_FALSE(Has<StartWorker>());
  On(Ended(0, 1, 0, SIGTERM));
  EXPECT_FALSE(Sent(v1::AgentMessage::kWorkerExited)) << "a worker that was told to end has not failed";
  EXPECT_FALSE(Has<SendBeat>());
  On(GroupGone{0, 1});
  EXPECT_EQ(All<StartWorker>().size(), 2u);
  EXPECT_EQ(All<SendBeat>().at(0).epoch, 2u) << "the master must know that no older rank lives here";
}

TEST_F(AgentCore, KillsAtOnceWhatDoesNotHandleTheSignalThatEndsIt) {
  Attach();
  RunRound(1);
  On(GroupSignalled{0, 1, false});
  EXPECT_TRUE(last_.empty()) << "nobody was told to end";
  On(FromMaster{Round(2)});
  ASSERT_EQ(All<EndGroup>().size(), 2u);
  EXPECT_EQ(All<EndGroup>()[1].epoch, 1u);
  EXPECT_FALSE(Has<KillGroup>());
  On(GroupSignalled{0, 1, true});
  EXPECT_TRUE(last_.empty()) << "it has the grace";
  On(GroupSignalled{1, 1, false});
  ASSERT_EQ(All<KillGroup>().size(), 1u);
  EXPECT_EQ(All<KillGroup>()[0].local_rank, 1);
  for (const int rank : {0, 1}) On(GroupGone{rank, 1});
  On(GroupSignalled{1, 1, false});
  EXPECT_TRUE(last_.empty()) << "that was the last life";
}

TEST_F(AgentCore, KillsWhatOutlivesTheRestartGrace) {
  Attach();
  RunRound(1);
  On(FromMaster{Round(2)});
  EXPECT_EQ(NextDeadline(state_), now_ + 500);
  now_ += 500;
  On(Tick{});
  EXPECT_EQ(All<KillGroup>().size(), 2u);
}

TEST_F(AgentCore, GivesTheNodeUpWhenARankCannotBeKilled) {
  Attach();
  RunRound(1);
  On(FromMaster{Round(2)});
  now_ += 500;
  On(Tick{});
  now_ += kUnkillableMs;
  On(Tick{});
  EXPECT_TRUE(Sent(v1::AgentMessage::kLeaving));
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 1);
}

TEST_F(AgentCore, TheNewestRoundReplacesOneThatStillWaits) {
  Attach();
  RunRound(1);
  On(FromMaster{Round(2)});
  On(FromMaster{Round(3)});
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  ASSERT_EQ(All<StartWorker>().size(), 2u);
  EXPECT_EQ(All<StartWorker>()[0].round.epoch(), 3u);
}

// It may have become a later one for a node that had seen another: those that it had welcomed before hear of it so.
TEST_F(AgentCore, TheTermOfItsMasterIsTheLargestThatItTells) {
  Attach();
  v1::MasterMessage round = Round(1);
  round.mutable_start_round()->set_term(2);
  On(FromMaster{round});
  EXPECT_EQ(state_.search.term, 2U);
  v1::MasterMessage told;
  told.mutable_successors()->set_term(4);
  On(FromMaster{told});
  EXPECT_EQ(state_.search.term, 4U);
  told.mutable_successors()->set_term(3);
  On(FromMaster{told});
  EXPECT_EQ(state_.search.term, 4U);
}

TEST_F(AgentCore, AMasterOfAnEarlierTermMovesNobody) {
  Attach();
  v1::MasterMessage told;
  told.mutable_successors()->set_term(4);
  On(FromMaster{told});
  v1::MasterMessage round = Round(1);
  round.mutable_start_round()->set_term(3);
  On(FromMaster{round});
  EXPECT_TRUE(Has<HangUp>());
  EXPECT_FALSE(Has<StartWorker>());
}

TEST_F(AgentCore, AnOldRoundIsNotBegun) {
  Attach();
  RunRound(3);
  On(FromMaster{Round(2)});
  EXPECT_TRUE(last_.empty());
}

TEST_F(AgentCore, AWorkerThatStartsAfterItsRoundIsKilled) {
  Attach();
  On(FromMaster{Round(1)});
  On(FromMaster{Round(2)});
  EXPECT_FALSE(Has<StartWorker>());
  On(WorkerStarted{0, 1, 100});
  EXPECT_EQ(All<KillGroup>().size(), 1u);
  On(GroupGone{0, 1});
  On(WorkerStartFailed{1, 1, "no memory"});
  EXPECT_FALSE(Sent(v1::AgentMessage::kWorkerExited));
  EXPECT_EQ(All<StartWorker>().size(), 2u);
}

TEST_F(AgentCore, HoldEndsWorkersAndWaits) {
  Attach();
  RunRound(1);
  On(FromMaster{Hold(1)});
  EXPECT_EQ(All<EndGroup>().size(), 2u);
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  EXPECT_FALSE(Has<StartWorker>());
  On(FromMaster{Round(2)});
  EXPECT_EQ(All<StartWorker>().size(), 2u);
}

TEST_F(AgentCore, ANodeThatIsHeldHasNoRound) {
  Attach();
  RunRound(1);
  On(FromMaster{Hold(1)});
  EXPECT_TRUE(state_.round);
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  EXPECT_FALSE(state_.round);
  RunRound(2);
  for (const int rank : {0, 1}) {
    On(Ended(rank, 2, 0));
    On(GroupGone{rank, 2});
  }
  EXPECT_TRUE(state_.round);
  On(FromMaster{Hold(2)});  // the others go on without it
  EXPECT_FALSE(state_.round);
}

TEST_F(AgentCore, ANodeThatIsHeldBeforeItIsWarmGoesOnToBeSo) {
  Attach();
  RunRound(1);
  On(FromMaster{Hold(1)});
  ASSERT_EQ(All<WantSpares>().size(), 1u);
  EXPECT_EQ(All<WantSpares>()[0].count, 2);
  On(Warm{});
  RunRound(2);
  On(FromMaster{Hold(2)});
  EXPECT_FALSE(Has<WantSpares>());
}

TEST_F(AgentCore, SparesComeAfterTheFirstStepOrTenSeconds) {
  Attach();
  RunRound(1);
  On(WorkerStepped{0, 1, 7});
  EXPECT_FALSE(Has<WantSpares>());
  v1::Progress progress;
  progress.set_from_step(6);
  On(WorkerStepped{1, 1, 7, false, progress});
  ASSERT_TRUE(Sent(v1::AgentMessage::kFirstStep));
  EXPECT_EQ(All<Send>()[0].message.first_step().progress().from_step(), 6);
  EXPECT_TRUE(Has<WantSpares>());
  EXPECT_TRUE(Sent(v1::AgentMessage::kFirstStep));
  RunRound(2);
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  now_ += kSparesWithoutStepMs;
  On(Tick{});
  EXPECT_TRUE(Has<WantSpares>());
}

TEST_F(AgentCore, SaysHowLongTheRecoveryTook) {
  Attach();
  RunRound(1);
  On(Ended(1, 1, 0, SIGKILL));
  RunRound(2);
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  for (int rank : {0, 1}) On(WorkerStarted{rank, 2, 200});
  now_ += 92;
  On(WorkerStepped{0, 2, 118, true});
  On(WorkerStepped{1, 2, 118, true});
  ASSERT_EQ(All<Say>().size(), 1u);
  EXPECT_EQ(All<Say>()[0].text, "the test says so: restarted from a warm spare in 92 ms, world 4, step 118");
}

// Ten minutes of being left out are no restart of ten minutes.
TEST_F(AgentCore, RoundsOfOthersAreNoTimeOfItsRestart) {
  for (const uint64_t next : {2, 3}) {
    state_ = CoreState();
    On(Prepared{2, 2});
    Attach();
    RunRound(1);
    On(FromMaster{Hold(1)});
    On(GroupGone{0, 1});
    On(GroupGone{1, 1});
    now_ += 600'000;
    RunRound(next);
    for (const int rank : {0, 1}) On(WorkerStarted{rank, next, 200});
    On(WorkerStepped{0, next, 118, true});
    On(WorkerStepped{1, next, 118, true});
    ASSERT_EQ(All<Say>().size(), 1u);
    EXPECT_THAT(All<Say>()[0].text, testing::HasSubstr(next == 2 ? "in 600000 ms" : ": training, world"));
  }
}

TEST_F(AgentCore, AStopSignalLeavesAndKeepsTheStopTimeout) {
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM});
  EXPECT_TRUE(Sent(v1::AgentMessage::kLeaving));
  EXPECT_EQ(All<EndGroup>().size(), 2u);
  EXPECT_EQ(state_.kill_at, now_ + 30'000);
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 128 + SIGTERM);
}

TEST_F(AgentCore, ASecondStopSignalKillsAtOnce) {
  Attach();
  RunRound(1);
  On(StopSignal{SIGINT});
  On(StopSignal{SIGINT});
  EXPECT_EQ(All<KillGroup>().size(), 2u);
}

TEST_F(AgentCore, NoRoundBeginsOnANodeThatLeaves) {
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM});
  On(FromMaster{Round(2)});
  EXPECT_TRUE(last_.empty());
}

TEST_F(AgentCore, SuccessExitsAtOnceEvenWithChildrenLeftBehind) {
  Attach();
  RunRound(1);
  On(Ended(0, 1, 0));
  On(Ended(1, 1, 0));
  On(FromMaster{Finished(0)});
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 0);
  EXPECT_FALSE(Has<KillGroup>());
}

// They were cut off in a round that went on without them.
TEST_F(AgentCore, SuccessEndsWorkersThatStillRun) {
  Attach();
  RunRound(1);
  On(FromMaster{Finished(0)});
  EXPECT_EQ(All<EndGroup>().size(), 2u);
  EXPECT_FALSE(Has<Exit>());
  for (int rank : {0, 1}) On(Ended(rank, 1, 0, SIGTERM));
  for (int rank : {0, 1}) On(GroupGone{rank, 1});
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 0);
}

TEST_F(AgentCore, FailureEndsWhatRunsAndThenExits) {
  Attach();
  RunRound(1);
  On(Ended(0, 1, 3));
  On(FromMaster{Finished(1)});
  EXPECT_TRUE(Has<ReportFailure>());
  EXPECT_FALSE(Has<Exit>());
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 1);
}

TEST_F(AgentCore, TrainsOnWithoutAMasterAndDialsWithBackoff) {
  Attach();
  RunRound(1);
  On(LinkDown{"reset", false});
  EXPECT_FALSE(Has<EndGroup>());
  EXPECT_EQ(NextDeadline(state_), now_ + kReconnectFirstMs);
  now_ += kReconnectFirstMs;
  On(Tick{});
  EXPECT_TRUE(Has<Dial>());
  On(LinkDown{"refused", false});
  EXPECT_EQ(NextDeadline(state_), now_ + 2 * kReconnectFirstMs);
}

TEST_F(AgentCore, StartsItsOwnMasterAgain) {
  Attach();
  RunRound(1);
  On(MasterChildDied{"SIGKILL"});
  EXPECT_TRUE(Has<RestartMaster>());
  EXPECT_FALSE(Has<EndGroup>());
  On(LinkDown{"reset", false});
  EXPECT_EQ(state_.next_dial, now_ + kReconnectFirstMs);
}

// As that of a node that comes back to a job which another one's master has taken up: of that master's term it would
// decide beside it.
TEST_F(AgentCore, AMasterThatHasSentItOnIsNotTheJobsWhenItIsStartedAgain) {
  state_.options.max_nodes = 2;
  Begin begin{kMasterAddress, 0};
  begin.hosts_master = true;
  On(begin);
  On(LinkUp{});
  v1::MasterMessage sent_on;
  sent_on.mutable_refused()->set_term(2);
  sent_on.mutable_refused()->mutable_moved_to()->set_address("10.0.0.2");
  sent_on.mutable_refused()->mutable_moved_to()->set_port(4'000);
  On(FromMaster{sent_on});
  On(LinkDown{"the stream is over", false});
  On(LinkUp{});
  v1::MasterMessage welcome = Welcome();
  welcome.mutable_welcome()->set_term(2);
  On(FromMaster{welcome});
  ASSERT_EQ(state_.search.address, "10.0.0.2:4000");
  On(MasterChildDied{"SIGKILL"});
  EXPECT_FALSE(Has<RestartMaster>());
  now_ += kMasterTriedAgainMs;
  On(Tick{});
  ASSERT_TRUE(Has<RestartMaster>());
  EXPECT_EQ(All<RestartMaster>().front().term, 0U) << "who tells it of the other one has a later term";
}

// The endpoint's, that has died, is not started in the place of the master that this node would have elected.
TEST_F(AgentCore, WhatSendsCallersOnIsNotStartedWhileItsNodeTakesTheMastersPlace) {
  state_.options.max_nodes = 2;
  Begin begin{kMasterAddress, 0};
  begin.hosts_master = true;
  On(begin);
  state_.moved_on = true;
  On(MasterChildDied{"SIGKILL"});
  const Instant due = state_.master_start_at;
  ASSERT_EQ(due, now_ + kMasterTriedAgainMs);
  state_.search.successors.add_places()->set_node_id(state_.options.node_id);
  state_.search.address = "10.0.0.2:4000";
  state_.was_attached = true;
  state_.take_over_at = now_;
  On(Tick{});
  ASSERT_TRUE(Has<TakeOver>());
  now_ = due;
  On(Tick{});
  EXPECT_FALSE(Has<RestartMaster>());
  state_.search.dialled = "10.0.0.3:4000";  // another one was elected
  v1::MasterMessage welcome = Welcome();
  welcome.mutable_welcome()->set_term(9);
  On(LinkUp{});
  On(FromMaster{welcome});
  On(MasterChildDied{"it was not elected"});
  On(Tick{});
  EXPECT_TRUE(Has<RestartMaster>()) << "who comes to the endpoint looks there again";
}

TEST_F(AgentCore, AMasterThatDiesYoungIsGivenUpInTheEnd) {
  Attach();
  RunRound(1);
  for (int death = 0; death < kMasterStartsInVain; ++death) {
    On(MasterChildDied{"SIGKILL"});
    EXPECT_TRUE(Has<RestartMaster>());
  }
  EXPECT_FALSE(Has<GiveUpAnswers>());
  On(MasterChildDied{"SIGKILL"});
  EXPECT_FALSE(Has<RestartMaster>());
  EXPECT_FALSE(state_.master_gone.empty());
  EXPECT_TRUE(Has<GiveUpAnswers>()) << "nobody starts it again";
}

TEST_F(AgentCore, AMasterThatLivedIsStartedAgainForEver) {
  Attach();
  RunRound(1);
  for (int death = 0; death < 20; ++death) {
    now_ += kMasterGrownUpMs;
    On(MasterChildDied{"SIGKILL"});
    EXPECT_TRUE(Has<RestartMaster>());
    On(LinkDown{"reset", false});
    On(LinkUp{});
    On(FromMaster{Welcome()});
  }
}

// It lives for a while each time, and is welcomed by nobody, or ends soon behind its welcome.
TEST_F(AgentCore, AMasterThatDiesSoonAfterEachStartIsGivenUpInTheEnd) {
  for (const int64_t dies_after_ms : {int64_t{1'200}, kMasterGrownUpMs - 1}) {
    for (const bool welcomes : {false, true}) {
      state_ = CoreState();
      On(Prepared{2, 2});
      Attach();
      RunRound(1);
      for (int death = 0; death <= kMasterStartsInVain; ++death) {
        now_ += dies_after_ms;
        On(MasterChildDied{"SIGSEGV"});
        EXPECT_EQ(Has<RestartMaster>(), death < kMasterStartsInVain) << dies_after_ms << " " << welcomes;
        if (welcomes) On(FromMaster{Welcome()});
      }
      EXPECT_FALSE(state_.master_gone.empty());
    }
  }
}

// A stream that breaks and comes again is no new master.
TEST_F(AgentCore, AMastersAgeCountsFromItsFirstWelcome) {
  Attach();
  RunRound(1);
  for (int death = 0; death < kMasterStartsInVain; ++death) On(MasterChildDied{"SIGKILL"});
  On(FromMaster{Welcome()});
  now_ += kMasterGrownUpMs;
  On(LinkDown{"reset", false});
  On(FromMaster{Welcome()});
  On(MasterChildDied{"SIGKILL"});
  EXPECT_TRUE(Has<RestartMaster>());
}

TEST_F(AgentCore, TheMasterOfSeveralNodesIsTriedNowAndThen) {
  state_.options.max_nodes = 2;
  Attach();
  LoseMaster();
  EXPECT_FALSE(Has<RestartMaster>());
  EXPECT_TRUE(Has<Say>());
  EXPECT_TRUE(state_.master_gone.empty());
  EXPECT_FALSE(state_.finish);
  for (int attempt = 0; attempt < 3; ++attempt) {
    now_ += kMasterTriedAgainMs;
    On(Tick{});
    EXPECT_TRUE(Has<RestartMaster>());
    On(MasterChildDied{"exit code 3"});
    EXPECT_FALSE(Has<RestartMaster>());
    EXPECT_FALSE(Has<Say>()) << "it has been said";
  }
}

TEST_F(AgentCore, EndsWellWhereItsOwnMasterIsGone) {
  Attach();
  RunRound(1);
  LoseMaster();
  On(LinkDown{"reset", false});
  EXPECT_EQ(NextDeadline(state_), std::min(state_.spares_at, kNever));  // nothing is dialled, nothing waited for
  On(Ended(0, 1, 0));
  On(GroupGone{0, 1});
  EXPECT_FALSE(state_.exited);
  On(Ended(1, 1, 0));
  EXPECT_TRUE(state_.exited);
  EXPECT_EQ(state_.finish->exit_code(), 0);
}

TEST_F(AgentCore, AFailureEndsAJobWhoseOwnMasterIsGone) {
  Attach();
  RunRound(1);
  On(Ended(1, 1, 0, SIGKILL));  // before: the master has not answered
  On(GroupGone{1, 1});
  LoseMaster();
  ASSERT_TRUE(state_.finish);
  EXPECT_EQ(state_.finish->exit_code(), 1);
  EXPECT_THAT(state_.finish->reason(), ::testing::HasSubstr("local rank 1 failed (SIGKILL), and the job's master"));
}

// What the master may not have heard, or another master never has.
TEST_F(AgentCore, TellsANewMasterWhatItsRanksDid) {
  Attach();
  RunRound(1);
  EXPECT_EQ(LiveRound(state_)->epoch(), 1U);
  for (int rank : {0, 1}) On(WorkerStepped{rank, 1, 5, true});
  On(LinkDown{"reset", false});
  On(Ended(1, 1, 3));
  On(GroupGone{1, 1});
  EXPECT_FALSE(Has<Send>());
  On(LinkUp{});
  On(FromMaster{Welcome()});
  EXPECT_TRUE(Sent(v1::AgentMessage::kFirstStep));
  ASSERT_TRUE(Sent(v1::AgentMessage::kWorkerExited));
  EXPECT_EQ(All<Send>()[1].message.worker_exited().exit_code(), 3);
  EXPECT_EQ(LiveRound(state_)->epoch(), 1U);
}

// A scanner knocks again and again, and what it finds is the store of the round that is live.
TEST_F(AgentCore, TellsOfTheFirstClientsThatItsStoreRefuses) {
  Attach();
  RunRound(1);
  for (uint64_t client = 1; client <= kRefusalsTold + 2; ++client) {
    On(StoreRefusedClient{1, fmt::format("store refused client {}", client)});
    ASSERT_EQ(Sent(v1::AgentMessage::kStoreRefused), client <= kRefusalsTold) << client;
    EXPECT_EQ(Has<Say>(), client <= kRefusalsTold);
    if (client == 1) {
      EXPECT_EQ(All<Say>().front().text, "store refused client 1");
      EXPECT_EQ(All<Send>().front().message.store_refused().epoch(), 1U);
    }
    if (client == kRefusalsTold) {
      EXPECT_EQ(All<Say>().front().text, "store refused client 8; others are not told");
    }
  }
  v1::MasterMessage look;
  look.mutable_tell_steps();
  On(FromMaster{look});
  EXPECT_EQ(All<TellSteps>().front().store_refused, 10U) << "all are counted";
  now_ += state_.beat_interval_ms;
  On(Tick{});
  EXPECT_EQ(All<SendBeat>().front().store_refused, 10U);
  On(FromMaster{Round(2)});
  On(StoreRefusedClient{1, "too late"});
  EXPECT_FALSE(Has<Say>());
  On(StoreRefusedClient{2, "another store"});
  EXPECT_TRUE(Sent(v1::AgentMessage::kStoreRefused));
}

TEST_F(AgentCore, ARoundThatIsHeldIsNotLive) {
  Attach();
  RunRound(1);
  On(FromMaster{Hold(1)});
  EXPECT_EQ(LiveRound(state_), nullptr) << "its workers are being ended";
  On(FromMaster{Round(2)});
  EXPECT_EQ(LiveRound(state_)->epoch(), 2U) << "it begins when the old groups are gone";
}

TEST_F(AgentCore, ALargeJobDialsLessOften) {
  Attach();
  for (const auto& [lease_ms, most_ms] : {std::pair{3'000, 200}, {9'000, 600}, {18'000, 1'000}}) {
    v1::MasterMessage welcome = Welcome();
    welcome.mutable_welcome()->set_lease_ms(lease_ms);
    On(FromMaster{welcome});
    for (int i = 0; i < 10; ++i) On(LinkDown{"refused", false});
    EXPECT_EQ(state_.next_dial, now_ + most_ms);
    On(LinkUp{});
  }
}

// --- rescales ---

v1::MasterMessage Announce(uint64_t epoch, int64_t at_step = 40) {
  v1::MasterMessage m;
  m.mutable_announce_rescale()->set_epoch(epoch);
  m.mutable_announce_rescale()->set_at_step(at_step);
  return m;
}

TEST_F(AgentCore, TellsHowFarItsRanksAreBeforeTheStepIsChosen) {
  Attach();
  RunRound(1);
  On(FromMaster{Announce(1, 0)});
  ASSERT_EQ(All<SendBeat>().size(), 1U);
  ASSERT_EQ(All<AskForSafePoint>().size(), 1U);
  EXPECT_EQ(All<AskForSafePoint>()[0].at_step, 0);
  On(SafePointAsked{1, {0}});
  EXPECT_EQ(All<Send>().at(0).message.safe_point().asked(), 1U);
  EXPECT_FALSE(All<Send>()[0].message.safe_point().reached());
  On(FromMaster{Announce(1)});
  EXPECT_FALSE(Has<SendBeat>());
  EXPECT_EQ(All<AskForSafePoint>().at(0).at_step, 40);
}

TEST_F(AgentCore, ARankAtItsSafePointIsNotAwaitedAgain) {
  Attach();
  RunRound(1);
  On(FromMaster{Announce(1)});
  On(SafePointAsked{1, {0, 1}});
  On(WorkerSafe{0, 1});
  On(FromMaster{Announce(1)});  // of a master that knows nothing of the one before
  On(SafePointAsked{1, {0, 1}});
  EXPECT_FALSE(All<Send>().at(0).message.safe_point().reached());
  On(WorkerSafe{1, 1});
  EXPECT_TRUE(All<Send>().at(0).message.safe_point().reached());
  On(FromMaster{Announce(1)});
  On(SafePointAsked{1, {0, 1}});
  EXPECT_TRUE(All<Send>().at(0).message.safe_point().reached());
}

TEST_F(AgentCore, ARankThatEndsBeforeItIsToldToSaveHasDoneItsWork) {
  Attach();
  RunRound(1);
  On(FromMaster{Announce(1, 0)});
  On(SafePointAsked{1, {0, 1}});
  On(Ended(0, 1, 0));
  EXPECT_FALSE(All<Send>().at(0).message.worker_exited().for_rescale());
  On(FromMaster{Announce(1)});
  On(SafePointAsked{1, {1}});
  On(Ended(1, 1, 0));
  EXPECT_TRUE(All<Send>().at(0).message.worker_exited().for_rescale());
}

TEST_F(AgentCore, RanksThatHearOnlyLaterCountAsAsked) {
  Attach();
  RunRound(1);
  On(FromMaster{Announce(1)});
  On(SafePointAsked{1, {}});
  EXPECT_EQ(All<Send>().at(0).message.safe_point().asked(), 0U);
  On(FromMaster{Announce(1)});  // of the next change: the first came to nothing
  On(SafePointAsked{1, {0, 1}});
  EXPECT_EQ(All<Send>().at(0).message.safe_point().asked(), 2U);
}

TEST_F(AgentCore, AnAnnouncementForARoundThatWaitsIsKeptForIt) {
  Attach();
  RunRound(1);
  On(FromMaster{Round(2)});
  On(FromMaster{Announce(2, 0)});
  EXPECT_FALSE(Has<AskForSafePoint>()) << "its ranks do not live yet";
  On(GroupGone{0, 1});
  On(GroupGone{1, 1});
  EXPECT_EQ(All<AskForSafePoint>().at(0).epoch, 2U);
}

TEST_F(AgentCore, ALeavingNodeWhoseRanksHaveMadeRoomWaitsForTheOthers) {
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM, true});
  On(FromMaster{Announce(1)});
  On(SafePointAsked{1, {0, 1}});
  for (const int rank : {0, 1}) {
    On(Ended(rank, 1, 0));
    On(GroupGone{rank, 1});
    EXPECT_FALSE(Has<Exit>()) << "its stream's end would cut off those that still save";
  }
  On(FromMaster{Hold(1)});
  EXPECT_TRUE(Has<Exit>());
}

TEST_F(AgentCore, ALeavingNodeEndsWithTheRoundThatItsRanksAreOf) {
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM, true});
  On(FromMaster{Round(2)});  // it was on its way
  EXPECT_TRUE(Has<EndGroup>());
  EXPECT_EQ(state_.leave_at, kNever);
}

TEST_F(AgentCore, TellsAtOnceWhereNoRankHearsOfRescales) {
  Attach();
  RunRound(1);
  On(FromMaster{Announce(1)});
  ASSERT_TRUE(Has<AskForSafePoint>());
  EXPECT_EQ(All<AskForSafePoint>()[0].at_step, 40);
  On(SafePointAsked{1, {}});
  ASSERT_TRUE(Sent(v1::AgentMessage::kSafePoint));
  EXPECT_TRUE(All<Send>()[0].message.safe_point().reached());
  EXPECT_EQ(All<Send>()[0].message.safe_point().asked(), 0U);
}

TEST_F(AgentCore, ASafePointIsReachedWhenAllThatWereAskedAreThere) {
  Attach();
  RunRound(1);
  On(FromMaster{Announce(1)});
  On(SafePointAsked{1, {0, 1}});
  EXPECT_FALSE(All<Send>().at(0).message.safe_point().reached());
  On(WorkerSafe{0, 1});
  EXPECT_TRUE(last_.empty());
  On(Ended(1, 1, 0));  // its own way of making room
  ASSERT_EQ(All<Send>().size(), 2U);
  EXPECT_TRUE(All<Send>()[0].message.worker_exited().for_rescale());
  EXPECT_TRUE(All<Send>()[1].message.safe_point().reached());
  On(LinkDown{"reset", false});
  On(LinkUp{});
  On(FromMaster{Welcome()});
  EXPECT_TRUE(Sent(v1::AgentMessage::kSafePoint)) << "a new master must know";
}

TEST_F(AgentCore, AFailureAtASafePointIsOne) {
  Attach();
  RunRound(1);
  On(FromMaster{Announce(1)});
  On(SafePointAsked{1, {0, 1}});
  On(Ended(0, 1, 3));
  EXPECT_FALSE(All<Send>().at(0).message.worker_exited().for_rescale());
  On(Ended(1, 1, 0));
  EXPECT_TRUE(All<Send>().at(0).message.worker_exited().for_rescale());
}

TEST_F(AgentCore, AnAnnouncementOfAnotherRoundIsIgnored) {
  Attach();
  RunRound(2);
  On(FromMaster{Announce(1)});
  EXPECT_TRUE(last_.empty());
  On(SafePointAsked{1, {0}});
  EXPECT_TRUE(last_.empty());
}

TEST_F(AgentCore, ALeavingNodesRanksRunOnToTheSafePoint) {
  state_.options.max_nodes = 2;
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM, true});
  EXPECT_TRUE(All<Send>().at(0).message.leaving().waits());
  EXPECT_FALSE(Has<EndGroup>());
  On(FromMaster{Announce(1)});
  EXPECT_TRUE(Has<AskForSafePoint>());
  On(FromMaster{Hold(1)});
  EXPECT_EQ(All<EndGroup>().size(), 2U);
}

TEST_F(AgentCore, ALeavingNodeDoesNotWaitForEver) {
  state_.options.max_nodes = 2;
  state_.options.rescale_grace_ms = 700;
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM, true});
  EXPECT_EQ(NextDeadline(state_), now_ + 700);
  now_ += 700;
  On(Tick{});
  EXPECT_EQ(All<EndGroup>().size(), 2U);
}

TEST_F(AgentCore, ALeavingNodeWithoutAMasterWaitsForNobody) {
  state_.options.max_nodes = 2;
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM, true});
  On(LinkDown{"reset", false});
  EXPECT_EQ(All<EndGroup>().size(), 2U);
}

TEST_F(AgentCore, AskedTwiceANodeLeavesAtOnce) {
  state_.options.max_nodes = 2;
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM, true});
  On(StopSignal{SIGTERM, true});
  EXPECT_EQ(All<KillGroup>().size(), 2U);
}

TEST_F(AgentCore, GivesUpAfterTheJoinTimeout) {
  state_.options.join_timeout_ms = 2'000;
  On(Begin{kMasterAddress, 0});
  On(LinkDown{"refused", false});
  now_ += 1'999;
  On(Tick{});
  EXPECT_FALSE(state_.exited);
  now_ += 1;
  On(Tick{});
  ASSERT_TRUE(state_.exited);
  EXPECT_EQ(All<Exit>()[0].code, 1);
}

// Ranks that compute need no master, and go on. The others are told once, of each silence.
TEST_F(AgentCore, RanksAwaitNoAnswerBehindTheJoinTimeout) {
  state_.options.join_timeout_ms = 70'000;
  Attach();
  RunRound(1);
  for (int silence = 0; silence < 2; ++silence) {
    On(LinkDown{"reset", false});
    int told = 0;
    for (int64_t waited_ms = 0; waited_ms < 200'000; waited_ms += 1'000) {
      const bool early = waited_ms < 70'000;
      On(Tick{});
      told += static_cast<int>(All<GiveUpAnswers>().size());
      EXPECT_EQ(told, early ? 0 : 1) << waited_ms;
      now_ += 1'000;
    }
    EXPECT_FALSE(state_.finish);
    On(LinkUp{});
    On(FromMaster{Welcome()});
  }
}

TEST_F(AgentCore, GivesUpThoughAnEndedWorkerHasLeftAChild) {
  state_.options.join_timeout_ms = 2'000;
  Attach();
  RunRound(1);
  On(LinkDown{"reset", false});
  for (int rank : {0, 1}) On(Ended(rank, 1, 1));  // their groups are not gone
  now_ += 2'000;
  On(Tick{});
  ASSERT_TRUE(state_.finish);
  EXPECT_EQ(state_.finish->exit_code(), 1);
  EXPECT_EQ(All<EndGroup>().size(), 2u);
}

TEST_F(AgentCore, GivesUpThoughItsRanksWaitAtASafePoint) {
  state_.options.join_timeout_ms = 2'000;
  Attach();
  RunRound(1);
  On(SafePointAsked{1, {0, 1}});
  for (int rank : {0, 1}) On(WorkerSafe{rank, 1});
  On(LinkDown{"reset", false});
  now_ += 2'000;
  On(Tick{});
  ASSERT_TRUE(state_.finish);
  EXPECT_EQ(state_.finish->exit_code(), 1);
}

TEST_F(AgentCore, AnEndingNodeThatHasLostItsMasterHasNoDeadlineInThePast) {
  state_.options.stop_timeout_ms = 60'000;
  Attach();
  RunRound(1);
  On(StopSignal{SIGTERM});
  On(LinkDown{"reset", false});
  now_ += kWaitingNoticeMs;
  On(Tick{});
  EXPECT_GT(NextDeadline(state_), now_);
}

TEST_F(AgentCore, AForeignMasterIsHopeless) {
  On(Begin{kMasterAddress, 0});
  On(LinkDown{"unknown method", true});
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 1);
}

// The node's master is away, and another program has taken its port: the ranks need neither.
TEST_F(AgentCore, AForeignMasterInThePlaceOfOneThatIsAwayEndsNothing) {
  Attach();
  RunRound(1);
  On(LinkDown{"reset", false});
  const Instant lost_at = now_;
  now_ = state_.next_dial;
  On(Tick{});
  EXPECT_TRUE(Has<Dial>());
  On(LinkDown{"what answers there is not a Phalanx master", true});
  EXPECT_TRUE(last_.empty());
  EXPECT_FALSE(state_.finish);
  EXPECT_EQ(state_.next_dial, now_ + 2 * kReconnectFirstMs);
  now_ = lost_at + kWaitingNoticeMs;
  On(Tick{});
  ASSERT_TRUE(Has<Say>());
  EXPECT_THAT(All<Say>()[0].text, ::testing::HasSubstr("is not a Phalanx master); dialling on"));
}

v1::MasterMessage RefusedBy(bool other_job) {
  v1::MasterMessage m;
  m.mutable_refused()->set_sentence("this master serves job 'other'");
  m.mutable_refused()->set_other_job(other_job);
  return m;
}

TEST_F(AgentCore, AnotherJobsMasterInThePlaceOfOneThatIsAwayEndsNothing) {
  Attach();
  RunRound(1);
  On(LinkDown{"reset", false});
  const Instant lost_at = now_;
  for (int i = 0; i < 3; ++i) {
    now_ = state_.next_dial;
    On(Tick{});
    ASSERT_TRUE(Has<Dial>());
    On(LinkUp{});
    On(FromMaster{RefusedBy(true)});
    EXPECT_TRUE(last_.empty());
    On(LinkDown{"its end", false});
    EXPECT_FALSE(state_.finish);
    EXPECT_EQ(state_.next_dial, now_ + state_.reconnect_max_ms) << "it answers, and is not to be flooded";
  }
  now_ = lost_at + kWaitingNoticeMs;
  On(Tick{});
  ASSERT_TRUE(Has<Say>());
  EXPECT_THAT(All<Say>()[0].text, ::testing::HasSubstr("this master serves job 'other'); dialling on"));
  ASSERT_TRUE(Has<Dial>());
  On(LinkUp{});
  On(FromMaster{Welcome()});
  EXPECT_TRUE(state_.attached) << "its own is back";
  EXPECT_EQ(state_.phase, Phase::kRunning);
}

TEST_F(AgentCore, ANodeThatItsOwnMasterRefusesEnds) {
  Attach();
  RunRound(1);
  On(LinkDown{"reset", false});
  On(LinkUp{});
  On(FromMaster{RefusedBy(false)});
  EXPECT_TRUE(state_.finish);
}

TEST_F(AgentCore, ANodeThatNobodyHasWelcomedEndsWhereItIsRefused) {
  On(Begin{kMasterAddress, 0});
  On(LinkUp{});
  On(FromMaster{RefusedBy(true)});
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 1);
}

// A node that waits has nothing to lose, and gives up as it does where nobody answers.
TEST_F(AgentCore, AWaitingNodeGivesAForeignMasterUpAfterTheJoinTimeout) {
  Attach();
  On(LinkDown{"what answers there is not a Phalanx master", true});
  EXPECT_FALSE(state_.finish);
  now_ += state_.options.join_timeout_ms;
  On(Tick{});
  ASSERT_TRUE(Has<Exit>());
  EXPECT_EQ(All<Exit>()[0].code, 1);
}

TEST_F(AgentCore, UserSignalsAreOnlyPassedOn) {
  Attach();
  RunRound(1);
  On(PassSignal{SIGUSR1});
  EXPECT_EQ(All<SignalWorker>().size(), 2u);
  EXPECT_EQ(last_.size(), 2u);
}

}  // namespace
}  // namespace phalanx::agent
