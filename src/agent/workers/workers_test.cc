// The supervisor with real processes: shells, a Python with the real bootstrap, and Pythons that misbehave.
#include <fmt/ranges.h>
#include <gtest/gtest.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstddef>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>

#include "agent/workers/board.h"
#include "agent/workers/learnt.h"
#include "agent/workers/supervisor.h"
#include "base/test_paths.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

constexpr int64_t kPatienceMs = 20'000;

int OpenFds() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::string Slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

class WorkersTest : public testing::Test {
 protected:
  WorkersTest() : dir_(fs::temp_directory_path() / fmt::format("phalanx-workers-{}", getpid())) {
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "state");
    fs::create_directories(dir_ / "logs");
    config_.kind = ScriptKind::kProgram;
    config_.script = "sh";
    config_.log_dir = (dir_ / "logs").string();
    config_.state_root = (dir_ / "state").string();
    config_.redirects.for_all = 3;
    base_env_ = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
  }
  ~WorkersTest() override {
    supervisor_.reset();
    EndChildren();
    fs::remove_all(dir_);
  }

  // A script run by the machine's Python with the real bootstrap, or with files of a test's own.
  void UsePython(const std::string& text, const std::string& bootstrap = SourceDir() + "/python/phalanx/_bootstrap") {
    config_.kind = ScriptKind::kScript;
    config_.python = "python3";
    config_.script = (dir_ / "script.py").string();
    config_.bootstrap_dir = bootstrap;
    base_env_["PYTHONPATH"] = SourceDir() + "/python";
    base_env_["PYTHONDONTWRITEBYTECODE"] = "1";
    std::ofstream(dir_ / "script.py") << text;
  }

  // A zygote of the test's own; its worker.py is the real one, for cold starts.
  void UseZygote(const std::string& script, const std::string& zygote) {
    fs::create_directories(dir_ / "boot");
    std::ofstream(dir_ / "boot" / "zygote.py") << "import sys, os, socket, json, struct\n"
                                                  "s = socket.socket(fileno=int(sys.argv[1]))\n"
                                                  "def receive():\n"
                                                  "    head, fds, _, _ = socket.recv_fds(s, 4, 4)\n"
                                                  "    if not head: sys.exit(0)\n"
                                                  "    n = struct.unpack('<I', head)[0]\n"
                                                  "    return json.loads(s.recv(n, socket.MSG_WAITALL)), fds\n"
                                                  "def send(to=s, **m):\n"
                                                  "    t = json.dumps(m).encode()\n"
                                                  "    to.sendall(struct.pack('<I', len(t)) + t)\n"
                                                  "preload, _ = receive()\n"
                                               << zygote;
    UsePython(script, (dir_ / "boot").string());
    std::ofstream(dir_ / "boot" / "worker.py") << fmt::format(
        "import runpy, sys\nsys.argv[0] = '{0}/worker.py'\nrunpy.run_path('{0}/worker.py', run_name='__main__')\n",
        SourceDir() + "/python/phalanx/_bootstrap");
  }

  Supervisor& TheSupervisor() {
    if (supervisor_) return *supervisor_;
    SupervisorEvents events;
    events.on_spares_changed = [this](int waiting) {
      spares_ = waiting;
      ++spares_told_;
    };
    events.on_worker_started = [this](int local_rank, uint64_t, pid_t pid) {
      ++started_[local_rank];
      pids_[local_rank] = pid;
    };
    events.on_first_step = [this](int local_rank, uint64_t, int64_t step, bool) { first_step_[local_rank] = step; };
    events.on_worker_exited = [this](const WorkerEnd& end) {
      const int local_rank = static_cast<int>(end.exited.local_rank());
      EXPECT_EQ(started_[local_rank], 1) << "an end before its start";
      EXPECT_EQ(ends_.count(local_rank), 0u) << "told twice";
      ends_[local_rank] = end;
      if (Exists(static_cast<pid_t>(end.exited.pid()))) told_while_dying_.insert(local_rank);
    };
    events.on_group_gone = [this](int local_rank, uint64_t) {
      EXPECT_EQ(ends_.count(local_rank), 1u);
      ++gone_[local_rank];
    };
    events.on_start_failed = [this](int local_rank, uint64_t, const Status& status) {
      failed_[local_rank] = Message(status);
    };
    events.on_cold = [] {};
    events.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
    supervisor_ = MakeSupervisor({loop_, reaper_, nullptr, config_, Environment(base_env_), "node-under-test"},
                                 std::move(events));
    return *supervisor_;
  }

  WorkerSpec Spec(int local_rank, std::vector<std::string> args = {}) {
    WorkerSpec spec;
    spec.local_rank = local_rank;
    spec.rank = local_rank;
    spec.epoch = 5;
    spec.env = base_env_;
    spec.env["TORCHELASTIC_ERROR_FILE"] = TheSupervisor().ErrorFilePath(0, local_rank);
    spec.args = std::move(args);
    return spec;
  }

  void StartShell(int local_rank, const std::string& text) {
    Forget(local_rank);
    TheSupervisor().StartWorker(Spec(local_rank, {"-c", text}));
  }
  void StartScript(int local_rank, std::vector<std::string> args = {}) {
    Forget(local_rank);
    TheSupervisor().StartWorker(Spec(local_rank, std::move(args)));
  }
  void Forget(int local_rank) {
    for (auto* counts : {&started_, &gone_}) counts->erase(local_rank);
    ends_.erase(local_rank);
    failed_.erase(local_rank);
    first_step_.erase(local_rank);
  }

  // Serves the loop until `condition` holds; false when patience ends.
  bool Until(const std::function<bool()>& condition) {
    const Instant until = MonotonicMs() + kPatienceMs;
    while (!condition()) {
      if (MonotonicMs() > until) return false;
      loop_.At(loop_.Now() + 1, [this] { loop_.Stop(); });
      loop_.Run();
    }
    return true;
  }
  bool UntilGone(int local_rank) {
    return Until([&] { return gone_[local_rank] == 1; });
  }
  // Serves what is due now.
  void Turn() {
    loop_.At(loop_.Now() + 5, [this] { loop_.Stop(); });
    loop_.Run();
  }

  // What the worker wrote, a whole line of it at least.
  std::string Output(int local_rank, const char* stream = "stdout.log") {
    for (const auto& run : fs::directory_iterator(dir_ / "logs")) {
      return Slurp(run.path() / "attempt_0" / fmt::format("{}", local_rank) / stream);
    }
    return "";
  }
  pid_t PrintedPid(int local_rank) {
    EXPECT_TRUE(Until([&] { return Output(local_rank).find('\n') != std::string::npos; }));
    return std::stoi(Output(local_rank));
  }

  bool Exists(pid_t pid) {
    const auto stat = ReadProcStat(pid);
    return stat && !stat->Dead();
  }

  void EndChildren() {
    EXPECT_TRUE(Until([&] {
      for (const pid_t pid : OwnChildren()) kill(pid, SIGKILL);
      return OwnChildren().empty();
    }));
  }

  const fs::path dir_;
  EventLoop loop_;
  Reaper reaper_{loop_};
  LaunchConfig config_;
  std::map<std::string, std::string> base_env_;
  std::unique_ptr<Supervisor> supervisor_;
  int spares_ = 0;
  int spares_told_ = 0;  // how often
  std::map<int, int> started_;
  std::map<int, pid_t> pids_;
  std::map<int, int64_t> first_step_;
  std::map<int, WorkerEnd> ends_;
  std::set<int> told_while_dying_;  // local ranks whose process the kernel had not done away with at on_worker_exited
  std::map<int, int> gone_;
  std::map<int, std::string> failed_;
  std::vector<std::string> warnings_;
};

