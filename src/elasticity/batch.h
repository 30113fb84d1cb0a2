// DeepSpeed's choice of a batch size: the one that works with the most GPU counts. Pure, and part of what ranks load.
#pragma once

#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace phalanx::elasticity {

// Beyond DeepSpeed's rules: nothing larger is taken.
constexpr size_t kMicroBatchesMax = 1000;
constexpr int64_t kValueMax = int64_t{1} << 40;
constexpr int64_t kInfinite = std::numeric_limits<int64_t>::max();  // as a limit

struct BatchRequest {
  std::span<const int64_t> micro_batches;  // 1 to kMicroBatchesMax of them, each from 1 to batch_max and kValueMax
  int64_t batch_max = 1;                   // this and the next two: from 1 to kValueMax, or kInfinite
  int64_t gpus_min = 1;
  int64_t gpus_max = 1;
  bool prefer_larger = true;    // of two batches with as many counts
  bool within_largest = false;  // DeepSpeed 0.19.7: the least common multiple, too, is at most batch_max
  bool with_whole = true;       // counts that take all of a batch in one step; without them where a limit is NaN
};

// GPU counts as DeepSpeed's functions pass them on. Some are numpy's: that is seen where they are printed.
struct GpuCounts {
  std::vector<int64_t> counts;    // ascending
  std::vector<uint8_t> is_numpy;  // of each
};

struct Batch {
  int64_t size = 0;
  std::optional<GpuCounts> gpus;  // nothing where Python has None: no size was better than none
};

// Whether ChooseBatch takes it: whoever reads the numbers from outside asks before.
bool IsWithinLimits(const BatchRequest& request);

Batch ChooseBatch(const BatchRequest& request);

}  // namespace phalanx::elasticity
