#include "checkpoint/rank/zip_frame.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/image/image.h"

namespace phalanx::checkpoint {
namespace {

using testing::HasSubstr;

constexpr std::string_view kPickle = "a pickle";

phx_ckpt_zip ZipOf(const std::vector<uint64_t>& sizes, uint64_t length = 0) {
  return {sizes.data(), sizes.size(), kPickle.data(), kPickle.size(), length};
}

struct Frame {
  std::vector<uint8_t> bytes;
  std::vector<uint64_t> record_at;
  std::vector<phx_ckpt_patch> patches;
  uint64_t file_bytes = 0;
};

Frame FrameOf(const phx_ckpt_zip& zip) {
  EXPECT_EQ(WhyNoZip(zip), "");
  const ZipLengths lengths = LengthsOf(zip);
  constexpr uint64_t kBeyond = 64;  // what nobody may write
  Frame frame{std::vector<uint8_t>(lengths.frame + kBeyond, 0xEE), std::vector<uint64_t>(zip.n),
              std::vector<phx_ckpt_patch>(2 * zip.n), lengths.file};
  frame.patches.resize(PutZipFrame(frame.bytes.data(), zip, frame.record_at.data(), frame.patches.data()));
  EXPECT_EQ(std::count(frame.bytes.end() - kBeyond, frame.bytes.end(), 0xEE), kBeyond);
  frame.bytes.resize(lengths.frame);
  return frame;
}

// The whole file, in which each byte of record i is i + 1.
std::vector<uint8_t> FileOf(const std::vector<uint64_t>& sizes, const Frame& frame) {
  std::vector<uint8_t> file;
  auto from = frame.bytes.begin();
  for (size_t i = 0; i < sizes.size(); ++i) {
    const auto to = from + static_cast<ptrdiff_t>(frame.record_at[i] - file.size());
    file.insert(file.end(), from, to);
    file.insert(file.end(), sizes[i], static_cast<uint8_t>(i + 1));
    from = to;
  }
  file.insert(file.end(), from, frame.bytes.end());
  for (const phx_ckpt_patch& patch : frame.patches) {
    const uint32_t crc = Crc32(0, file.data() + frame.record_at[patch.record], sizes[patch.record]);
    uint32_t there = 0;
    std::memcpy(&there, file.data() + patch.at, sizeof there);
    EXPECT_EQ(there, 0U);
    std::memcpy(file.data() + patch.at, &crc, sizeof crc);
  }
  return file;
}

TEST(ZipFrame, IsAWholeFileWithItsRecordsAndTheirCrcs) {
  const std::vector<uint64_t> sizes = {1, 0, 64, 63, 100000, 4096, 0, 7, 65536, 3, 3, 3};
  const Frame frame = FrameOf(ZipOf(sizes));
  const std::vector<uint8_t> file = FileOf(sizes, frame);
  EXPECT_EQ(file.size(), frame.file_bytes);
  EXPECT_EQ(CheckImage(file.data(), file.size()), "");
  std::vector<ImageRecord> records;
  ASSERT_EQ(ParseImage(file.data(), file.size(), &records), "");
  ASSERT_EQ(records.size(), sizes.size() + 3);
  for (size_t i = 0; i < sizes.size(); ++i) {
    EXPECT_EQ(records[i].name, "archive/data/" + std::to_string(i));
    EXPECT_EQ(records[i].offset, frame.record_at[i]);
    EXPECT_EQ(records[i].bytes, sizes[i]);
  }
  const ImageRecord& pickle = records[sizes.size()];
  EXPECT_EQ(pickle.name, "archive/data.pkl");
  EXPECT_EQ(std::string(reinterpret_cast<const char*>(file.data()) + pickle.offset, pickle.bytes), kPickle);
}

TEST(ZipFrame, OfNoRecords) {
  const Frame frame = FrameOf(ZipOf({}));
  EXPECT_TRUE(frame.patches.empty());
  EXPECT_EQ(CheckImage(frame.bytes.data(), frame.bytes.size()), "");
}

TEST(ZipFrame, IsAsLongAsIsAskedForAndNoShorterThanItIs) {
  const std::vector<uint64_t> sizes = {5};
  const uint64_t least = LengthsOf(ZipOf(sizes)).file;
  for (const uint64_t length : {least - 1, least, least + 1, least + 10'000}) {
    const Frame frame = FrameOf(ZipOf(sizes, length));
    EXPECT_EQ(frame.file_bytes, std::max(length, least));
    const std::vector<uint8_t> file = FileOf(sizes, frame);
    EXPECT_EQ(file.size(), frame.file_bytes);
    EXPECT_EQ(CheckImage(file.data(), file.size()), "");
  }
}

TEST(ZipFrame, NamesRecordsBeyond4GiB) {
  const std::vector<uint64_t> sizes = {(uint64_t{4} << 30) + 3, 1};
  const Frame frame = FrameOf(ZipOf(sizes));
  EXPECT_GT(frame.record_at[1], sizes[0]);
  EXPECT_EQ(frame.file_bytes, frame.bytes.size() + sizes[0] + sizes[1]);
  EXPECT_EQ(frame.patches.size(), 4U);
}

TEST(ZipFrame, WhatNoFileCanHoldIsRefused) {
  EXPECT_THAT(WhyNoZip({nullptr, kImageRecordsMax + 1, nullptr, 0, 0}), HasSubstr("records are more than"));
  const std::string too_long = "records of more bytes than a file may have";
  EXPECT_EQ(WhyNoZip(ZipOf({uint64_t{1} << 57})), too_long);
  EXPECT_EQ(WhyNoZip(ZipOf({~uint64_t{0}, 1})), too_long);
  EXPECT_EQ(WhyNoZip(ZipOf(std::vector<uint64_t>(3, uint64_t{1} << 55))), too_long);
  EXPECT_EQ(WhyNoZip(ZipOf({}, uint64_t{1} << 57)), too_long);
}

}  // namespace
}  // namespace phalanx::checkpoint
