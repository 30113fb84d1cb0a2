#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/test_seeds.h"
#include "master/core/admit.h"
#include "master/core/core.h"
#include "master/core/test_hello.h"
#include "master/journal/snapshot.h"
#include "master/replay/frames.h"
#include "master/replay/player.h"
#include "master/replay/start.h"
#include "replay/log.h"
#include "replay/text.h"

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::ReplayStart Start(Instant now) {
  v1::ReplayStart start;
  start.set_job_id("job");
  start.set_now_ms(now);
  start.mutable_master()->set_master_id("master");
  v1::JobSpec& spec = *start.mutable_master()->mutable_spec();
  spec = DefaultSpec();
  spec.set_max_nodes(2);
  return start;
}

v1::AgentMessage Hello(const std::string& node, const std::string& job_id = "job") {
  v1::Hello hello = TestHello(node, 2, TestSpec(1, 2));
  hello.set_job_id(job_id);
  return FirstMessage(std::move(hello));
}

// A master that records, as the shell does, in virtual time.
class Recorded {
 public:
  explicit Recorded(v1::ReplayStart recorded_start) : start(std::move(recorded_start)), now(start.now_ms()) {
    StatusOr<JobState> made = StateOf(start);
    EXPECT_TRUE(made.ok()) << made.status();
    if (made.ok()) state = *std::move(made);
  }

  void Attach(uint64_t session, const std::string& node, const std::string& job_id = "job") {
    Add(AttachedOf(session, Hello(node, job_id), "10.0.0.1"));
  }
  void Say(uint64_t session, const v1::AgentMessage& message) { Add(EventOf(session, message)); }
  void Detach(uint64_t session) { Add(AgentDetached{session, "its stream broke"}); }
  void WaitAndTick(int64_t ms) {
    now += ms;
    Add(Tick{});
  }
  void TakeUp() {
    frames.push_back(ResumedFrame(now));
    frames.push_back(DecisionsFrame(Resume(state, now)));
  }

  v1::ReplayStart start;
  Instant now;
  JobState state;
  std::vector<v1::ReplayFrame> frames;  // event and decisions in turn

 private:
  void Add(const Event& event) {
    frames.push_back(EventFrame(now, event));
    frames.push_back(DecisionsFrame(Step(state, event, now)));
  }
};

v1::AgentMessage Exited(uint64_t epoch, int exit_code) {
  v1::AgentMessage message;
  v1::WorkerExited& exited = *message.mutable_worker_exited();
  exited.set_epoch(epoch);
  exited.set_pid(100);
  exited.set_exit_code(exit_code);
  exited.set_script_started(true);
  exited.set_last_words("bytes of anybody's: \xff");
  return message;
}

