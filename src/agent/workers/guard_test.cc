#include "agent/workers/guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "base/process/process.h"

namespace phalanx::agent {
namespace {

constexpr int kEndsWithinMs = 10'000;  // patience: other tests may hold both cores

SpawnSpec Shell(const std::string& text, const std::string& mark, int out) {
  SpawnSpec spec;
  spec.program = "sh";
  spec.args = {"sh", "-c", text};
  spec.env = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
  if (!mark.empty()) spec.env[kNodeMark] = mark;
  spec.stdout_fd = out;
  return spec;
}

// Of one process of tests alone: a guard kills each process of the user that has its mark.
std::string OwnMark() { return fmt::format("node-{}", getpid()); }

// An "agent" in a process of its own: starts a guard and what `texts` say (each a shell command that prints the pids
// that are to be watched, one a line), and waits to be killed.
class GuardTest : public testing::Test {
 protected:
  void StartAgent(const std::vector<std::string>& texts, const std::string& mark, bool add_groups,
                  bool farewell = false, bool take_back = false) {
    int fds[2];
    ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
    output_ = Fd(fds[0]);
    Fd writer(fds[1]);
    int stay[2];
    ASSERT_EQ(pipe2(stay, O_CLOEXEC), 0);
    const Fd stays(stay[0]);
    stay_ = Fd(stay[1]);
    agent_ = fork();
    ASSERT_GE(agent_, 0);
    if (agent_ != 0) return;
    stay_.Reset();
    RunAgent(guards_mark_, texts, mark, add_groups, farewell ? stays.get() : -1, take_back, writer.get());
  }

  [[noreturn]] static void RunAgent(const std::string& guards_mark, const std::vector<std::string>& texts,
                                    const std::string& mark, bool add_groups, int stays, bool take_back, int out) {
    {
      auto guard = Guard::Start(guards_mark);
      if (!guard.ok()) _exit(1);
      for (const std::string& text : texts) {
        const auto child = Spawn(Shell(text, mark, out));
        if (!child.ok()) _exit(1);
        if (add_groups) guard->Add(child->pid);
        if (take_back) guard->Remove(child->pid);
      }
      dprintf(out, "guard %d\n", guard->pid());  // all is told
      if (stays < 0) {
        while (true) pause();
      }
      char byte = 0;
      if (read(stays, &byte, 1) != 0) _exit(1);  // until the test knows all of them
    }
    _exit(0);
  }

  // `count` pids that the agent and its children print, the guard's among them, each with a pidfd.
  void ReadPids(size_t count) {
    std::string text;
    while (static_cast<size_t>(std::count(text.begin(), text.end(), '\n')) < count) {
      char byte = 0;
      ASSERT_EQ(read(output_.get(), &byte, 1), 1) << text;
      text += byte;
    }
    constexpr std::string_view kOfTheGuard = "guard ";
    for (size_t at = 0; at < text.size(); at = text.find('\n', at) + 1) {
      const bool is_guard = text.compare(at, kOfTheGuard.size(), kOfTheGuard) == 0;
      const pid_t pid = std::stoi(text.substr(at + (is_guard ? kOfTheGuard.size() : 0)));
      pidfds_[pid] = PidfdOpen(pid);
      ASSERT_TRUE(pidfds_[pid].valid()) << pid;
      (is_guard ? guard_ : child_) = pid;
    }
    ASSERT_GT(guard_, 0) << text;
  }

  bool EndsWithin(pid_t pid, int ms) {
    pollfd ended{pidfds_.at(pid).get(), POLLIN, 0};
    return poll(&ended, 1, std::max(0, ms)) == 1;
  }

  void KillAgent() {
    kill(agent_, SIGKILL);
    waitpid(agent_, nullptr, 0);
  }

  void ExpectAllGone() {
    const Instant until = MonotonicMs() + kEndsWithinMs;
    for (const auto& [pid, pidfd] : pidfds_) {
      EXPECT_TRUE(EndsWithin(pid, static_cast<int>(until - MonotonicMs()))) << pid << " is still there";
    }
  }

  void TearDown() override {
    for (const auto& [pid, pidfd] : pidfds_) {
      if (!EndsWithin(pid, 0)) kill(pid, SIGKILL);
    }
  }

