// What DeepSpeed's compute_elastic_config answers: which batch size, which GPU counts, which micro batch. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elasticity/batch.h"
#include "elasticity/config.h"

namespace phalanx::elasticity {

enum class Behaviour {
  kDeepSpeed0165,  // and before
  kDeepSpeed0197   // never exceeds the largest batch; micro batches of version 0.1 need a world size
};

// World sizes and values (kValueMax) above are a kLimitError.
constexpr int64_t kWorldSizeMax = 10000000;

struct PlanRequest {
  int64_t world_size = 0;
  std::string target_version = "0.16.5";           // numbers and dots
  bool with_micro_batch = false;                   // return_microbatch
  std::optional<std::string> world_size_variable;  // WORLD_SIZE in the environment
  Behaviour behaviour = Behaviour::kDeepSpeed0165;
};

struct Plan {
  Int batch_size = 0;
  std::optional<GpuCounts> gpus;                      // nothing: None
  bool are_floats = false;                            // the counts
  bool has_micro_batch = false;                       // Python returns three values
  std::optional<int64_t> micro_batch = std::nullopt;  // nothing: none fits

  // A count as JSON and Python write it.
  std::string CountText(size_t index) const;
};

Result<Plan> ComputePlan(const Config& config, const PlanRequest& request);

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
// for which DeepSpeed says a batch of nothing are left out.
Result<std::vector<WorldSize>> FindWorldSizes(const Config& config, const PlanRequest& request, int64_t max);

}  // namespace phalanx::elasticity
