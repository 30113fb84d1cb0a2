#include "checkpoint/disk/bulk.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <random>

#include "base/crc/crc32.h"
#include "base/fd.h"
#include "base/test_folder.h"
#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {
namespace {

// A file in memory with random bytes.
class Source {
 public:
  explicit Source(size_t bytes) : text_(bytes, '\0'), fd_(memfd_create("source", MFD_CLOEXEC)) {
    std::mt19937 random(static_cast<unsigned>(bytes));
    for (char& c : text_) c = static_cast<char>(random());
    EXPECT_TRUE(WriteFully(fd_.get(), "source", text_).ok());
  }
  int fd() const { return fd_.get(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
  Fd fd_;
};

struct Way {
  const char* name;
  bool direct, ring;
};
constexpr Way kWays[] = {{"ring", true, true}, {"threads", true, false}, {"buffered", false, false}};

TEST(Bulk, WritesAnySizeInEveryWay) {
  const TestFolder folder;
  for (const size_t bytes : {size_t{1}, size_t{4096}, size_t{4 << 20}, size_t{(4 << 20) + 1}, size_t{70'000'123}}) {
    const Source source(bytes);
    for (const Way& way : kWays) {
      const Fd fd(open((folder / "file").c_str(), O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600));
      const StatusOr<uint32_t> crc = WriteBulk({.fd = fd.get(),
                                                .path = "file",
                                                .source_fd = source.fd(),
                                                .source = "source",
                                                .bytes = bytes,
                                                .direct = way.direct,
                                                .ring = way.ring});
      ASSERT_TRUE(crc.ok()) << way.name << ": " << crc.status();
      EXPECT_EQ(*crc, Crc32(0, source.text().data(), bytes)) << way.name;
      EXPECT_TRUE(folder.Read("file") == source.text()) << way.name << ", " << bytes;
    }
  }
}

TEST(Bulk, CutsALongerFile) {
  const TestFolder folder;
  folder.Write("file", std::string(100'000, 'x'));
  const Source source(5'000);
  const Fd fd(open((folder / "file").c_str(), O_RDWR | O_CLOEXEC));
  ASSERT_TRUE(
      WriteBulk({.fd = fd.get(), .path = "file", .source_fd = source.fd(), .source = "source", .bytes = 5'000}).ok());
  EXPECT_EQ(folder.Read("file"), source.text());
}

// In memory there is nothing to go past: the flag, or the write with it, is refused or means nothing.
TEST(Bulk, WritesToAFileSystemInMemory) {
  const TestFolder folder("/dev/shm");
  const Source source(9'000'001);
  const Fd fd(open((folder / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  ASSERT_TRUE(
      WriteBulk({.fd = fd.get(), .path = "file", .source_fd = source.fd(), .source = "source", .bytes = 9'000'001})
          .ok());
  EXPECT_EQ(folder.Read("file"), source.text());
}

TEST(Bulk, NamesPathCallAndReason) {
  const TestFolder folder;
  folder.Write("file", "");
  const Source source(20 << 20);
  const Fd fd(open((folder / "file").c_str(), O_RDONLY | O_CLOEXEC));
  for (const Way& way : kWays) {
    const Status status = WriteBulk({.fd = fd.get(),
                                     .path = "the file",
                                     .source_fd = source.fd(),
                                     .source = "source",
                                     .bytes = 20 << 20,
                                     .direct = way.direct,
                                     .ring = way.ring})
                              .status();
    EXPECT_EQ(Message(status), fmt::format("the file: {}: Bad file descriptor", way.ring ? "write" : "pwrite"));
  }
}

TEST(Bulk, OfAFileThatWasCutIsAnErrorAndNoSignal) {
  const TestFolder folder;
  const Source source(8 << 20);
  ASSERT_EQ(ftruncate(source.fd(), 5'000'000), 0);
  for (const Way& way : kWays) {
    const Fd fd(open((folder / "file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    const Status status = WriteBulk({.fd = fd.get(),
                                     .path = "file",
                                     .source_fd = source.fd(),
                                     .source = "the source",
                                     .bytes = 8 << 20,
                                     .direct = way.direct,
                                     .ring = way.ring})
                              .status();
    EXPECT_EQ(Message(status), "the source has 5000000 bytes instead of 8388608") << way.name;
  }
}

TEST(Advance, GoesOnBehindWhatWasWritten) {
  Span span{.at = 100, .end = 1'000};
  EXPECT_FALSE(Advance(span, 300, false).done);
  EXPECT_EQ(span.at, 400u);
  EXPECT_TRUE(Advance(span, 600, false).done);
}

TEST(Advance, GoesBackToABlockOfTheDisk) {
  Span span{.at = 4096, .end = 5 * 4096};
  EXPECT_FALSE(Advance(span, 4096 + 512, true).done);
  EXPECT_EQ(span.at, 2u * 4096);
  EXPECT_TRUE(Advance(span, 3 * 4096, true).done);
}

TEST(Advance, GivesUpWhenNothingIsWrittenTwice) {
  for (const bool direct : {true, false}) {
    Span span{.at = 0, .end = 8192};
    EXPECT_EQ(Advance(span, 0, direct).error_number, 0);
    EXPECT_EQ(Advance(span, 4096, direct).error_number, 0);  // that helped
    EXPECT_EQ(Advance(span, 0, direct).error_number, 0);
    EXPECT_EQ(Advance(span, 0, direct).error_number, EIO);
  }
}

TEST(Advance, TriesAgainAfterASignalAndFailsWithAnError) {
  Span span{.at = 0, .end = 8192};
  EXPECT_FALSE(Advance(span, -EINTR, true).done);
  EXPECT_EQ(Advance(span, -EINTR, true).error_number, 0);
  EXPECT_EQ(Advance(span, -ENOSPC, true).error_number, ENOSPC);
}

}  // namespace
}  // namespace phalanx::checkpoint
