// The `elasticity` block of a DeepSpeed config, checked in DeepSpeed's order and refused in its words. Pure.
//
// DeepSpeed computes with whatever stands for a number, and says nothing of it or Python's words, which name no key.
// Here numbers are numbers: phalanx.elasticity, in Python, has all of the rest.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "elasticity/value.h"

namespace phalanx::elasticity {

struct RulesVersion {
  double number = 0.2;
  std::string text = "0.2";  // as it was given
  bool is_text = false;      // "0.1", not 0.1
};

struct Config {
  Number max_train_batch_size{2000};
  std::vector<int64_t> micro_batch_sizes = {2, 4, 6};  // above 0
  Number min_gpus{1};                                  // these five are checked: not too small
  Number max_gpus{10000};
  Number model_parallel_size{1};
  Number num_gpus_per_node{1};
  Number min_time{0};
  RulesVersion version;
  bool prefer_larger_batch = true;
};

Error ConfigError(std::string message);

Result<Config> ReadConfig(const Json& block);

// The block of a config that enables it.
Result<const Json*> FindBlock(const Json& ds_config);

// Whether what a scheduler has seen (the text of DEEPSPEED_ELASTICITY_CONFIG) is what the job runs with: the error says
// what differs. False where there is no such text.
Result<bool> EnsureImmutable(const Json& runtime_block, const std::optional<std::string>& scheduler_text);

}  // namespace phalanx::elasticity
