#include "agent/report/failure_box.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::Finish Failed() {
  v1::Finish finish;
  finish.set_exit_code(1);
  finish.set_reason("all 3 restarts are used up");
  v1::Failure& f = *finish.mutable_first_cause();
  f.set_rank(3);
  f.set_hostname("node7");
  f.mutable_exited()->set_signal(9);
  f.mutable_exited()->set_pid(77);
  return finish;
}

TEST(FailureBox, NamesTheFirstCauseAndTheOthers) {
  v1::Finish finish = Failed();
  finish.add_others()->set_rank(1);
  const std::string box = FailureBox(finish, "train.py");
  EXPECT_THAT(box, HasSubstr("train.py FAILED: all 3 restarts are used up"));
  EXPECT_THAT(box, HasSubstr("First cause: rank 3"));
  EXPECT_THAT(box, HasSubstr("SIGKILL (signal 9), pid 77"));
  EXPECT_LT(box.find("rank 3"), box.find("rank 1"));
}

TEST(FailureBox, OfAHangTellsOfTheRanksOfThisNode) {
  v1::Finish finish;
  finish.set_exit_code(1);
  finish.set_reason("job stopped: all nodes left (on purpose)");
  EXPECT_FALSE(IsHang(finish));
  finish.set_reason("no step for 60 s: all ranks are at step 9: --hang-timeout=60 s is over; crash loop");
  ASSERT_TRUE(IsHang(finish));
  std::vector<v1::RankStatus> ranks(2);
  ranks[0].set_step(9);
  ranks[0].set_quiet_ms(60'040);
  ranks[0].set_pid(70);
  ranks[1].set_step(7);
  ranks[1].set_local_rank(1);
  ranks[1].set_quiet_ms(-1);
  const std::string box = HangBox(finish, "train.py", 4, ranks);
  EXPECT_THAT(box,
              HasSubstr("train.py FAILED: no step for 60 s: all ranks are at step 9: --hang-timeout=60 s is over"));
  EXPECT_THAT(box, HasSubstr("\n  rank 4 (local rank 0, pid 70): at step 9, no step for 60.0 s\n"));
  EXPECT_THAT(box, HasSubstr("\n  rank 5 (local rank 1, pid 0): at step 7, 2 behind, it has not begun\n"));
  EXPECT_EQ(box.rfind("=====", 0), 0u);
  *finish.mutable_first_cause() = v1::Failure();
  EXPECT_FALSE(IsHang(finish)) << "a rank has failed";
}

TEST(FailureBox, OfARankThatEndedEarlyNamesEachRankOnce) {
  v1::Finish finish;
  finish.set_exit_code(1);
  finish.set_reason("rank 1 ended early");
  v1::WorkerExited& early = *finish.mutable_first_cause()->mutable_exited();
  finish.mutable_first_cause()->set_rank(1);
  early.set_pid(77);
  early.set_steps(3);
  v1::Failure& lost = *finish.add_others();
  lost.mutable_exited()->set_exit_code(1);
  lost.mutable_exited()->set_last_words("a peer was gone");
  std::string box = FailureBox(finish, "train.py");
  EXPECT_THAT(box, HasSubstr("First cause: rank 1 (local rank"));
  EXPECT_THAT(box, HasSubstr("  end:   exit code 0, pid 77, after step 3\n"));
  EXPECT_THAT(box, HasSubstr("Then: rank 0 (local rank"));
  EXPECT_THAT(box, Not(HasSubstr("Others of the same round"))) << "there are no more";
  finish.add_others()->set_rank(2);
  finish.mutable_others(1)->mutable_exited()->set_exit_code(1);
  box = FailureBox(finish, "train.py");
  EXPECT_THAT(box, HasSubstr("Others of the same round:\n  rank 2 (local rank"));
  EXPECT_EQ(box.find("rank 0 (local"), box.rfind("rank 0 (local"));
}

TEST(FailureBox, SaysWhoKilledARankAndWhatElseIsKnown) {
  v1::Finish finish = Failed();
  finish.mutable_first_cause()->mutable_exited()->set_killed_by("the out-of-memory killer");
  v1::WorkerExited& other = *finish.add_others()->mutable_exited();
  other.set_exit_code(1);
  other.set_end_note("2 processes were ended");
  const std::string box = FailureBox(finish, "train.py");
  EXPECT_THAT(box, HasSubstr("SIGKILL (signal 9), pid 77, killed by the out-of-memory killer\n"));
  EXPECT_THAT(box, HasSubstr("exit code 1, pid 0 (2 processes were ended)\n"));
}

TEST(FailureBox, NamesTheHardwareThatExplainsAnEnd) {
  v1::Finish finish = Failed();
  finish.mutable_first_cause()->mutable_exited()->set_blamed_on("XID 79 (...) on GPU 3, 0.4 s before");
  v1::WorkerExited& other = *finish.add_others()->mutable_exited();
  other.set_exit_code(1);
  other.set_blamed_on("XID 94 (...) on GPU 0, 0.1 s before");
  const std::string box = FailureBox(finish, "train.py");
  EXPECT_THAT(box, HasSubstr("pid 77\n  blame: XID 79 (...) on GPU 3, 0.4 s before\n"));
  EXPECT_THAT(box, HasSubstr("exit code 1, pid 0; blame: XID 94 (...) on GPU 0, 0.1 s before\n"));
}

TEST(FailureBox, ShowsARecordedTracebackBeforeLastWords) {
  v1::Finish finish = Failed();
  auto& exited = *finish.mutable_first_cause()->mutable_exited();
  exited.set_last_words("noise on stderr");
  EXPECT_THAT(FailureBox(finish, "x"), HasSubstr("noise on stderr"));
  exited.set_error_json(
      R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "line 1\nline 2"}}})");
  const std::string box = FailureBox(finish, "x");
  EXPECT_THAT(box, HasSubstr("error: ValueError: no"));
  EXPECT_THAT(box, HasSubstr("    line 2\n"));
  EXPECT_THAT(box, Not(HasSubstr("noise")));
}

TEST(FailureBox, SurvivesAnyErrorFile) {
  v1::Finish finish = Failed();
  for (const char* text : {"", "{", "[]", "7", R"({"message": 7})", R"({"message": {"message": []}})", "\xff\xfe"}) {
    finish.mutable_first_cause()->mutable_exited()->set_error_json(text);
    EXPECT_THAT(FailureBox(finish, "x"), HasSubstr("First cause"));
    EXPECT_THAT(OwnErrorJson(finish), HasSubstr("errorCode"));
  }
}

TEST(FailureBox, OwnErrorFileKeepsTheRootErrorAndAddsItsCode) {
  v1::Finish finish = Failed();
  finish.mutable_first_cause()->mutable_exited()->set_error_json(R"({"message": {"message": "boom"}})");
  EXPECT_EQ(OwnErrorJson(finish), R"({"message":{"errorCode":-9,"message":"boom"}})");
}

}  // namespace
}  // namespace phalanx::agent