// --- programs -----------------------------------------------------------------------------------------------------

TEST_F(WorkersTest, TellsHowWorkersEnd) {
  StartShell(0, "echo last words >&2; exit 3");
  StartShell(1, "kill -KILL $$");
  StartShell(2, "exit 0");
  EXPECT_TRUE(started_.empty());  // nothing is told from inside a call
  for (const int rank : {0, 1, 2}) EXPECT_TRUE(UntilGone(rank));
  EXPECT_EQ(ends_[0].exited.exit_code(), 3);
  EXPECT_EQ(ends_[0].exited.signal(), 0);
  EXPECT_EQ(ends_[0].exited.last_words(), "last words\n");
  EXPECT_EQ(ends_[0].exited.epoch(), 5u);
  EXPECT_EQ(ends_[0].exited.pid(), pids_[0]);
  EXPECT_TRUE(ends_[0].exited.script_started());
  EXPECT_FALSE(ends_[0].warm);
  EXPECT_GT(ends_[0].noticed_ns, 0);
  EXPECT_EQ(ends_[1].exited.signal(), SIGKILL);
  EXPECT_EQ(ends_[2].exited.exit_code(), 0);
  EXPECT_TRUE(ends_[2].exited.script_started());
}

// Whether the kernel writes a core here, of a process that may have one and dies in `folder`.
bool KernelDumpsCores(const std::string& folder) {
  const pid_t child = fork();
  if (child == 0) {
    const rlimit all = {RLIM_INFINITY, RLIM_INFINITY};
    if (setrlimit(RLIMIT_CORE, &all) != 0 || chdir(folder.c_str()) != 0) _exit(1);
    signal(SIGSEGV, SIG_DFL);  // a sanitizer has one of its own
    raise(SIGSEGV);
    _exit(1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WCOREDUMP(status);
}

TEST_F(WorkersTest, TellsWhetherACoreWasWritten) {
  StartShell(0, fmt::format("cd {} && ulimit -c unlimited && kill -SEGV $$", dir_.string()));
  StartShell(1, "ulimit -c 0; kill -SEGV $$");
  for (const int rank : {0, 1}) EXPECT_TRUE(UntilGone(rank));
  EXPECT_EQ(ends_[0].exited.signal(), SIGSEGV);
  EXPECT_EQ(ends_[0].exited.core_dumped(), KernelDumpsCores(dir_.string()));
  EXPECT_EQ(ends_[1].exited.signal(), SIGSEGV);
  EXPECT_FALSE(ends_[1].exited.core_dumped());
}

TEST_F(WorkersTest, BringsTheErrorFile) {
  StartShell(0, "echo '{\"message\": \"boom\"}' > $TORCHELASTIC_ERROR_FILE; exit 1");
  StartShell(1, "head -c 1000000 /dev/zero > $TORCHELASTIC_ERROR_FILE; exit 1");
  EXPECT_TRUE(UntilGone(0) && UntilGone(1));
  EXPECT_EQ(ends_[0].exited.error_json(), "{\"message\": \"boom\"}\n");
  EXPECT_EQ(ends_[1].exited.error_json().size(), 64u << 10);
}

TEST_F(WorkersTest, GivesEveryWorkerTheMark) {
  StartShell(0, "echo $PHALANX_NODE_MARK");
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(Output(0), "node-under-test\n");
}

TEST_F(WorkersTest, SaysWhatCannotStart) {
  config_.script = "no-such-program";
  StartShell(0, "");
  EXPECT_TRUE(Until([&] { return failed_.count(0) == 1; }));
  EXPECT_EQ(failed_[0], "no-such-program: no such program on PATH");
  EXPECT_TRUE(started_.empty());
}

TEST_F(WorkersTest, StoppedWorkerIsKilled) {
  StartShell(0, "echo $$; kill -STOP $$");
  const pid_t pid = PrintedPid(0);
  EXPECT_TRUE(Until([&] { return ReadProcStat(pid)->state == 'T'; }));
  supervisor_->SignalGroup(0, SIGKILL);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(ends_[0].exited.signal(), SIGKILL);
}

TEST_F(WorkersTest, SignalsGroupOrWorkerAlone) {
  StartShell(0, "trap 'exit 9' TERM; (trap '' TERM; echo $$; exec sleep 1000) & wait");
  EXPECT_TRUE(Until([&] { return started_[0] == 1 && supervisor_->Catches(0, SIGTERM); }));
  EXPECT_FALSE(supervisor_->Catches(0, SIGUSR1));
  EXPECT_FALSE(supervisor_->Catches(7, SIGTERM));
  PrintedPid(0);
  supervisor_->SignalWorker(0, SIGTERM);
  EXPECT_TRUE(Until([&] { return ends_.count(0) == 1; }));
  EXPECT_EQ(ends_[0].exited.exit_code(), 9);
  Turn();
  EXPECT_EQ(gone_[0], 0);
  EXPECT_FALSE(supervisor_->Catches(0, SIGTERM));
  supervisor_->SignalWorker(0, SIGKILL);  // has ended: nobody is hit
  supervisor_->SignalGroup(0, SIGKILL);
  EXPECT_TRUE(UntilGone(0));
}

// The one that wants time to save, as a child of nobody in the group: its parent has ended.
constexpr char kOrphanThatSaves[] = "(sh -c \"trap 'exit 9' TERM; echo \\$\\$; while :; do sleep 0.05; done\" &); ";

TEST_F(WorkersTest, AnOrphanOfTheGroupWithstands) {
  StartShell(
      0, fmt::format("while ! [ -e {}/go ]; do sleep 0.01; done; {} exec sleep 1000", dir_.string(), kOrphanThatSaves));
  EXPECT_TRUE(Until([&] { return started_[0] == 1; }));
  EXPECT_FALSE(supervisor_->GroupWithstands(0, SIGTERM));
  Turn();
  std::ofstream(dir_ / "go") << "go";
  const pid_t orphan = PrintedPid(0);
  EXPECT_TRUE(Until([&] { return ReadProcStat(orphan)->ppid == getpid(); }));
  EXPECT_FALSE(supervisor_->Catches(0, SIGTERM));
  EXPECT_TRUE(supervisor_->GroupWithstands(0, SIGTERM));
  EXPECT_FALSE(supervisor_->GroupWithstands(0, SIGUSR2));
  EXPECT_FALSE(supervisor_->GroupWithstands(7, SIGTERM));
  supervisor_->SignalGroup(0, SIGTERM);
  EXPECT_TRUE(UntilGone(0));
}

TEST_F(WorkersTest, WhatAnEndedWorkerHasLeftWithstands) {
  StartShell(0, fmt::format("{} exit 1", kOrphanThatSaves));
  StartShell(1, "sleep 1000 & exit 1");
  PrintedPid(0);
  EXPECT_TRUE(Until([&] { return ends_.count(0) == 1 && ends_.count(1) == 1; }));
  EXPECT_TRUE(supervisor_->GroupWithstands(0, SIGTERM));
  EXPECT_FALSE(supervisor_->GroupWithstands(1, SIGTERM));
  for (const int rank : {0, 1}) {
    supervisor_->SignalGroup(rank, SIGTERM);
    EXPECT_TRUE(UntilGone(rank));
  }
}

TEST_F(WorkersTest, AZombieWithstandsNothing) {
  // It had a handler, and its parent never asks how it ended.
  StartShell(0,
             "sh -c 'trap : TERM; while ! grep -q sleep /proc/$PPID/comm; do :; done; exit 0' & echo $!; "
             "exec sleep 1000");
  const pid_t zombie = PrintedPid(0);
  EXPECT_TRUE(Until([&] { return ReadProcStat(zombie)->Dead(); }));
  EXPECT_FALSE(supervisor_->GroupWithstands(0, SIGTERM));
  supervisor_->SignalGroup(0, SIGTERM);
  EXPECT_TRUE(UntilGone(0));
}

TEST_F(WorkersTest, GrandchildrenKeepTheGroupUntilTheyAreGone) {
  StartShell(0, "sleep 1000 & echo $!; exit 1");
  EXPECT_TRUE(Until([&] { return ends_.count(0) == 1; }));
  const pid_t grandchild = PrintedPid(0);
  Turn();
  EXPECT_EQ(gone_[0], 0);
  Forget(0);
  ends_[0] = {};
  supervisor_->StartWorker(Spec(0, {"-c", "exit 0"}));
  EXPECT_TRUE(Until([&] { return failed_.count(0) == 1; }));
  EXPECT_EQ(failed_[0], "processes of its last life still run");
  kill(grandchild, SIGKILL);
  EXPECT_TRUE(UntilGone(0));
}

TEST_F(WorkersTest, ZombieThatNobodyReapsDoesNotKeepTheGroup) {
  // A child in the group, whose parent has left it and never asks how it ended.
  const std::string text =
      "python3 -c 'import os, signal\n"
      "c = os.fork()\n"
      "if c == 0: signal.pause()\n"
      "os.setsid()\n"
      "print(os.getpid(), flush=True)\n"
      "signal.pause()' & while ! [ -s /proc/self/fd/1 ]; do read -t 0.01 x < /dev/zero; done; exit 1";
  config_.script = "bash";
  StartShell(0, text);
  EXPECT_TRUE(Until([&] { return ends_.count(0) == 1; }));
  const pid_t stray = PrintedPid(0);
  EXPECT_EQ(gone_[0], 0);
  supervisor_->SignalGroup(0, SIGKILL);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_TRUE(Exists(stray));
  EXPECT_EQ(kill(-pids_[0], 0), 0);  // the zombie is still there
}

TEST_F(WorkersTest, StraysAreNamedAndKilledWithTheirDescendants) {
  StartShell(0,
             "setsid sh -c 'setsid sleep 1000 & echo $!; exec sleep 1001' & while ! [ -s /proc/self/fd/1 ]; do :; "
             "done; exit 0");
  EXPECT_TRUE(UntilGone(0));
  const pid_t below = PrintedPid(0);
  // In the midst of exec it shows no mark, and is none.
  EXPECT_TRUE(Until([&] {
    const std::vector<std::string> strays = supervisor_->Strays();
    return strays.size() == 1 && strays[0].ends_with(" sleep");
  }));
  EXPECT_TRUE(Exists(below));
  supervisor_->KillStrays();
  EXPECT_TRUE(Until([&] { return supervisor_->Strays().empty() && !Exists(below); }));
}

TEST_F(WorkersTest, ChildrenWithoutTheMarkAreNoStrays) {
  TheSupervisor();
  SpawnSpec spec;
  spec.program = "sleep";
  spec.args = {"sleep", "1000"};
  spec.env = base_env_;
  ASSERT_TRUE(Spawn(spec).ok());
  EXPECT_TRUE(supervisor_->Strays().empty());
}

TEST_F(WorkersTest, HundredQuickStartsLeakNothing) {
  StartShell(0, "exit 0");
  EXPECT_TRUE(UntilGone(0));
  config_.redirects.for_all = 0;
  const int before = OpenFds();
  for (int i = 0; i < 50; ++i) {
    StartShell(0, "exit 1");
    StartShell(1, "kill -KILL $$");
    EXPECT_TRUE(UntilGone(0) && UntilGone(1));
  }
  Turn();
  EXPECT_EQ(OpenFds(), before);
  EXPECT_TRUE(OwnChildren().empty());
}

// A program of tests that has run none of them ends with 0.
constexpr int kWithoutPidfdsPassed = 42;

// Not a test: what WorksWithoutPidfds executes, in a process whose kernel seems to have none.
TEST_F(WorkersTest, DISABLED_WithoutPidfds) {
  ASSERT_FALSE(PidfdOpen(getpid()).valid());
  StartShell(0, "sleep 1000 & echo $!; exit 7");
  EXPECT_TRUE(Until([&] { return ends_.count(0) == 1; }));
  EXPECT_EQ(ends_[0].exited.exit_code(), 7);
  Turn();
  EXPECT_EQ(gone_[0], 0);
  supervisor_->SignalGroup(0, SIGKILL);
  EXPECT_TRUE(UntilGone(0));
  if (!HasFailure()) _exit(kWithoutPidfdsPassed);
}

TEST_F(WorkersTest, WorksWithoutPidfds) {
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    sock_filter rules[] = {BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(seccomp_data, nr)),
                           BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
                           BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW)};
    const sock_fprog program{4, rules};
    prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
    if (prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program, 0, 0) != 0) _exit(1);
    // No report: this program's is its parent's.
    execl("/proc/self/exe", "workers", "--gtest_also_run_disabled_tests",
          "--gtest_output=", "--gtest_filter=WorkersTest.DISABLED_WithoutPidfds", nullptr);
    _exit(1);
  }
  ProcessEnd seen;
  seen.exit_code = -1;
  reaper_.Await(Child{child, Fd()}, [&](const ProcessEnd& end) { seen = end; });
  EXPECT_TRUE(Until([&] { return seen.exit_code >= 0; }));
  EXPECT_EQ(seen.exit_code, kWithoutPidfdsPassed);
}

