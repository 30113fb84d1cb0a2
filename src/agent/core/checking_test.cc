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
  EXPECT_THAT(reports_[0].ended(), HasSubstr("has not answered within 10 s in matmul"));
}

TEST_F(CheckingTest, AHelperThatNeverBeginsIsTold) {
  Feed(Ordered{Order(1)});
  now_ = NextDeadline(state_);
  Feed(Tick{});
  ASSERT_THAT(reports_, SizeIs(1));
  EXPECT_THAT(reports_[0].ended(), HasSubstr("has not begun within 10 s"));
  Feed(HelperReady{});  // it was ended
  EXPECT_THAT(given_, IsEmpty());
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
