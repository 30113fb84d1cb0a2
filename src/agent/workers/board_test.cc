#include "agent/workers/board.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <ctime>
#include <filesystem>

#include "base/clock.h"
#include "base/fd.h"
#include "base/test_seeds.h"

namespace phalanx::agent {
namespace {

using Words = std::array<uint64_t, 16>;

class BoardTest : public testing::Test {
 protected:
  void SetUp() override {
    auto board = Board::Create(7, 3, 41, "/tmp");
    ASSERT_TRUE(board.ok()) << board.status();
    board_ = *std::move(board);
    file_ = Fd(open(board_->path().c_str(), O_RDWR | O_CLOEXEC));
    ASSERT_TRUE(file_.valid());
  }

  // As a rank writes its slot.
  void Put(int slot, const Words& words) {
    ASSERT_EQ(pwrite(file_.get(), words.data(), sizeof words, 64 + 192 * slot), static_cast<ssize_t>(sizeof words));
  }

  std::unique_ptr<Board> board_;
  Fd file_;
};

TEST_F(BoardTest, HasTheLayoutOfItsFormat) {
  std::array<unsigned char, 64 + 3 * 192 + 1> bytes{};
  ASSERT_EQ(pread(file_.get(), bytes.data(), bytes.size(), 0), 64 + 3 * 192);
  EXPECT_EQ(std::memcmp(bytes.data(), "PHXBOARD\x05\0\0\0\xC0\0\0\0\x03\0\0\0\0\0\0\0\x07\0\0\0\0\0\0\0", 32), 0);
  int64_t step = 0;
  std::memcpy(&step, bytes.data() + 64 + 192 + 16, sizeof step);
  EXPECT_EQ(step, -1);
  std::memcpy(&step, bytes.data() + 64 + 192 + 56, sizeof step);
  EXPECT_EQ(step, -1);
  std::memcpy(&step, bytes.data() + 32, sizeof step);
  EXPECT_EQ(step, 41);
  struct stat info {};
  ASSERT_EQ(fstat(file_.get(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
}

TEST(BoardSlot, TakesTheSeedsOfItsFuzzer) {
  for (const auto& [name, bytes] : SeedsIn("agent/workers/corpus/board_fuzzer")) {
    EXPECT_EQ(bytes.size(), 192U) << name;
    const BoardSlot slot = ParseBoardSlot(bytes.data(), bytes.size(), 1'000'000'000'000);
    EXPECT_EQ(slot.pid, 4711) << name;
    EXPECT_EQ(slot.started_ns == 0, name == "taken") << name;
  }
}

TEST_F(BoardTest, ReadsWhatTheRankWrote) {
  EXPECT_EQ(board_->Read(1).pid, 0);
  const uint64_t now = static_cast<uint64_t>(MonotonicNs());
  Put(1, {1234, 50, 40, now, now - 10, now - 5, 2, 30, 4'000, now - 3, now - 4});
  const BoardSlot slot = board_->Read(1);
  EXPECT_EQ(slot.pid, 1234);
  EXPECT_EQ(slot.optimizer_steps, 50u);
  EXPECT_EQ(slot.step, 40);
  EXPECT_EQ(slot.changed_ns, static_cast<int64_t>(now));
  EXPECT_EQ(slot.started_ns, static_cast<int64_t>(now - 10));
  EXPECT_EQ(slot.first_step_ns, static_cast<int64_t>(now - 5));
  EXPECT_EQ(slot.phase, RankPhase::kStepping);
  EXPECT_EQ(slot.from_step, 30);
  EXPECT_EQ(slot.saving_ns, 4'000);
  EXPECT_EQ(slot.saving_since_ns, static_cast<int64_t>(now - 3));
  EXPECT_EQ(slot.caught_up_ns, static_cast<int64_t>(now - 4));
  EXPECT_EQ(slot.split_steps, 0u);
  EXPECT_EQ(board_->Read(0).pid, 0);
  EXPECT_EQ(board_->Read(3).pid, 0);
  EXPECT_EQ(board_->Read(-1).pid, 0);
}

TEST_F(BoardTest, KnowsTheSplitOfSteps) {
  const uint64_t now = static_cast<uint64_t>(MonotonicNs());
  Put(1, {1234, 50, 40, now, 0, 0, 2, 30, 0, 0, 0, 0, 49, 2'000'000, 700'000});
  const BoardSlot slot = board_->Read(1);
  EXPECT_EQ(slot.split_steps, 49u);
  EXPECT_EQ(slot.own_ns, 2'000'000);
  EXPECT_EQ(slot.waited_ns, 700'000);
  // More steps than there were, and longer than the machine runs.
  Put(2, {1235, 50, 40, now, 0, 0, 2, 30, 0, 0, 0, 0, 51, UINT64_MAX, UINT64_MAX});
  EXPECT_EQ(board_->Read(2).split_steps, 0u);
  EXPECT_EQ(board_->Read(2).own_ns, 0);
  EXPECT_EQ(board_->Read(2).waited_ns, 0);
}

TEST_F(BoardTest, KnowsWhetherARankCountsOnBetweenSaves) {
  for (const uint64_t word : {0, 1, 2}) {
    Put(1, {1234, 50, 40, 0, 0, 0, 2, 30, 0, 0, 0, 0, 0, 0, 0, word});
    EXPECT_EQ(board_->Read(1).counts_on, word == 1) << word;
  }
}

// By a word of its own: at all times, or until some time.
TEST_F(BoardTest, KnowsHowLongARankHearsOfRescales) {
  const uint64_t hour_ns = uint64_t{3'600} * 1'000'000'000;
  const uint64_t now = static_cast<uint64_t>(MonotonicNs());
  for (const auto& [word, hears] :
       {std::pair<uint64_t, bool>{0, false}, {1, true}, {now, false}, {now + hour_ns, true}}) {
    Put(1, {1234, 50, 40, now, now, now, 2, 30, 0, 0, 0, word});
    EXPECT_EQ(board_->Read(1).hears_rescale, hears) << word;
  }
}

TEST_F(BoardTest, DistrustsTheRank) {
  const uint64_t huge = ~uint64_t{0};
  Put(0, {huge, huge, huge, huge, huge, huge, huge});
  EXPECT_EQ(board_->Read(0).pid, 0);
  Put(0, {77, huge, uint64_t{1} << 63, huge, huge, huge, 4, uint64_t{1} << 63, huge, huge, huge});
  const BoardSlot slot = board_->Read(0);
  EXPECT_EQ(slot.pid, 77);
  EXPECT_EQ(slot.optimizer_steps, 0u);
  EXPECT_EQ(slot.step, -1);
  EXPECT_EQ(slot.changed_ns, 0);
  EXPECT_EQ(slot.phase, RankPhase::kStarting);
  EXPECT_EQ(slot.from_step, -1);
  EXPECT_EQ(slot.saving_ns + slot.saving_since_ns + slot.caught_up_ns, 0);
}

TEST_F(BoardTest, CountersOfOneLifeNeverDecrease) {
  Put(0, {77, 50, 3});
  EXPECT_EQ(board_->Read(0).optimizer_steps, 50u);
  Put(0, {77, 49, 2});
  EXPECT_EQ(board_->Read(0).optimizer_steps, 50u);
  EXPECT_EQ(board_->Read(0).step, 2);  // the user's own number may go back: a resumed run
  Put(0, {77, 50, 2, 0, 0, 0, 0, 0, 900});
  EXPECT_EQ(board_->Read(0).saving_ns, 900);
  Put(0, {77, 50, 2, 0, 0, 0, 0, 0, 800});
  EXPECT_EQ(board_->Read(0).saving_ns, 900);
  Put(0, {78, 1, 2});
  EXPECT_EQ(board_->Read(0).optimizer_steps, 1u);
}

TEST_F(BoardTest, TruncatedFileIsAnUntakenSlot) {
  Put(0, {77, 50, 3});
  ASSERT_EQ(ftruncate(file_.get(), 100), 0);
  EXPECT_EQ(board_->Read(0).pid, 0);
}

TEST_F(BoardTest, LeavesNoFileBehind) {
  const std::string path = board_->path();
  EXPECT_EQ(path.rfind("/dev/shm/phalanx-board-", 0), 0u);
  EXPECT_EQ(access(path.c_str(), F_OK), 0);
  board_.reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

TEST(BoardCreate, RemovesWhatKilledAgentsLeftAndNothingElse) {
  const std::string dir = fmt::format("{}/boards{}", testing::TempDir(), getpid());
  ASSERT_EQ(mkdir(dir.c_str(), 0700), 0);
  const auto make = [&](const std::string& name, time_t age_s) {
    const std::string path = dir + "/" + name;
    Fd file(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const timespec then{time(nullptr) - age_s, 0};
    const timespec times[2] = {then, then};
    futimens(file.get(), times);
    return file;
  };
  const Fd living = make("phalanx-board-1", 1'000);
  ASSERT_EQ(flock(living.get(), LOCK_EX | LOCK_NB), 0);
  make("phalanx-board-2", 1'000);
  make("phalanx-board-3", 1);
  make("somebody-else", 1'000);
  Board::RemoveStale(dir);
  EXPECT_EQ(access((dir + "/phalanx-board-1").c_str(), F_OK), 0);
  EXPECT_NE(access((dir + "/phalanx-board-2").c_str(), F_OK), 0);
  EXPECT_EQ(access((dir + "/phalanx-board-3").c_str(), F_OK), 0);
  EXPECT_EQ(access((dir + "/somebody-else").c_str(), F_OK), 0);
  std::filesystem::remove_all(dir);
}

TEST(BoardCreate, RefusesWhatIsNoBoard) {
  EXPECT_FALSE(Board::Create(1, 0, -1, "/tmp").ok());
  EXPECT_FALSE(Board::Create(1, 1 << 20, -1, "/tmp").ok());
}

}  // namespace
}  // namespace phalanx::agent
