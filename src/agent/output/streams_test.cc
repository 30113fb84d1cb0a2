#include "agent/output/streams.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <thread>

#include "agent/flags/flag_values.h"
#include "base/process/process.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

std::string Slurp(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

int OpenFds() {
  int count = 0;
  for ([[maybe_unused]] const auto& entry : fs::directory_iterator("/proc/self/fd")) ++count;
  return count;
}

std::string Shown(const std::vector<std::string>& pieces) {
  std::string text;
  bool returned = false;
  for (const std::string& piece : pieces) AppendAsShown(text, piece, returned);
  return text;
}

TEST(AppendAsShown, WhatAReturnGoesBackOverIsGone) {
  EXPECT_EQ(Shown({"loaded\n", "\r 1%|  |", "\r 2%|# |", "\r 3%|# |\n", "epoch 1 done\n"}),
            "loaded\n 3%|# |\nepoch 1 done\n");
  EXPECT_EQ(Shown({"a\r", "\nb\r\n"}), "a\nb\n") << "a terminal's ends of lines";
  EXPECT_EQ(Shown({"50%\r", "\r", "60%"}), "60%");
  EXPECT_EQ(Shown({"the last state\r"}), "the last state") << "nothing has gone over it";
  EXPECT_EQ(Shown({"\r1", "\r2"}), "2");
}

TEST(LinePrefix, PutsInWhatItKnows) {
  EXPECT_EQ(LinePrefix("[${role_name}${local_rank}]:", "trainer", 5, 1, "node"), "[trainer1]:");
  EXPECT_EQ(LinePrefix("$hostname/$rank ", "trainer", 5, 1, "node"), "node/5 ");
  EXPECT_EQ(LinePrefix("$$ ${unknown} $ ${rank $rank_x", "trainer", 5, 1, "node"), "$ ${unknown} $ ${rank $rank_x");
  EXPECT_EQ(LinePrefix("$", "", 0, 0, ""), "$");
  EXPECT_EQ(LinePrefix("", "", 0, 0, ""), "");
}

TEST(LineCutter, KeepsLinesWhole) {
  LineCutter cutter("> ");
  EXPECT_EQ(cutter.Feed("one\ntw"), "> one\n");
  EXPECT_EQ(cutter.Feed(""), "");
  EXPECT_EQ(cutter.Feed("o\n\nthree"), "> two\n> \n");
  EXPECT_EQ(cutter.Flush(), "> three\n");
  EXPECT_EQ(cutter.Flush(), "");
  EXPECT_EQ(cutter.Feed("10%\r20%\r"), "> 10%\n> 20%\n");
  EXPECT_EQ(cutter.Feed("\nnext\r\n"), "> next\n");
  const std::string flood = cutter.Feed(std::string(1 << 20, 'x'));
  EXPECT_GT(flood.size(), 1u << 19);  // a line without an end does not wait for ever
}

TEST(LinesThatHold, LooksAtTheLinesAlone) {
  const std::string lines = "[apple0]:one\n[apple0]:an apple\n[apple0]:\n[apple0]:orange\n";
  EXPECT_EQ(LinesThatHold(lines, 9, {"apple"}), "[apple0]:an apple\n");
  EXPECT_EQ(LinesThatHold(lines, 9, {"pear", "orange", "an"}), "[apple0]:an apple\n[apple0]:orange\n");
  EXPECT_EQ(LinesThatHold(lines, 0, {"apple"}), lines);
  EXPECT_EQ(LinesThatHold(lines, 9, {"lemon"}), "");
  EXPECT_EQ(LinesThatHold("", 9, {"x"}), "");
  EXPECT_EQ(LinesThatHold("x\n", 9, {"x"}), "");  // all of it does not count
}

TEST(TailForPeople, IsTextAndBounded) {
  EXPECT_EQ(TailForPeople("all of it", 16), "all of it");
  EXPECT_EQ(TailForPeople("first line\nsecond", 10), "second");
  EXPECT_EQ(TailForPeople("0123456789", 4), "6789");
  EXPECT_EQ(TailForPeople("ends\n", 2), "s\n");
  EXPECT_EQ(TailForPeople("gr\xc3\xbc\xc3\x9f \xff\xc3", 100), "gr\xc3\xbc\xc3\x9f ??");
  EXPECT_EQ(TailForPeople("\xc3\xbcx", 2), "?x");  // cut within a character
  EXPECT_EQ(TailForPeople(std::string_view("a\0b", 3), 100), "a?b");
  EXPECT_EQ(TailForPeople("", 0), "");
}

// Real workers (shells) with real files and pipes; our "console" is a pair of files unless a test says otherwise.
class StreamsTest : public testing::Test {
 protected:
  StreamsTest() : dir_(fs::temp_directory_path() / fmt::format("phalanx-streams-{}", getpid())) {
    fs::remove_all(dir_);
    fs::create_directories(dir_ / "tmp");
    config_.log_dir = (dir_ / "logs").string();
    config_.rdzv_id = "job/7";
    config_.log_line_prefix_template = "[${role_name}${local_rank}]:";
    out_ = Fd(open((dir_ / "out").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    err_ = Fd(open((dir_ / "err").c_str(), O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    console_out_ = out_.get();
    console_err_ = err_.get();
  }
  ~StreamsTest() override {
    streams_.reset();
    fs::remove_all(dir_);
  }

  Streams& TheStreams() {
    if (!streams_) {
      Streams::Options options;
      options.stdout_fd = console_out_;
      options.stderr_fd = console_err_;
      options.tmp_dir = (dir_ / "tmp").string();
      options.on_warning = [this](const std::string& text) { warnings_.push_back(text); };
      streams_ = std::make_unique<Streams>(loop_, config_, options);
    }
    return *streams_;
  }

  pid_t Start(const std::string& text, std::unique_ptr<WorkerStreams>& streams, int local_rank = 0,
              uint32_t attempt = 0) {
    streams = TheStreams().Open(local_rank, local_rank, attempt);
    SpawnSpec spec;
    spec.program = "sh";
    spec.args = {"sh", "-c", text};
    spec.env = {{"PATH", "/usr/local/bin:/usr/bin:/bin"}};
    spec.stdin_fd = streams->stdin_fd();
    spec.stdout_fd = streams->stdout_fd();
    spec.stderr_fd = streams->stderr_fd();
    auto child = Spawn(spec);
    EXPECT_TRUE(child.ok()) << child.status();
    streams->CloseWorkerEnds();
    const pid_t pid = child->pid;
    reaper_.Await(*std::move(child), [this](const ProcessEnd&) { loop_.Stop(); });
    return pid;
  }

  // Runs a worker to its end; its last words.
  std::string RunWorker(const std::string& text, int local_rank = 0, uint32_t attempt = 0) {
    std::unique_ptr<WorkerStreams> streams;
    Start(text, streams, local_rank, attempt);
    loop_.Run();
    return streams->LastWords();
  }

  // All that the console has got when everything is over.
  std::string Out() {
    streams_.reset();
    return Slurp(dir_ / "out");
  }
  std::string Err() {
    streams_.reset();
    return Slurp(dir_ / "err");
  }

  fs::path AttemptDir(uint32_t attempt, int local_rank) {
    for (const auto& run : fs::directory_iterator(dir_ / "logs")) {
      EXPECT_EQ(run.path().filename().string().rfind("job_7-", 0), 0u) << run.path();
      return run.path() / fmt::format("attempt_{}", attempt) / fmt::format("{}", local_rank);
    }
    return {};
  }

  // Serves the loop until that process has written nothing for a while: it is held up. False where it never is.
  bool UntilHeldUp(pid_t pid) {
    std::string last;
    constexpr int kStill = 500;  // looks: a writer that only waits for a processor is not held up
    for (int turns = 0, still = 0; turns < 60'000; ++turns) {
      loop_.At(loop_.Now() + 1, [&] { loop_.Stop(); });
      loop_.Run();
      const std::string io = ReadFilePrefix(fmt::format("/proc/{}/io", pid), 1000);
      still = io == last ? still + 1 : 0;
      if (still == kStill) return true;
      last = io;
    }
    return false;
  }

  const fs::path dir_;
  EventLoop loop_;
  Reaper reaper_{loop_};
  LaunchConfig config_;
  Fd out_;
  Fd err_;
  int console_out_ = -1;
  int console_err_ = -1;
  std::unique_ptr<Streams> streams_;
  std::vector<std::string> warnings_;
};

TEST_F(StreamsTest, PlainWorkerWritesToOurConsole) {
  EXPECT_EQ(RunWorker("echo to stdout; echo to stderr >&2"), "to stderr\n");
  EXPECT_EQ(Out(), "to stdout\n");
  EXPECT_EQ(Err(), "to stderr\n");
}

TEST_F(StreamsTest, LastWordsAreTheTail) {
  const std::string last =
      RunWorker("i=0; while [ $i -lt 9000 ]; do echo line $i >&2; i=$((i+1)); done; kill -KILL $$");
  EXPECT_LE(last.size(), kLastWordsMax);
  EXPECT_GT(last.size(), kLastWordsMax - 100);
  EXPECT_EQ(last.rfind("line ", 0), 0u);
  EXPECT_EQ(last.substr(last.size() - 10), "line 8999\n");
  const std::string all = Err();
  EXPECT_EQ(std::count(all.begin(), all.end(), '\n'), 9000);
}

TEST_F(StreamsTest, GrandchildThatHoldsTheStreamIsNotWaitedFor) {
  std::unique_ptr<WorkerStreams> streams;
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  // The grandchild writes only when we tell it, long after the worker's end.
  const std::string fifo = (dir_ / "fifo").string();
  Start(fmt::format("mkfifo {0}; (read x < {0}; echo late >&2) & echo early >&2", fifo), streams);
  loop_.Run();
  EXPECT_EQ(streams->LastWords(), "early\n");
  streams.reset();
  std::ofstream(fifo) << "go\n";
  while (Slurp(dir_ / "err") != "early\nlate\n") {
    loop_.At(loop_.Now() + 1, [&] { loop_.Stop(); });
    loop_.Run();
  }
  close(fds[0]);
  close(fds[1]);
}

TEST_F(StreamsTest, RedirectedStreamsAreFilesOfTheWorkersOwn) {
  config_.redirects.for_all = 3;
  EXPECT_EQ(RunWorker("echo to stdout; echo to stderr >&2", 1, 4), "to stderr\n");
  EXPECT_EQ(Slurp(AttemptDir(4, 1) / "stdout.log"), "to stdout\n");
  EXPECT_EQ(Slurp(AttemptDir(4, 1) / "stderr.log"), "to stderr\n");
  EXPECT_EQ(TheStreams().ErrorFilePath(4, 1), (AttemptDir(4, 1) / "error.json").string());
  EXPECT_EQ(Out() + Err(), "");
}

TEST_F(StreamsTest, TeeShowsWholeLinesBehindTheirPrefix) {
  config_.tee.for_all = 3;
  EXPECT_EQ(RunWorker("printf 'par'; printf 'tial\\nno end'; echo oops >&2"), "oops\n");
  EXPECT_EQ(Slurp(AttemptDir(0, 0) / "stdout.log"), "partial\nno end");
  EXPECT_EQ(Out(), "[default0]:partial\n[default0]:no end\n");
  EXPECT_EQ(Err(), "[default0]:oops\n");
}

TEST_F(StreamsTest, TeeShowsLinesWhileTheWorkerLives) {
  config_.tee.for_all = 1;
  std::unique_ptr<WorkerStreams> streams;
  const pid_t pid = Start("echo alive; exec sleep 1000", streams);
  while (Slurp(dir_ / "out") != "[default0]:alive\n") {
    loop_.At(loop_.Now() + 1, [&] { loop_.Stop(); });
    loop_.Run();
  }
  kill(pid, SIGKILL);
  loop_.Run();
}

TEST_F(StreamsTest, TeeLosesNothingOfALot) {
  config_.tee.for_all = 1;
  RunWorker("seq 1 400000");
  const std::string out = Out();
  EXPECT_EQ(std::count(out.begin(), out.end(), '\n'), 400000);
  EXPECT_EQ(out.substr(out.size() - 18), "[default0]:400000\n");
}

// A link to a device that is always full, where the copy of lines would lie.
TEST_F(StreamsTest, CopyOfLinesThatIsLostIsOneWarning) {
  config_.tee.for_all = 1;
  config_.stdout_filters = {"apple"};
  const fs::path attempt_dir = fs::path(*TheStreams().RunDir()) / "attempt_0";
  fs::create_directories(attempt_dir);
  fs::create_symlink("/dev/full", attempt_dir / "filtered_stdout.log");
  RunWorker("echo apple; echo pear; echo apple");
  RunWorker("echo apple", 1);
  const Instant end = loop_.Now() + 10'000;
  while (warnings_.empty() && loop_.Now() < end) {
    loop_.At(loop_.Now() + 1, [&] { loop_.Stop(); });
    loop_.Run();
  }
  ASSERT_FALSE(warnings_.empty());
  EXPECT_EQ(warnings_[0], LossNotice((attempt_dir / "filtered_stdout.log").string(), ENOSPC));
  EXPECT_EQ(Out(), "[default0]:apple\n[default0]:pear\n[default0]:apple\n[default1]:apple\n");
}

TEST_F(StreamsTest, FilterHidesRanksButNotTheirFilesOrLastWords) {
  config_.local_ranks_filter = {1};
  config_.tee.by_local_rank = {{2, 1}};
  EXPECT_EQ(RunWorker("echo out0; echo err0 >&2", 0), "err0\n");
  EXPECT_EQ(RunWorker("echo out1; echo err1 >&2", 1), "err1\n");
  EXPECT_EQ(RunWorker("echo out2; echo err2 >&2", 2), "err2\n");
  EXPECT_EQ(Slurp(AttemptDir(0, 2) / "stdout.log"), "out2\n");
  EXPECT_EQ(Out(), "out1\n");
  EXPECT_EQ(Err(), "err1\n");
}

TEST_F(StreamsTest, NoLogDirectoryMeansNoFiles) {
  config_.log_dir = "/dev/null";
  config_.redirects.for_all = 3;
  EXPECT_EQ(TheStreams().ErrorFilePath(0, 0), "");
  EXPECT_EQ(RunWorker("echo out; echo err >&2"), "err\n");
  EXPECT_EQ(Out() + Err(), "out\nerr\n");
  EXPECT_TRUE(warnings_.empty());
}

TEST_F(StreamsTest, ErrorFileHasAFolderWithoutAnyLogDirAndLeavesNoneBehind) {
  config_.log_dir = "";
  const fs::path path = TheStreams().ErrorFilePath(3, 1);
  EXPECT_EQ(path.parent_path().filename(), "1");
  EXPECT_EQ(path.parent_path().parent_path().filename(), "attempt_3");
  EXPECT_TRUE(fs::is_directory(path.parent_path()));
  EXPECT_EQ(path.string().rfind((dir_ / "tmp" / "torchelastic_").string(), 0), 0u);
  const fs::path kept = TheStreams().ErrorFilePath(3, 0);
  std::ofstream(kept) << "{}";
  streams_.reset();
  EXPECT_FALSE(fs::exists(path.parent_path()));
  EXPECT_TRUE(fs::exists(kept));
}

TEST_F(StreamsTest, LogDirectoryThatCannotBeIsOneWarning) {
  std::ofstream(dir_ / "file") << "";
  config_.log_dir = (dir_ / "file" / "logs").string();
  config_.redirects.for_all = 3;
  EXPECT_EQ(TheStreams().ErrorFilePath(0, 0), "");
  EXPECT_EQ(RunWorker("echo out; echo err >&2"), "err\n");
  EXPECT_EQ(RunWorker("echo out; echo err >&2", 1), "err\n");
  EXPECT_EQ(warnings_.size(), 1u);
  EXPECT_EQ(Out(), "out\nout\n");
}

// What was wrong once must not hide what goes wrong later in another way.
TEST_F(StreamsTest, EachKindOfWarningIsSaidOnce) {
  config_.tee.for_all = 1;
  config_.stdout_filters = {"apple"};
  const fs::path run_dir = *TheStreams().RunDir();
  fs::create_directories(run_dir / "attempt_0" / "filtered_stdout.log");  // a folder in the file's place
  std::ofstream(run_dir / "attempt_1") << "";                             // a file in the folder's place
  for (int time = 0; time < 2; ++time) {
    RunWorker("echo apple", 0, 0);
    RunWorker("echo pear", 0, 1);
  }
  ASSERT_EQ(warnings_.size(), 2u);
  EXPECT_EQ(warnings_[0].rfind("no filtered copy of lines: ", 0), 0u) << warnings_[0];
  EXPECT_EQ(warnings_[1].rfind("output goes to the console instead of a file: ", 0), 0u) << warnings_[1];
}

// The folder has a name that any shell and any file system takes, and begins with the id that people look for.
TEST_F(StreamsTest, TheFolderOfARunIsNamedAsThatOfItsJob) {
  const auto name_for = [this](const std::string& id) {
    config_.rdzv_id = id;
    streams_.reset();
    std::string name = fs::path(*TheStreams().RunDir()).filename();
    return name.substr(0, name.size() - std::string("_XXXXXX").size());
  };
  EXPECT_EQ(name_for("job7"), "job7");
  for (const std::string id : {"a b/\xc3\xbc", "..", "job/7"}) EXPECT_EQ(name_for(id), JobDirectoryName(id));
  EXPECT_EQ(name_for(std::string(199, 'x') + "\xc3\xbc"), JobDirectoryName(std::string(199, 'x') + "\xc3\xbc"));
}

TEST_F(StreamsTest, BlockedConsoleStallsNeitherLoopNorEnd) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  const Fd never_read(fds[0]);
  console_err_ = fds[1];  // stays open, as a process's stderr: the console's thread is left writing to it
  config_.tee.by_local_rank = {{1, 2}};
  std::unique_ptr<WorkerStreams> chatty;
  std::unique_ptr<WorkerStreams> teed;
  const pid_t pid = Start("while :; do echo 0123456789012345678901234567890123456789 >&2; done", chatty, 0);
  const pid_t pid2 = Start("seq 1 400000 >&2; exec sleep 1000", teed, 1);
  // The worker is held up once pipe, buffer and our console are full: then it makes no more progress.
  EXPECT_TRUE(UntilHeldUp(pid));
  kill(pid, SIGKILL);
  kill(pid2, SIGKILL);
  const Instant killed_at = MonotonicMs();
  loop_.Run();
  EXPECT_GT(chatty->LastWords().size(), kLastWordsMax / 2);
  EXPECT_LT(MonotonicMs() - killed_at, 10'000);  // the console is blocked for ever
  const Instant closed_at = MonotonicMs();
  chatty.reset();
  teed.reset();
  streams_.reset();
  EXPECT_LT(MonotonicMs() - closed_at, 10'000);
}

TEST_F(StreamsTest, ConsoleThatComesBackGetsEverything) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  Fd reader(fds[0]);
  Fd writer(fds[1]);
  console_err_ = writer.get();
  std::unique_ptr<WorkerStreams> streams;
  const pid_t pid = Start("exec seq 1 500000 >&2", streams);  // more than pipes and buffers hold
  EXPECT_TRUE(UntilHeldUp(pid));
  size_t lines = 0;
  std::thread late([&] {
    char buffer[64 << 10];
    for (ssize_t n = 0; (n = read(reader.get(), buffer, sizeof buffer)) > 0;) {
      lines += static_cast<size_t>(std::count(buffer, buffer + n, '\n'));
    }
  });
  loop_.Run();
  streams_->Say("and ours\n");
  streams.reset();
  streams_.reset();
  writer.Reset();
  late.join();
  EXPECT_EQ(lines, 500001u);
}

TEST_F(StreamsTest, ClosedConsoleIsNoReasonToDie) {
  int fds[2];
  ASSERT_EQ(pipe2(fds, O_CLOEXEC), 0);
  close(fds[0]);
  const Fd closed(fds[1]);
  console_err_ = closed.get();
  const auto before = signal(SIGPIPE, SIG_DFL);
  EXPECT_EQ(RunWorker("echo words >&2; exit 3"), "words\n");
  streams_.reset();
  signal(SIGPIPE, before);
}

TEST_F(StreamsTest, StderrIsATerminalWhereOursIs) {
  const Fd terminal(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC));
  ASSERT_TRUE(terminal.valid());
  int unlocked = 0;
  ASSERT_EQ(ioctl(terminal.get(), TIOCSPTLCK, &unlocked), 0);
  const Fd ours(ioctl(terminal.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  struct winsize size {
    30, 77, 0, 0
  };
  ASSERT_EQ(ioctl(ours.get(), TIOCSWINSZ, &size), 0);
  console_err_ = ours.get();
  const std::string last = RunWorker("if [ -t 2 ]; then stty size <&2 >&2; else echo no terminal >&2; fi");
  EXPECT_EQ(last, "30 77\n");
  streams_.reset();
  char buffer[100];
  const ssize_t n = read(terminal.get(), buffer, sizeof buffer);
  EXPECT_EQ(std::string(buffer, static_cast<size_t>(std::max<ssize_t>(n, 0))),
            "30 77\r\n");  // one return, of the real one
}

TEST_F(StreamsTest, HundredLivesLeakNoDescriptors) {
  config_.tee.by_local_rank = {{1, 3}};
  RunWorker("exit 0", 0);
  RunWorker("exit 0", 1);
  const auto settle = [this] {  // the last end of file
    loop_.At(loop_.Now() + 20, [&] { loop_.Stop(); });
    loop_.Run();
  };
  settle();
  const int before = OpenFds();
  for (uint32_t i = 0; i < 50; ++i) {
    EXPECT_EQ(RunWorker("echo x >&2", 0, i), "x\n");
    EXPECT_EQ(RunWorker("echo x >&2", 1, i), "x\n");
  }
  settle();
  EXPECT_EQ(OpenFds(), before);
}

}  // namespace
}  // namespace phalanx::agent