// Two nodes come, a rank fails, a node goes, one of another job is refused.
Recorded Life(const v1::ReplayStart& start) {
  Recorded job(start);
  job.Attach(1, "one");
  job.Attach(2, "two");
  job.WaitAndTick(1'000);
  v1::AgentMessage stepped;
  stepped.mutable_first_step()->set_epoch(job.state.highest_epoch);
  for (const uint64_t session : {1, 2}) job.Say(session, stepped);
  job.Say(1, Exited(job.state.highest_epoch, 3));
  job.Attach(3, "stranger", "other");
  v1::AgentMessage leaving;
  leaving.mutable_leaving()->set_signal(15);
  job.Say(2, leaving);
  job.Detach(2);
  job.WaitAndTick(5'000);
  return job;
}

// Another master takes up what `before` has left, and one of its nodes comes back.
Recorded LifeBehind(const Recorded& before) {
  v1::ReplayStart start = Start(900'000);
  start.mutable_master()->set_snapshot(SaveState(before.state, before.now));
  Recorded job(start);
  job.now += 3;
  job.TakeUp();
  job.Attach(1, "one");
  job.WaitAndTick(60'000);
  return job;
}

// Where it differs: "step 3, decision 0"; "same", or why it cannot be played.
std::string Play(const Recorded& job) {
  StatusOr<std::unique_ptr<replay::Player>> player = PlayMaster(job.start);
  if (!player.ok()) return Message(player.status());
  for (size_t i = 0; i + 1 < job.frames.size(); i += 2) {
    const StatusOr<v1::ReplayDecisions> replayed = (*player)->Step(job.frames[i].event());
    if (!replayed.ok()) return Message(replayed.status());
    const std::optional<int> difference = replay::FirstDifference(job.frames[i + 1].decisions(), *replayed);
    if (difference) return fmt::format("step {}, decision {}", i / 2, *difference);
  }
  return "same";
}

size_t DecisionsIn(const Recorded& job) {
  size_t decisions = 0;
  for (const v1::ReplayFrame& frame : job.frames) decisions += static_cast<size_t>(frame.decisions().decisions_size());
  return decisions;
}

TEST(MasterReplay, AJobsLifeIsDecidedTheSameAgain) {
  const Recorded job = Life(Start(5'000));
  EXPECT_EQ(job.state.rounds_begun, 3u);  // both nodes, the failure, the node that went
  EXPECT_GT(DecisionsIn(job), 15u);
  EXPECT_EQ(Play(job), "same");
}

TEST(MasterReplay, AnotherMessageTimeOrDecisionShows) {
  const Recorded whole = Life(Start(5'000));
  Recorded job = whole;
  job.frames[0].mutable_event()->mutable_master()->mutable_attached()->mutable_message()->mutable_hello()->set_job_id(
      "other");
  EXPECT_THAT(Play(job), HasSubstr("step 0"));
  job = whole;
  job.frames[job.frames.size() - 2].mutable_event()->set_now_ms(job.now - 5'000);  // no lease is over by then
  EXPECT_THAT(Play(job), HasSubstr("step 9"));
  job = whole;
  job.frames[1].mutable_decisions()->mutable_decisions(0)->mutable_reason()->append(".");
  EXPECT_EQ(Play(job), "step 0, decision 0");
  job = whole;
  job.start.mutable_master()->mutable_spec()->set_max_nodes(1);
  EXPECT_THAT(Play(job), HasSubstr("step"));
}

TEST(MasterReplay, AMasterThatTookAJobUpIsReplayedFromItsJournal) {
  Recorded job = LifeBehind(Life(Start(5'000)));
  EXPECT_GT(DecisionsIn(job), 3u);
  EXPECT_EQ(Play(job), "same");
  job.start.mutable_master()->clear_snapshot();
  EXPECT_EQ(Play(job), "a job is taken up where none was left");
}

TEST(MasterReplay, OwnFlagsCountWhereTheJournalKnowsNoSize) {
  JobState nobody_came;
  nobody_came.job_id = "job";
  v1::ReplayStart start = Start(900'000);
  start.mutable_master()->set_snapshot(SaveState(nobody_came, 5'000));
  const StatusOr<JobState> state = StateOf(start);
  ASSERT_TRUE(state.ok()) << state.status();
  ASSERT_TRUE(state->spec);
  EXPECT_EQ(state->spec->max_nodes(), 2U);
}

TEST(MasterReplay, WhatNoRecorderWritesIsRefused) {
  const Recorded whole = Life(Start(5'000));
  Recorded job = whole;
  job.Attach(1, "one");
  EXPECT_EQ(Play(job), "stream 1 begins twice");
  v1::ReplayStart start = Start(900'000);
  start.mutable_master()->set_snapshot(SaveState(whole.state, whole.now));
  job = Recorded(start);
  job.TakeUp();
  job.TakeUp();
  EXPECT_EQ(Play(job), "a job is taken up where none was left");
  job = whole;
  job.frames[0].mutable_event()->mutable_agent()->mutable_tick();
  EXPECT_EQ(Play(job), "an event that this version does not know");
  job = whole;
  job.start.mutable_master()->mutable_spec()->set_min_nodes(7);
  EXPECT_THAT(Play(job), HasSubstr("contradicts itself: --nnodes=7:2"));
  job.start.mutable_master()->set_snapshot("nonsense");
  job.start.mutable_master()->clear_spec();
  EXPECT_THAT(Play(job), HasSubstr("no snapshot"));
}

TEST(MasterReplay, EachActionIsTextWithAllThatItDoes) {
  auto message = std::make_shared<v1::MasterMessage>();
  message->mutable_notice()->set_text("wait");
  const std::vector<Decision> decisions = {
      {Send{4, message}, "why"},
      {Send{5, message}, "why"},
      {Drop{6}, "why"},
      {Record{"kind", 7, "node", 8, {{"steps", int64_t{9}}, {"word", "text"}}}, "why"},
      {Remember{Remember::When::kBehind}, "why"},
      {Remember{Remember::When::kBefore}, "why"},
      {Remember{Remember::When::kSynced}, "why"},
  };
  std::vector<std::string> texts;
  const v1::ReplayDecisions wire = DecisionsOf(decisions);
  for (const v1::ReplayDecision& each : wire.decisions()) texts.push_back(each.action());
  EXPECT_EQ(texts, (std::vector<std::string>{
                       "send to stream 4: notice { text: \"wait\" }",
                       "send to stream 5: notice { text: \"wait\" }",
                       "drop stream 6",
                       "record kind epoch=7 node='node' rank=8 {\"steps\":9,\"word\":\"text\"}",
                       "remember, behind what is sent",
                       "remember, before what is sent",
                       "remember on the disk, before what is sent",
                   }));
}

// What master_replay_fuzzer begins with: the log of `job` as a recorder writes it.
void ExpectSeed(const std::string& name, const Recorded& job) {
  v1::ReplayFrame start;
  *start.mutable_start() = job.start;
  std::string log = replay::LogHeader() + replay::FrameBytes(start);
  for (const v1::ReplayFrame& frame : job.frames) log += replay::FrameBytes(frame);
  const std::string seed = SeedOf("master/replay/corpus", name, log);
  StatusOr<replay::LogReader> reader = replay::LogReader::Open(seed);
  ASSERT_TRUE(reader.ok()) << name << ": " << reader.status();
  const StatusOr<std::unique_ptr<replay::Player>> player = PlayMaster(reader->start());
  ASSERT_TRUE(player.ok()) << name << ": " << player.status();
  size_t steps = 0;
  for (;; ++steps) {
    const auto step = reader->Next();
    ASSERT_TRUE(step.ok()) << name << ": " << step.status();
    if (!*step) break;
    EXPECT_TRUE((*player)->Step((*step)->event).ok()) << name << ", step " << steps;
  }
  EXPECT_EQ(steps, job.frames.size() / 2) << name;
  EXPECT_EQ(reader->torn_bytes(), 0U) << name;
}

TEST(MasterReplay, SeedsOfItsFuzzerAreReplayed) {
  const Recorded life = Life(Start(5'000));
  ExpectSeed("a_life", life);
  ExpectSeed("taken_up", LifeBehind(life));
  Recorded alone(Start(5'000));
  alone.Attach(1, "one");
  alone.WaitAndTick(60'000);
  ExpectSeed("nobody_else_comes", alone);
}

}  // namespace
}  // namespace phalanx::master
