#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/core.h"
#include "agent/replay/events.h"
#include "agent/replay/frames.h"
#include "agent/replay/player.h"
#include "replay/text.h"

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;

v1::MasterMessage Welcome() {
  v1::MasterMessage message;
  message.mutable_welcome()->set_beat_interval_ms(1'000);
  return message;
}

v1::MasterMessage Round(uint64_t epoch) {
  v1::MasterMessage message;
  v1::StartRound& round = *message.mutable_start_round();
  round.set_epoch(epoch);
  round.set_world_size(2);
  round.set_group_world_size(1);
  round.set_store_port(20'000);
  round.add_member_addresses("10.0.0.1");
  round.set_reason("because");
  return message;
}

// One of each kind of the core, with every field set.
std::vector<Event> Events() {
  WorkerEnded ended;
  ended.exited.set_epoch(1);
  ended.exited.set_local_rank(1);
  ended.exited.set_signal(SIGKILL);
  ended.exited.set_last_words("bytes: \xff");
  v1::Progress progress;
  progress.set_step(7);
  return {
      Prepared{2, 3},
      Begin{"10.0.0.1:29400", 4, true},
      LinkUp{"10.0.0.1"},
      LinkDown{"no UTF-8: \xff", true, true},
      FromMaster{Welcome()},
      Warm{},
      WorkerStarted{1, 2, 300},
      WorkerStartFailed{1, 2, "no room", 99},
      WorkerStepped{1, 2, 7, true, progress},
      ended,
      GroupSignalled{1, 2, true},
      GroupGone{1, 2},
      StopSignal{SIGTERM, true},
      SafePointAsked{2, {0, 1}},
      WorkerSafe{1, 2},
      StoreRefusedClient{2, "a stranger"},
      PassSignal{SIGUSR1},
      MasterChildFailed{"no port"},
      MasterChildDied{"SIGKILL"},
      CandidateReady{"10.0.0.2:29400"},
      Tick{},
  };
}

// And of those beside it.
std::vector<joining::Event> JoiningEvents() {
  return {
      joining::Begun{7},
      joining::Resolved{{true, "10.0.0.1", "10.0.0.2"}},
      joining::NotResolved{"?"},
      joining::MasterReady{29'400},
      joining::MasterNotReady{true, "in use"},
      joining::GivenUp{},
      joining::Tick{},
  };
}

std::vector<leaving::Event> LeavingEvents() {
  return {
      leaving::Begun{3, true, true, true, true, true, true, 500},
      leaving::StorageSettled{true, "step 3"},
      leaving::StorageIdle{},
      leaving::AskedAgain{},
      leaving::StreamBroken{"step 3"},
      leaving::StreamClosed{},
      leaving::MasterEnded{true},
      leaving::MasterAnswered{},
      leaving::Tick{"step 4"},
  };
}

template <typename OneEvent>
void ComeBack(const std::vector<OneEvent>& events) {
  EXPECT_EQ(events.size(), std::variant_size_v<OneEvent>);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].index(), i) << "one of each kind, in their order";
    v1::AgentEvent wire;
    ASSERT_TRUE(wire.ParseFromString(MessageOf(AnyEvent(events[i])).SerializeAsString())) << i;
    const StatusOr<AnyEvent> back = EventOf(wire);
    ASSERT_TRUE(back.ok()) << back.status();
    ASSERT_TRUE(std::holds_alternative<OneEvent>(*back));
    EXPECT_EQ(std::get<OneEvent>(*back).index(), i);
    EXPECT_EQ(MessageOf(*back).SerializeAsString(), MessageOf(AnyEvent(events[i])).SerializeAsString()) << i;
  }
}

TEST(AgentReplay, EveryEventComesBackAsItWas) {
  ComeBack(Events());
  ComeBack(JoiningEvents());
  ComeBack(LeavingEvents());
  const auto back = [](const AnyEvent& event) { return *EventOf(MessageOf(event)); };
  EXPECT_EQ(std::get<WorkerStarted>(std::get<Event>(back(Events()[6]))).pid, 300);
  EXPECT_EQ(std::get<LinkDown>(std::get<Event>(back(Events()[3]))).why, "no UTF-8: \xff");
  const auto hosting = std::get<joining::Resolved>(std::get<joining::Event>(back(JoiningEvents()[1]))).hosting;
  EXPECT_EQ(hosting.dial_host, "10.0.0.2");
  EXPECT_EQ(std::get<leaving::Begun>(std::get<leaving::Event>(back(LeavingEvents()[0]))).beat_interval_ms, 500);
}

