// With real files, links, pipes and a device that is always full.
#include "agent/node/named_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

class NamedFileTest : public testing::Test {
 protected:
  NamedFileTest() : dir_(fs::temp_directory_path() / fmt::format("phalanx-named-{}", getpid())) {
    fs::remove_all(dir_);
    fs::create_directories(dir_);
    std::ofstream(dir_ / "there") << "old\n";
  }
  ~NamedFileTest() override { fs::remove_all(dir_); }

  NamedFile At(const std::string& name) const { return {(dir_ / name).string()}; }
  std::string Text(const std::string& name) const {
    std::ostringstream text;
    text << std::ifstream(dir_ / name).rdbuf();
    return text.str();
  }

  const fs::path dir_;
};

TEST_F(NamedFileTest, IsThisUsersAloneWhereItIsMade) {
  ASSERT_TRUE(WriteNamed(At("new"), "text\n").ok());
  EXPECT_EQ(Text("new"), "text\n");
  EXPECT_EQ(fs::status(dir_ / "new").permissions(), fs::perms::owner_read | fs::perms::owner_write);
  ASSERT_TRUE(WriteNamed(At("there"), "text\n").ok());
  EXPECT_EQ(Text("there"), "text\n");
  NamedFile appended = At("there");
  appended.append = true;
  ASSERT_TRUE(WriteNamed(appended, "more\n").ok());
  EXPECT_EQ(Text("there"), "text\nmore\n");
  NamedFile shared = At("shared");
  shared.mode = 0666;
  ASSERT_TRUE(WriteNamed(shared, "").ok());
  EXPECT_NE(fs::status(dir_ / "shared").permissions() & fs::perms::group_read, fs::perms::none);
}

TEST_F(NamedFileTest, LinksAreFollowedOnlyWhereThatIsWanted) {
  fs::create_symlink(dir_ / "there", dir_ / "link");
  NamedFile link = At("link");
  EXPECT_EQ(Message(WriteNamed(link, "text\n")), "cannot be opened: Too many levels of symbolic links");
  EXPECT_EQ(Text("there"), "old\n");
  link.follow_links = true;
  EXPECT_TRUE(WriteNamed(link, "text\n").ok());
  EXPECT_EQ(Text("there"), "text\n");
}

TEST_F(NamedFileTest, OtherThanRegularFilesAreRefusedAtOnce) {
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  EXPECT_EQ(Message(WriteNamed(At("pipe"), "text\n")), "is not a regular file");
  const Fd reader(open((dir_ / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_EQ(Message(WriteNamed(At("pipe"), "text\n")), "is not a regular file");
  EXPECT_EQ(Message(WriteNamed({"/dev/null"}, "text\n")), "is not a regular file");
  EXPECT_EQ(Message(WriteNamed(At(""), "text\n")), "cannot be opened: Is a directory");
  EXPECT_EQ(Message(WriteNamed(At("no/such"), "text\n")), "cannot be opened: No such file or directory");
}

TEST_F(NamedFileTest, OthersAreWrittenWhereThatIsWanted) {
  ASSERT_EQ(mkfifo((dir_ / "pipe").c_str(), 0600), 0);
  NamedFile pipe = At("pipe");
  pipe.regular_only = false;
  EXPECT_EQ(Message(WriteNamed(pipe, "text\n")), "cannot be opened: No such device or address");
  const Fd reader(open((dir_ / "pipe").c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  EXPECT_TRUE(WriteNamed(pipe, "text\n").ok());
  char got[5];
  EXPECT_EQ(read(reader.get(), got, sizeof got), 5);
  NamedFile full{"/dev/full"};
  full.regular_only = false;
  EXPECT_EQ(Message(WriteNamed(full, "text\n")), "cannot be written: No space left on device");
}

// As a disk does that takes the first part and no more.
TEST_F(NamedFileTest, HalfAFileIsNotLeft) {
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_FSIZE, &before), 0);
  const auto old_handler = signal(SIGXFSZ, SIG_IGN);
  const rlimit little{10, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_FSIZE, &little), 0);
  const Status status = WriteNamed(At("there"), std::string(100, 'x'));
  setrlimit(RLIMIT_FSIZE, &before);
  signal(SIGXFSZ, old_handler);
  EXPECT_EQ(Message(status), "cannot be written: File too large");
  EXPECT_EQ(fs::file_size(dir_ / "there"), 0u);
}

}  // namespace
}  // namespace phalanx::agent