// --- Python -------------------------------------------------------------------------------------------------------

constexpr char kTellAll[] =
    "import sys, os\n"
    "print(sys.argv[1:], os.environ['PHALANX_NODE_MARK'], os.getsid(0) == os.getpid())\n"
    "sys.exit(4)\n";

TEST_F(WorkersTest, ColdPythonRunsTheScript) {
  config_.warm = false;
  UsePython(kTellAll);
  StartScript(0, {"a b", "\xff"});
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(ends_[0].exited.exit_code(), 4) << ends_[0].exited.last_words();
  EXPECT_TRUE(ends_[0].exited.script_started());
  EXPECT_FALSE(ends_[0].warm);
  EXPECT_EQ(Output(0), "['a b', '\\udcff'] node-under-test True\n");
}

TEST_F(WorkersTest, ForeignPythonRunsTheScriptPlainly) {
  UsePython(kTellAll);
  config_.interpreter_given = true;
  TheSupervisor().Start();
  StartScript(0, {"x"});
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(Output(0), "['x'] node-under-test True\n");
  EXPECT_TRUE(ends_[0].exited.script_started());
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(WorkersTest, FirstWorkerWaitsForTheZygoteAndIsWarm) {
  UsePython(kTellAll);
  TheSupervisor().Start();
  StartScript(0, {"x"});
  StartScript(1, {"y"});
  EXPECT_TRUE(UntilGone(0) && UntilGone(1));
  EXPECT_EQ(ends_[0].exited.exit_code(), 4) << ends_[0].exited.last_words();
  EXPECT_TRUE(ends_[0].warm && ends_[1].warm);
  EXPECT_TRUE(ends_[0].exited.script_started());
  EXPECT_EQ(Output(0), "['x'] node-under-test True\n");
  EXPECT_EQ(Output(1), "['y'] node-under-test True\n");
  EXPECT_TRUE(warnings_.empty()) << warnings_[0];
}

TEST_F(WorkersTest, SparesWaitAndServeAndGo) {
  UsePython("import sys; print(len(sys.argv))\n");
  TheSupervisor().Start();
  supervisor_->WantSpares(2);
  EXPECT_TRUE(Until([&] { return spares_ == 2; }));
  EXPECT_EQ(OwnChildren().size(), 3u);  // and the zygote
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_TRUE(ends_[0].warm);
  EXPECT_EQ(spares_, 1);  // one was taken; the owner says when to fork more
  supervisor_->WantSpares(2);
  EXPECT_TRUE(Until([&] { return spares_ == 2; }));
  supervisor_->WantSpares(0);
  EXPECT_TRUE(Until([&] { return OwnChildren().size() == 1; }));
  EXPECT_TRUE(supervisor_->Strays().empty());
}

TEST_F(WorkersTest, WorkersAreBoundBeforeTheirCodeRuns) {
  const CpuSet all = *AllowedCpus();
  UsePython("import os\nprint(sorted(os.sched_getaffinity(0)))\n");
  TheSupervisor().Start();
  WorkerSpec warm = Spec(0);
  warm.cpus = {*all.rbegin()};
  TheSupervisor().StartWorker(warm);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_TRUE(ends_[0].warm);
  EXPECT_EQ(Output(0), fmt::format("[{}]\n", *all.rbegin()));
  StartScript(1);
  EXPECT_TRUE(UntilGone(1));
  EXPECT_EQ(Output(1), fmt::format("[{}]\n", fmt::join(all, ", ")));  // only that one was bound
  supervisor_.reset();
  config_.kind = ScriptKind::kProgram;
  config_.script = "sh";
  WorkerSpec program = Spec(2, {"-c", "grep Cpus_allowed_list /proc/self/status"});
  program.cpus = {*all.rbegin()};
  TheSupervisor().StartWorker(program);
  EXPECT_TRUE(UntilGone(2));
  EXPECT_EQ(*AllowedCpus(), all);
}

TEST_F(WorkersTest, WorkersThatCannotBeBoundDoNotStart) {
  UsePython("print('never')\n");
  TheSupervisor().Start();
  for (const bool warm : {true, false}) {
    WorkerSpec spec = Spec(warm ? 0 : 1);
    spec.cpus = {60'000};
    TheSupervisor().StartWorker(spec);
    EXPECT_TRUE(Until([&] { return failed_.count(spec.local_rank) == 1; }));
    EXPECT_EQ(failed_[spec.local_rank], "binding to CPUs 60000: Invalid argument");
    EXPECT_EQ(started_.count(spec.local_rank), 0u);
    supervisor_.reset();
    config_.warm = false;
  }
}

// A life teaches modules of libraries that are indifferent to what the script does before: networkx is one of them.
class LearningTest : public WorkersTest {
 protected:
  void UseLibrary(const std::string& networkx) {
    const fs::path library = dir_ / "site-packages";  // by its name no code of the user's own
    fs::create_directories(library);
    std::ofstream(library / "networkx.py") << networkx;
    base_env_["PYTHONPATH"] += ":" + library.string();
  }

  // A whole life. Behind it the agent asks for spares anew: where none waited, its own was the last to be forked.
  void Live(int spares) {
    StartScript(0);
    EXPECT_TRUE(UntilGone(0));
    supervisor_->WantSpares(spares);
  }

  Learnt LearntNow() const { return ReadLearnt(LearntPath(config_, fs::current_path().string())); }

  // Whether all of `wanted` spares are of a zygote that was not there when `before` were this process's children.
  bool UntilNoneIsOf(const std::vector<pid_t>& before, size_t wanted) {
    return Until([&] {
      const std::vector<pid_t> now = OwnChildren();
      return now.size() == wanted + 1 &&
             std::find_first_of(now.begin(), now.end(), before.begin(), before.end()) == now.end();
    });
  }

  // A whole life of one of `wanted` spares that wait, until those of the zygote that knows what it has taught wait: one
  // is taken, one more of the same zygote comes in its place, and then one of the next in the place of each.
  bool LearnFromOne(int wanted) {
    const int told = spares_told_ + 2 + wanted;
    StartScript(0);
    EXPECT_TRUE(Until([&] { return first_step_.count(0) == 1; }));
    supervisor_->WantSpares(wanted);  // before the next zygote, which is made a moment behind the step, is ready
    EXPECT_TRUE(UntilGone(0));
    return Until([&] { return spares_told_ >= told; });
  }
};

TEST_F(LearningTest, FirstStepIsToldAndItsModulesAreKept) {
  UsePython("import phalanx\n__import__('networkx'), __import__('colorsys')\nphalanx.step(41)\n");
  UseLibrary("");
  TheSupervisor().Start();
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(first_step_[0], 41) << ends_[0].exited.last_words();
  EXPECT_EQ(LearntNow().modules, std::vector<std::string>{"networkx"});
}

// What no reading of the script finds, the second life of the same run has imported already.
TEST_F(LearningTest, WhatALifeHasTaughtIsThereForTheNext) {
  UsePython(
      "__import__('phalanx')\n"
      "print('networkx' in __import__('sys').modules, __import__('networkx').by_zygote, flush=True)\n"
      "__import__('phalanx').step(1)\n");
  UseLibrary("by_zygote = 'zygote.py' in open('/proc/self/cmdline').read()\n");
  TheSupervisor().Start();
  supervisor_->WantSpares(2);
  EXPECT_TRUE(Until([&] { return spares_ == 2; }));
  EXPECT_TRUE(LearnFromOne(2));
  EXPECT_EQ(Output(0), "False False\n") << ends_[0].exited.last_words();
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(Output(0), "False True\n") << ends_[0].exited.last_words();
  EXPECT_TRUE(ends_[0].warm);
  EXPECT_TRUE(warnings_.empty());
}

// A life that finds what was imported ahead unfit starts anew, and no later one finds it imported.
TEST_F(LearningTest, WhatWasUnfitIsUnlearnt) {
  const fs::path marker = dir_ / "marker";
  UsePython(
      fmt::format("import os\n"
                  "if os.path.exists('{}'): os.environ['SETTING'] = 'own'\n"
                  "print(__import__('networkx').seen, os.getpid(), flush=True)\n"
                  "__import__('phalanx').step(1)\n",
                  marker.string()));
  UseLibrary("import os\nseen = os.environ.get('SETTING')\n");
  TheSupervisor().Start();
  supervisor_->WantSpares(1);
  EXPECT_TRUE(Until([&] { return spares_ == 1; }));
  EXPECT_TRUE(LearnFromOne(1));
  EXPECT_TRUE(Output(0).starts_with("None ")) << ends_[0].exited.last_words();
  std::ofstream(marker) << "";
  const std::vector<pid_t> before = OwnChildren();
  Live(1);
  EXPECT_TRUE(Output(0).starts_with("own ")) << ends_[0].exited.last_words();
  EXPECT_FALSE(ends_[0].warm);
  ASSERT_TRUE(Until([&] { return warnings_.size() == 1; }));  // told behind the end
  EXPECT_NE(warnings_[0].find("it has read SETTING, which the script has changed since"), std::string::npos);
  EXPECT_EQ(LearntNow().deny, std::vector<std::string>{"phalanx.late"});
  EXPECT_TRUE(UntilNoneIsOf(before, 1));
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_TRUE(Output(0).starts_with("own ")) << ends_[0].exited.last_words();
  Turn();
  EXPECT_TRUE(ends_[0].warm) << warnings_.back();
  EXPECT_EQ(warnings_.size(), 1u);
}

// A module that ends the process that imports it ahead of time: the zygote that works goes on, and so does the next
// launch.
TEST_F(LearningTest, WhatCannotBeImportedAheadCostsNoWarmth) {
  UsePython("__import__('phalanx'), __import__('networkx')\n__import__('phalanx').step(1)\n");
  UseLibrary("import os\nif 'zygote.py' in open('/proc/self/cmdline').read(): os._exit(9)\n");
  for (int launch = 0; launch < 2; ++launch) {
    TheSupervisor().Start();
    StartScript(0);
    EXPECT_TRUE(UntilGone(0));
    EXPECT_TRUE(ends_[0].warm) << ends_[0].exited.last_words();
    EXPECT_EQ(LearntNow().modules, std::vector<std::string>{"networkx"});
    // The zygote that is made of it comes and goes.
    EXPECT_TRUE(Until([&] { return OwnChildren().size() == 2; }));
    EXPECT_TRUE(Until([&] { return OwnChildren().size() == 1; }));
    StartScript(0);
    EXPECT_TRUE(UntilGone(0));
    EXPECT_TRUE(ends_[0].warm);
    EXPECT_TRUE(warnings_.empty()) << warnings_[0];
    supervisor_.reset();
  }
}

TEST_F(WorkersTest, HearsWhatAWorkerSaidBeforeItEnded) {
  // More than one read brings, and all of it there, with the end, before the loop looks.
  UsePython("");
  fs::create_directories(dir_ / "boot");
  std::ofstream(dir_ / "boot" / "worker.py") << "import json, os, socket, struct, sys\n"
                                                "s = socket.socket(fileno=int(sys.argv[1]))\n"
                                                "def send(**m):\n"
                                                "    t = json.dumps(m).encode()\n"
                                                "    s.sendall(struct.pack('<I', len(t)) + t)\n"
                                                "send(type='started')\n"
                                                "send(type='first_step', step=9, modules=['m' * 400] * 250)\n"
                                                "os._exit(3)\n";
  config_.bootstrap_dir = (dir_ / "boot").string();
  config_.warm = false;
  StartScript(0);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_ALL, 0, &info, WEXITED | WNOWAIT), 0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(ends_[0].exited.exit_code(), 3);
  EXPECT_TRUE(ends_[0].exited.script_started());
  EXPECT_EQ(first_step_[0], 9);
}

TEST_F(WorkersTest, ScriptThatIsNotThereNeverStarts) {
  UsePython("");
  config_.script = (dir_ / "missing.py").string();
  config_.warm = false;
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(ends_[0].exited.exit_code(), 2);
  EXPECT_FALSE(ends_[0].exited.script_started());
  EXPECT_NE(ends_[0].exited.last_words().find("can't open file"), std::string::npos) << ends_[0].exited.last_words();
}

TEST_F(WorkersTest, LostSpareIsReplaced) {
  UsePython("");
  TheSupervisor().Start();
  supervisor_->WantSpares(1);
  EXPECT_TRUE(Until([&] { return spares_ == 1; }));
  const std::vector<pid_t> children = OwnChildren();
  ASSERT_EQ(children.size(), 2u);
  kill(std::max(children[0], children[1]), SIGKILL);  // the spare is the younger
  EXPECT_TRUE(Until([&] {
    const std::vector<pid_t> now = OwnChildren();
    return spares_ == 1 && now.size() == 2 && now != children;
  }));
}

// It has ended and the loop has not heard of it: nothing is sent to it, and it cannot fail to be bound.
TEST_F(WorkersTest, SpareThatHasJustEndedIsPassedOver) {
  UsePython("print('ran')\n");
  TheSupervisor().Start();
  supervisor_->WantSpares(1);
  EXPECT_TRUE(Until([&] { return spares_ == 1; }));
  const std::vector<pid_t> children = OwnChildren();
  ASSERT_EQ(children.size(), 2u);
  const pid_t spare = std::max(children[0], children[1]);
  kill(spare, SIGKILL);
  siginfo_t info{};
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(spare), &info, WEXITED | WNOWAIT), 0);
  WorkerSpec spec = Spec(0);
  spec.cpus = {*AllowedCpus()->rbegin()};
  supervisor_->StartWorker(spec);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(Output(0), "ran\n");
  EXPECT_NE(pids_[0], spare);
  EXPECT_TRUE(failed_.empty());
}

