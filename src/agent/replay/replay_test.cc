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

// One of each kind, with every field set.
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
      Begin{"10.0.0.1:29400", 4},
      LinkUp{},
      LinkDown{"no UTF-8: \xff", true},
      FromMaster{Welcome()},
      Warm{},
      WorkerStarted{1, 2, 300},
      WorkerStartFailed{1, 2, "no room", 99},
      WorkerStepped{1, 2, 7, true, progress},
      ended,
      GroupGone{1, 2},
      StopSignal{SIGTERM, true},
      SafePointAsked{2, {0, 1}},
      WorkerSafe{1, 2},
      StoreRefusedClient{2, "a stranger"},
      PassSignal{SIGUSR1},
      MasterChildFailed{"no port"},
      MasterChildDied{"SIGKILL"},
      Tick{},
  };
}

TEST(AgentReplay, EveryEventComesBackAsItWas) {
  const std::vector<Event> events = Events();
  EXPECT_EQ(events.size(), std::variant_size_v<Event>);
  for (size_t i = 0; i < events.size(); ++i) {
    EXPECT_EQ(events[i].index(), i) << "one of each kind, in their order";
    v1::AgentEvent wire;
    ASSERT_TRUE(wire.ParseFromString(MessageOf(events[i]).SerializeAsString())) << i;
    const StatusOr<Event> back = EventOf(wire);
    ASSERT_TRUE(back.ok()) << back.status();
    EXPECT_EQ(back->index(), i);
    EXPECT_EQ(MessageOf(*back).SerializeAsString(), MessageOf(events[i]).SerializeAsString()) << i;
  }
  EXPECT_EQ(std::get<WorkerStarted>(*EventOf(MessageOf(events[6]))).pid, 300);
  EXPECT_EQ(std::get<LinkDown>(*EventOf(MessageOf(events[3]))).why, "no UTF-8: \xff");
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
  v1::ReplayStart start;
  start.mutable_agent()->set_stop_timeout_ms(INT64_MAX);
  EXPECT_THAT(Message(PlayAgent(start).status()), HasSubstr("contradicts itself"));
}

// As the shell records it, in virtual time.
struct Recorded {
  explicit Recorded(const CoreOptions& options) {
    *start.mutable_agent() = StartOf(options, "node", "host");
    state.options = options;
  }

  void On(const Event& event) {
    frames.push_back(EventFrame(now, event));
    frames.push_back(DecisionsFrame(Step(state, event, now)));
    now += 10;
  }

  v1::ReplayStart start;
  CoreState state;
  Instant now = 1'000;
  std::vector<v1::ReplayFrame> frames;  // event and decisions in turn
};

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

TEST(AgentReplay, EachActionIsTextWithAllThatItDoes) {
  v1::AgentMessage message;
  message.mutable_ready();
  v1::Finish finish;
  finish.set_exit_code(3);
  const std::vector<std::pair<Action, std::string>> all = {
      {Dial{}, "dial the master"},
      {SendHello{}, "send Hello"},
      {SendBeat{4}, "send a beat of epoch 4"},
      {Send{message}, "send ready { }"},
      {OpenStore{4, 20'000, {"10.0.0.1", "10.0.0.2"}, 8},
       "open the store of epoch 4 for world 8 on port 20000, to 10.0.0.1 10.0.0.2"},
      {CloseStore{}, "close the store"},
      {OpenBoard{4, 7}, "open the board of epoch 4, highest step 7"},
      {StartWorker{{}, 1}, "start local rank 1: "},
      {EndGroup{1, SIGTERM}, "end local rank 1 by SIGTERM"},
      {KillGroup{1}, "kill local rank 1"},
      {SignalWorker{1, SIGUSR1}, "send SIGUSR1 to local rank 1"},
      {AskForSafePoint{4, 7}, "ask ranks of epoch 4 for a safe point behind step 7"},
      {WantSpares{2}, "want 2 spares"},
      {KillStrays{}, "kill strays"},
      {RestartMaster{}, "start the master again"},
      {Say{"text"}, "say: text"},
      {ReportFailure{finish}, "report the failure: exit_code: 3"},
      {Exit{3}, "exit with 3"},
  };
  EXPECT_EQ(all.size(), std::variant_size_v<Action>);
  for (const auto& [action, text] : all) {
    const v1::ReplayDecisions decisions = DecisionsOf({{action, "why"}});
    EXPECT_EQ(decisions.decisions(0).action(), text);
    EXPECT_EQ(decisions.decisions(0).reason(), "why");
  }
}

}  // namespace
}  // namespace phalanx::agent
