#include "master/rules/blame.h"

#include <gtest/gtest.h>
#include <signal.h>

namespace phalanx::master {
namespace {

struct Case {
  const char* name;
  int signal;
  const char* error_json;
  const char* last_words;
  bool collateral;
};

class Blame : public ::testing::TestWithParam<Case> {};

TEST_P(Blame, TellsVictimsFromTheDead) {
  v1::WorkerExited exit;
  exit.set_signal(GetParam().signal);
  exit.set_exit_code(exit.signal() == 0 ? 1 : 0);
  exit.set_error_json(GetParam().error_json);
  exit.set_last_words(GetParam().last_words);
  EXPECT_EQ(IsCollateral(exit), GetParam().collateral);
}

constexpr const char* kGloo =
    "RuntimeError: [../third_party/gloo/gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4711";
constexpr const char* kNccl =
    "terminate called after throwing an instance of 'c10::DistBackendError'\n  what():  [PG ID 0 Rank 1] Process group "
    "watchdog thread terminated with exception: [Rank 1] Watchdog caught collective operation timeout";

INSTANTIATE_TEST_SUITE_P(
    Table, Blame,
    ::testing::Values(
        Case{"gloo", 0, "", kGloo, true},                                                               //
        Case{"killed", SIGKILL, "", kGloo, false},                                                      //
        Case{"segv", SIGSEGV, "", "", false},                                                           //
        Case{"pipe", SIGPIPE, "", "", true},                                                            //
        Case{"watchdog", SIGABRT, "", kNccl, true},                                                     //
        Case{"abort", SIGABRT, "", "assertion failed", false},                                          //
        Case{"silent", 0, "", "", false},                                                               //
        Case{"store", 0, "", "torch.distributed.DistNetworkError: failed to recv, got 0 bytes", true},  //
        // The recorded exception counts, not what was printed before.
        Case{"recorded", 0, R"({"message": {"message": "ValueError: bad lr", "extraInfo": {}}})", kGloo, false},
        Case{"recorded_victim", 0, R"({"message": {"message": "RuntimeError: Connection reset by peer"}})", "", true},
        Case{"recorded_text", 0, R"({"message": "RuntimeError: Broken pipe", "timestamp": "1"})", "", true},
        Case{"garbage", 0, "{{{", "", false}, Case{"garbage_victim", 0, "Broken pipe {", "", true}),
    [](const auto& one) { return std::string(one.param.name); });

TEST(BlameTail, OnlyTheEndOfLastWordsCounts) {
  v1::WorkerExited exit;
  exit.set_exit_code(1);
  exit.set_last_words(kGloo + std::string(8'192, 'x') + "ValueError: bad lr");
  EXPECT_FALSE(IsCollateral(exit));
}

Failure Made(uint32_t rank, bool collateral) {
  Failure failure;
  failure.told.set_rank(rank);
  failure.told.mutable_exited()->set_exit_code(1);
  failure.collateral = collateral;
  return failure;
}

TEST(FirstCauseOf, IsTheFirstOwnDeathElseTheFirst) {
  EXPECT_EQ(FirstCause({Made(1, true), Made(2, false), Made(3, false)}), 1U);
  EXPECT_EQ(FirstCause({Made(1, true), Made(2, true)}), 0U);
  Failure early = Made(3, true);
  early.told.mutable_exited()->set_exit_code(0);
  EXPECT_EQ(FirstCause({Made(1, true), early, Made(2, true)}), 1U) << "the others have lost it";
  EXPECT_EQ(FirstCause({early, Made(1, true), Made(2, false)}), 2U);
}

TEST(FirstCauseOf, WhoseHardwareExplainsItsEndGoesBeforeOtherVictims) {
  Failure blamed = Made(7, true);
  blamed.told.mutable_exited()->set_blamed_on("XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before");
  Failure early = Made(4, true);
  early.told.mutable_exited()->set_exit_code(0);
  EXPECT_EQ(FirstCause({Made(1, true), blamed, Made(2, true)}), 1U);
  EXPECT_EQ(FirstCause({early, Made(1, true), blamed}), 2U);
  EXPECT_EQ(FirstCause({blamed, Made(2, false)}), 1U) << "one that died by itself is known";
}

TEST(Describe, NamesTheHardwareThatExplainsAnEnd) {
  Failure failure;
  failure.told.set_rank(17);
  failure.node = "a";
  v1::WorkerExited& exit = *failure.told.mutable_exited();
  exit.set_signal(SIGABRT);
  exit.set_blamed_on("XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before");
  EXPECT_EQ(Describe(failure),
            "rank 17 died (SIGABRT) on node a, 0.4 s after XID 79 (GPU has fallen off the bus) on GPU 3");
  exit.set_blamed_on("a link that is down (it was not so before) on mlx5_0 port 1, at most 12.0 s before");
  EXPECT_EQ(Describe(failure),
            "rank 17 died (SIGABRT) on node a, at most 12.0 s after a link that is down (it was not so before) on "
            "mlx5_0 port 1");
  exit.set_end_note("a note");
  EXPECT_TRUE(Describe(failure).ends_with("on mlx5_0 port 1 (a note)"));
  exit.clear_end_note();
  exit.set_blamed_on("another form");
  EXPECT_EQ(Describe(failure), "rank 17 died (SIGABRT) on node a, behind another form");
  exit.set_blamed_on(" before");
  EXPECT_EQ(Describe(failure), "rank 17 died (SIGABRT) on node a, behind  before");
}

TEST(AddFailure, KeepsTheOwnDeathHoweverLateItComes) {
  std::vector<Failure> failures;
  for (uint32_t rank = 0; rank < 1'000; ++rank) AddFailure(failures, Made(rank, true));
  AddFailure(failures, Made(5'000, false));
  EXPECT_EQ(failures.size(), kMaxFailures);
  EXPECT_EQ(failures[FirstCause(failures)].told.rank(), 5'000U);
  EXPECT_EQ(failures.front().told.rank(), 0U);
}

TEST(Describe, SaysWhoKilledARankAndWhatElseIsKnown) {
  Failure failure;
  failure.told.set_rank(3);
  failure.node = "a";
  failure.told.mutable_exited()->set_signal(SIGKILL);
  EXPECT_EQ(Describe(failure), "rank 3 died (SIGKILL) on node a");
  failure.told.mutable_exited()->set_core_dumped(true);
  EXPECT_EQ(Describe(failure), "rank 3 died (SIGKILL, core dumped) on node a");
  failure.told.mutable_exited()->set_core_dumped(false);
  failure.told.mutable_exited()->set_killed_by("the out-of-memory killer");
  EXPECT_EQ(Describe(failure), "rank 3 was killed by the out-of-memory killer on node a");
  failure.told.clear_exited();
  failure.told.mutable_exited()->set_exit_code(1);
  failure.told.mutable_exited()->set_end_note("2 processes were ended");
  EXPECT_EQ(Describe(failure), "rank 3 failed (exit code 1) on node a (2 processes were ended)");
  failure.told.mutable_exited()->clear_end_note();
  failure.told.mutable_exited()->set_last_words("Traceback (most recent call last):\n  File \"a.py\"\nKeyError: 1\n");
  EXPECT_EQ(Describe(failure), "rank 3 failed (exit code 1) on node a: KeyError: 1");
  failure.told.mutable_exited()->set_exit_code(0);
  EXPECT_EQ(Describe(failure), "rank 3 ended early (exit code 0) on node a") << "it went on behind that";
  failure.told.mutable_exited()->set_steps(7);
  EXPECT_EQ(Describe(failure), "rank 3 ended early (exit code 0, after step 7) on node a");
}

}  // namespace
}  // namespace phalanx::master
