// A file of lines that takes no more, with a limit of the file's size in the place of a disk's.
#include "agent/output/console.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <gtest/gtest.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cerrno>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <vector>

#include "base/test_threads.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

class FileOfLinesTest : public testing::Test {
 protected:
  FileOfLinesTest() : path_(fs::temp_directory_path() / fmt::format("phalanx-lines-{}", getpid())) {
    getrlimit(RLIMIT_FSIZE, &before_);
    Fd file(open(path_.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0600));
    console_ = std::make_unique<Console>(loop_, std::move(file), [this](int error) { losses_.push_back(error); });
  }
  ~FileOfLinesTest() override {
    console_.reset();
    fs::remove(path_);
  }

  void Write(const std::string& text) {
    console_->Write(text);
    console_->Drain(20'000);
  }

  // The same while the file may have no more than `bytes`.
  void WriteWithin(rlim_t bytes, const std::string& text) {
    const rlimit little{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &little);
    Write(text);
    setrlimit(RLIMIT_FSIZE, &before_);
  }

  std::string Text() const {
    std::ostringstream text;
    text << std::ifstream(path_).rdbuf();
    return text.str();
  }

  const std::vector<int>& Losses() {
    loop_.At(loop_.Now(), [this] { loop_.Stop(); });
    loop_.Run();
    return losses_;
  }

  const fs::path path_;
  rlimit before_{};
  EventLoop loop_;
  std::vector<int> losses_;
  std::unique_ptr<Console> console_;
};

TEST_F(FileOfLinesTest, WhatIsCutOffStaysALineOfItsOwn) {
  Write("one\n");
  WriteWithin(8, "two and more\nthree\n");
  WriteWithin(8, "four\n");
  Write("five\n");
  EXPECT_EQ(Text(), "one\ntwo \nfive\n");
  EXPECT_EQ(Losses(), std::vector<int>{EFBIG});  // told once
}

TEST_F(FileOfLinesTest, BehindAWholeLineNothingIsPutIn) {
  WriteWithin(4, "one\ntwo\n");
  Write("three\n");
  EXPECT_EQ(Text(), "one\nthree\n");
  EXPECT_EQ(Losses().size(), 1u);
}

TEST_F(FileOfLinesTest, NothingIsToldWhereNothingIsLost) {
  Write("one\n");
  EXPECT_EQ(Losses().size(), 0u);
}

TEST_F(FileOfLinesTest, WaitsForAThreadThatCannotBeHad) {
  {
    const NoThreads full;
    console_->Write("one\n");
  }
  Write("two\n");
  EXPECT_EQ(Text(), "one\ntwo\n");
}

TEST(LossNotice, NamesFileAndReason) {
  EXPECT_EQ(LossNotice("/logs/a", ENOSPC),
            "log file /logs/a cannot be written: No space left on device; training goes on, lines are lost until there "
            "is room");
}

}  // namespace
}  // namespace phalanx::agent
