#include "checkpoint/storage/files_of.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/image/test_file_table.h"
#include "checkpoint/storage/posix.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

uint32_t Crc(const std::string& text) { return Crc32(0, text.data(), text.size()); }

class FilesOfTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / "run"); }

  ImageToStore Write(const std::string& bytes, const SaveForm& form, int64_t rank) {
    folder_.Write("slot", bytes);
    return {folder_ / "slot", form, rank, bytes.size(), Crc(bytes)};
  }

  // "one" and "two", each behind the other, and a copy of what another rank stores.
  ImageToStore ThreeFiles() {
    const std::string one(5'000, '1'), two(10, '2'), copy(20, 'c');
    std::string image = ImageOfFiles(
        {{"one", 4'096, one.size(), Crc(one)}, {"two", 12'288, two.size(), Crc(two)}, {"copy", 16'384, 20, 0, true}},
        20'480);
    image.replace(4'096, one.size(), one);
    image.replace(12'288, two.size(), two);
    image.replace(16'384, copy.size(), copy);
    return Write(image, kFilesForm, 3);
  }

  TestFolder folder_;
};

TEST_F(FilesOfTest, AnImageIsAFileUnderTheNameOfItsRank) {
  const auto own = FilesOf(Write("an image", kDdpForm, 2)).value();
  ASSERT_EQ(own.size(), 1u);
  EXPECT_EQ(own[0].name, "rank_2.pt");
  EXPECT_EQ(own[0].needed_by, FileNeed::kNobody);
  const auto shared = FilesOf(Write("an image", kDcpForm, kMainRank)).value();
  ASSERT_EQ(shared.size(), 1u);
  EXPECT_EQ(shared[0].name, ".metadata");
  EXPECT_EQ(shared[0].needed_by, FileNeed::kEveryRank);
  EXPECT_STREQ(LayoutOf(Write("an image", kDcpForm, 0)), kDcpLayout);
}

TEST_F(FilesOfTest, NamedFilesGoUnderTheirNamesButForCopies) {
  PosixStorage storage(folder_ / "run");
  const std::string step = storage.Begin(10, 1).value();
  const auto shards = PutImage(storage, step, ThreeFiles());
  ASSERT_TRUE(shards.ok()) << shards.status();
  ASSERT_EQ(shards->size(), 2u);
  EXPECT_EQ((*shards)[0], (Shard{3, "one", 5'000, Crc(std::string(5'000, '1')), FileNeed::kAnyRank}));
  EXPECT_EQ((*shards)[1], (Shard{3, "two", 10, Crc(std::string(10, '2')), FileNeed::kAnyRank}));
  std::string read(10, '\0');
  ASSERT_TRUE(storage.Read(step, "two", 0, {reinterpret_cast<uint8_t*>(read.data()), read.size()}).ok());
  EXPECT_EQ(read, std::string(10, '2'));
  for (const Shard& shard : *shards) EXPECT_TRUE(storage.Check(step, shard).ok());
}

TEST_F(FilesOfTest, WhatNamesThemIsNotStored) {
  EXPECT_TRUE(FilesOf(Write("an index", kFilesForm, kMainRank)).value().empty());
}

TEST_F(FilesOfTest, WhatIsNotAsTheTableSaysIsNotStored) {
  PosixStorage storage(folder_ / "run");
  const std::string step = storage.Begin(10, 1).value();
  ImageToStore image = ThreeFiles();
  std::string bytes = folder_.Read("slot");
  bytes[4'100] = 'x';
  folder_.Write("slot", bytes);
  EXPECT_TRUE(absl::IsDataLoss(PutImage(storage, step, image).status()));
  const auto none = FilesOf(Write("no table at all", kFilesForm, 0));
  EXPECT_TRUE(absl::IsDataLoss(none.status()));
  EXPECT_THAT(std::string(none.status().message()), HasSubstr("no table"));
}

}  // namespace
}  // namespace phalanx::checkpoint
