#include "checkpoint/files/shared_parts.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

#include "base/crc/crc32.h"

namespace phalanx::checkpoint {
namespace {

std::string Bytes(size_t count) {
  std::string bytes(count, '\0');
  std::iota(bytes.begin(), bytes.end(), '\0');
  return bytes;
}

TEST(SharedParts, EachIsTakenOnceAndTheirCrcIsThatOfAll) {
  const std::string bytes = Bytes(25);
  SharedParts parts(bytes.size(), 10);
  ASSERT_EQ(parts.count(), 3U);
  std::vector<size_t> taken;
  while (const std::optional<size_t> part = parts.TakeNext()) taken.push_back(*part);
  EXPECT_EQ(taken, (std::vector<size_t>{0, 1, 2}));
  for (const size_t part : {2, 0, 1}) {
    parts.Done(part, Crc32(0, bytes.data() + parts.BeginOf(part), parts.BytesOf(part)));
  }
  EXPECT_EQ(parts.BytesOf(2), 5U);
  EXPECT_EQ(*parts.Crc(), Crc32(0, bytes.data(), bytes.size()));
}

TEST(SharedParts, NothingIsOfferedBehindAnErrorAndTheFirstOneStays) {
  SharedParts parts(40, 10);
  ASSERT_EQ(parts.TakeNext(), 0U);
  ASSERT_EQ(parts.TakeNext(), 1U);
  parts.Done(1, absl::DataLossError("the first"));
  parts.Done(0, absl::DataLossError("the second"));
  EXPECT_EQ(parts.TakeNext(), std::nullopt);
  EXPECT_EQ(parts.Crc().status().message(), "the first");
}

TEST(SharedParts, OfNoBytes) {
  SharedParts parts(0, 10);
  EXPECT_EQ(parts.TakeNext(), std::nullopt);
  EXPECT_EQ(*parts.Crc(), 0U);
}

}  // namespace
}  // namespace phalanx::checkpoint
