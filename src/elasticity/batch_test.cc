#include "elasticity/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <random>
#include <set>
#include <vector>

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

struct Asked {
  std::vector<int64_t> micro_batches;
  int64_t batch_max = 1;
  int64_t gpus_min = 1;
  int64_t gpus_max = 10000;
  bool prefer_larger = true;
  bool within_largest = false;
  bool with_whole = true;
};

BatchRequest RequestOf(const Asked& asked) {
  return {asked.micro_batches, asked.batch_max,      asked.gpus_min,  asked.gpus_max,
          asked.prefer_larger, asked.within_largest, asked.with_whole};
}

Batch Choose(const Asked& asked) {
  EXPECT_TRUE(IsWithinLimits(RequestOf(asked)));
  return ChooseBatch(RequestOf(asked));
}

std::vector<int64_t> Counts(const Asked& asked) { return Choose(asked).gpus->counts; }

TEST(Batch, DocumentedExample) {
  const Batch batch = Choose({{4, 2}, 8, 1, 4});
  EXPECT_EQ(batch.size, 8);
  EXPECT_THAT(batch.gpus->counts, ElementsAre(1, 2, 4));
}

// All counts by trying each, for what is small.
std::set<int64_t> Tried(int64_t batch, const std::vector<int64_t>& micro_batches, int64_t min, int64_t max) {
  std::set<int64_t> counts;
  for (int64_t count = min; count <= std::min(max, batch); ++count) {
    for (const int64_t size : micro_batches) {
      if (batch % size == 0 && batch / size % count == 0) counts.insert(count);
    }
  }
  return counts;
}

TEST(Batch, HasAllCountsThatWorkAndNoOther) {
  std::mt19937 random(1);
  const auto below = [&](int n) { return static_cast<int64_t>(random() % static_cast<unsigned>(n)); };
  for (int round = 0; round < 2000; ++round) {
    Asked asked{{}, 64 + below(1000)};
    for (int64_t i = 0; i <= below(5); ++i) asked.micro_batches.push_back(1 + below(64));
    const int64_t min = 1 + below(6);
    const int64_t max = min + below(200);
    asked.gpus_min = min;
    asked.gpus_max = max;
    const Batch batch = Choose(asked);
    if (!batch.gpus) continue;
    const std::set<int64_t> tried = Tried(batch.size, asked.micro_batches, min, max);
    ASSERT_EQ(batch.gpus->counts, std::vector<int64_t>(tried.begin(), tried.end())) << batch.size;
  }
}

TEST(Batch, LeastCommonMultipleMayExceedTheLargestBatchInOldVersions) {
  Asked asked{{6, 8}, 9};
  EXPECT_EQ(Choose(asked).size, 24);
  asked.within_largest = true;
  EXPECT_EQ(Choose(asked).size, 8);
}

TEST(Batch, OfEquallyGoodOnesTheLargerOrTheSmaller) {
  Asked asked{{5, 7}, 9, 1, 1};
  EXPECT_EQ(Choose(asked).size, 35);
  asked.prefer_larger = false;
  EXPECT_EQ(Choose(asked).size, 5);
}

TEST(Batch, WithoutAnyCountThereIsALargerSizeOrNothing) {
  Asked asked{{5, 7}, 9, 100, 200};
  EXPECT_EQ(Choose(asked).size, 35);
  EXPECT_THAT(Counts(asked), IsEmpty());
  asked.prefer_larger = false;
  EXPECT_EQ(Choose(asked).size, 5);
  EXPECT_FALSE(Choose(asked).gpus);
}

std::vector<int64_t> NumpyOnes(const Asked& asked) {
  const GpuCounts gpus = *Choose(asked).gpus;
  std::vector<int64_t> found;
  for (size_t i = 0; i < gpus.counts.size(); ++i) {
    if (gpus.is_numpy[i] != 0) found.push_back(gpus.counts[i]);
  }
  return found;
}

TEST(Batch, NumpysNumbersAreMarked) {
  EXPECT_THAT(Counts({{4, 6}, 8}), ElementsAre(1, 2, 3));
  EXPECT_THAT(NumpyOnes({{4, 6}, 8}), ElementsAre(2, 3));
  EXPECT_THAT(NumpyOnes({{4, 2}, 8}), IsEmpty());
  Asked asked{{15, 56, 35, 14}, 549};
  EXPECT_THAT(Counts(asked), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 20, 24, 28, 30, 56, 60));
  EXPECT_THAT(NumpyOnes(asked), ElementsAre(15, 24, 56, 60));
  asked.with_whole = false;
  EXPECT_THAT(Counts(asked), ElementsAre(1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 20, 28, 30));
  EXPECT_THAT(NumpyOnes(asked), IsEmpty());
}

TEST(Batch, OverflowIsNumpys) {
  // The least common multiple of these is far above 2^64; the wrapped number is negative, or none of theirs.
  const std::vector<int64_t> primes = {2,  3,  5,  7,  11, 13, 17, 19, 23, 29,  31,  37,  41,  43,  47, 53,
                                       59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127};
  EXPECT_GT(Choose({primes, 1000, 1, 10000, false}).size, 0);
}

TEST(Batch, LimitsThatAreNone) {
  EXPECT_THAT(Counts({{2}, 12, 1, kInfinite}), ElementsAre(1, 2, 3, 6));
  EXPECT_EQ(Choose({{2}, kInfinite}).size, 2 * 720720);
  Asked asked{{2}, 12, 1, 4};  // a GPU for each micro batch is left out, all else stays
  asked.with_whole = false;
  EXPECT_THAT(Counts(asked), ElementsAre(1, 2, 3));
}

TEST(Batch, LimitsAreTakenAndNothingAbove) {
  const auto taken = [](const Asked& asked) { return IsWithinLimits(RequestOf(asked)); };
  EXPECT_TRUE(taken({{kValueMax}, kValueMax, kValueMax, kValueMax}));
  EXPECT_TRUE(taken({{kValueMax}, kInfinite, kInfinite, kInfinite}));
  EXPECT_FALSE(taken({{1}, kValueMax + 1}));
  EXPECT_FALSE(taken({{kValueMax + 1}, kInfinite}));
  EXPECT_FALSE(taken({{1}, 8, 1, kValueMax + 1}));
  EXPECT_FALSE(taken({{1}, 8, kValueMax + 1, kInfinite}));
  EXPECT_FALSE(taken({{1}, 8, 0}));
  EXPECT_FALSE(taken({{1}, 0}));
  EXPECT_FALSE(taken({{0, 1}, 8}));
  EXPECT_FALSE(taken({{-1}, 8}));
  EXPECT_FALSE(taken({{9}, 8}));
  EXPECT_FALSE(taken({{}, 8}));
  EXPECT_TRUE(taken({std::vector<int64_t>(kMicroBatchesMax, 2), 8}));
  EXPECT_FALSE(taken({std::vector<int64_t>(kMicroBatchesMax + 1, 2), 8}));
}

TEST(Batch, EndsForTheLargestNumbers) {
  std::mt19937_64 random(1);
  Asked asked{{}, kInfinite, 1, kValueMax};
  for (size_t i = 0; i < kMicroBatchesMax; ++i) {
    asked.micro_batches.push_back(static_cast<int64_t>(1 + random() % kValueMax));
  }
  EXPECT_GT(Choose(asked).size, 0);
  asked.batch_max = kValueMax;
  EXPECT_GT(Choose(asked).size, 0);
}

}  // namespace
}  // namespace phalanx::elasticity
