#include "agent/checkpoint/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <filesystem>

#include "checkpoint/rank/control.h"
#include "checkpoint/rank/memory_names.h"

namespace phalanx::agent {
namespace {

namespace ckpt = phalanx::checkpoint;
using ::testing::HasSubstr;

constexpr char kDir[] = "/data/run";
constexpr uint64_t kBytes = 4096;

// A node of one rank whose agents follow one another. Its memory is real, of a job that nobody else can have.
class KeeperTest : public ::testing::Test {
 protected:
  ~KeeperTest() override {
    if (!path_.empty()) std::filesystem::remove_all(path_);
  }

  // What an agent that was killed has left: a sealed image.
  void LeaveImage(int64_t step, uint64_t epoch) {
    StatusOr<std::unique_ptr<ckpt::NodeMemory>> memory = ckpt::NodeMemory::Open(ckpt::kMemoryRoot, job_, kAddress);
    ASSERT_TRUE(memory.ok()) << memory.status();
    path_ = (*memory)->path();
    const StatusOr<std::string> control = (*memory)->OpenPage(kDir, "0");
    ASSERT_TRUE(control.ok()) << control.status();
    const StatusOr<ckpt::SlotPlan> plan = (*memory)->Plan(kDir, "0", kBytes, 2, 0);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(ckpt::MakeSlotFiles(plan->files).ok());
    (*memory)->Install(*plan);
    (*memory)->SetLiveEpoch(epoch);
    Seal(*control, step, epoch);
  }

  // As a rank does it.
  static void Seal(const std::string& control_path, int64_t step, uint64_t epoch) {
    const Fd file(open(control_path.c_str(), O_RDWR | O_CLOEXEC));
    void* const page = mmap(nullptr, ckpt::kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(page, MAP_FAILED);
    ckpt::Control control(static_cast<uint8_t*>(page));
    alignas(8) uint8_t copy[ckpt::kControlBytes];
    control.Copy(copy);
    ckpt::ControlPage parsed;
    ASSERT_EQ(ckpt::ParseControl(copy, sizeof copy, &parsed), "");
    uint64_t generation = 0;
    std::string why;
    ASSERT_TRUE(control.Begin(0, parsed.slots.at(0), &generation, &why)) << why;
    ckpt::SlotImage image;
    image.step = step;
    image.epoch = epoch;
    image.bytes = kBytes;
    image.world_size = 1;
    EXPECT_TRUE(control.Seal(0, generation, image));
    munmap(page, ckpt::kControlBytes);
  }

  std::unique_ptr<CheckpointKeeper> NewAgent() {
    return std::make_unique<CheckpointKeeper>(
        loop_, CheckpointKeeper::Options{1, job_, kAddress, false},
        CheckpointKeeper::Links{[](const v1::CheckpointReport&) {},
                                [this](const std::string& text) { said_ += text + "\n"; }});
  }

  static constexpr char kAddress[] = "127.0.0.1";
  const std::string job_ = fmt::format("keeper-test-{}", getpid());
  EventLoop loop_;
  std::string path_;  // of its memory
  std::string said_;
};

// The one before has told people that a new phalanx-run takes it up.
TEST_F(KeeperTest, AnAgentThatEndsBeforeItsFirstRoundLeavesTheMemoryThatItHasTakenUp) {
  LeaveImage(18, 4);
  for (int life = 0; life < 2; ++life) {
    said_.clear();
    const std::unique_ptr<CheckpointKeeper> keeper = NewAgent();
    EXPECT_EQ(keeper->TakeUp(), 4U);
    keeper->End(true);
    EXPECT_TRUE(std::filesystem::exists(path_)) << life;
    EXPECT_THAT(said_, HasSubstr(fmt::format("checkpoint: step 18 of {} is only in memory, {} (", kDir, path_)));
  }
  const std::unique_ptr<CheckpointKeeper> keeper = NewAgent();
  keeper->TakeUp();
  keeper->End(false);
  EXPECT_FALSE(std::filesystem::exists(path_)) << "the job has ended well";
}

TEST_F(KeeperTest, MemoryWithoutAnImageGoes) {
  {
    const auto memory = ckpt::NodeMemory::Open(ckpt::kMemoryRoot, job_, kAddress);
    ASSERT_TRUE(memory.ok()) << memory.status();
    path_ = (*memory)->path();
    ASSERT_TRUE((*memory)->OpenPage(kDir, "0").ok());
  }
  const std::unique_ptr<CheckpointKeeper> keeper = NewAgent();
  keeper->TakeUp();
  keeper->End(true);
  EXPECT_FALSE(std::filesystem::exists(path_));
}

}  // namespace
}  // namespace phalanx::agent
