// A writer that is killed at any moment, a thousand times: whatever the control page calls sealed is whole, and what
// was committed is there. The test is the agent and the master: it makes the slots, hears of seals, commits, drops and
// holds.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <array>
#include <csignal>
#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "base/crc/crc32.h"
#include "base/env.h"
#include "base/test_paths.h"
#include "checkpoint/image/image.h"
#include "checkpoint/rank/test_memory.h"
#include "checkpoint/rank/test_state.h"

namespace phalanx::checkpoint {
namespace {

// Of each run; PHALANX_KILLS asks for fewer, as runs before a commit do.
constexpr int kLives = 1000;

int Lives() {
  const std::string asked = Environment::FromProcess().NonEmptyOr("PHALANX_KILLS", std::to_string(kLives));
  return std::stoi(asked);
}

constexpr int64_t kLifeUsMax = 12000;
constexpr int kWriterSocket = 3;

int64_t NowUs() {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  return now.tv_sec * 1000000 + now.tv_nsec / 1000;
}

// One process that saves, and the socket it tells its seals through.
class Writer {
 public:
  Writer(const std::string& control, uint64_t epoch, int64_t step, int threads) {
    std::array<int, 2> ends{};
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends.data()), 0);
    socket_ = ends[0];
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], kWriterSocket);
    std::vector<std::string> words = {BuildDir() + "/bin/phalanx-checkpoint-writer",
                                      "--control",
                                      control,
                                      "--epoch",
                                      std::to_string(epoch),
                                      "--step",
                                      std::to_string(step),
                                      "--threads",
                                      std::to_string(threads),
                                      "--socket",
                                      std::to_string(kWriterSocket)};
    std::vector<char*> arguments;
    for (std::string& word : words) arguments.push_back(word.data());
    arguments.push_back(nullptr);
    char* const environment[] = {nullptr};
    EXPECT_EQ(posix_spawn(&pid_, arguments[0], &actions, nullptr, arguments.data(), environment), 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
  }
  Writer(const Writer&) = delete;
  Writer& operator=(const Writer&) = delete;
  ~Writer() { close(socket_); }

  // The next step it has sealed; -1: none until then.
  int64_t Hear(int64_t until_us) {
    pollfd ready = {socket_, POLLIN, 0};
    const int64_t left_us = std::max<int64_t>(0, until_us - NowUs());
    const timespec left = {left_us / 1000000, left_us % 1000000 * 1000};
    if (ppoll(&ready, 1, &left, nullptr) != 1) return -1;
    std::array<char, 32> text{};
    return recv(socket_, text.data(), text.size() - 1, 0) > 0 ? std::stoll(text.data()) : -1;
  }
  pid_t pid() const { return pid_; }
  void WakeUp() { send(socket_, "!", 1, MSG_NOSIGNAL | MSG_DONTWAIT); }
  void Kill() {
    kill(pid_, SIGKILL);
    int status = 0;
    EXPECT_EQ(waitpid(pid_, &status, 0), pid_);
    EXPECT_TRUE(WIFSIGNALED(status)) << "the writer ended by itself";
  }

 private:
  pid_t pid_ = -1;
  int socket_ = -1;
};

class KillTest : public testing::TestWithParam<int> {
 protected:
  using Age = std::pair<uint64_t, int64_t>;  // epoch and step

  KillTest() : memory_(1), random_(static_cast<uint64_t>(testing::UnitTest::GetInstance()->random_seed())) {
    const std::vector<uint64_t>& bytes = TestStateBytes();
    EXPECT_EQ(PlanImage(bytes.data(), bytes.size(), kTestPickle.size(), 0, &layout_), "");
    memory_.MakeSlots(GetParam(), layout_.file_bytes);
    for (int i = 0; i < GetParam(); ++i) {
      const int file = open(memory_.SlotPath(i).c_str(), O_RDONLY | O_CLOEXEC);
      files_.push_back(static_cast<uint8_t*>(mmap(nullptr, layout_.file_bytes, PROT_READ, MAP_SHARED, file, 0)));
      close(file);
    }
  }
  ~KillTest() override {
    for (uint8_t* file : files_) munmap(file, layout_.file_bytes);
  }