TEST_F(WorkersTest, DeathOfTheZygoteLeavesWorkersAndANewOneComes) {
  UsePython("import signal\nprint(1, flush=True)\nsignal.pause()\n");
  TheSupervisor().Start();
  StartScript(0);
  EXPECT_TRUE(Until([&] { return started_[0] == 1 && Output(0) == "1\n"; }));  // it may write before it is told
  for (const pid_t pid : OwnChildren()) {
    if (pid != pids_[0]) kill(pid, SIGKILL);
  }
  supervisor_->WantSpares(1);
  EXPECT_TRUE(Until([&] { return spares_ == 1; }));
  EXPECT_EQ(ends_.count(0), 0u);
  EXPECT_TRUE(warnings_.empty());
  supervisor_->SignalGroup(0, SIGKILL);
  EXPECT_TRUE(UntilGone(0));
}

TEST_F(WorkersTest, EndsZygoteAndSparesWithItself) {
  UsePython("");
  TheSupervisor().Start();
  supervisor_->WantSpares(2);
  EXPECT_TRUE(Until([&] { return spares_ == 2; }));
  supervisor_.reset();
  EXPECT_TRUE(Until([&] { return OwnChildren().empty(); }));
}

TEST_F(WorkersTest, WorkerToldToEndBeforeItBeganNeverStarts) {
  UseZygote("print('ran')\n", "receive()\n");  // imports for ever
  TheSupervisor().Start();
  StartScript(0);
  Turn();
  supervisor_->SignalGroup(0, SIGKILL);
  EXPECT_TRUE(Until([&] { return failed_.count(0) == 1; }));
  EXPECT_EQ(started_[0], 0);
}

