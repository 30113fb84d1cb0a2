#include "base/cpus.h"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

namespace phalanx {
namespace {

TEST(Cpus, ReadsTheKernelsLists) {
  EXPECT_EQ(*ParseCpuList("0-3,8,10-11\n"), (CpuSet{0, 1, 2, 3, 8, 10, 11}));
  EXPECT_EQ(*ParseCpuList("7"), CpuSet{7});
  EXPECT_EQ(*ParseCpuList("\n"), CpuSet{});
  EXPECT_EQ(*ParseCpuList(""), CpuSet{});
}

TEST(Cpus, RefusesWhatIsNoList) {
  for (const char* text : {"-1", "1-", "3-1", "1,", ",1", "1,,2", "a", "1 2", "1;2", "70000", "0-99999999999", "0x3"}) {
    EXPECT_FALSE(ParseCpuList(text).ok()) << text;
  }
  EXPECT_EQ(Message(ParseCpuList("1-x").status()), "'1-x' is no list of CPUs like 0-3,8");
}

TEST(Cpus, WritesThemAsTheKernelDoes) {
  for (const char* text : {"", "0", "0-1", "0-3,8,10-11", "5,7,9"}) EXPECT_EQ(CpuListText(*ParseCpuList(text)), text);
}

TEST(Cpus, BindsTheCallingThread) {
  const CpuSet before = *AllowedCpus();
  ASSERT_FALSE(before.empty());
  const CpuSet last{*before.rbegin()};
  ASSERT_TRUE(BindToCpus(0, last).ok());
  EXPECT_EQ(*AllowedCpus(), last);
  ASSERT_TRUE(BindToCpus(0, before).ok());
  EXPECT_EQ(*AllowedCpus(), before);
}

// A spare that dies under our hands is no reason not to start a worker: its end tells of it, as any worker's.
TEST(Cpus, BindsAChildThatHasEnded) {
  const pid_t child = fork();
  if (child == 0) _exit(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(child), &info, WEXITED | WNOWAIT), 0);
  const Status status = BindToCpus(child, {*AllowedCpus()->rbegin()});
  EXPECT_TRUE(status.ok()) << status;
  EXPECT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_FALSE(BindToCpus(child, {*AllowedCpus()->rbegin()}).ok());
}

TEST(Cpus, SaysWhichCannotBeHad) {
  const Status status = BindToCpus(0, {60'000});
  EXPECT_NE(Message(status).find("binding to CPUs 60000: Invalid argument"), std::string::npos) << status;
  EXPECT_FALSE(BindToCpus(0, {}).ok());
}

}  // namespace
}  // namespace phalanx
