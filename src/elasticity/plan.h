// What DeepSpeed's compute_elastic_config answers: which batch size, which GPU counts, which micro batch. Pure.
#pragma once

#include <optional>
#include <string>

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

}  // namespace phalanx::elasticity
