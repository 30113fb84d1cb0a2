#include "master/serve/shell_decisions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

TEST(EndsAt, IsWhenNobodyIsLeftWhoNeedsTheMaster) {
  struct Case {
    const char* what;
    Attendance attendance;
    Phase phase;
    Instant back_by;
    std::optional<int64_t> linger_ms;
    Instant expected;
  };
  constexpr Instant kSince = 5'000;
  const Case cases[] = {
      {"an agent is there", {1, true, kSince}, Phase::kRunning, kNever, 100, kNever},
      {"the job is over, an agent has not gone", {1, true, kSince}, Phase::kFinished, kNever, 100, kNever},
      {"the job is over, all have gone", {0, true, kSince}, Phase::kFinished, kNever, 100, kSince},
      {"... of a master without a linger time", {0, true, kSince}, Phase::kFinished, kNever, {}, kSince},
      {"the job is over, a member that is away may come back", {0, true, kSince}, Phase::kFinished, 9'000, 100, kNever},
      {"the last agent has gone", {0, true, kSince}, Phase::kRunning, kNever, 100, kSince + 100},
      {"... at once", {0, true, kSince}, Phase::kGathering, kNever, 0, kSince},
      {"no agent ever came", {0, false, kSince}, Phase::kGathering, kNever, 100, kSince + kFirstAgentMs},
      {"no agent ever came, and it waits on", {0, false, kSince}, Phase::kGathering, kNever, {}, kNever},
      {"the last agent has gone, and it waits on", {0, true, kSince}, Phase::kRunning, kNever, {}, kNever},
  };
  for (const Case& c : cases) {
    JobState job;
    job.phase = c.phase;
    job.back_by = c.back_by;
    EXPECT_EQ(EndsAt(c.attendance, job, c.linger_ms), c.expected) << c.what;
  }
}

// The next job of that place would be told where the last one has been.
TEST(EndsAt, OfOneThatHasSteppedAsideIsWhenNobodySendsThereAnyMore) {
  JobState job;
  job.moved_to.emplace();
  for (const Phase phase : {Phase::kRunning, Phase::kFinished}) {
    job.phase = phase;
    EXPECT_EQ(EndsAt({1, true, 5'000}, job, 10'000), kNever);
    EXPECT_EQ(EndsAt({0, true, 5'000}, job, 10'000), 5'000);
  }
}

TEST(StreamDeadlines, NamesEachStreamWhenItsTimeIsOver) {
  StreamDeadlines deadlines;
  std::set<uint64_t> open = {1, 2, 3};
  const auto is_open = [&open](uint64_t session) { return open.contains(session); };
  EXPECT_EQ(deadlines.Next(is_open), kNever);
  deadlines.Begin(1, 100);
  deadlines.Begin(2, 200);
  deadlines.Begin(3, 200);
  EXPECT_EQ(deadlines.Next(is_open), 100 + kHandshakeMs);
  EXPECT_THAT(deadlines.TakeDue(99 + kHandshakeMs), IsEmpty());
  open.erase(1);  // nobody wakes for one that has gone
  EXPECT_EQ(deadlines.Next(is_open), 200 + kHandshakeMs);
  EXPECT_THAT(deadlines.TakeDue(200 + kHandshakeMs), ElementsAre(2, 3));
  EXPECT_EQ(deadlines.Next(is_open), kNever);
}

TEST(StreamDeadlines, EndStreamsThatHaveNotSaidHelloOrDoNotEnd) {
  EXPECT_TRUE(HasFailed(false, false));
  EXPECT_TRUE(HasFailed(true, true));
  EXPECT_TRUE(HasFailed(false, true));
  EXPECT_FALSE(HasFailed(true, false));
}

TEST(FirstMessage, MustBeHello) {
  v1::AgentMessage message;
  EXPECT_EQ(FirstMessageFault(message), "the first message of a stream must be Hello");
  message.mutable_beat();
  EXPECT_EQ(FirstMessageFault(message), "the first message of a stream must be Hello");
  message.mutable_hello();
  EXPECT_EQ(FirstMessageFault(message), "");
}

TEST(Listener, IsTheFirstNodeThatStays) {
  JobState job;
  EXPECT_EQ(ListenerOf(job), 0U);
  job.nodes[4].leaving = true;
  EXPECT_EQ(ListenerOf(job), 0U);
  job.nodes[7];
  job.nodes[9];
  EXPECT_EQ(ListenerOf(job), 7U);
}

TEST(Status, OfALargeJobIsGivenAgain) {
  EXPECT_EQ(StatusKeptMs(0), 0);
  EXPECT_EQ(StatusKeptMs(19), 0);
  EXPECT_EQ(StatusKeptMs(20), 1);
  EXPECT_EQ(StatusKeptMs(10'000), 500);
  EXPECT_EQ(StatusKeptMs(100'000), 5'000);
}

TEST(Questions, AreAnsweredUpToABound) {
  EXPECT_EQ(WhyNoAnswer(1), "");
  EXPECT_EQ(WhyNoAnswer(kMaxQuestions), "");
  EXPECT_EQ(WhyNoAnswer(kMaxQuestions + 1), "64 other questions are being answered: ask again later");
}

TEST(MayTakeUp, OnlyWithTheShapeThatTheJobHas) {
  v1::JobSpec was = DefaultSpec();
  was.set_min_nodes(2);
  was.set_max_nodes(8);
  was.set_node_unit(2);
  was.set_elastic_config("{}");
  EXPECT_TRUE(MayTakeUp(was, was).ok());
  v1::JobSpec other_rules = was;
  other_rules.set_max_restarts(7);
  other_rules.set_join_timeout_ms(1);
  EXPECT_TRUE(MayTakeUp(was, other_rules).ok());
  const auto sentence = [&was](auto change) {
    v1::JobSpec asked = was;
    change(asked);
    const Status refused = MayTakeUp(was, asked);
    EXPECT_EQ(refused.code(), absl::StatusCode::kInvalidArgument);
    return Message(refused);
  };
  EXPECT_THAT(sentence([](v1::JobSpec& s) { s.set_min_nodes(4); }),
              HasSubstr("--nnodes=4:8 --node-unit=2: the job of the journal has --nnodes=2:8 --node-unit=2"));
  EXPECT_THAT(sentence([](v1::JobSpec& s) { s.set_max_nodes(10); }), HasSubstr("--nnodes=2:10"));
  EXPECT_THAT(sentence([](v1::JobSpec& s) { s.set_node_unit(1); }), HasSubstr("--node-unit=1: the job"));
  EXPECT_THAT(sentence([](v1::JobSpec& s) { s.clear_elastic_config(); }), HasSubstr("--elastic-config"));
}

}  // namespace
}  // namespace phalanx::master
