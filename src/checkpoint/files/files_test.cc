#include "checkpoint/files/files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>

#include "base/test_folder.h"

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;

TEST(CallFailedTest, OnlyANameThatIsMissingIsNotFound) {
  EXPECT_TRUE(absl::IsNotFound(CallFailed("/data", "opendir", ENOENT)));
  for (const int error_number : {ENODEV, ENXIO, ENOMEDIUM, EIO, EACCES, ESTALE, ENOTCONN, ENOTDIR}) {
    const Status status = CallFailed("/data", "opendir", error_number);
    EXPECT_FALSE(absl::IsNotFound(status)) << status;
    EXPECT_EQ(Message(status), Message(ErrnoStatus(error_number, "/data: opendir")));
  }
}

TEST(ListFolderTest, AnErrorIsNoEmptyFolder) {
  const TestFolder folder;
  folder.Write("b", "");
  folder.Write("a", "");
  EXPECT_THAT(*ListFolder(folder.path()), ElementsAre("a", "b"));
  EXPECT_TRUE(absl::IsNotFound(ListFolder(folder / "c").status()));
  const Status no_folder = ListFolder(folder / "a").status();
  EXPECT_EQ(Message(no_folder), folder / "a" + ": opendir: Not a directory");
  EXPECT_FALSE(absl::IsNotFound(no_folder));
}

}  // namespace
}  // namespace phalanx::checkpoint
