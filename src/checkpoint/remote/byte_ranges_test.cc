#include "checkpoint/remote/byte_ranges.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

TEST(ByteRangesTest, WhatTouchesIsOne) {
  ByteRanges ranges({{10, 20}, {30, 40}, {5, 5}, {9, 3}});
  EXPECT_THAT(ranges.All(), ElementsAre(ByteRange{10, 20}, ByteRange{30, 40}));
  EXPECT_EQ(ranges.Bytes(), 20u);
  ranges.Add({20, 30});
  EXPECT_THAT(ranges.All(), ElementsAre(ByteRange{10, 40}));
  ranges.Add({0, 100});
  EXPECT_THAT(ranges.All(), ElementsAre(ByteRange{0, 100}));
}

TEST(ByteRangesTest, KnowsWhatIsThereAndWhatIsNot) {
  const ByteRanges have({{10, 20}, {30, 40}});
  EXPECT_TRUE(have.Contains({10, 20}));
  EXPECT_TRUE(have.Contains({12, 12}));
  EXPECT_FALSE(have.Contains({19, 31}));
  EXPECT_FALSE(have.Contains({0, 1}));
  EXPECT_THAT(ByteRanges({{0, 50}}).Without(have).All(),
              ElementsAre(ByteRange{0, 10}, ByteRange{20, 30}, ByteRange{40, 50}));
  EXPECT_THAT(ByteRanges({{15, 35}}).Without(have).All(), ElementsAre(ByteRange{20, 30}));
  EXPECT_THAT(ByteRanges({{12, 18}}).Without(have).All(), IsEmpty());
  EXPECT_THAT(ByteRanges({{50, 60}}).Without(have).All(), ElementsAre(ByteRange{50, 60}));
}

// Against a set of bytes.
TEST(ByteRangesTest, IsASetOfBytes) {
  std::mt19937 random(7);
  for (int round = 0; round < 500; ++round) {
    ByteRanges one, other;
    std::set<uint64_t> bytes_of_one, bytes_of_other;
    for (int i = 0; i < 12; ++i) {
      const uint64_t begin = random() % 60, end = begin + random() % 9;
      (i % 2 == 0 ? one : other).Add({begin, end});
      for (uint64_t at = begin; at < end; ++at) (i % 2 == 0 ? bytes_of_one : bytes_of_other).insert(at);
    }
    const ByteRanges rest = one.Without(other);
    std::set<uint64_t> expected, found;
    for (const uint64_t at : bytes_of_one) {
      if (!bytes_of_other.contains(at)) expected.insert(at);
    }
    for (const ByteRange& range : rest.All()) {
      for (uint64_t at = range.begin; at < range.end; ++at) found.insert(at);
    }
    ASSERT_EQ(found, expected) << round;
    ASSERT_EQ(rest.Bytes(), expected.size());
  }
}

}  // namespace
}  // namespace phalanx::checkpoint
