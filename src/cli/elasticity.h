// What `phalanx elasticity` answers about a DeepSpeed config: its batch plan, and what that means for each number of
// GPUs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elasticity/plan.h"

namespace phalanx::cli {

struct ElasticityQuery {
  std::string config;      // the text of a DeepSpeed config
  int64_t world_size = 0;  // 0: not given
  std::string target_version;
  std::optional<std::string> world_size_variable;  // WORLD_SIZE in the environment
  elasticity::Behaviour behaviour = elasticity::Behaviour::kDeepSpeed0165;
  bool json = false;
};

struct ElasticityAnswer {
  std::string text;
  std::string complaint;  // why there is no plan, for people
  int exit_code = 0;      // 1: the config is good, and has no place for such a world size; 2: it has no plan
};

ElasticityAnswer TellPlan(const ElasticityQuery& query);

// For each number of GPUs from min_gpus to max_gpus.
ElasticityAnswer ExplainSizes(const ElasticityQuery& query);

// Numbers of GPUs with the same outcome: each is a world size of its own, or all use the largest one that fits.
struct SizeRange {
  int64_t gpus_first = 0;
  int64_t gpus_last = 0;
  std::optional<elasticity::WorldSize> first;  // nothing: no world size is small enough
  std::optional<elasticity::WorldSize> last;   // the first one too, or with the same micro batch and accumulation
};

// Without gaps from `min` to `max`. `sizes` ascend.
std::vector<SizeRange> FoldSizes(const std::vector<elasticity::WorldSize>& sizes, int64_t min, int64_t max);

}  // namespace phalanx::cli
