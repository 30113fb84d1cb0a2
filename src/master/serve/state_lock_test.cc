#include "master/serve/state_lock.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/inotify.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <optional>

#include "master/serve/server.h"

namespace phalanx::master {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

class StateLockTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fmt::format("{}phalanx-state-lock-test-{}", ::testing::TempDir(), getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }
  StatusOr<StateLock> Take(const std::string& address = "127.0.0.1:1") const {
    return StateLock::Take(folder_, "job7", address);
  }
  // A process that has the lock, as of 127.0.0.1:1, while `run` runs in it.
  template <typename Run>
  pid_t Holder(Run run) const {
    int taken[2];
    EXPECT_EQ(pipe(taken), 0);
    const pid_t child = fork();
    if (child == 0) {
      const StatusOr<StateLock> lock = Take();
      if (!lock.ok() || write(taken[1], "y", 1) != 1) _exit(1);
      run();
      _exit(0);
    }
    close(taken[1]);
    char byte = 0;
    EXPECT_EQ(read(taken[0], &byte, 1), 1);
    close(taken[0]);
    return child;
  }

  std::string folder_;
};

TEST_F(StateLockTest, NamesWhoHasIt) {
  std::optional<StatusOr<StateLock>> first = Take("127.0.0.1:29400");
  ASSERT_TRUE(first->ok()) << first->status();
  const StatusOr<StateLock> second = Take();
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()),
              AllOf(HasSubstr("job 'job7'"), HasSubstr(folder_),
                    HasSubstr(fmt::format("process {} at 127.0.0.1:29400", getpid())), HasSubstr("--rdzv-id"),
                    HasSubstr("--state-dir")));
  struct stat info {};
  ASSERT_EQ(stat((folder_ + "/lock").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  first.reset();
  EXPECT_TRUE(Take().ok());
}

TEST_F(StateLockTest, GoesWithAKilledProcess) {
  const pid_t child = Holder([] {
    while (true) pause();
  });
  EXPECT_THAT(std::string(Take("127.0.0.1:2").status().message()), HasSubstr(fmt::format("process {} at", child)));
  kill(child, SIGKILL);
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
  EXPECT_TRUE(Take().ok());
}

// Whoever binds the holder's address knows that it has closed it.
TEST_F(StateLockTest, AHolderAtTheSameAddressIsAboutToEnd) {
  int watched[2];
  ASSERT_EQ(pipe(watched), 0);
  const pid_t child = Holder([&] {  // ends when somebody opens the lock
    const int opened = inotify_init1(IN_CLOEXEC);
    const bool watches = inotify_add_watch(opened, (folder_ + "/lock").c_str(), IN_OPEN) >= 0;
    if (!watches || write(watched[1], "y", 1) != 1) _exit(1);
    inotify_event event;
    if (read(opened, &event, sizeof event) <= 0) _exit(1);
  });
  close(watched[1]);
  char byte = 0;
  ASSERT_EQ(read(watched[0], &byte, 1), 1);
  close(watched[0]);
  EXPECT_TRUE(Take().ok());
  ASSERT_EQ(waitpid(child, nullptr, 0), child);
}

TEST_F(StateLockTest, WhatCannotBeLockedIsAnotherError) {
  std::filesystem::create_symlink("elsewhere", folder_ + "/lock");
  const StatusOr<StateLock> lock = Take();
  EXPECT_FALSE(lock.ok());
  EXPECT_NE(lock.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_FALSE(std::filesystem::exists(folder_ + "/elsewhere"));
}

// A server on another port finds the directory taken and leaves the record alone; one on the same port says that first.
TEST_F(StateLockTest, KeepsASecondServerOut) {
  ServerOptions options;
  options.job_id = "job7";
  options.state_dir = folder_;
  const auto first = MasterServer::Open(options);
  ASSERT_TRUE(first.ok()) << first.status();
  const auto second = MasterServer::Open(options);
  EXPECT_EQ(second.status().code(), absl::StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr(fmt::format("at 127.0.0.1:{}", (*first)->port())));
  options.port = (*first)->port();
  EXPECT_EQ(MasterServer::Open(options).status().code(), absl::StatusCode::kAlreadyExists);
}

}  // namespace
}  // namespace phalanx::master
