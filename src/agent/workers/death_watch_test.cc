#include "agent/workers/death_watch.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <pthread.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <thread>
#include <utility>

#include "agent/workers/board.h"
#include "base/clock.h"
#include "base/fd.h"

namespace phalanx::agent {
namespace {

constexpr int kRanks = 30;  // the last slots lie on the file's second page
constexpr int64_t kPatienceMs = 20'000;

class DeathWatchTest : public testing::Test {
 protected:
  void SetUp() override {
    auto board = Board::Create(1, kRanks, -1, "/tmp");
    ASSERT_TRUE(board.ok()) << board.status();
    board_ = *std::move(board);
  }
  void TearDown() override {
    if (rank_ == 0) return;
    kill(rank_, SIGKILL);
    waitpid(rank_, nullptr, 0);
  }

  // A rank as the worker bootstrap makes it: it holds its slot's lock, then does as it is told.
  void StartRank(int slot, void (*then)()) {
    int ready[2];
    ASSERT_EQ(pipe(ready), 0);
    rank_ = fork();
    if (rank_ == 0) {
      Hold(slot);
      [[maybe_unused]] const ssize_t n = write(ready[1], "x", 1);
      then();
      _exit(1);
    }
    char byte = 0;
    EXPECT_EQ(read(ready[0], &byte, 1), 1);
    close(ready[0]);
    close(ready[1]);
  }

  void Hold(int slot) const {
    const Fd file(open(board_->path().c_str(), O_RDWR | O_CLOEXEC));
    void* mapped = mmap(nullptr, 8192, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    auto* mutex = reinterpret_cast<pthread_mutex_t*>(static_cast<char*>(mapped) + BoardLockAt(slot));
    pthread_mutexattr_t attributes;
    pthread_mutexattr_init(&attributes);
    pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED);
    pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(mutex, &attributes);
    pthread_mutex_lock(mutex);
    __atomic_fetch_or(reinterpret_cast<uint32_t*>(mutex), 0x80000000, __ATOMIC_SEQ_CST);
  }

  std::unique_ptr<DeathWatch> Watch(int slot) {
    return DeathWatch::Start(loop_, board_->path(), slot, [this] { ++told_; });
  }

  bool UntilTold() {
    const Instant until = MonotonicMs() + kPatienceMs;
    while (told_ == 0 && MonotonicMs() < until) Turn();
    return told_ > 0;
  }
  void Turn() {
    loop_.At(loop_.Now() + 2, [this] { loop_.Stop(); });
    loop_.Run();
  }
  static int Threads() {
    int count = 0;
    for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/task")) ++count;
    return count;
  }

  EventLoop loop_;
  std::unique_ptr<Board> board_;
  pid_t rank_ = 0;
  int told_ = 0;
};

void Pause() { pause(); }
void RunAnother() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  int signal = 0;
  sigwait(&signals, &signal);  // until the watch is there
  execl("/bin/sh", "sh", "-c", "read forever", nullptr);
}

TEST_F(DeathWatchTest, TellsOfADeathOnce) {
  for (const int slot : {0, kRanks - 1}) {
    StartRank(slot, Pause);
    const auto watch = Watch(slot);
    ASSERT_NE(watch, nullptr);
    Turn();
    EXPECT_EQ(told_, 0);
    kill(rank_, SIGKILL);
    EXPECT_TRUE(UntilTold());
    waitpid(rank_, nullptr, 0);
    rank_ = 0;
    Turn();
    EXPECT_EQ(std::exchange(told_, 0), 1);
  }
}

TEST_F(DeathWatchTest, TellsOfAnotherProgram) {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGUSR1);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
  StartRank(1, RunAnother);
  const auto watch = Watch(1);
  ASSERT_NE(watch, nullptr);
  kill(rank_, SIGUSR1);
  EXPECT_TRUE(UntilTold());
  pthread_sigmask(SIG_UNBLOCK, &signals, nullptr);
}

// A rank that starts afresh executes its interpreter anew, and takes the lock anew.
TEST_F(DeathWatchTest, DroppedBehindItsEndItLeavesTheNextLockAlone) {
  StartRank(1, Pause);
  auto first = Watch(1);
  ASSERT_NE(first, nullptr);
  kill(rank_, SIGKILL);
  EXPECT_TRUE(UntilTold());
  waitpid(rank_, nullptr, 0);
  StartRank(1, Pause);
  first.reset();
  told_ = 0;
  const auto second = Watch(1);
  ASSERT_NE(second, nullptr);
  Turn();
  EXPECT_EQ(told_, 0);
  kill(rank_, SIGKILL);
  EXPECT_TRUE(UntilTold());
}

TEST_F(DeathWatchTest, IsNotThereWithoutALock) {
  EXPECT_EQ(Watch(0), nullptr);
  EXPECT_EQ(DeathWatch::Start(loop_, "/nowhere/board", 0, [] {}), nullptr);
  StartRank(2, Pause);
  EXPECT_EQ(Watch(3), nullptr);
  kill(rank_, SIGKILL);
  waitpid(rank_, nullptr, 0);
  rank_ = 0;
  EXPECT_EQ(Watch(2), nullptr);  // nobody's any more
}

TEST_F(DeathWatchTest, ADroppedOneTellsNothingAndLeavesNoThread) {
  const int before = Threads();
  StartRank(0, Pause);
  auto watch = Watch(0);
  ASSERT_NE(watch, nullptr);
  EXPECT_GT(Threads(), before);
  watch.reset();
  const Instant until = MonotonicMs() + kPatienceMs;
  while (Threads() > before && MonotonicMs() < until) std::this_thread::yield();
  EXPECT_EQ(Threads(), before);
  kill(rank_, SIGKILL);
  Turn();
  EXPECT_EQ(told_, 0);
}

TEST_F(DeathWatchTest, ARankThatSpoilsTheFileHurtsNobody) {
  StartRank(0, Pause);
  auto watch = Watch(0);
  ASSERT_NE(watch, nullptr);
  ASSERT_EQ(truncate(board_->path().c_str(), 0), 0);
  kill(rank_, SIGKILL);
  waitpid(rank_, nullptr, 0);
  rank_ = 0;
  Turn();
  watch.reset();
  Turn();
}

}  // namespace
}  // namespace phalanx::agent
