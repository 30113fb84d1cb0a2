#include "cli/state_dir.h"

#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace phalanx::cli {
namespace {

class StateDirTest : public ::testing::Test {
 protected:
  void SetUp() override {
    root_ = fmt::format("{}phalanx-state-dir-test-{}", ::testing::TempDir(), getpid());
    std::filesystem::create_directories(root_);
  }
  void TearDown() override { std::filesystem::remove_all(root_); }
  std::string In(const std::string& name) const { return fmt::format("{}/{}", root_, name); }
  void MakeJob(const std::string& folder) const {
    std::filesystem::create_directories(In(folder));
    std::ofstream(In(fmt::format("{}/address", folder))) << "127.0.0.1:1\n";
  }

  std::string root_;
};

TEST_F(StateDirTest, RootFollowsTheEnvironment) {
  EXPECT_EQ(DefaultStateRoot(Environment({{"XDG_STATE_HOME", "/x"}, {"HOME", "/h"}})), "/x/phalanx");
  EXPECT_EQ(DefaultStateRoot(Environment({{"XDG_STATE_HOME", "x"}, {"HOME", "/h"}})), "/h/.local/state/phalanx");
  EXPECT_EQ(DefaultStateRoot(Environment()), fmt::format("/tmp/phalanx-{}", getuid()));
}

TEST_F(StateDirTest, FilesAreWholeAndPrivate) {
  ASSERT_TRUE(WritePrivateFile(In("address"), "one\n").ok());
  ASSERT_TRUE(WritePrivateFile(In("address"), "two\nrest\n").ok());
  EXPECT_EQ(*ReadPrivateLine(In("address")), "two");
  struct stat info {};
  stat(In("address").c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0600U);
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(root_), {}), 1);
  EXPECT_FALSE(WritePrivateFile(In("missing/address"), "x").ok());
  EXPECT_EQ(ReadPrivateLine(In("missing")).status().code(), absl::StatusCode::kNotFound);
}

TEST_F(StateDirTest, FoldersAreMadeWithTheirParents) {
  ASSERT_TRUE(MakePrivateFolder(In("a/b/c")).ok());
  struct stat info {};
  stat(In("a/b/c").c_str(), &info);
  EXPECT_EQ(info.st_mode & 0777, 0700U);
  std::ofstream(In("file")) << "x";
  EXPECT_FALSE(MakePrivateFolder(In("file")).ok());
}

TEST_F(StateDirTest, OldRecordsOfUnnamedJobsGo) {
  const auto old = std::filesystem::file_time_type::clock::now() - std::chrono::hours(50);
  auto make = [&](const std::string& name, bool unnamed, const std::vector<std::string>& others = {}) {
    std::filesystem::create_directory(In(name));
    for (const std::string& other : others) std::ofstream(In(name + "/" + other)) << "x";
    std::ofstream(In(name + "/events.db")) << "x";
    if (unnamed) MarkUnnamed(In(name));
    for (const auto& entry : std::filesystem::directory_iterator(In(name))) {
      std::filesystem::last_write_time(entry.path(), old);
    }
    return In(name);
  };
  const std::string gone = make("1f", true, {"master.log", "events.db-wal", "lock", "journal", "journal.new"});
  const std::string named = make("2f", false);
  const std::string live = make("3f", true, {"address"});
  const std::string fresh = make("4f", true);
  std::ofstream(fresh + "/events.db") << "more";
  const std::string used = make("5f", true, {"notes.txt"});
  std::filesystem::create_directory(In("6f"));
  MarkUnnamed(In("6f"));
  PruneUnnamedJobs(root_, std::chrono::hours(51));
  EXPECT_TRUE(std::filesystem::exists(gone));
  PruneUnnamedJobs(root_, std::chrono::hours(49));
  EXPECT_FALSE(std::filesystem::exists(gone));
  for (const std::string& kept : {named, live, fresh})
    EXPECT_TRUE(std::filesystem::exists(kept + "/events.db")) << kept;
  EXPECT_TRUE(std::filesystem::exists(used + "/notes.txt"));
  EXPECT_TRUE(std::filesystem::exists(In("6f"))) << "a job that begins at this moment";
  PruneUnnamedJobs(In("missing"), std::chrono::hours(1));
}

TEST_F(StateDirTest, FindsTheJobByNameOrTheLatest) {
  const Environment env;
  EXPECT_EQ(FindJobFolder(env, root_, "").status().code(), absl::StatusCode::kNotFound);
  MakeJob("one");
  MakeJob("two");
  std::filesystem::last_write_time(In("one/address"),
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  EXPECT_EQ(*FindJobFolder(env, root_, ""), In("one"));
  EXPECT_EQ(*FindJobFolder(env, root_, "two"), In("two"));
  EXPECT_EQ(*FindJobFolder(env, In("two"), ""), In("two"));
  EXPECT_FALSE(FindJobFolder(env, root_, "three").ok());
}

TEST_F(StateDirTest, OfJobsThatShareAnIdFindsTheLatest) {
  const Environment env;
  for (const char* name : {"none@a-1", "none@a-2", "none-3"}) MakeJob(name);
  const auto later = std::filesystem::file_time_type::clock::now() + std::chrono::hours(1);
  std::filesystem::last_write_time(In("none@a-2/address"), later);
  std::filesystem::last_write_time(In("none-3/address"), later + std::chrono::hours(1));
  EXPECT_EQ(*FindJobFolder(env, root_, "none"), In("none@a-2"));
  EXPECT_EQ(*FindJobFolder(env, root_, "none-3"), In("none-3"));
  EXPECT_FALSE(FindJobFolder(env, root_, "non").ok());
}

}  // namespace
}  // namespace phalanx::cli
