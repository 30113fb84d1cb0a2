// A job that hangs, as `why` and `status --ranks` tell it.
#include "cli/hang.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "cli/report.h"

namespace phalanx::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const char* const kSaid =
    "no step for 12 s (usually within 1 s): the others are at step 9, some ranks of node b at step 7";

std::vector<Row> Rows() {
  return {{1, 1'000, 1, "round-started", "", -1, "all 2 nodes are there", "{}"},
          {2, 30'000, 1, "stalled", "", -1, kSaid, R"({"silent_ms":12000,"step":9})"}};
}

// Rank 2 is two steps behind; rank 3 has ended, and is waited for by nobody.
JobView View() {
  JobView view;
  view.live = true;
  view.rows = Rows();
  view.status.set_stalled_ms(20'000);
  for (const uint32_t base : {2, 0}) {
    v1::NodeStatus& node = *view.status.add_nodes();
    node.set_hostname(base == 0 ? "a" : "b");
    node.set_rank_base(base);
    node.set_group_rank(static_cast<int32_t>(base / 2));
    for (uint32_t local = 0; local < 2; ++local) {
      v1::RankStatus& rank = *node.add_ranks();
      rank.set_local_rank(local);
      rank.set_pid(100 + base + local);
      rank.set_step(base + local == 2 ? 7 : 9);
      rank.set_doing(base + local == 3 ? v1::RankStatus::ENDED : v1::RankStatus::STEPPING);
    }
  }
  return view;
}

TEST(Hang, IsOfTheRoundThatGoesOn) {
  std::vector<Row> rows = Rows();
  ASSERT_TRUE(HangOf(rows).has_value());
  EXPECT_EQ(HangOf(rows)->since_unix_ms, 18'000);
  rows.push_back({3, 40'000, 1, "stall-over", "", -1, "steps go on", "{}"});
  EXPECT_FALSE(HangOf(rows).has_value());
  rows.back() = {3, 40'000, 1, "checkpoint-lag", "", -1, "it is not stored yet", "{}"};
  EXPECT_TRUE(HangOf(rows).has_value());
  rows.back() = {3, 40'000, 2, "round-started", "", -1, "rank 2 died", "{}"};
  EXPECT_FALSE(HangOf(rows).has_value());
  EXPECT_FALSE(HangOf({}).has_value());
}

TEST(Hang, WhyTellsItBeforeTheStoryOfTheRound) {
  const JobView view = View();
  const StatusOr<Story> story = TellStory(view.rows, std::nullopt);
  ASSERT_TRUE(story.ok());
  const std::string text = StoryText(*story, view, 38'000);
  EXPECT_THAT(text, testing::StartsWith("no step since "));
  EXPECT_THAT(text, HasSubstr(std::string(", for 0:00:20: ") + kSaid + "\n"));
  EXPECT_THAT(text, HasSubstr("\nrank 2 (local rank 0 of node b, pid 102) is at step 7, 2 behind\n\nepoch 1 began"));
  EXPECT_THAT(text, Not(HasSubstr("rank 3")));
  EXPECT_THAT(StoryJson(*story, view, 38'000), HasSubstr("\"silent_ms\": 20000"));
  EXPECT_THAT(StoryJson(*story, view, 38'000), HasSubstr("\"behind\": 2"));
  const StatusOr<Story> asked = TellStory(view.rows, 1);
  ASSERT_TRUE(asked.ok());
  EXPECT_THAT(StoryText(*asked, view, 38'000), Not(HasSubstr("no step since")));
}

TEST(Hang, StatusTellsWhoIsBehindFromWhoWaits) {
  JobView view = View();
  std::string text = StatusText(view, 0, true);
  EXPECT_THAT(text, HasSubstr("9     stepping, waiting"));
  EXPECT_THAT(text, HasSubstr("7     stepping, 2 behind"));
  EXPECT_THAT(text, HasSubstr("9     ended  "));
  EXPECT_THAT(StatusJson(view), HasSubstr("\"place\": \"2 behind\""));
  EXPECT_THAT(StatusJson(view), HasSubstr("\"stalled_ms\": 20000"));
  view.status.set_stalled_ms(0);
  text = StatusText(view, 0, true);
  EXPECT_THAT(text, Not(HasSubstr("behind"))) << "ranks that step are not told apart by a moment";
  EXPECT_THAT(StatusJson(view), Not(HasSubstr("place")));
}

// Rank 0 alone calls phalanx.step, in its 1009th of all lives.
TEST(Hang, RanksThatTellAreComparedWithOthersByTheirOptimizers) {
  JobView view = View();
  for (v1::NodeStatus& node : *view.status.mutable_nodes()) {
    for (v1::RankStatus& rank : *node.mutable_ranks()) {
      rank.set_optimizer_steps(rank.step());
      rank.set_step_told(node.rank_base() + rank.local_rank() == 0);
      if (rank.step_told()) rank.set_step(1'009);
    }
  }
  const std::string status = StatusText(view, 0, true);
  EXPECT_THAT(status, HasSubstr("1009  stepping, waiting"));
  EXPECT_THAT(status, HasSubstr("9     stepping, waiting"));
  EXPECT_THAT(status, HasSubstr("7     stepping, 2 behind"));
  EXPECT_THAT(HangText(*HangOf(view.rows), view.status, 38'000),
              HasSubstr("\nrank 2 (local rank 0 of node b, pid 102) is at its optimizer's step 7, 2 behind\n"));
  // Where nobody's optimizer is seen, those who tell are as far as they say.
  for (v1::NodeStatus& node : *view.status.mutable_nodes()) {
    for (v1::RankStatus& rank : *node.mutable_ranks()) rank.set_optimizer_steps(0);
  }
  EXPECT_FALSE(StepsMadeIn(view.status).by_optimizer);
}

TEST(Hang, OfManyRanksBehindSomeAreNamed) {
  JobView view = View();
  for (int i = 0; i < 20; ++i) {
    v1::RankStatus& rank = *view.status.mutable_nodes(0)->add_ranks();
    rank.set_local_rank(static_cast<uint32_t>(2 + i));
    rank.set_step(8);
    rank.set_doing(v1::RankStatus::STEPPING);
  }
  const std::string text = HangText(*HangOf(view.rows), view.status, 38'000);
  EXPECT_THAT(text, HasSubstr("\nand 5 more ranks: `phalanx status --ranks` has them\n"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 1 + 16 + 1);
}

TEST(Hang, WhereAllAreAtOneStepNobodyIsNamed) {
  JobView view = View();
  view.status.mutable_nodes(0)->mutable_ranks(0)->set_step(9);
  EXPECT_EQ(PlaceText(view.status.nodes(0).ranks(0), StepsMadeIn(view.status)), "");
  EXPECT_THAT(HangText(*HangOf(view.rows), view.status, 38'000), Not(HasSubstr("\nrank")));
}

}  // namespace
}  // namespace phalanx::cli