TEST(AgentReplay, WhatNoAgentSeesIsRefused) {
  v1::AgentEvent wire;
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_prepared()->set_local_world_size(0);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_prepared()->set_local_world_size(1'000'000);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_worker_started()->set_local_rank(UINT32_MAX);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_worker_ended()->set_local_rank(UINT32_MAX);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_safe_point_asked()->add_local_ranks(UINT32_MAX);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_stop_signal()->set_signal(INT32_MAX);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_joining();
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_joining()->mutable_begun()->set_since_ms(INT64_MAX);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_joining()->mutable_master_ready()->set_port(70'000);
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_leaving();
  EXPECT_FALSE(EventOf(wire).ok());
  wire.mutable_leaving()->mutable_begun()->set_beat_interval_ms(INT64_MAX);
  EXPECT_FALSE(EventOf(wire).ok());
  v1::ReplayStart start;
  start.mutable_agent()->set_stop_timeout_ms(INT64_MAX);
  EXPECT_THAT(Message(PlayAgent(start).status()), HasSubstr("contradicts itself"));
}

// As the shell records it, in virtual time.
struct Recorded {
  explicit Recorded(const CoreOptions& options) {
    AgentOptions all;
    all.core = options;
    all.joining = {false, false, "master", 29'400, options.join_timeout_ms};
    all.leaving = {options.stop_timeout_ms, options.max_nodes, options.rescale_grace_ms};
    *start.mutable_agent() = StartOf(all, "node", "host");
    state.options = options;
    join.options = all.joining;
    leave.options = all.leaving;
  }

  void On(const Event& event) { Add(event, DecisionsFrame(Step(state, event, now))); }
  void OnJoin(const joining::Event& event) { Add(event, DecisionsFrame(joining::Step(join, event, now))); }
  void OnLeave(const leaving::Event& event) { Add(event, DecisionsFrame(leaving::Step(leave, event, now))); }

  void Add(const AnyEvent& event, v1::ReplayFrame decisions) {
    frames.push_back(EventFrame(now, event));
    frames.push_back(std::move(decisions));
    now += 10;
  }

  v1::ReplayStart start;
  CoreState state;
  joining::State join;
  leaving::State leave;
  Instant now = 1'000;
  std::vector<v1::ReplayFrame> frames;  // event and decisions in turn
};

// Of joining and leaving: the name is asked for twice, storage is waited for.
void Come(Recorded& node) {
  node.OnJoin(joining::Begun{node.now});
  node.OnJoin(joining::NotResolved{"no such name"});
  node.now += joining::kResolveAgainMs;
  node.OnJoin(joining::Tick{});
  node.OnJoin(joining::Resolved{{true, "10.0.0.1", "10.0.0.1"}});
  node.OnJoin(joining::MasterReady{29'400});
}

void Go(Recorded& node) {
  node.OnJoin(joining::GivenUp{});
  node.OnLeave(leaving::Begun{143, true, true, false, true, true, true, 1'000});
  node.OnLeave(leaving::StorageSettled{true, "step 3"});
  node.now += 1'000;
  node.OnLeave(leaving::Tick{"step 3"});
  node.OnLeave(leaving::StorageIdle{});
  node.OnLeave(leaving::StreamClosed{});
}

// A node joins, one of its ranks is killed, its job stops without the master's answer.
Recorded Life() {
  CoreOptions options;
  options.max_nodes = 2;
  options.stop_timeout_ms = 12'000;
  options.restart_grace_ms = 700;
  options.rescale_grace_ms = 0;
  Recorded node(options);
  node.On(Prepared{2, 2});
  node.On(Begin{"10.0.0.1:29400", 0});
  node.On(LinkUp{});
  node.On(FromMaster{Welcome()});
  node.On(FromMaster{Round(1)});
  for (const int rank : {0, 1}) node.On(WorkerStarted{rank, 1, 100 + rank});
  for (const int rank : {0, 1}) node.On(WorkerStepped{rank, 1, 5, true, {}});
  node.On(Events()[9]);
  node.On(FromMaster{Round(2)});
  node.now += 700;
  node.On(Tick{});
  for (const int rank : {0, 1}) node.On(GroupGone{rank, 1});
  node.On(LinkDown{"reset", false});
  node.On(StopSignal{SIGTERM, false});
  for (const int rank : {0, 1}) node.On(GroupGone{rank, 2});
  return node;
}

std::string Play(const Recorded& node) {
  StatusOr<std::unique_ptr<replay::Player>> player = PlayAgent(node.start);
  if (!player.ok()) return Message(player.status());
  for (size_t i = 0; i + 1 < node.frames.size(); i += 2) {
    const StatusOr<v1::ReplayDecisions> replayed = (*player)->Step(node.frames[i].event());
    if (!replayed.ok()) return Message(replayed.status());
    const std::optional<int> difference = replay::FirstDifference(node.frames[i + 1].decisions(), *replayed);
    if (difference) return fmt::format("step {}, decision {}", i / 2, *difference);
  }
  return "same";
}

TEST(AgentReplay, ANodesLifeIsDecidedTheSameAgain) {
  const Recorded node = Life();
  EXPECT_TRUE(node.state.exited);
  EXPECT_EQ(Play(node), "same");
}

TEST(AgentReplay, HowItCameAndWentIsDecidedTheSameAgain) {
  Recorded whole{CoreOptions{}};
  Come(whole);
  Go(whole);
  EXPECT_TRUE(whole.join.joined);
  EXPECT_EQ(whole.leave.phase, leaving::Phase::kMasterEnds);
  EXPECT_EQ(Play(whole), "same");
  Recorded node = whole;
  node.start.mutable_agent()->set_endpoint_port(29'401);
  EXPECT_EQ(Play(node), "step 3, decision 0");
  node = whole;
  node.start.mutable_agent()->set_max_nodes(2);
  EXPECT_EQ(Play(node), "step 10, decision 0");
  node.start.mutable_agent()->set_endpoint_port(70'000);
  EXPECT_THAT(Play(node), HasSubstr("contradicts itself"));
}

TEST(AgentReplay, OtherOptionsEventsTimesOrDecisionsShow) {
  const Recorded whole = Life();
  Recorded node = whole;
  node.start.mutable_agent()->set_restart_grace_ms(711);
  EXPECT_THAT(Play(node), HasSubstr("step 11"));  // the Tick of the old grace
  node = whole;
  node.frames[0].mutable_event()->mutable_agent()->mutable_prepared()->set_local_world_size(1);
  EXPECT_THAT(Play(node), HasSubstr("step 1, decision 0"));
  node = whole;
  node.frames[22].mutable_event()->set_now_ms(node.frames[20].event().now_ms());
  EXPECT_THAT(Play(node), HasSubstr("step 11"));
  node = whole;
  node.frames[3].mutable_decisions()->mutable_decisions()->RemoveLast();
  EXPECT_EQ(Play(node), "step 1, decision 1");
}

TEST(AgentReplay, WhatIsExplainedHasItsReasonItsDecisionAndItsTime) {
  EXPECT_EQ(ExplainText(Decision{SendHello{}, "the stream to the master is open"}, 1'234),
            "the stream to the master is open -> send Hello (1.234 s)");
  EXPECT_EQ(ExplainText(Decision{Say{"training"}, "training goes on"}, 12'000), "training goes on (12.000 s)");
  EXPECT_EQ(ExplainText(Decision{SendBeat{4}, "the lease is renewed"}, 1), "");
  EXPECT_EQ(ExplainText(leaving::Decision{leaving::Beat{}, "the lease is renewed"}, 1), "");
  const std::string longest = ExplainText(Decision{Herald{{std::string(500, 'x')}}, "why"}, 1);
  EXPECT_EQ(longest.size(), std::string("why -> ").size() + 160 + std::string("... (0.001 s)").size());
}

TEST(AgentReplay, EachActionIsTextWithAllThatItDoes) {
  v1::AgentMessage message;
  message.mutable_ready();
  v1::Finish finish;
  finish.set_exit_code(3);
  const std::vector<std::pair<Action, std::string>> all = {
      {Dial{"10.0.0.1:29400", 1'000}, "dial the master at 10.0.0.1:29400 for 1000 ms"},
      {HangUp{}, "hang up"},
      {SendHello{}, "send Hello"},
      {SendBeat{4, 9}, "send a beat of epoch 4, whose store has turned away 9"},
      {TellSteps{4, true, 9}, "tell the steps of epoch 4, whose store has turned away 9, of each rank"},
      {Send{message}, "send ready { }"},
      {OpenStore{4, 20'000, {"10.0.0.1", "10.0.0.2"}, 8},
       "open the store of epoch 4 for world 8 on port 20000, to 10.0.0.1 10.0.0.2"},
      {CloseStore{}, "close the store"},
      {OpenBoard{4, 7}, "open the board of epoch 4, highest step 7"},
      {StartWorker{{}, 1}, "start local rank 1: "},
      {EndGroup{1, 4, SIGTERM}, "end local rank 1 of epoch 4 by SIGTERM"},
      {KillGroup{1}, "kill local rank 1"},
      {SignalWorker{1, SIGUSR1}, "send SIGUSR1 to local rank 1"},
      {AskForSafePoint{4, 7, true}, "ask ranks of epoch 4 for a safe point behind step 7, as a node leaves"},
      {WantSpares{2}, "want 2 spares"},
      {KillStrays{}, "kill strays"},
      {RestartMaster{3}, "start the master of term 3 again"},
      {TakeOver{4, "id", true}, "start a master of term 4 in the place of id, whose stream broke"},
      {LetGo{}, "let the master go that is not elected"},
      {Herald{{"10.0.0.1:29400"}}, "tell at 10.0.0.1:29400 where the master is"},
      {StopHerald{}, "tell no more where the master is"},
      {GiveUpAnswers{"it is away"}, "answer ranks in the master's place: it is away"},
      {Say{"text"}, "say: text"},
      {ReportFailure{finish}, "report the failure: exit_code: 3"},
      {Exit{3}, "exit with 3"},
  };
  EXPECT_EQ(all.size(), std::variant_size_v<Action>);
  for (const auto& [action, text] : all) {
    const v1::ReplayDecisions decisions = DecisionsOf(std::vector<Decision>{{action, "why"}});
    EXPECT_EQ(decisions.decisions(0).action(), text);
    EXPECT_EQ(decisions.decisions(0).reason(), "why");
  }
}

template <typename OneDecision, typename OneAction>
void AreTexts(const std::vector<std::pair<OneAction, std::string>>& all) {
  EXPECT_EQ(all.size(), std::variant_size_v<OneAction>);
  for (const auto& [action, text] : all) {
    const v1::ReplayDecisions decisions = DecisionsOf(std::vector<OneDecision>{{action, "why"}});
    EXPECT_EQ(decisions.decisions(0).action(), text);
  }
}

TEST(AgentReplay, SoIsEachOfJoiningAndLeaving) {
  AreTexts<joining::Decision, joining::Action>({
      {joining::Resolve{}, "ask for the endpoint's addresses"},
      {joining::StartMaster{"10.0.0.1", 5}, "start the master at 10.0.0.1 port 5"},
      {joining::Join{"host", 5}, "join at host port 5"},
      {joining::Say{"text"}, "say: text"},
      {joining::Fail{"why"}, "fail: why"},
      {joining::TellMasterDied{"why"}, "tell that the master died: why"},
  });
  AreTexts<leaving::Decision, leaving::Action>({
      {leaving::SettleStorage{true, true}, "settle storage, as the node leaves, and tidy it up"},
      {leaving::Say{"text"}, "say: text"},
      {leaving::Warn{"text"}, "warn: text"},
      {leaving::Beat{}, "send a beat"},
      {leaving::Depart{3}, "depart with 3"},
      {leaving::CloseStream{5}, "close the stream within 5 ms"},
      {leaving::AwaitMaster{5}, "await the master's end for 5 ms"},
      {leaving::StartMaster{}, "start the master again"},
      {leaving::EndProgram{}, "end the program"},
  });
}

}  // namespace
}  // namespace phalanx::agent
