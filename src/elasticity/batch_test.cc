#include "elasticity/batch.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <limits>
#include <random>
#include <set>
#include <vector>

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr double kInfinity = std::numeric_limits<double>::infinity();

struct Asked {
  std::vector<int64_t> micro_batches;
  Value batch_max;
  Value gpus_min = Value(1);
  Value gpus_max = Value(10000);
  bool prefer_larger = true;
  Behaviour behaviour = Behaviour::kDeepSpeed0165;
};

Result<Batch> Choose(const Asked& asked) {
  List micro_batches;
  for (const int64_t size : asked.micro_batches) micro_batches.emplace_back(size);
  BatchRequest request;
  request.micro_batches = &micro_batches;
  request.batch_max = asked.batch_max;
  request.gpus_min = asked.gpus_min;
  request.gpus_max = asked.gpus_max;
  request.prefer_larger = asked.prefer_larger;
  request.behaviour = asked.behaviour;
  return ChooseBatch(request);
}

TEST(Batch, DocumentedExample) {
  const Result<Batch> batch = Choose({{4, 2}, Value(8), Value(1), Value(4)});
  ASSERT_TRUE(batch.ok());
  EXPECT_EQ(batch->size, 8);
  EXPECT_THAT(batch->gpus->counts, ElementsAre(1, 2, 4));
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
    Asked asked{{}, Value(64 + below(1000))};
    for (int64_t i = 0; i <= below(5); ++i) asked.micro_batches.push_back(1 + below(64));
    const int64_t min = 1 + below(6);
    const int64_t max = min + below(200);
    asked.gpus_min = Value(min);
    asked.gpus_max = Value(max);
    const Result<Batch> batch = Choose(asked);
    ASSERT_TRUE(batch.ok());
    if (!batch->gpus) continue;
    const std::set<int64_t> tried = Tried(batch->size, asked.micro_batches, min, max);
    ASSERT_EQ(batch->gpus->counts, std::vector<int64_t>(tried.begin(), tried.end())) << batch->size;
  }
}

TEST(Batch, LeastCommonMultipleMayExceedTheLargestBatchInOldVersions) {
  Asked asked{{6, 8}, Value(9)};
  EXPECT_EQ(Choose(asked)->size, 24);
  asked.behaviour = Behaviour::kDeepSpeed0197;
  EXPECT_EQ(Choose(asked)->size, 8);
}

TEST(Batch, OfEquallyGoodOnesTheLargerOrTheSmaller) {
  Asked asked{{5, 7}, Value(9), Value(1), Value(1)};
  EXPECT_EQ(Choose(asked)->size, 35);
  asked.prefer_larger = false;
  EXPECT_EQ(Choose(asked)->size, 5);
}

TEST(Batch, WithoutAnyCountThereIsALargerSizeOrNothing) {
  Asked asked{{5, 7}, Value(9), Value(100), Value(200)};
  EXPECT_EQ(Choose(asked)->size, 35);
  EXPECT_THAT(Choose(asked)->gpus->counts, IsEmpty());
  asked.prefer_larger = false;
  EXPECT_EQ(Choose(asked)->size, 5);
  EXPECT_EQ(Choose(asked)->gpus, std::nullopt);
}

TEST(Batch, NumpysNumbersAreSeenInTexts) {
  EXPECT_EQ(Choose({{4, 6}, Value(8)})->gpus->Repr(), "[1, np.int64(2), np.int64(3)]");
  EXPECT_EQ(Choose({{4, 2}, Value(8)})->gpus->Repr(), "[1, 2, 4]");
  EXPECT_EQ(Choose({{15, 56, 35, 14}, Value(549)})->gpus->Repr(),
            "[1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, np.int64(15), 20, np.int64(24), 28, 30, np.int64(56), np.int64(60)]");
  EXPECT_EQ(Choose({{15, 56, 35, 14}, Value(549), Value(std::nan(""))})->gpus->Repr(),
            "[1, 2, 3, 4, 5, 6, 7, 8, 10, 12, 14, 15, 20, 28, 30]");
  GpuCounts floats{{2, 4}, {false, true}, true};
  EXPECT_EQ(floats.Repr(), "[2.0, np.float64(4.0)]");
}

