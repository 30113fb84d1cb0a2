#include "checkpoint/files/file_crc.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "base/crc/crc32.h"
#include "base/fd.h"
#include "base/test_folder.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

constexpr uint64_t kMib = uint64_t{1} << 20;

// Numbers that nowhere repeat: parts in another order have another CRC.
std::string Numbers(uint64_t bytes) {
  std::mt19937_64 random(bytes);
  std::string text(bytes, '\0');
  for (uint64_t at = 0; at + 8 <= bytes; at += 8) {
    const uint64_t number = random();
    memcpy(text.data() + at, &number, 8);
  }
  return text;
}

TEST(FileCrcTest, IsThatOfAllBytesWithAnyNumberOfThreads) {
  const TestFolder folder;
  for (const uint64_t bytes : {uint64_t{0}, uint64_t{1}, 32 * kMib, 32 * kMib + 1, 100 * kMib - 3}) {
    const std::string text = Numbers(bytes);
    folder.Write("file", text);
    const Fd file(open((folder / "file").c_str(), O_RDONLY | O_CLOEXEC));
    for (const size_t threads : {1, 2, 3, 64}) {
      const StatusOr<uint32_t> crc = FileCrc(file.get(), "file", bytes, threads);
      ASSERT_TRUE(crc.ok()) << Message(crc.status());
      EXPECT_EQ(*crc, Crc32(0, text.data(), bytes)) << bytes << " bytes by " << threads;
    }
  }
}

TEST(FileCrcTest, AFileThatIsTooShortIsNamed) {
  const TestFolder folder;
  folder.Write("file", Numbers(40 * kMib));
  const Fd file(open((folder / "file").c_str(), O_RDONLY | O_CLOEXEC));
  for (const size_t threads : {1, 4}) {
    const StatusOr<uint32_t> crc = FileCrc(file.get(), "the file", 200 * kMib, threads);
    EXPECT_EQ(crc.status().code(), absl::StatusCode::kDataLoss);
    EXPECT_THAT(Message(crc.status()), HasSubstr("the file has 41943040 bytes instead of 209715200"));
  }
}

}  // namespace
}  // namespace phalanx::checkpoint
