#include "agent/board.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>

namespace phalanx::agent {
namespace {

// What a rank does to its slot.
class Writer {
 public:
  Writer(const std::string& path, int slot) {
    const int fd = open(path.c_str(), O_RDWR);
    map_ = static_cast<char*>(mmap(nullptr, 64 + 128 * 4, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
    close(fd);
    words_ = reinterpret_cast<uint64_t*>(map_ + 64 + 128 * slot);
  }
  ~Writer() { munmap(map_, 64 + 128 * 4); }
  uint64_t& operator[](size_t i) { return words_[i]; }
  const char* header() const { return map_; }

 private:
  char* map_;
  uint64_t* words_;
};

TEST(Board, IsAPrivateFileWithTheDocumentedHeader) {
  auto board = Board::Create(7, 4, "/tmp");
  ASSERT_TRUE(board.ok());
  struct stat info {};
  ASSERT_EQ(stat((*board)->path().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  EXPECT_EQ(info.st_size, 64 + 4 * 128);
  Writer writer((*board)->path(), 0);
  EXPECT_EQ(memcmp(writer.header(), "PHXBOARD\x01\0\0\0\x80\0\0\0\x04\0\0\0\0\0\0\0\x07", 25), 0);
}

TEST(Board, ReadsWhatTheRankWrote) {
  auto board = Board::Create(1, 4, "/tmp");
  ASSERT_TRUE(board.ok());
  EXPECT_EQ((*board)->Read(2).pid, 0);
  Writer writer((*board)->path(), 2);
  writer[1] = 5;
  writer[2] = 118;
  writer[3] = 1;
  writer[6] = 2;
  writer[0] = 77;
  const BoardSlot slot = (*board)->Read(2);
  EXPECT_EQ(slot.pid, 77);
  EXPECT_EQ(slot.optimizer_steps, 5u);
  EXPECT_EQ(slot.step, 118);
  EXPECT_EQ(slot.phase, RankPhase::kStepping);
  EXPECT_EQ((*board)->Read(1).pid, 0);
  EXPECT_EQ((*board)->Read(4).pid, 0);
}

TEST(Board, DistrustsWhatCannotBe) {
  auto board = Board::Create(1, 4, "/tmp");
  ASSERT_TRUE(board.ok());
  Writer writer((*board)->path(), 0);
  writer[0] = 77;
  writer[1] = 9;
  writer[3] = UINT64_MAX / 2;  // far in the future
  EXPECT_EQ((*board)->Read(0).changed_ns, 0);
  writer[1] = 3;  // steps never go back
  EXPECT_EQ((*board)->Read(0).optimizer_steps, 9u);
  writer[6] = 4;  // no such phase
  writer[1] = 10;
  EXPECT_EQ((*board)->Read(0).pid, 0);
  ASSERT_EQ(truncate((*board)->path().c_str(), 0), 0);
  EXPECT_EQ((*board)->Read(0).pid, 0);
}

TEST(Board, RemovesItsFile) {
  auto board = Board::Create(1, 1, "/tmp");
  ASSERT_TRUE(board.ok());
  const std::string path = (*board)->path();
  board->reset();
  EXPECT_NE(access(path.c_str(), F_OK), 0);
}

}  // namespace
}  // namespace phalanx::agent
