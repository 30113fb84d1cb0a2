#include "base/process/process.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <thread>

#include "base/clock.h"

namespace phalanx {
namespace {

const std::map<std::string, std::string> kEnv{{"PATH", "/usr/local/bin:/usr/bin:/bin"}};

int OpenFds() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

class ProcessTest : public testing::Test {
 protected:
  SpawnSpec Shell(const std::string& text) {
    SpawnSpec spec;
    spec.program = "sh";
    spec.args = {"sh", "-c", text};
    spec.env = kEnv;
    return spec;
  }

  // Runs it to its end.
  ProcessEnd RunToEnd(
      const SpawnSpec& spec, const std::function<void()>& when_spawned = [] {}) {
    auto child = Spawn(spec);
    when_spawned();
    EXPECT_TRUE(child.ok()) << child.status();
    ProcessEnd seen;
    if (!child.ok()) return seen;
    reaper_.Await(*std::move(child), [&](const ProcessEnd& end) {
      seen = end;
      loop_.Stop();
    });
    loop_.Run();
    return seen;
  }

  std::string OutputOf(SpawnSpec spec) {
    int fds[2];
    EXPECT_EQ(pipe2(fds, O_CLOEXEC), 0);
    const Fd reader(fds[0]);
    Fd writer(fds[1]);
    spec.stdout_fd = writer.get();
    RunToEnd(spec);
    writer.Reset();
    std::string text;
    char buffer[4096];
    for (ssize_t n = 0; (n = read(reader.get(), buffer, sizeof buffer)) > 0;)
      text.append(buffer, static_cast<size_t>(n));
    return text;
  }

  EventLoop loop_;
  Reaper reaper_{loop_};
};

TEST_F(ProcessTest, TellsExitCodesAndSignals) {
  const ProcessEnd three = RunToEnd(Shell("exit 3"));
  EXPECT_EQ(three.exit_code, 3);
  EXPECT_EQ(three.signal, 0);
  EXPECT_GT(three.noticed_ns, 0);
  EXPECT_EQ(RunToEnd(Shell("exit 0")).exit_code, 0);
  EXPECT_EQ(RunToEnd(Shell("kill -KILL $$")).signal, SIGKILL);
  EXPECT_EQ(RunToEnd(Shell("ulimit -c 0; kill -SEGV $$")).signal, SIGSEGV);
}

TEST_F(ProcessTest, TellsThePeakOfResidentMemory) {
  const int64_t small = RunToEnd(Shell("exit 0")).peak_resident_bytes;
  EXPECT_GT(small, 0);
  // The shell holds what it reads whole; killed, it is told of all the same.
  const int64_t large =
      RunToEnd(Shell("x=$(head -c 50000000 /dev/zero | tr '\\0' x); kill -KILL $$")).peak_resident_bytes;
  EXPECT_GT(large, small + 40'000'000);
}

TEST_F(ProcessTest, AnEndCanBeSeenBeforeItIsReaped) {
  StatusOr<Child> child = Spawn(Shell("read forever; kill -KILL $$"));
  ASSERT_TRUE(child.ok());
  const pid_t pid = child->pid;
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  for (int time = 0; time < 2; ++time) {
    const std::optional<ProcessEnd> end = PeekEnd(pid);
    ASSERT_TRUE(end.has_value());
    EXPECT_EQ(end->signal, SIGKILL);
  }
  reaper_.Await(*std::move(child), [this](const ProcessEnd&) { loop_.Stop(); });
  loop_.Run();
  EXPECT_FALSE(PeekEnd(pid).has_value());
}

TEST_F(ProcessTest, AnEndIsTheKernelsWordAndNoStopIsOne) {
  EXPECT_FALSE(EndUnderWay(getpid()));
  StatusOr<Child> child = Spawn(Shell("kill -STOP $$; read forever"));
  ASSERT_TRUE(child.ok());
  const pid_t pid = child->pid;
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WSTOPPED | WNOWAIT), 0);
  EXPECT_FALSE(EndUnderWay(pid));
  kill(pid, SIGKILL);
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(pid), &info, WEXITED | WNOWAIT), 0);
  const std::optional<ProcessEnd> end = EndUnderWay(pid);
  ASSERT_TRUE(end);
  EXPECT_EQ(end->pid, pid);
  EXPECT_EQ(end->signal, SIGKILL);
  EXPECT_FALSE(end->core_dumped);
  reaper_.Await(*std::move(child), [this](const ProcessEnd&) { loop_.Stop(); });
  loop_.Run();
  EXPECT_FALSE(EndUnderWay(pid));
}