  int64_t Random(int64_t below) { return std::uniform_int_distribution<int64_t>(0, below - 1)(random_); }
  static Age AgeOf(const Slot& slot) { return {slot.image.epoch, slot.image.step}; }

  // The slot's file is the image its fields speak of, of one step throughout.
  void ExpectWhole(int i, const Slot& slot) {
    const uint8_t* file = files_[static_cast<size_t>(i)];
    ASSERT_EQ(Crc32(0, file, layout_.file_bytes), slot.image.crc32) << "slot " << i << ", step " << slot.image.step;
    ASSERT_EQ(CheckImage(file, layout_.file_bytes), "") << "slot " << i;
    for (size_t record = 0; record < layout_.bytes.size(); ++record) {
      std::string wanted(layout_.bytes[record], '\0');
      FillTestRecord(slot.image.step, &wanted);
      ASSERT_EQ(std::memcmp(file + layout_.data_at[record], wanted.data(), wanted.size()), 0)
          << "record " << record << " of slot " << i << " is not of step " << slot.image.step;
    }
  }

  void Commit(int i, const Slot& slot) {
    memory_.control().SetCommitted(i, slot.generation);
    committed_ = AgeOf(slot);
  }

  // A seal was told: it stands in the page. Some images are held until they are the oldest, and with two slots until
  // the writer's end.
  void Heard(Writer& writer, uint64_t epoch, int64_t step) {
    heard_ = {epoch, step};
    if (held_ >= 0 && AgeOf(held_slot_) < committed_) ReleaseHeld();
    const ControlPage page = memory_.Read();
    for (int i = 0; i < static_cast<int>(page.slots.size()); ++i) {
      const Slot& slot = page.slots[static_cast<size_t>(i)];
      if (!slot.sealed() || AgeOf(slot) != heard_) continue;
      Commit(i, slot);
      if (held_ < 0 && Random(8) == 0 && memory_.control().Hold(i, slot.generation)) {
        held_ = i;
        held_slot_ = slot;
      }
    }
    ASSERT_EQ(committed_, heard_) << "step " << step << " was told and is not there";
    writer.WakeUp();
  }

  void ReleaseHeld() {
    if (held_ < 0) return;
    const Slot now = memory_.ReadSlot(held_);
    ASSERT_EQ(now.word, held_slot_.word) << "a slot was begun that is held";
    ExpectWhole(held_, held_slot_);
    memory_.control().Release(held_);
    held_ = -1;
  }

  // What a dead writer has left.
  void ExpectNothingLost() {
    const ControlPage page = memory_.Read();
    Age newest = {0, -1};
    for (int i = 0; i < static_cast<int>(page.slots.size()); ++i) {
      const Slot& slot = page.slots[static_cast<size_t>(i)];
      if (slot.state == SlotState::kWriting) ++torn_;
      if (slot.state != SlotState::kSealed) continue;
      ASSERT_EQ(slot.why, "") << "slot " << i;
      ExpectWhole(i, slot);
      ++whole_;
      if (!slot.is_dropped()) newest = std::max(newest, AgeOf(slot));
    }
    ASSERT_GE(newest, newest_) << "the newest sealed step went back";
    newest_ = newest;
    const int committed = NewestCommitted(page);
    if (committed_.second < 0) return;
    ASSERT_GE(committed, 0) << "what was committed is gone";
    ASSERT_EQ(AgeOf(page.slots[static_cast<size_t>(committed)]), committed_);
  }

  // As the master does when a rank is gone: what was sealed and not committed is, or is dropped.
  void Decide() {
    const ControlPage page = memory_.Read();
    for (int i = 0; i < static_cast<int>(page.slots.size()); ++i) {
      const Slot& slot = page.slots[static_cast<size_t>(i)];
      if (!slot.sealed() || AgeOf(slot) <= committed_ || slot.is_dropped()) continue;
      if (Random(4) == 0) {
        memory_.control().SetDropped(i, slot.generation);
      } else {
        Commit(i, slot);
      }
    }
    newest_ = committed_;
  }