// --- aside --------------------------------------------------------------------------------------------------------

class AsideTest : public WorkersTest {
 protected:
  void Ask() {
    supervisor_->ForkAside([this](StatusOr<Spare> spare) {
      ++told_;
      aside_ = std::move(spare);
    });
  }

  int told_ = 0;
  StatusOr<Spare> aside_ = absl::UnknownError("nothing was told");
};

TEST_F(AsideTest, WhatIsForkedAsideCountsNowhere) {
  UsePython("import sys; print(len(sys.argv))\n");
  TheSupervisor().Start();
  Ask();
  EXPECT_EQ(told_, 0);
  ASSERT_TRUE(Until([&] { return told_ == 1; }));
  ASSERT_TRUE(aside_.ok()) << aside_.status();
  EXPECT_EQ(spares_told_, 0);
  supervisor_->WantSpares(1);
  ASSERT_TRUE(Until([&] { return spares_ == 1; }));
  EXPECT_EQ(OwnChildren().size(), 3u);  // and the zygote
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_TRUE(ends_[0].warm);
  EXPECT_TRUE(Exists(aside_->pid));
  const int spares_told = spares_told_;
  aside_->channel.reset();  // the end of its socket ends it
  EXPECT_TRUE(Until([&] { return OwnChildren().size() == 1; }));
  EXPECT_EQ(spares_told_, spares_told);
  EXPECT_EQ(told_, 1);
  EXPECT_TRUE(warnings_.empty()) << warnings_[0];
}

