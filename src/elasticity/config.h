// The `elasticity` block of a DeepSpeed config, checked in DeepSpeed's order and refused in its words. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "elasticity/python_value.h"

namespace phalanx::elasticity {

// What DeepSpeed does not look at is kept as it was given: the largest batch may be a text here.
struct Config {
  Value max_train_batch_size;
  List micro_batch_sizes;  // ints, some may be bools, all above 0
  Value min_gpus;          // these five are numbers, and not too small: but they may be NaN
  Value max_gpus;
  Value model_parallel_size;
  Value num_gpus_per_node;
  Value min_time;
  Value version;
  Value prefer_larger_batch;
};

Result<Config> ReadConfig(const Value& block);

// The block of a config that enables it.
Result<const Value*> FindBlock(const Value& ds_config);

// Whether what a scheduler has seen (the text of DEEPSPEED_ELASTICITY_CONFIG) is what the job runs with: the error says
// what differs. False where there is no such text.
Result<bool> EnsureImmutable(const Value& runtime_block, const std::optional<std::string>& scheduler_text);

}  // namespace phalanx::elasticity