TEST_F(ProcessTest, AChildHasTheLimitOfOpenFilesThatItIsGiven) {
  const uint64_t before = OpenFilesLimit();
  ASSERT_GT(before, 100u);
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd reader(fds[0]);
  Fd writer(fds[1]);
  SpawnSpec spec = Shell("read wait_for_the_end; test $(ulimit -Sn) = 77");
  spec.stdin_fd = reader.get();
  spec.open_files_limit = 77;
  EXPECT_EQ(RunToEnd(spec, [&] { writer.Reset(); }).exit_code, 0);
  EXPECT_EQ(OpenFilesLimit(), before);
}

TEST_F(ProcessTest, AChildIsBoundToTheCpusThatItIsGiven) {
  const CpuSet before = *AllowedCpus();
  SpawnSpec spec = Shell("grep Cpus_allowed_list /proc/self/status");
  spec.cpus = {*before.rbegin()};
  EXPECT_EQ(OutputOf(spec), fmt::format("Cpus_allowed_list:\t{}\n", *before.rbegin()));
  EXPECT_EQ(*AllowedCpus(), before);
  EXPECT_EQ(OutputOf(Shell("grep Cpus_allowed_list /proc/self/status")),
            fmt::format("Cpus_allowed_list:\t{}\n", CpuListText(before)));
}

TEST_F(ProcessTest, AChildThatCannotBeBoundIsNotStarted) {
  const CpuSet before = *AllowedCpus();
  SpawnSpec spec = Shell("exit 0");
  spec.cpus = {60'000};
  EXPECT_EQ(Message(Spawn(spec).status()), "binding to CPUs 60000: Invalid argument");
  spec.cpus = {*before.begin()};
  spec.program = "/no/program";
  EXPECT_FALSE(Spawn(spec).ok());
  EXPECT_EQ(*AllowedCpus(), before);
}

TEST_F(ProcessTest, TheLimitOfOpenFilesGrowsAsFarAsItMay) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{100, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &low), 0);
  EXPECT_EQ(RaiseOpenFilesLimit(50), 100u);
  EXPECT_EQ(RaiseOpenFilesLimit(120), 120u);
  EXPECT_EQ(RaiseOpenFilesLimit(UINT64_MAX), before.rlim_max);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
}

TEST_F(ProcessTest, TheLimitOfOpenFilesIsNotLoweredByAnotherThread) {
  constexpr int kRounds = 5'000;
  constexpr int kRoundsMin = 100;  // on a machine that is busy with other work each takes some ms
  constexpr uint64_t kLess = 200;
  constexpr uint64_t kMore = 300;
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit low{100, before.rlim_max};
  std::atomic<bool> over{false};
  std::atomic<uint64_t> calls{0};
  std::thread other([&] {
    for (; !over; ++calls) RaiseOpenFilesLimit(kLess);
  });
  int lowered = 0;
  const Instant until = MonotonicMs() + 2'000;
  for (int i = 0; i < kRoundsMin || (i < kRounds && MonotonicMs() < until); ++i) {
    setrlimit(RLIMIT_NOFILE, &low);
    RaiseOpenFilesLimit(kMore);
    const uint64_t running = calls;  // it may have begun before the limit was raised, and must end
    while (calls == running) std::this_thread::yield();
    if (OpenFilesLimit() != kMore) ++lowered;
  }
  over = true;
  other.join();
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_EQ(lowered, 0);
}

TEST_F(ProcessTest, SaysWhyAProgramDoesNotStart) {
  SpawnSpec spec = Shell("");
  spec.program = "no-such-program";
  EXPECT_EQ(Message(Spawn(spec).status()), "no-such-program: no such program on PATH");
  spec.program = "/no/such/program";
  EXPECT_EQ(Spawn(spec).status().code(), absl::StatusCode::kNotFound);
  spec.program = "passwd";
  spec.env = {{"PATH", "/etc"}};
  EXPECT_EQ(Message(Spawn(spec).status()), "passwd: found on PATH, but not executable");
  spec.program = "";
  EXPECT_FALSE(Spawn(spec).ok());
  spec.program = "sh";
  spec.env = kEnv;
  spec.cwd = "/no/such/directory";
  EXPECT_FALSE(Spawn(spec).ok());
}

TEST_F(ProcessTest, GivesTheWholeEnvironmentAndTheDirectory) {
  SpawnSpec spec = Shell("env | grep -v -e ^_= -e ^SHLVL= -e ^OLDPWD= | sort; pwd");
  spec.env["B"] = "two words";
  spec.env["A"] = "";
  spec.cwd = "/dev";
  EXPECT_EQ(OutputOf(spec), "A=\nB=two words\nPATH=/usr/local/bin:/usr/bin:/bin\nPWD=/dev\n/dev\n");
}