TEST_F(AsideTest, ItOutlivesItsZygote) {
  UsePython("");
  TheSupervisor().Start();
  Ask();
  ASSERT_TRUE(Until([&] { return told_ == 1; }));
  ASSERT_TRUE(aside_.ok()) << aside_.status();
  for (const pid_t pid : OwnChildren()) {
    if (pid != aside_->pid) kill(pid, SIGKILL);
  }
  supervisor_->WantSpares(1);
  EXPECT_TRUE(Until([&] { return spares_ == 1; }));
  EXPECT_TRUE(Exists(aside_->pid) && reaper_.Awaits(aside_->pid));
}

TEST_F(AsideTest, AZygoteThatDiesWhileItImportsIsFollowedByAnother) {
  const std::string again = (dir_ / "again").string();
  UseZygote("", fmt::format("if not os.path.exists('{0}'):\n    open('{0}', 'w').close()\n    os.kill(os.getpid(), 9)\n"
                            "send(type='ready', pid=1, modules=1, ms=1)\nm, f = receive()\n"
                            "if os.fork() == 0:\n    if os.fork(): os._exit(0)\n    import time; os.setsid()\n"
                            "    while os.getppid() != {1}: time.sleep(0.01)\n"
                            "    to = socket.socket(fileno=f[0]); send(to, type='spare', pid=os.getpid()); to.recv(1)\n"
                            "    os._exit(0)\nos.wait(); receive()\n",
                            again, getpid()));
  TheSupervisor().Start();
  Ask();
  ASSERT_TRUE(Until([&] { return told_ == 1; }));
  EXPECT_TRUE(aside_.ok()) << aside_.status();
}

