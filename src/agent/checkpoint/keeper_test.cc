#include "agent/checkpoint/keeper.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <latch>
#include <system_error>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/control.h"
#include "checkpoint/rank/memory_names.h"
#include "checkpoint/storage/posix.h"

namespace phalanx::agent {
namespace {

namespace ckpt = phalanx::checkpoint;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::Not;

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
        loop_, CheckpointKeeper::Options{1, job_, kAddress, "the same command", false, false, {}, open_storage_},
        CheckpointKeeper::Links{[this](const v1::CheckpointReport& report) {
                                  told_.push_back(report);
                                  if (heard_) heard_();
                                },
                                [this](const std::string& text) { said_ += text + "\n"; }});
  }

  // Directories whose storage has found steps or made a folder, in order.
  std::vector<std::string> Answered() const {
    std::vector<std::string> dirs;
    for (const v1::CheckpointReport& told : told_) {
      if (told.has_found() || told.has_store_prepared()) dirs.push_back(told.dir());
    }
    return dirs;
  }

  // The folder of its agent; empty: there is none.
  std::string MemoryPath() const {
    const auto all = ckpt::ReadMemories(ckpt::kMemoryRoot);
    if (!all.ok()) return "";
    const auto own = std::ranges::find(*all, job_, &ckpt::MemoryFolder::job_id);
    return own == all->end() ? "" : own->path;
  }

  static constexpr char kAddress[] = "127.0.0.1";
  const std::string job_ = fmt::format("keeper-test-{}", getpid());
  EventLoop loop_;
  std::string path_;  // of its memory
  std::string said_;
  std::vector<v1::CheckpointReport> told_;
  std::function<void()> heard_;
  std::function<StatusOr<std::shared_ptr<ckpt::Storage>>(const std::string&)> open_storage_ = ckpt::OpenStorage;
};

// It answers nothing until the test lets it.
class HangingStorage : public ckpt::PosixStorage {
 public:
  HangingStorage(const std::string& location, std::latch& gate) : PosixStorage(location), gate_(gate) {}
  StatusOr<std::vector<ckpt::FoundStep>> List() override {
    gate_.wait();
    return std::vector<ckpt::FoundStep>();
  }
  StatusOr<std::string> Begin(int64_t step, uint64_t /*epoch*/) override {
    gate_.wait();
    return std::to_string(step);
  }

 private:
  std::latch& gate_;
};

// While one directory's storage hangs, in what it reads and what it writes.
TEST_F(KeeperTest, NobodyWaitsBehindStorageThatIsNotItsOwn) {
  const TestFolder folder;
  std::filesystem::create_directories(folder / "good");
  std::latch gate(1);
  open_storage_ = [&](const std::string& dir) -> StatusOr<std::shared_ptr<ckpt::Storage>> {
    if (dir == folder / "good") return ckpt::OpenStorage(dir);
    return std::make_shared<HangingStorage>(dir, gate);
  };
  const std::unique_ptr<CheckpointKeeper> agent = NewAgent();
  v1::StartRound round;
  round.set_epoch(1);
  agent->OnRound(round);
  const auto tell = [&](const std::string& dir, bool finds) {
    v1::CheckpointOrder order;
    order.set_dir(folder / dir);
    order.mutable_save()->set_epoch(1);
    order.mutable_save()->set_step(7);
    finds ? static_cast<void>(order.mutable_find()) : static_cast<void>(order.mutable_prepare_store());
    agent->OnOrder(order);
  };
  // The good one's two answers come first, whatever was asked before.
  heard_ = [&] {
    if (Answered().size() == 2) {
      EXPECT_THAT(Answered(), Each(folder / "good"));
      gate.count_down();
    }
    if (Answered().size() == 4) loop_.Stop();
  };
  for (const bool finds : {true, false}) {
    tell("hangs", finds);
    tell("good", finds);
  }
  loop_.Run();
}

// No rank of this node has opened the directory, whose archive another one's rank has named.
TEST_F(KeeperTest, AnArchiveThatTheMasterNamesIsAsked) {
  const TestFolder folder;
  ckpt::PosixStorage archive(folder / "far");
  ASSERT_TRUE(archive.Make().ok());
  const std::string name = archive.Begin(7, 1).value();
  folder.Write("slot", "x");
  ckpt::Manifest manifest;
  manifest.step = 7;
  manifest.world_size = 1;
  manifest.kind = "full";
  manifest.layout = ckpt::kTorchLayout;
  manifest.shards = {*archive.Put(name, {folder / "slot", "rank_0.pt", 0, 1, Crc32(0, "x", 1)})};
  ASSERT_TRUE(archive.Publish(name, manifest).ok());
  const std::unique_ptr<CheckpointKeeper> agent = NewAgent();
  v1::StartRound round;
  round.set_epoch(1);
  round.set_world_size(1);
  agent->OnRound(round);
  v1::CheckpointOrder order;
  order.set_dir(folder / "run");
  order.mutable_find()->set_archive(folder / "far");
  heard_ = [&] {
    if (told_.back().has_found()) {
      EXPECT_EQ(told_.back().found().step(), 7);
      EXPECT_EQ(told_.back().found().place(), folder / "far/7");
      order.mutable_check()->set_name(told_.back().found().name());
      order.mutable_check()->set_archive(folder / "far");
      agent->OnOrder(order);
    }
    if (told_.back().has_checked()) {
      EXPECT_EQ(told_.back().checked().error(), "");
      loop_.Stop();
    }
  };
  agent->OnOrder(order);
  loop_.Run();
}

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

// A rank's last commit may have a slot's file made anew while the job ends. One that is made in a folder while that is
// removed would keep it.
TEST_F(KeeperTest, NoFileIsBeingMadeWhenTheMemoryIsRemoved) {
  constexpr uint64_t kBytesThatTakeTheirTime = uint64_t{16} << 20;
  const std::unique_ptr<CheckpointKeeper> keeper = NewAgent();
  const StatusOr<Fd> rank = keeper->NewRank(0);
  ASSERT_TRUE(rank.ok()) << rank.status();
  const auto say = [&](const std::string& packet) {
    ASSERT_EQ(send(rank->get(), packet.data(), packet.size(), 0), static_cast<ssize_t>(packet.size()));
    keeper->OnRankEnded(0);  // hears it now
  };
  say(fmt::format(R"({{"type": "open", "id": 1, "dir": "{}", "kind": "full"}})", kDir));
  path_ = MemoryPath();
  ASSERT_NE(path_, "");
  say(fmt::format(R"({{"type": "prepare", "id": 2, "dir": "{}", "bytes": {}, "slots": 3}})", kDir,
                  kBytesThatTakeTheirTime));
  for (int i = 0; i < 200; ++i) std::ofstream(path_ + "/" + std::to_string(i)).put(' ');  // it begins meanwhile
  keeper->End(false);
  EXPECT_FALSE(std::filesystem::exists(path_));
  std::error_code gone;  // what the walk itself has open is so when it is looked at
  for (const auto& open : std::filesystem::directory_iterator("/proc/self/fd")) {
    EXPECT_THAT(std::filesystem::read_symlink(open.path(), gone).string(), Not(HasSubstr(ckpt::SlotPrefix("0"))));
  }
}

}  // namespace
}  // namespace phalanx::agent
