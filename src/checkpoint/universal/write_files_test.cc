#include "checkpoint/universal/write_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/image/image.h"
#include "checkpoint/universal/publish.h"

namespace phalanx::universal {
namespace {

using testing::HasSubstr;

Piece Of(const std::string& text) { return {text.data(), text.size()}; }

File Zipped(const std::string& name, std::vector<Record> records) {
  File file;
  file.name = name;
  file.zipped = true;
  file.pickle = "a pickle";
  file.records = std::move(records);
  return file;
}

File Plain(const std::string& name, Record record, const char* link = nullptr) {
  File file;
  file.name = name;
  file.records = {std::move(record)};
  file.link = link;
  return file;
}

uint64_t NodeOf(const std::string& path) {
  struct stat info {};
  EXPECT_EQ(stat(path.c_str(), &info), 0);
  return info.st_ino;
}

TEST(WriteFilesTest, PiecesBecomeTheRecordsOfZips) {
  const TestFolder folder;
  const std::string one(300'000, 'a');
  const std::string other(1'000'000, 'b');
  std::vector<File> files;
  for (int i = 0; i < 40; ++i) {
    files.push_back(Zipped("zero/p" + std::to_string(i) + "/fp32.pt", {{Of(one), Of(other)}, {}, {Of(one)}}));
  }
  files.push_back(Plain("zero/p0/step.pt", {Of(one), Of(one)}));
  const auto written = WriteFiles(folder.path(), files, 4);
  ASSERT_TRUE(written.ok()) << written.error().message;
  for (size_t i = 0; i < files.size(); ++i) {
    const std::string text = folder.Read(files[i].name);
    EXPECT_EQ((*written)[i].bytes, text.size());
    EXPECT_EQ((*written)[i].crc32, Crc32(0, text.data(), text.size()));
    if (!files[i].zipped) continue;
    ASSERT_EQ(checkpoint::CheckImage(text.data(), text.size()), "");
    std::vector<checkpoint::ImageRecord> records;
    ASSERT_EQ(checkpoint::ParseImage(text.data(), text.size(), &records), "");
    ASSERT_EQ(records.size(), 6U);
    EXPECT_EQ(text.substr(records[0].offset, records[0].bytes), "a pickle");
    EXPECT_EQ(records[2].name, "archive/data/0");
    EXPECT_EQ(text.substr(records[2].offset, records[2].bytes), one + other);
    EXPECT_EQ(records[3].bytes, 0U);
  }
  EXPECT_EQ(folder.Read("zero/p0/step.pt"), one + one);
}

TEST(WriteFilesTest, AFileGetsAnotherNameWhereItCan) {
  const TestFolder folder;
  folder.Write("source", "the model");
  folder.Write("out/.keep", "");
  const std::string text = "the model";
  const std::string source = folder / "source";
  const std::string missing = folder / "missing";
  const auto written = WriteFiles(
      folder / "out", {Plain("linked", {Of(text)}, source.c_str()), Plain("copied", {Of(text)}, missing.c_str())}, 1);
  ASSERT_TRUE(written.ok()) << written.error().message;
  EXPECT_EQ(NodeOf(folder / "out/linked"), NodeOf(source));
  EXPECT_EQ(folder.Read("out/copied"), text);
  for (const Written& each : *written) EXPECT_EQ(each.crc32, Crc32(0, text.data(), text.size()));
}

TEST(WriteFilesTest, WhatIsThereAndWhatLiesElsewhereIsRefused) {
  const TestFolder folder;
  const std::string text = "a";
  EXPECT_THAT(WriteFiles(folder.path(), {Plain("../a", {Of(text)})}, 1).error().message, HasSubstr("is no name"));
  folder.Write("a", "b");
  EXPECT_EQ(WriteFiles(folder.path(), {Plain("a", {Of(text)})}, 1).error().message,
            folder / "a" + ": open: File exists");
  EXPECT_EQ(folder.Read("a"), "b");
  EXPECT_EQ(WriteFiles(folder.path(), {Plain("a/b", {Of(text)})}, 1).error().message,
            folder / "a/b" + ": open: Not a directory");
}

TEST(PublishTest, TheDraftTakesThePlaceAndThenTheTrackerNamesIt) {
  const TestFolder folder;
  for (const char* text : {"first", "second"}) {
    folder.Write("ucp.writing/file", text);
    const auto done = Publish({folder / "ucp.writing", folder / "ucp", "universal.json", "{}", "latest_universal"});
    ASSERT_TRUE(done.ok()) << done.error().message;
    EXPECT_EQ(folder.Read("ucp/file"), text);
    EXPECT_EQ(folder.Read("ucp/universal.json"), "{}");
    EXPECT_EQ(folder.Read("latest_universal"), "ucp");
  }
  EXPECT_EQ(folder.Read("ucp.writing/file"), "first");
  EXPECT_FALSE(folder.Has("ucp.writing.tracker"));
}

TEST(PublishTest, WithoutAPlaceNothingIsNamed) {
  const TestFolder folder;
  folder.Write("ucp.writing/file", "a");
  const auto done = Publish({folder / "ucp.writing", folder / "not/there", "m", "{}", "latest_universal"});
  EXPECT_EQ(done.error().message, folder / "not/there" + ": rename: No such file or directory");
  EXPECT_FALSE(folder.Has("latest_universal"));
}

}  // namespace
}  // namespace phalanx::universal