TEST_F(AsideTest, NoneWhereAllStartsAreCold) {
  TheSupervisor().Start();
  Ask();
  EXPECT_EQ(told_, 0) << "never from within";
  EXPECT_TRUE(Until([&] { return told_ == 1; }));
  EXPECT_FALSE(aside_.ok());
}

TEST_F(AsideTest, NothingIsToldOfWhatIsForgotten) {
  UseZygote("", "receive()\n");  // imports for ever
  TheSupervisor().Start();
  Ask();
  Turn();
  supervisor_->ForgetAside();
  ASSERT_TRUE(Until([&] {
    for (const pid_t pid : OwnChildren()) kill(pid, SIGKILL);
    return warnings_.size() == 1;  // two have ended: workers start cold
  }));
  EXPECT_EQ(told_, 0);
  Ask();
  EXPECT_TRUE(Until([&] { return told_ == 1; }));
}

class NoAside : public AsideTest, public testing::WithParamInterface<const char*> {};

TEST_P(NoAside, IsToldOnce) {
  UseZygote("print('ran')\n", GetParam());
  TheSupervisor().Start();
  Ask();
  ASSERT_TRUE(Until([&] { return told_ == 1; }));
  EXPECT_FALSE(aside_.ok());
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(told_, 1);
}

INSTANTIATE_TEST_SUITE_P(
    Zygotes, NoAside,
    testing::Values("send(type='failed', reason='it asks for a cold start')", "os.kill(os.getpid(), 9)",
                    "send(type='tainted', module='m', why='opened a device')",
                    "send(type='ready', pid=1, modules=1, ms=1)\n"
                    "while True:\n    m, f = receive()\n    send(type='fork_failed', id=m['id'], reason='no memory')",
                    "send(type='ready', pid=1, modules=1, ms=1)\n"
                    "while True:\n    m, f = receive()\n    os.close(f[0])",
                    "send(type='ready', pid=1, modules=1, ms=1)\n"
                    "while True:\n    m, f = receive()\n"
                    "    send(socket.socket(fileno=f[0]), type='spare', pid=os.getppid())"));