  const std::string guards_mark_ = OwnMark();
  pid_t agent_ = 0;
  pid_t guard_ = 0;
  pid_t child_ = 0;  // the last of the others that has told its pid
  Fd output_;
  Fd stay_;  // an agent that says farewell does so when this is closed
  std::map<pid_t, Fd> pidfds_;
};

TEST_F(GuardTest, AgentKilledLeavesNothingBehind) {
  // Children and grandchildren in the worker's group; one that is stopped; one that ignores every signal it can; one
  // that left for a session of its own; one that did and forgot nothing but its parent.
  StartAgent({"sleep 1000 & echo $!; echo $$; exec sleep 1000", "echo $$; kill -STOP $$",
              "trap '' TERM INT HUP QUIT; echo $$; while :; do :; done",
              "setsid sh -c 'echo $$; exec sleep 1000' & echo $$; exec sleep 1000",
              "setsid sh -c 'setsid sleep 1000 & echo $!; echo $$; kill -STOP $$'"},
             guards_mark_, true);
  ReadPids(1 + 8);
  KillAgent();
  ExpectAllGone();
}

TEST_F(GuardTest, FindsTheMarkedWithoutBeingToldOfThem) {
  StartAgent({"sleep 1000 & echo $!; echo $$; exec sleep 1000", "setsid sh -c 'echo $$; exec sleep 1000'"},
             guards_mark_, false);
  ReadPids(1 + 3);
  KillAgent();
  ExpectAllGone();
}

TEST_F(GuardTest, EndsGroupsWhoseProcessesShowNoMark) {
  StartAgent({"exec env -i sh -c 'echo $$; exec sleep 1000'"}, guards_mark_, true);
  ReadPids(2);
  KillAgent();
  ExpectAllGone();
}

TEST_F(GuardTest, LeavesGroupsThatWereTakenBack) {
  StartAgent({"exec env -i sh -c 'echo $$; exec sleep 1000'"}, guards_mark_, true, false, true);
  ReadPids(2);
  KillAgent();
  EXPECT_TRUE(EndsWithin(guard_, kEndsWithinMs));
  EXPECT_FALSE(EndsWithin(child_, 0));
}

TEST_F(GuardTest, TouchesNobodyElse) {
  StartAgent({"echo $$; exec sleep 1000"}, guards_mark_ + "-of-another", false);
  ReadPids(2);
  KillAgent();
  EXPECT_TRUE(EndsWithin(guard_, kEndsWithinMs));
  EXPECT_FALSE(EndsWithin(child_, 0));
}

TEST_F(GuardTest, OrderlyEndTouchesNothing) {
  StartAgent({"echo $$; exec sleep 1000"}, guards_mark_, true, true);
  ReadPids(2);
  stay_.Reset();
  waitpid(agent_, nullptr, 0);
  EXPECT_TRUE(EndsWithin(guard_, kEndsWithinMs));
  EXPECT_FALSE(EndsWithin(child_, 0));
}

TEST_F(GuardTest, SurvivesSignals) {
  StartAgent({"echo $$; exec sleep 1000"}, guards_mark_, false);
  ReadPids(2);
  for (const int signal : {SIGTERM, SIGINT, SIGHUP, SIGQUIT, SIGUSR1, SIGPIPE}) kill(guard_, signal);
  KillAgent();
  ExpectAllGone();
}

TEST_F(GuardTest, HoldsNoOutputOpen) {
  StartAgent({}, "", false);
  ReadPids(1);
  kill(guard_, SIGSTOP);
  KillAgent();
  pollfd output{output_.get(), POLLIN, 0};
  EXPECT_EQ(poll(&output, 1, kEndsWithinMs), 1);  // the end of file, although the guard lives on
  EXPECT_FALSE(EndsWithin(guard_, 0));
  kill(guard_, SIGCONT);
  ExpectAllGone();
}

// Not a test: the program that HidesTheMarkItInherited executes.
TEST(GuardAgent, DISABLED_Main) {
  auto guard = Guard::Start("inner");
  ASSERT_TRUE(guard.ok());
  dprintf(3, "guard %d\n", guard->pid());
  while (true) pause();
}

TEST_F(GuardTest, HidesTheMarkItInherited) {
  // Of an agent started by a worker of another: that one's guard must not end this one before it has done its work.
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  output_ = Fd(fds[0]);
  Fd writer(fds[1]);
  SpawnSpec spec = Shell("", "outer", writer.get());
  spec.program = "/proc/self/exe";
  spec.args = {"guard_agent", "--gtest_also_run_disabled_tests", "--gtest_filter=GuardAgent.DISABLED_Main"};
  spec.extra_fds = {writer.get()};
  const Fd null(open("/dev/null", O_WRONLY | O_CLOEXEC));
  spec.stdout_fd = null.get();
  const auto child = Spawn(spec);
  ASSERT_TRUE(child.ok());
  writer.Reset();
  agent_ = child->pid;
  ReadPids(1);
  EXPECT_EQ(EnvironmentHolds(agent_, "PHALANX_NODE_MARK=outer"), Holds::kYes);
  EXPECT_EQ(EnvironmentHolds(guard_, "PHALANX_NODE_MARK=outer"), Holds::kNo);
  KillAgent();
  ExpectAllGone();
}

}  // namespace
}  // namespace phalanx::agent
