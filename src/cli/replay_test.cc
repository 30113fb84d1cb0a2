#include "cli/replay.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>
#include <vector>

#include "agent/replay/frames.h"
#include "replay/log.h"

namespace phalanx::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// The log of an agent that joins and is asked to stop, a beat of nothing in between.
std::vector<v1::ReplayFrame> Frames() {
  agent::CoreState state;
  v1::ReplayFrame first;
  v1::ReplayStart& start = *first.mutable_start();
  start.set_job_id("job");
  start.set_software_version("0.0.1");
  start.set_now_ms(10'000);
  *start.mutable_agent() = agent::StartOf({state.options, {}, {}}, "abc", "host");
  std::vector<v1::ReplayFrame> frames = {first};
  Instant now = 10'000;
  const std::vector<agent::Event> events = {agent::Prepared{1, 1}, agent::Begin{"10.0.0.1:29400", 0}, agent::Tick{},
                                            agent::StopSignal{15, false}};
  for (const agent::Event& event : events) {
    now += 1'234;
    frames.push_back(agent::EventFrame(now, event));
    frames.push_back(agent::DecisionsFrame(agent::Step(state, event, now)));
  }
  frames.emplace_back().mutable_end();
  return frames;
}

std::string LogOf(const std::vector<v1::ReplayFrame>& frames) {
  std::string log = replay::LogHeader();
  for (const v1::ReplayFrame& frame : frames) log += replay::FrameBytes(frame);
  return log;
}

struct Answer {
  StatusOr<bool> same = false;
  std::string text;
};

Answer Ask(const std::string& log, const ReplayView& view = {}) {
  Answer answer;
  answer.same = ReplayLog(log, view, [&answer](const std::string& text) { answer.text += text; });
  return answer;
}

TEST(Replay, TellsWhatWasDecidedAndWhy) {
  const Answer answer = Ask(LogOf(Frames()));
  ASSERT_TRUE(answer.same.ok()) << answer.same.status();
  EXPECT_TRUE(*answer.same);
  EXPECT_THAT(answer.text, HasSubstr("agent abc on host of job 'job', recorded by Phalanx 0.0.1 from "));
  EXPECT_THAT(answer.text, HasSubstr("which may decide otherwise"));
  EXPECT_THAT(answer.text, HasSubstr("     2.468 s  begin { master_address: \"10.0.0.1:29400\" }\n"));
  EXPECT_THAT(
      answer.text,
      HasSubstr("            -> dial the master at 10.0.0.1:29400 for 20000 ms, because: the node joins its job\n"));
  EXPECT_THAT(answer.text, HasSubstr("(1 events without a decision; --all shows them)"));
  EXPECT_TRUE(answer.text.ends_with("4 events, 5 decisions: all the same\n")) << answer.text;
}

TEST(Replay, AllMeansAll) {
  const Answer answer = Ask(LogOf(Frames()), {false, true});
  EXPECT_THAT(answer.text, HasSubstr("     3.702 s  time has passed\n"));
  EXPECT_THAT(answer.text, Not(HasSubstr("--all")));
}

TEST(Replay, ShowsTheFirstDifferenceWithBothVersions) {
  std::vector<v1::ReplayFrame> frames = Frames();
  frames[4].mutable_decisions()->mutable_decisions(1)->set_reason("of another version");
  const Answer answer = Ask(LogOf(frames));
  ASSERT_TRUE(answer.same.ok()) << answer.same.status();
  EXPECT_FALSE(*answer.same);
  EXPECT_THAT(answer.text, HasSubstr("different in 1 events, first in event 2 at     2.468 s, decision 2\n"));
  EXPECT_THAT(
      answer.text,
      HasSubstr("  recorded: -> dial the master at 10.0.0.1:29400 for 20000 ms, because: of another version\n"));
  EXPECT_THAT(
      answer.text,
      HasSubstr("  replayed: -> dial the master at 10.0.0.1:29400 for 20000 ms, because: the node joins its job\n"));
  EXPECT_THAT(answer.text, HasSubstr("! here it differs"));
}

TEST(Replay, ADecisionMoreOrLessIsADifference) {
  std::vector<v1::ReplayFrame> frames = Frames();
  frames[4].mutable_decisions()->mutable_decisions()->RemoveLast();
  Answer answer = Ask(LogOf(frames));
  EXPECT_FALSE(*answer.same);
  EXPECT_THAT(answer.text, HasSubstr("  recorded: nothing\n"));
  frames = Frames();
  frames[2].mutable_decisions()->add_decisions()->set_action("dance");
  answer = Ask(LogOf(frames));
  EXPECT_FALSE(*answer.same);
  EXPECT_THAT(answer.text, HasSubstr("  replayed: nothing\n"));
}

TEST(Replay, SaysHowTheLogEnds) {
  std::vector<v1::ReplayFrame> frames = Frames();
  frames.back().mutable_end()->set_full(true);
  EXPECT_THAT(Ask(LogOf(frames)).text, HasSubstr("came to its bound"));
  frames.pop_back();
  frames.pop_back();  // of a step that ended the process
  Answer answer = Ask(LogOf(frames));
  EXPECT_TRUE(*answer.same);
  EXPECT_THAT(answer.text, HasSubstr("was killed, or still runs"));
  EXPECT_THAT(answer.text, HasSubstr("! its decisions are not in the log"));
  std::string log = LogOf(frames);
  log.pop_back();
  EXPECT_THAT(Ask(log).text, HasSubstr("are part of a frame, and left out"));
}

TEST(Replay, DamageIsAnErrorBehindWhatIsWhole) {
  std::string log = LogOf(Frames());
  log[log.size() - 20] = static_cast<char>(log[log.size() - 20] ^ 1);
  const Answer answer = Ask(log);
  EXPECT_TRUE(absl::IsDataLoss(answer.same.status()));
  EXPECT_THAT(answer.text, HasSubstr("dial the master"));
  EXPECT_FALSE(Ask("").same.ok());
}

TEST(Replay, IsALineAnEventForPrograms) {
  std::vector<v1::ReplayFrame> frames = Frames();
  frames[4].mutable_decisions()->mutable_decisions(1)->set_reason("of another version: \xff");
  std::istringstream lines(Ask(LogOf(frames), {true, false}).text);
  std::vector<nlohmann::json> all;
  for (std::string line; std::getline(lines, line);) all.push_back(nlohmann::json::parse(line));
  ASSERT_EQ(all.size(), 6u);
  EXPECT_EQ(all[0]["of"], "agent");
  EXPECT_EQ(all[0]["id"], "abc");
  EXPECT_EQ(all[1]["ms"], 1'234);
  EXPECT_EQ(all[1]["same"], true);
  EXPECT_EQ(all[2]["decisions"][1]["reason"], "the node joins its job");
  EXPECT_EQ(all[2]["same"], false);
  EXPECT_EQ(all[2]["recorded"].size(), 2u);
  EXPECT_EQ(all[5]["events"], 4);
  EXPECT_EQ(all[5]["end"], "closed");
  EXPECT_EQ(all[5]["same"], false);
  EXPECT_EQ(all[5]["first_difference"]["event"], 2);
  EXPECT_EQ(all[5]["first_difference"]["decision"], 2);
}

}  // namespace
}  // namespace phalanx::cli