TEST(Batch, OverflowIsNumpys) {
  // The least common multiple of these is far above 2^64; the wrapped number is negative, or none of theirs.
  const std::vector<int64_t> primes = {2,  3,  5,  7,  11, 13, 17, 19, 23, 29,  31,  37,  41,  43,  47, 53,
                                       59, 61, 67, 71, 73, 79, 83, 89, 97, 101, 103, 107, 109, 113, 127};
  const Result<Batch> batch = Choose({primes, Value(1000), Value(1), Value(10000), false});
  ASSERT_TRUE(batch.ok());
  EXPECT_GT(batch->size, 0);
}

TEST(Batch, UnusualLimits) {
  EXPECT_THAT(Choose({{2}, Value(12), Value(1.5), Value(3.5)})->gpus->counts, ElementsAre(2, 3));
  EXPECT_THAT(Choose({{2}, Value(12), Value(true), Value(true)})->gpus->counts, ElementsAre(1));
  EXPECT_THAT(Choose({{2}, Value(12), Value(1), Value(kInfinity)})->gpus->counts, ElementsAre(1, 2, 3, 6));
  EXPECT_THAT(Choose({{2}, Value(12), Value(1), Value(0)})->gpus->counts, ElementsAre(1, 2, 3, 6));  // not set
  // Comparisons with NaN are false: a GPU for each micro batch is left out, all else stays.
  EXPECT_THAT(Choose({{2}, Value(12), Value(std::nan("")), Value(4)})->gpus->counts, ElementsAre(1, 2, 3));
  EXPECT_THAT(Choose({{2}, Value(12), Value(2), Value(std::nan(""))})->gpus->counts, ElementsAre(2, 3));
  EXPECT_EQ(Choose({{2}, Value(kInfinity)})->size, 2 * 720720);
  EXPECT_EQ(Choose({{1}, Value(2.5)})->size, 2);
}

TEST(Batch, Refusals) {
  EXPECT_EQ(Choose({{4, 9}, Value(8.5)}).error().message,
            "All micro batches must be less than             or equal to max_acceptable_batch_size: 8.5");
  EXPECT_EQ(Choose({{4}, Value(std::nan(""))}).error().type, "ValueError");
  EXPECT_EQ(Choose({{4}, Value()}).error().type, "TypeError");
  EXPECT_EQ(Choose({{}, Value(8)}).error().type, "UFuncTypeError");
  EXPECT_EQ(Choose({{}, Value(8), Value(1), Value(0)}).error().type, "ValueError");
  const List truths = {Value(true)};
  BatchRequest request;
  request.micro_batches = &truths;
  request.batch_max = request.gpus_min = request.gpus_max = Value(4);
  EXPECT_EQ(ChooseBatch(request).error().type, "UFuncTypeError");
}

TEST(Batch, LimitsAreTakenAndNothingAbove) {
  EXPECT_TRUE(Choose({{kValueMax}, Value(kValueMax), Value(1), Value(kValueMax)}).ok());
  const Result<Batch> batch = Choose({{1}, Value(kValueMax + 1)});
  EXPECT_EQ(batch.error().type, kLimitError);
  EXPECT_THAT(batch.error().message, HasSubstr("max_train_batch_size is 1099511627777: at most 1099511627776"));
  EXPECT_EQ(Choose({{kValueMax + 1}, Value(kInfinity)}).error().type, kLimitError);
  EXPECT_EQ(Choose({{1}, Value(8), Value(1), Value(1e13)}).error().type, kLimitError);
  EXPECT_EQ(Choose({{1}, Value(8), Value(kValueMax + 1), Value(kInfinity)}).error().type, kLimitError);
  EXPECT_TRUE(Choose({std::vector<int64_t>(kMicroBatchesMax, 2), Value(8)}).ok());
  EXPECT_EQ(Choose({std::vector<int64_t>(kMicroBatchesMax + 1, 2), Value(8)}).error().type, kLimitError);
}

TEST(Batch, EndsForTheLargestNumbers) {
  std::mt19937_64 random(1);
  Asked asked{{}, Value(kInfinity), Value(1), Value(kValueMax)};
  for (size_t i = 0; i < kMicroBatchesMax; ++i) {
    asked.micro_batches.push_back(static_cast<int64_t>(1 + random() % kValueMax));
  }
  EXPECT_TRUE(Choose(asked).ok());
  asked.batch_max = Value(kValueMax);
  EXPECT_TRUE(Choose(asked).ok());
}

}  // namespace
}  // namespace phalanx::elasticity