TEST_F(ProcessTest, ChildHasItsOwnSessionAndPlainSignals) {
  signal(SIGPIPE, SIG_IGN);
  const std::string status = OutputOf(Shell("exec cat /proc/self/status"));
  signal(SIGPIPE, SIG_DFL);
  EXPECT_NE(status.find("SigBlk:\t0000000000000000"), std::string::npos) << status;
  // 32 and 33 are the C library's own; its posix_spawn ignores them.
  EXPECT_NE(status.find("SigIgn:\t0000000180000000"), std::string::npos) << status;
  const std::optional<ProcStat> stat = ParseProcStat(OutputOf(Shell("exec cat /proc/self/stat")));
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->comm, "cat");
  EXPECT_EQ(stat->ppid, getpid());
  EXPECT_EQ(stat->pgrp, stat->session);
  EXPECT_NE(stat->session, getsid(0));
  EXPECT_GT(stat->memory_bytes, 4'096U);
  EXPECT_GT(stat->code_begin, 4'096U);
  EXPECT_GT(stat->environment_begin, 4'096U);
  EXPECT_GT(stat->environment_end, stat->environment_begin);
}

TEST_F(ProcessTest, ChildSeesOnlyWhatItIsGiven) {
  const Fd leaky(open("/dev/zero", O_RDONLY));  // not close-on-exec, as a careless library opens it
  int pair[2];
  ASSERT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
  const Fd a(pair[0]);
  const Fd b(pair[1]);
  SpawnSpec spec = Shell("echo one >&3; echo two >&4; for fd in /proc/self/fd/*; do echo ${fd##*/}; done");
  spec.extra_fds = {b.get(), b.get()};
  const std::string fds = OutputOf(spec);
  EXPECT_EQ(fds.substr(0, 10), "0\n1\n2\n3\n4\n") << fds;
  EXPECT_LE(std::count(fds.begin(), fds.end(), '\n'), 6) << fds;  // and the directory the shell reads
  char buffer[8];
  EXPECT_EQ(recv(a.get(), buffer, sizeof buffer, 0), 8);
}

TEST_F(ProcessTest, ReapsChildrenItNeverStarted) {
  // An orphan becomes our child; its end is told to nobody but OnAnyEnd, and leaves no zombie.
  int any_ends = 0;
  const std::string orphan = OutputOf(Shell("sh -c 'echo $$; exec sleep 1000 >&-' &"));
  const pid_t pid = std::stoi(orphan);
  const std::vector<pid_t> before = OwnChildren();
  EXPECT_EQ(std::count(before.begin(), before.end(), pid), 1);
  reaper_.OnAnyEnd([&] {
    ++any_ends;
    if (kill(pid, 0) != 0) loop_.Stop();
  });
  kill(pid, SIGKILL);
  loop_.Run();
  EXPECT_GT(any_ends, 0);
  EXPECT_EQ(kill(pid, 0), -1);
}

TEST_F(ProcessTest, HundredQuickStartsLeakNothing) {
  RunToEnd(Shell("exit 0"));
  const int before = OpenFds();
  for (int i = 0; i < 100; ++i) {
    SpawnSpec spec = Shell("");
    spec.program = i % 10 == 0 ? "/no/such" : "/bin/true";
    if (i % 10 == 0) {
      EXPECT_FALSE(Spawn(spec).ok());
    } else {
      EXPECT_EQ(RunToEnd(spec).exit_code, 0);
    }
  }
  EXPECT_EQ(OpenFds(), before);
  EXPECT_TRUE(OwnChildren().empty());
}

TEST_F(ProcessTest, SeesWhichSignalsAreCaught) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd reader(fds[0]);
  Fd writer(fds[1]);
  SpawnSpec spec = Shell("trap 'exit 7' TERM; echo; while :; do read -r line; done");
  int in[2];
  ASSERT_EQ(pipe2(in, O_CLOEXEC), 0);
  const Fd in_reader(in[0]);
  const Fd in_writer(in[1]);
  spec.stdin_fd = in_reader.get();
  spec.stdout_fd = writer.get();
  auto child = Spawn(spec);
  ASSERT_TRUE(child.ok());
  char byte = 0;
  ASSERT_EQ(read(reader.get(), &byte, 1), 1);
  const pid_t pid = child->pid;
  EXPECT_TRUE(CatchesSignal(pid, SIGTERM));
  EXPECT_FALSE(CatchesSignal(pid, SIGUSR2));
  EXPECT_EQ(EnvironmentHolds(pid, "PATH=/usr/local/bin:/usr/bin:/bin"), Holds::kYes);
  EXPECT_EQ(EnvironmentHolds(pid, "PATH=/usr/local/bin"), Holds::kNo);
  EXPECT_EQ(EnvironmentHolds(pid, "ATH=/usr/local/bin:/usr/bin:/bin"), Holds::kNo);
  ProcessEnd seen;
  reaper_.Await(*std::move(child), [&](const ProcessEnd& end) {
    seen = end;
    loop_.Stop();
  });
  kill(pid, SIGTERM);
  loop_.Run();
  EXPECT_EQ(seen.exit_code, 7);
  EXPECT_FALSE(CatchesSignal(pid, SIGTERM));
}

// A process that executes itself again and again has the entry at every moment, and shows none at one look in some
// hundred. A look waits for an exec that is under way, so their number is that of a time.
TEST_F(ProcessTest, NeverTakesAnExecForAnEndOfTheEnvironment) {
  const std::string path = fmt::format("{}/again-{}", testing::TempDir(), getpid());
  std::ofstream(path) << "#!/bin/sh\nexec \"$0\"\n";
  ASSERT_EQ(chmod(path.c_str(), 0700), 0);
  const auto child = Spawn(Shell("exec " + path));
  ASSERT_TRUE(child.ok());
  const std::string entry = "PATH=/usr/local/bin:/usr/bin:/bin";
  int missed = 0;
  int unknown = 0;
  const Instant until = MonotonicMs() + 1'500;
  for (int look = 0; look < 50 || MonotonicMs() < until; ++look) {
    const Holds holds = EnvironmentHolds(child->pid, entry);
    missed += holds == Holds::kNo ? 1 : 0;
    unknown += holds == Holds::kUnknown ? 1 : 0;
  }
  EXPECT_EQ(missed, 0);
  RecordProperty("unknown", unknown);
  // One that has none at all is in no doubt.
  SpawnSpec bare = Shell("exec sleep 1000");
  bare.env.clear();
  const auto without = Spawn(bare);
  ASSERT_TRUE(without.ok());
  Holds of_none = Holds::kUnknown;
  for (int look = 0; look < 100'000 && of_none == Holds::kUnknown; ++look)
    of_none = EnvironmentHolds(without->pid, entry);
  EXPECT_EQ(of_none, Holds::kNo);
  kill(without->pid, SIGKILL);
  waitpid(without->pid, nullptr, 0);
  // Not even one that hides its environment from us is in doubt for longer than an exec takes.
  for (const pid_t pid : AllProcesses()) {
    if (pid == child->pid) continue;
    Holds holds = Holds::kUnknown;
    const Instant end = MonotonicMs() + 20'000;
    while (holds == Holds::kUnknown && MonotonicMs() < end) holds = EnvironmentHolds(pid, entry);
    EXPECT_NE(holds, Holds::kUnknown) << pid;
  }
  kill(child->pid, SIGKILL);
  waitpid(child->pid, nullptr, 0);
  unlink(path.c_str());
}

TEST(ProcText, DistrustsWhatItReads) {
  const std::string tail = " 2 3 0 -1 4194560 1 18446744073709551615 3 4 5 6 7 8 20 0 9 0 1\n";
  const auto stat = ParseProcStat("10 (a) b (c) S 1 2" + tail);
  ASSERT_TRUE(stat);
  EXPECT_EQ(stat->comm, "a) b (c");
  EXPECT_EQ(stat->state, 'S');
  EXPECT_EQ(stat->ppid, 1);
  EXPECT_EQ(stat->pgrp, 2);
  EXPECT_EQ(stat->session, 2);
  EXPECT_EQ(stat->wait_status, 1);
  for (const char* garbage : {"", "1", "1 (a", "1 (a)", "1 (a) S", "1 )a( S 1 2 3", "1 (a) S x y z", "1 (a) S 1 2 3"}) {
    EXPECT_FALSE(ParseProcStat(garbage)) << garbage;
  }
  EXPECT_TRUE(ParseCatches("Name:\tx\nSigCgt:\t0000000000004000\n", SIGTERM));
  EXPECT_FALSE(ParseCatches("Name:\tx\nSigCgt:\t0000000000004000\n", SIGINT));
  EXPECT_FALSE(ParseCatches("SigCgt:", SIGTERM));
  EXPECT_FALSE(ParseCatches("\nSigCgt:\tzz", SIGTERM));
  EXPECT_FALSE(ParseCatches("\nSigCgt:\tffffffffffffffff\n", 65));
  EXPECT_FALSE(WithstandsSignal(getpid(), SIGUSR2));
  signal(SIGUSR2, SIG_IGN);
  EXPECT_TRUE(WithstandsSignal(getpid(), SIGUSR2));
  EXPECT_FALSE(CatchesSignal(getpid(), SIGUSR2));
  signal(SIGUSR2, SIG_DFL);
}

TEST(ProcText, ZombieWithThreadsIsNotDead) {
  ProcStat stat;
  stat.state = 'Z';
  stat.threads = 2;  // its main thread has ended, others go on
  EXPECT_FALSE(stat.Dead());
  stat.threads = 1;
  EXPECT_TRUE(stat.Dead());
}

}  // namespace
}  // namespace phalanx