// --- deaths -------------------------------------------------------------------------------------------------------

TEST_F(WorkersTest, ADeathIsToldBeforeItsMemoryIsGivenBack) {
  config_.warm = false;
  UsePython("import phalanx, signal\nmemory = b'x' * (400 << 20)\nphalanx.step(1)\nsignal.pause()\n");
  const auto board = Board::Create(5, 1, -1, "/tmp");
  ASSERT_TRUE(board.ok());
  for (int time = 0; time < 5 && told_while_dying_.empty(); ++time) {  // a loop that comes late finds it gone
    Forget(0);
    WorkerSpec spec = Spec(0);
    spec.board_path = (*board)->path();
    supervisor_->StartWorker(std::move(spec));
    ASSERT_TRUE(Until([&] { return first_step_.count(0) == 1; }));
    kill(pids_[0], SIGKILL);
    ASSERT_TRUE(Until([&] { return ends_.count(0) == 1; }));
    EXPECT_EQ(ends_[0].exited.signal(), SIGKILL);
    EXPECT_TRUE(UntilGone(0));
    EXPECT_FALSE(Exists(pids_[0]));
  }
  EXPECT_EQ(told_while_dying_.count(0), 1u);
}

TEST_F(WorkersTest, AnotherProgramInTheWorkersPlaceIsNoDeath) {
  config_.warm = false;
  UsePython("import os, sys\nos.execvp('sh', ['sh', '-c', 'echo $$; read x; ' + sys.argv[1]])\n");
  const auto board = Board::Create(5, 2, -1, "/tmp");
  ASSERT_TRUE(board.ok());
  for (const int rank : {0, 1}) {
    WorkerSpec spec = Spec(rank, {rank == 0 ? "exit 7" : "kill -KILL $$"});
    spec.board_path = (*board)->path();
    supervisor_->StartWorker(std::move(spec));
  }
  EXPECT_TRUE(UntilGone(0) && UntilGone(1));
  EXPECT_EQ(ends_[0].exited.exit_code(), 7);
  EXPECT_EQ(ends_[0].exited.signal(), 0);
  EXPECT_EQ(ends_[1].exited.signal(), SIGKILL);
}

// --- zygotes that do not serve ------------------------------------------------------------------------------------

class ColdAfterAll : public WorkersTest, public testing::WithParamInterface<std::pair<const char*, const char*>> {};

TEST_P(ColdAfterAll, WithOneWarning) {
  UseZygote("print('ran')\n", GetParam().first);
  TheSupervisor().Start();
  StartScript(0);
  StartScript(1);
  EXPECT_TRUE(UntilGone(0) && UntilGone(1));
  EXPECT_EQ(Output(0), "ran\n") << ends_[0].exited.last_words();
  EXPECT_EQ(Output(1), "ran\n");
  EXPECT_FALSE(ends_[0].warm);
  ASSERT_EQ(warnings_.size(), 1u);
  EXPECT_NE(warnings_[0].find(GetParam().second), std::string::npos) << warnings_[0];
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(warnings_.size(), 1u);
}

INSTANTIATE_TEST_SUITE_P(
    Zygotes, ColdAfterAll,
    testing::Values(
        std::pair{"send(type='failed', reason='it asks for a cold start')", "it asks for a cold start"},
        std::pair{"sys.exit('no module named x')", "no module named x"},
        std::pair{"os.kill(os.getpid(), 9)", "killed by signal 9"},
        std::pair{"send(type='nonsense')\nreceive()", "unknown type 'nonsense'"},
        std::pair{"send(type='tainted', module='m', why='opened a device')", "importing m"},
        std::pair{"send(type='ready', pid=1, modules=1, ms=1)\n"
                  "while True:\n    m, f = receive()\n    send(type='fork_failed', id=m['id'], reason='no memory')",
                  "no memory"},
        std::pair{"send(type='ready', pid=1, modules=1, ms=1)\n"
                  "while True:\n    m, f = receive()\n    os.close(f[0])",
                  "no spare can be forked"},
        std::pair{"send(type='ready', pid=1, modules=1, ms=1)\n"
                  "while True:\n    m, f = receive()\n"
                  "    send(socket.socket(fileno=f[0]), type='spare', pid=os.getppid())",
                  "not a spare of this agent"},
        // One that is killed with much memory shows its end before it is told: its socket closes at once.
        std::pair{"send(type='ready', pid=1, modules=1, ms=1)\n"
                  "m, f = receive()\ns.close()\nos.close(f[0])\nimport signal\nsignal.pause()",
                  "does not live"}));

TEST_F(WorkersTest, TaintingModuleIsDeniedToTheNextZygoteAndRemembered) {
  UseZygote("print('ran')\n",
            "import pathlib\n"
            "pathlib.Path(sys.argv[0] + '.deny').open('a').write(json.dumps(preload['deny']) + '\\n')\n"
            "if 'bad' not in preload['deny']: send(type='tainted', module='bad', why='opened a socket')\n"
            "else: send(type='failed', reason='enough')\n");
  TheSupervisor().Start();
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(Slurp(dir_ / "boot" / "zygote.py.deny"), "[]\n[\"bad\"]\n");
  EXPECT_EQ(ReadLearnt(LearntPath(config_, fs::current_path().string())).deny, std::vector<std::string>{"bad"});
}

TEST_F(WorkersTest, MissingBootstrapIsAWarningAndAPlainPython) {
  UsePython(kTellAll, "/no/such");
  TheSupervisor().Start();
  StartScript(0);
  EXPECT_TRUE(UntilGone(0));
  EXPECT_EQ(ends_[0].exited.exit_code(), 4);
  EXPECT_EQ(warnings_.size(), 1u);
}

}  // namespace
}  // namespace phalanx::agent
