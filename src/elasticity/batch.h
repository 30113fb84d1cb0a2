// DeepSpeed's choice of a batch size: the one that works with the most GPU counts. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elasticity/python_value.h"

namespace phalanx::elasticity {

// Beyond DeepSpeed's rules: what is larger is a kLimitError.
constexpr size_t kMicroBatchesMax = 1000;
constexpr int64_t kValueMax = int64_t{1} << 40;
constexpr int64_t kWorldSizeMax = 10000000;

enum class Behaviour {
  kDeepSpeed0165,  // and before
  kDeepSpeed0197   // never exceeds the largest batch; micro batches of version 0.1 need a world size
};

// A list of GPU counts as DeepSpeed's functions pass it on. Some elements are numpy's: that is seen where it is
// printed.
struct GpuCounts {
  std::vector<int64_t> counts;  // ascending
  std::vector<bool> is_numpy;   // empty: none is
  bool are_floats = false;

  bool Contains(const Value& count) const;
  // As JSON and Python write it.
  void AppendCount(size_t index, std::string* out) const;
  std::string Repr() const;
};

struct BatchRequest {
  const List* micro_batches = nullptr;  // ints above 0
  Value batch_max;
  Value gpus_min;
  Value gpus_max;
  bool prefer_larger = true;
  // What is too large of the numbers that these were made of. It is told where DeepSpeed would go on and compute.
  std::optional<Error> too_large;
  Behaviour behaviour = Behaviour::kDeepSpeed0165;
};

struct Batch {
  int64_t size = 0;
  std::optional<GpuCounts> gpus;  // nothing where Python has None: no size was better than none
};

Result<Batch> ChooseBatch(const BatchRequest& request);

// kLimitError where a finite number is above `max`; `name` is what it is called in the config.
Result<Done> CheckLimit(const char* name, const Value& value, int64_t max);

}  // namespace phalanx::elasticity
