// A writer that is stopped behind every single instruction of its saves: whatever it has done until then, what the page
// calls sealed is whole, and the newest committed image is there.
#include <gtest/gtest.h>
#include <sys/ptrace.h>
#include <sys/wait.h>

#include <csignal>
#include <cstdio>
#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/image/image.h"
#include "checkpoint/rank/capi.h"
#include "checkpoint/rank/test_memory.h"

namespace phalanx::checkpoint {
namespace {

constexpr int kSlots = 2;
constexpr int64_t kFirstStep = 1;
constexpr int64_t kLastStep = 3;
const std::vector<uint64_t> kBytes = {2000, 0, 7};

// Saves step after step and stops itself behind each, so that what it has sealed can be committed.
[[noreturn]] void SaveAndStop(const std::string& control, uint64_t file_bytes) {
  phx_ckpt* ckpt = phx_ckpt_open(control.c_str(), 1, nullptr, 0);
  ptrace(PTRACE_TRACEME, 0, nullptr, nullptr);
  for (int64_t step = kFirstStep; step <= kLastStep; ++step) {
    const std::string first(kBytes[0], static_cast<char>(step));
    const std::string last(kBytes[2], static_cast<char>(step));
    const void* const sources[] = {first.data(), nullptr, last.data()};
    phx_ckpt_save save{};
    save.step = step;
    save.world_size = 1;
    save.n = kBytes.size();
    save.bytes = kBytes.data();
    save.source = sources;
    save.pickle = "p";
    save.pickle_bytes = 1;
    save.file_bytes = file_bytes;
    save.notify_fd = -1;
    raise(SIGSTOP);
    if (phx_ckpt_begin(ckpt, &save, nullptr, 0) < 0) _exit(1);
    raise(SIGSTOP);
  }
  _exit(0);
}

class StepTest : public testing::Test {
 protected:
  StepTest() : memory_(1) {
    // Just large enough: no thousands of instructions that write zeros.
    EXPECT_EQ(PlanImage(kBytes.data(), kBytes.size(), 1, 2 * kImagePage, &layout_), "");
    memory_.MakeSlots(kSlots, layout_.file_bytes);
    for (int i = 0; i < kSlots; ++i) {
      const int file = open(memory_.SlotPath(i).c_str(), O_RDONLY | O_CLOEXEC);
      files_.push_back(static_cast<uint8_t*>(mmap(nullptr, layout_.file_bytes, PROT_READ, MAP_SHARED, file, 0)));
      close(file);
    }
  }
  ~StepTest() override {
    for (uint8_t* file : files_) munmap(file, layout_.file_bytes);
  }

  void ExpectWhole(int64_t committed) {
    const ControlPage page = memory_.Read();
    for (size_t i = 0; i < page.slots.size(); ++i) {
      const Slot& slot = page.slots[i];
      if (slot.state != SlotState::kSealed) continue;
      ASSERT_EQ(slot.why, "");
      ASSERT_EQ(Crc32(0, files_[i], layout_.file_bytes), slot.image.crc32) << "step " << slot.image.step;
      ASSERT_EQ(files_[i][layout_.data_at[0]], static_cast<uint8_t>(slot.image.step));
    }
    const int newest = NewestCommitted(page);
    ASSERT_EQ(newest < 0 ? 0 : page.slots[static_cast<size_t>(newest)].image.step, committed);
  }

  // Commits what has that step.
  void Commit(int64_t step) {
    const ControlPage page = memory_.Read();
    for (int i = 0; i < kSlots; ++i) {
      const Slot& slot = page.slots[static_cast<size_t>(i)];
      if (slot.sealed() && slot.image.step == step) memory_.control().SetCommitted(i, slot.generation);
    }
  }

  TestMemory memory_;
  ImageLayout layout_;
  std::vector<uint8_t*> files_;
};

// Runs until the child stops or ends; whether it has stopped by that signal.
bool StoppedBy(pid_t child, int signal) {
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFSTOPPED(status) && WSTOPSIG(status) == signal;
}

TEST_F(StepTest, IsWholeBehindEveryInstruction) {
  const pid_t child = fork();
  if (child == 0) SaveAndStop(memory_.control_path(), layout_.file_bytes);
  int64_t instructions = 0;
  for (int64_t step = kFirstStep; step <= kLastStep && !HasFatalFailure(); ++step) {
    const bool stopped = StoppedBy(child, SIGSTOP);
    if (!stopped && step == kFirstStep) GTEST_SKIP() << "no process may be traced here";
    ASSERT_TRUE(stopped) << "the writer ended before step " << step;
    int status = 0;
    do {
      ASSERT_EQ(ptrace(PTRACE_SINGLESTEP, child, nullptr, nullptr), 0);
      ASSERT_EQ(waitpid(child, &status, 0), child);
      ASSERT_TRUE(WIFSTOPPED(status)) << "the writer ended with status " << status;
      ExpectWhole(step - 1);
      ++instructions;
    } while (!HasFatalFailure() && WSTOPSIG(status) == SIGTRAP);
    Commit(step);
    ExpectWhole(step);
    ptrace(PTRACE_CONT, child, nullptr, nullptr);
  }
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  RecordProperty("instructions", static_cast<int>(instructions));
  std::printf("%lld instructions\n", static_cast<long long>(instructions));
  EXPECT_GT(instructions, 1000);
}

}  // namespace
}  // namespace phalanx::checkpoint
