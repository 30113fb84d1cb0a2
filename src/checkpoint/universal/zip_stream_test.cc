#include "checkpoint/universal/zip_stream.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>
#include <string>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/image/image.h"

namespace phalanx::universal {
namespace {

using checkpoint::CheckImage;
using checkpoint::ImageRecord;
using checkpoint::ParseImage;

std::string Zip(const std::vector<std::string>& records) {
  ZipStream zip;
  std::string file;
  for (size_t i = 0; i < records.size(); ++i) {
    file += zip.Begin("archive/data/" + std::to_string(i), records[i].size());
    EXPECT_EQ(file.size() % checkpoint::kImageAlignment, 0U);
    file += records[i];
    file += zip.End(Crc32(0, records[i].data(), records[i].size()));
  }
  return file + zip.Finish();
}

TEST(ZipStream, IsReadAsItWasWritten) {
  const std::vector<std::string> records = {"", "a", std::string(100'000, 'b'), "", std::string(63, 'c')};
  const std::string file = Zip(records);
  EXPECT_EQ(CheckImage(file.data(), file.size()), "");
  std::vector<ImageRecord> found;
  ASSERT_EQ(ParseImage(file.data(), file.size(), &found), "");
  ASSERT_EQ(found.size(), records.size());
  for (size_t i = 0; i < records.size(); ++i) EXPECT_EQ(file.substr(found[i].offset, found[i].bytes), records[i]);
}

TEST(ZipStream, OfNothingIsAZipFile) {
  const std::string file = ZipStream().Finish();
  EXPECT_EQ(CheckImage(file.data(), file.size()), "");
}

TEST(ZipStream, TellsSizesAndPlacesThatTake64Bits) {
  constexpr uint64_t kLong = uint64_t{5} << 30;
  constexpr uint64_t kAll = kLong + (1 << 20);
  void* memory = mmap(nullptr, kAll, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  ASSERT_NE(memory, MAP_FAILED);
  auto* at = static_cast<char*>(memory);
  const auto put = [&at](const std::string& text) {
    std::memcpy(at, text.data(), text.size());
    at += text.size();
  };
  ZipStream zip;
  put(zip.Begin("archive/data/0", kLong));
  at += kLong;
  put(zip.End(7));
  put(zip.Begin("archive/data/1", 3));
  put("abc");
  put(zip.End(9));
  put(zip.Finish());
  std::vector<ImageRecord> found;
  EXPECT_EQ(ParseImage(memory, static_cast<uint64_t>(at - static_cast<char*>(memory)), &found), "");
  ASSERT_EQ(found.size(), 2U);
  EXPECT_EQ(found[0].bytes, kLong);
  EXPECT_EQ(found[1].bytes, 3U);
  EXPECT_EQ(std::string(static_cast<char*>(memory) + found[1].offset, 3), "abc");
  munmap(memory, kAll);
}

TEST(IsInnerPath, IsNoWayOut) {
  for (const char* name : {"a", "zero/layer.0.weight/fp32.pt", "...", "a b/\xc3\xa4"}) EXPECT_TRUE(IsInnerPath(name));
  for (const char* name : {"", "/a", "a/", "a//b", ".", "..", "a/../b", "a/."}) EXPECT_FALSE(IsInnerPath(name)) << name;
  EXPECT_FALSE(IsInnerPath(std::string_view("a\0b", 3)));
  EXPECT_TRUE(IsInnerPath(std::string(255, 'a')));
  EXPECT_FALSE(IsInnerPath(std::string(256, 'a')));
}

}  // namespace
}  // namespace phalanx::universal
