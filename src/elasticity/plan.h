// What DeepSpeed's compute_elastic_config answers: which batch size, which GPU counts, which micro batch. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elasticity/batch.h"
#include "elasticity/python_value.h"

namespace phalanx::elasticity {

struct PlanRequest {
  const Value* ds_config = nullptr;                // any JSON value
  const Value* target_version = nullptr;           // a text, for DeepSpeed
  Value world_size = Value(0);                     // a number, for DeepSpeed
  bool with_micro_batch = false;                   // return_microbatch
  std::optional<std::string> world_size_variable;  // WORLD_SIZE in the environment
  Behaviour behaviour = Behaviour::kDeepSpeed0165;
};

struct Plan {
  Int batch_size = 0;
  std::optional<GpuCounts> gpus;     // nothing: None
  std::optional<Value> micro_batch;  // where Python returns three values; None where no micro batch fits
};

Result<Plan> ComputePlan(const PlanRequest& request);

// What ComputePlan answers for a world size that it takes.
struct WorldSize {
  int64_t world_size = 0;
  int64_t micro_batch = 0;
  Int accumulation = 0;  // steps of a GPU for one batch
  Int batch_size = 0;
};

// One more is a kLimitError.
constexpr int64_t kExplainedMax = 1000000;

// All world sizes from 1 to `max` that the request would be granted with, ascending; its own is not looked at. Those
// for which DeepSpeed says a batch of nothing are left out. GPUs above one of them and below the next are idle, but for
// it.
Result<std::vector<WorldSize>> FindWorldSizes(const PlanRequest& request, int64_t max);

}  // namespace phalanx::elasticity