  void Live(uint64_t epoch) {
    memory_.control().SetLiveEpoch(epoch);
    Writer writer(memory_.control_path(), epoch, committed_.second + 1, static_cast<int>(Random(3)));
    const int64_t until_us = NowUs() + Random(kLifeUsMax);
    for (int64_t step = 0; (step = writer.Hear(until_us)) >= 0 && !HasFatalFailure();) Heard(writer, epoch, step);
    writer.Kill();
    for (int64_t step = 0; (step = writer.Hear(0)) >= 0 && !HasFatalFailure();) Heard(writer, epoch, step);
  }

  TestMemory memory_;
  std::mt19937_64 random_;
  ImageLayout layout_;
  std::vector<uint8_t*> files_;
  Age committed_ = {0, -1};
  Age heard_ = {0, -1};
  Age newest_ = {0, -1};
  int held_ = -1;
  Slot held_slot_;
  int torn_ = 0;
  int whole_ = 0;
};

TEST_P(KillTest, NothingTornNothingLost) {
  const int lives = Lives();
  // On a busy machine few kills meet a copy: there are more of them, until enough have.
  const auto enough = [&](uint64_t epoch) {
    return epoch > static_cast<uint64_t>(lives) &&
           ((torn_ >= lives / 50 && whole_ >= lives) || epoch > 20 * static_cast<uint64_t>(lives));
  };
  for (uint64_t epoch = 1; !enough(epoch); ++epoch) {
    Live(epoch);
    if (HasFatalFailure()) return;
    ReleaseHeld();
    ExpectNothingLost();
    if (HasFatalFailure()) {
      FAIL() << "in life " << epoch << " of seed " << testing::UnitTest::GetInstance()->random_seed();
    }
    Decide();
  }
  RecordProperty("torn", torn_);
  RecordProperty("whole", whole_);
  std::printf("%d slots: %d left while writing, %d sealed and whole, step %lld\n", GetParam(), torn_, whole_,
              static_cast<long long>(committed_.second));
  EXPECT_GE(torn_, lives / 50) << "hardly any kill met a copy";
  EXPECT_GE(whole_, lives) << "hardly anything was saved";
}

// A run of tests that is interrupted kills this program, whose writers nobody would end.
TEST(Writer, DiesWithTheTest) {
  TestMemory memory(1);
  ImageLayout layout;
  const std::vector<uint64_t>& bytes = TestStateBytes();
  ASSERT_EQ(PlanImage(bytes.data(), bytes.size(), kTestPickle.size(), 0, &layout), "");
  memory.MakeSlots(2, layout.file_bytes);
  memory.control().SetLiveEpoch(1);
  std::array<int, 2> told{};
  ASSERT_EQ(pipe2(told.data(), O_CLOEXEC), 0);
  const pid_t test = fork();
  if (test == 0) {
    Writer writer(memory.control_path(), 1, 0, 1);
    const pid_t pid = writer.Hear(NowUs() + 30'000'000) == 0 ? writer.pid() : -1;  // it saves
    if (write(told[1], &pid, sizeof(pid)) != sizeof(pid)) _exit(1);
    while (true) pause();
  }
  close(told[1]);
  pid_t writer = -1;
  EXPECT_EQ(read(told[0], &writer, sizeof(writer)), sizeof(writer));
  const int ended = static_cast<int>(syscall(SYS_pidfd_open, writer, 0));
  EXPECT_GE(ended, 0) << "the writer does not run";
  kill(test, SIGKILL);
  waitpid(test, nullptr, 0);
  pollfd ready = {ended, POLLIN, 0};
  EXPECT_EQ(poll(&ready, 1, 10'000), 1) << "the writer outlives the test that started it";
  syscall(SYS_pidfd_send_signal, ended, SIGKILL, nullptr, 0);
  close(ended);
  close(told[0]);
}

INSTANTIATE_TEST_SUITE_P(Slots, KillTest, testing::Values(2, 3), testing::PrintToStringParamName());

}  // namespace
}  // namespace phalanx::checkpoint
