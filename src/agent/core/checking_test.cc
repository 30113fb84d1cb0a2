#include "agent/core/checking.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::agent::checking {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

class CheckingTest : public ::testing::Test {
 protected:
  void Feed(const Event& event) {
    for (Decision& decision : Step(state_, event, now_)) {
      if (const auto* report = std::get_if<Report>(&decision.action)) reports_.push_back(report->report);
      if (const auto* give = std::get_if<Give>(&decision.action)) given_.push_back(*give);
      if (std::holds_alternative<OpenStore>(decision.action)) ++open_;
      if (std::holds_alternative<CloseStore>(decision.action)) --open_;
      if (std::holds_alternative<StartHelper>(decision.action)) ++started_;
      if (std::holds_alternative<EndHelper>(decision.action)) ++ended_;
      if (std::holds_alternative<HurryHelper>(decision.action)) ++hurried_;
    }
  }

  v1::CheckOrder Order(uint32_t part, uint32_t group_size = 1, uint32_t group_rank = 0) {
    v1::CheckOrder order;
    order.set_run(1);
    order.set_part(part);
    order.set_group_size(group_size);
    order.set_group_rank(group_rank);
    order.set_limit_ms(10'000);
    return order;
  }

  State state_;
  Instant now_ = 1'000;
  std::vector<v1::CheckReport> reports_;
  std::vector<Give> given_;
  int open_ = 0;
  int started_ = 0;
  int ended_ = 0;
  int hurried_ = 0;
};

TEST_F(CheckingTest, AnOrderWaitsForTheHelper) {
  Feed(Wanted{});
  Feed(Ordered{Order(1)});
  EXPECT_EQ(started_, 1);
  EXPECT_THAT(given_, IsEmpty());
  Feed(HelperReady{});
  ASSERT_THAT(given_, SizeIs(1));
  Feed(CheckBegun{given_[0].id, "matmul"});
  v1::CheckResult result;
  result.set_check("matmul");
  Feed(CheckTold{given_[0].id, result});
  Feed(CheckDone{given_[0].id, ""});
  ASSERT_THAT(reports_, SizeIs(1));
  EXPECT_THAT(reports_[0].results(), SizeIs(1));
  EXPECT_EQ(reports_[0].part(), 1u);
  EXPECT_EQ(NextDeadline(state_), kNever);
}

TEST_F(CheckingTest, TheFirstOfAPairOpensTheStore) {
  Feed(Ordered{Order(2, 2, 0)});
  EXPECT_EQ(open_, 1);
  Feed(HelperReady{});
  Feed(CheckDone{given_[0].id, ""});
  EXPECT_EQ(open_, 0);
  Feed(Ordered{Order(3, 2, 1)});
  EXPECT_EQ(open_, 0);
}

TEST_F(CheckingTest, ANewOrderReplacesTheOld) {
  Feed(Ordered{Order(1, 2)});
  Feed(HelperReady{});
  Feed(Ordered{Order(2, 2)});
  EXPECT_EQ(open_, 1);
  ASSERT_THAT(given_, SizeIs(2));
  Feed(CheckDone{given_[0].id, "ended by another order"});
  EXPECT_THAT(reports_, IsEmpty());
  Feed(CheckDone{given_[1].id, ""});
  ASSERT_THAT(reports_, SizeIs(1));
  EXPECT_EQ(reports_[0].part(), 2u);
}

TEST_F(CheckingTest, WhoeverOrderedOnAnotherStreamGetsNoAnswer) {
  Feed(Ordered{Order(2, 2)});
  Feed(HelperReady{});
  Feed(Unasked{});
  EXPECT_EQ(open_, 0);
  EXPECT_EQ(NextDeadline(state_), kNever);
  Feed(CheckDone{given_[0].id, ""});
  EXPECT_THAT(reports_, IsEmpty());
  EXPECT_EQ(ended_, 0) << "the next order is for the same helper";
  Feed(Ordered{Order(1)});
  Feed(CheckDone{given_.at(1).id, ""});
  EXPECT_THAT(reports_, SizeIs(1));
}

TEST_F(CheckingTest, AHelperThatDiesIsToldAndStartedAgain) {
  Feed(Ordered{Order(1)});
  Feed(HelperReady{});
  Feed(CheckBegun{given_[0].id, "matmul"});
  Feed(HelperEnded{"SIGKILL"});
  ASSERT_THAT(reports_, SizeIs(1));
  EXPECT_EQ(reports_[0].ended(), "the program that checks has ended in matmul: SIGKILL");
  Feed(Ordered{Order(2)});
  EXPECT_EQ(started_, 2);
}

TEST_F(CheckingTest, AHelperThatDoesNotAnswerIsEnded) {
  Feed(Ordered{Order(1)});
  Feed(HelperReady{});
  Feed(CheckBegun{given_[0].id, "matmul"});
  now_ = NextDeadline(state_) - 1;
  Feed(Tick{});
  EXPECT_THAT(reports_, IsEmpty());
  now_ += 1;
  Feed(Tick{});
  EXPECT_EQ(ended_, 1);
  ASSERT_THAT(reports_, SizeIs(1));
  EXPECT_THAT(reports_[0].ended(), HasSubstr("has not answered within 15 s in matmul"));
}

// Its own end of what hangs says more than this node's, so it must come first, and this node's before the master's.
TEST_F(CheckingTest, AHelperThatIsLongInComingHasTheLessTime) {
  Feed(Ordered{Order(1)});
  now_ += kHelperStartMs;
  Feed(HelperReady{});
  EXPECT_EQ(given_.at(0).order.limit_ms(), 10'000);
  EXPECT_EQ(NextDeadline(state_), now_ + 10'000 + kHelperAnswerMs);
  Feed(Ordered{Order(2)});
  EXPECT_EQ(given_.at(1).order.limit_ms(), 10'000);
  Feed(HelperEnded{"SIGKILL"});
  Feed(Ordered{Order(3)});
  now_ += kHelperStartMs + 4'000;
  Feed(HelperReady{});
  EXPECT_EQ(given_.at(2).order.limit_ms(), 6'000);
  EXPECT_EQ(NextDeadline(state_), now_ + 6'000 + kHelperAnswerMs);
}

TEST_F(CheckingTest, AHelperThatNeverBeginsIsTold) {
  Feed(Ordered{Order(1)});
  now_ = NextDeadline(state_);
  Feed(Tick{});
  EXPECT_EQ(hurried_, 1);
  EXPECT_THAT(reports_, IsEmpty());
  now_ = NextDeadline(state_);
  Feed(Tick{});
  EXPECT_EQ(hurried_, 1);
  ASSERT_THAT(reports_, SizeIs(1));
  EXPECT_THAT(reports_[0].ended(), HasSubstr("has not begun within 23 s"));
  Feed(HelperReady{});  // it was ended
  EXPECT_THAT(given_, IsEmpty());
}

// A zygote that imports is waited for, as a program of its own would import the same; one that does not come to its end
// costs no order.
TEST_F(CheckingTest, AZygoteIsWaitedForWhileTheOrderHasTime) {
  struct Case {
    int64_t limit_ms;
    int64_t wait_ms;
  };
  for (const Case& each : {Case{1'000, 6'000}, {12'000, 6'000}, {16'000, 8'000}, {60'000, 30'000}, {600'000, 30'000}}) {
    SCOPED_TRACE(each.limit_ms);
    state_ = {};
    hurried_ = 0;
    Feed(Wanted{});
    EXPECT_EQ(NextDeadline(state_), kNever) << "nothing is lost by it";
    v1::CheckOrder order = Order(1);
    order.set_limit_ms(each.limit_ms);
    Feed(Ordered{order});
    EXPECT_EQ(NextDeadline(state_), now_ + each.wait_ms);
    now_ += each.wait_ms - 1;
    Feed(Tick{});
    EXPECT_EQ(hurried_, 0);
    now_ += 1;
    Feed(Tick{});
    EXPECT_EQ(hurried_, 1);
    EXPECT_EQ(NextDeadline(state_), now_ - each.wait_ms + kHelperStartMs + each.limit_ms + kHelperAnswerMs);
    now_ += kOwnImportsMs;
    Feed(HelperReady{});
    EXPECT_GE(given_.back().order.limit_ms(), std::min(each.limit_ms, each.limit_ms / 2 + 6'000));
  }
}

TEST_F(CheckingTest, NobodyWaitsForAZygoteOnceThereIsAHelper) {
  for (const Event& event : {Event{HelperReady{}}, Event{HelperEnded{"SIGKILL"}}, Event{Over{}}}) {
    state_ = {};
    Feed(Ordered{Order(1)});
    Feed(event);
    now_ += 10'000;
    Feed(Tick{});
    EXPECT_EQ(hurried_, 0);
  }
}

TEST_F(CheckingTest, WhenTheNodeTrainsNothingIsLeft) {
  Feed(Ordered{Order(1, 2)});
  Feed(HelperReady{});
  Feed(Over{});
  EXPECT_EQ(open_, 0);
  EXPECT_EQ(ended_, 1);
  EXPECT_EQ(NextDeadline(state_), kNever);
  Feed(CheckDone{given_[0].id, ""});
  EXPECT_THAT(reports_, IsEmpty());
  Feed(Over{});
  EXPECT_EQ(ended_, 1);
}

TEST_F(CheckingTest, AFloodOfResultsIsCut) {
  Feed(Ordered{Order(1)});
  Feed(HelperReady{});
  for (int i = 0; i < 1'000; ++i) Feed(CheckTold{given_[0].id, {}});
  Feed(CheckDone{given_[0].id, ""});
  EXPECT_THAT(reports_[0].results(), SizeIs(kMostResults));
}

}  // namespace
}  // namespace phalanx::agent::checking
