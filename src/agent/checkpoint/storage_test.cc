#include "agent/checkpoint/storage.h"

#include <gtest/gtest.h>

#include <filesystem>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/storage/posix.h"

namespace phalanx::agent {
namespace {

TEST(FindNewestStep, WhatCannotBeReadIsNotEmpty) {
  const TestFolder folder;
  folder.Write("file", "");
  folder.Write("empty/latest", "");
  folder.Write("loop/1/rank_0.pt", "of a step that is not committed");
  std::filesystem::create_symlink("2", folder / "loop/2");
  struct Case {
    std::string dir;
    std::string unreadable;
  };
  for (const Case& c : {
           Case{folder / "missing", ""},
           Case{folder / "empty", ""},
           Case{folder / "file", folder / "file" + ": opendir: Not a directory"},
           Case{folder / "loop", folder / "loop/2" + ": stat: Too many levels of symbolic links"},
       }) {
    const FoundSteps steps = FindNewestStep(**checkpoint::OpenStorage(c.dir), {}, {}, "job");
    EXPECT_EQ(steps.found.step(), -1) << c.dir;
    EXPECT_EQ(steps.unreadable, c.unreadable) << c.dir;
  }
}

// Whose disk has come to fail behind the manifests.
class FailingStorage : public checkpoint::PosixStorage {
 public:
  FailingStorage(const std::string& location, Status status) : PosixStorage(location), status_(std::move(status)) {}
  Status Check(const std::string& /*step*/, const checkpoint::Shard& /*file*/) override { return status_; }

 private:
  const Status status_;
};

TEST(CheckShards, WhatCannotBeReadIsNotDamaged) {
  const TestFolder folder;
  folder.Write("slot", "state");
  checkpoint::PosixStorage storage(folder.path());
  const checkpoint::Shard shard = storage.Put("7", {folder / "slot", "rank_0.pt", 0, 5, Crc32(0, "state", 5)}).value();
  struct Case {
    Status status;
    bool unreadable;
  };
  const auto check = [&](const Status& status) {
    FailingStorage failing(folder.path(), status);
    return CheckShards(failing, "7", 0, 1, 1);
  };
  EXPECT_TRUE(check(absl::OkStatus()).unreadable) << "no manifest: another node has seen one";
  EXPECT_NE(check(absl::OkStatus()).error, "");
  ASSERT_TRUE(
      storage
          .Publish(
              "7",
              {.step = 7, .world_size = 1, .kind = "full", .layout = "torch-zip", .job_id = "job", .shards = {shard}})
          .ok());
  for (const Case& c : {Case{absl::UnavailableError("read: Input/output error"), true},
                        Case{absl::PermissionDeniedError("open: Permission denied"), true},
                        Case{absl::DataLossError("its CRC is another one"), false}}) {
    const CheckedStep checked = check(c.status);
    EXPECT_EQ(checked.error, Message(c.status));
    EXPECT_EQ(checked.unreadable, c.unreadable) << c.status;
  }
  const CheckedStep whole = check(absl::OkStatus());
  EXPECT_EQ(whole.error, "");
  EXPECT_FALSE(whole.unreadable);
  EXPECT_EQ(whole.files.at(0), folder / "7/rank_0.pt");
  folder.Write("7/rank_0.pt", "cut");
  EXPECT_NE(check(absl::OkStatus()).error, "");
  EXPECT_FALSE(check(absl::OkStatus()).unreadable) << "it is too short, whoever looks";
}

}  // namespace
}  // namespace phalanx::agent
