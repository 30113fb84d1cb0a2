#include "elasticity/job_sizes.h"

#include <algorithm>
#include <cmath>

#include "elasticity/plan.h"

namespace phalanx::elasticity {

Result<std::string> ReadBlock(std::string_view config_text) {
  PHX_TRY(const Json config, ReadJson(config_text));
  PHX_TRY(const Json* block, FindBlock(config));
  std::string text = OneLine(*block);
  if (text.size() <= kBlockBytesMax) return text;
  return Error{kLimitError, "the elasticity block has " + std::to_string(text.size()) + " bytes: at most " +
                                std::to_string(kBlockBytesMax) + " are taken"};
}

Result<JobSizes> FindJobSizes(std::string_view block_text, int64_t max) {
  constexpr double kMinutesMax = 10.0 * 365 * 24 * 60;
  constexpr double kMsPerMinute = 60'000;
  Json ds_config;
  PHX_TRY(ds_config["elasticity"], ReadJson(block_text));
  PHX_TRY(const Json* block, FindBlock(ds_config));
  PHX_TRY(const Config config, ReadConfig(*block));
  // DeepSpeed is asked with the number of data-parallel groups, which are more than one rank in version 0.2 alone.
  const Number group = config.model_parallel_size;
  if (group.value > static_cast<double>(kValueMax) || group.value != std::trunc(group.value)) {
    return Error{kLimitError,
                 "model_parallel_size is " + Text(group) + ": a job is launched with whole groups of ranks"};
  }
  const auto ranks_per_group = static_cast<int64_t>(group.value);
  if (config.min_time.value > kMinutesMax) {
    return Error{kLimitError, "min_time is " + Text(config.min_time) + ": expected minutes, from 0 to 10 years"};
  }
  JobSizes sizes;
  sizes.round_ms_min = static_cast<int64_t>(config.min_time.value * kMsPerMinute);
  const double ranks_max = std::min(config.max_gpus.value, static_cast<double>(std::min(max, kExplainedMax)));
  PHX_TRY(const std::vector<WorldSize> granted,
          FindWorldSizes(config, PlanRequest(), static_cast<int64_t>(ranks_max) / ranks_per_group));
  for (const WorldSize& size : granted) {
    const int64_t ranks = size.world_size * ranks_per_group;
    if (static_cast<double>(ranks) >= config.min_gpus.value) sizes.world_sizes.push_back(static_cast<uint32_t>(ranks));
  }
  return sizes;
}

}  // namespace phalanx::elasticity
