#include "elasticity/job_sizes.h"

#include <algorithm>

#include "elasticity/config.h"
#include "elasticity/plan.h"
#include "elasticity/python_json.h"

namespace phalanx::elasticity {
namespace {

constexpr double kMinutesMax = 10.0 * 365 * 24 * 60;
constexpr double kMsPerMinute = 60'000;

// DeepSpeed is asked with the number of data-parallel groups, which are more than one rank in version 0.2 alone.
Result<int64_t> RanksPerGroup(const Config& config) {
  PHX_TRY_DONE(CheckLimit("model_parallel_size", config.model_parallel_size, kValueMax));
  PHX_TRY(const double ranks, ToFloat(config.model_parallel_size));
  const auto whole = static_cast<int64_t>(ranks);
  if (static_cast<double>(whole) == ranks) return whole;
  return Error{kLimitError, "model_parallel_size is " + Str(config.model_parallel_size) +
                                ": a job is launched with whole groups of ranks"};
}

Result<int64_t> RoundMsMin(const Config& config) {
  PHX_TRY(const double minutes, ToFloat(config.min_time));
  if (minutes >= 0 && minutes <= kMinutesMax) return static_cast<int64_t>(minutes * kMsPerMinute);
  return Error{kLimitError, "min_time is " + Str(config.min_time) + ": expected minutes, from 0 to 10 years"};
}

// `max`, or max_gpus where that is less: what is above need not be looked through.
Result<int64_t> RanksMax(const Config& config, int64_t max) {
  PHX_TRY(const Order order, Compare(config.max_gpus, Value(max), "<"));
  if (order != Order::kLess) return max;
  PHX_TRY(const double gpus_max, ToFloat(config.max_gpus));
  return static_cast<int64_t>(gpus_max);
}

Result<bool> IsWithin(int64_t ranks, const Config& config) {
  PHX_TRY(const Order to_min, Compare(Value(ranks), config.min_gpus, "<"));
  PHX_TRY(const Order to_max, Compare(Value(ranks), config.max_gpus, ">"));
  return to_min != Order::kLess && to_max != Order::kGreater;
}

}  // namespace

Result<std::string> ReadBlock(std::string_view config_text) {
  PHX_TRY(const Value config, ReadJson(config_text));
  PHX_TRY(const Value* block, FindBlock(config));
  std::string text;
  WriteJson(*block, &text);
  if (text.size() <= kBlockBytesMax) return text;
  return Error{kLimitError, "the elasticity block has " + Text(static_cast<Int>(text.size())) + " bytes: at most " +
                                Text(static_cast<Int>(kBlockBytesMax)) + " are taken"};
}

Result<JobSizes> FindJobSizes(std::string_view block_text, int64_t max) {
  PHX_TRY(Value block, ReadJson(block_text));
  const Value ds_config(Dict{Member{"elasticity", std::move(block)}});
  const Value target(std::string("0.16.5"));
  PlanRequest request;
  request.ds_config = &ds_config;
  request.target_version = &target;
  PHX_TRY(const Value* checked, FindBlock(ds_config));
  PHX_TRY(const Config config, ReadConfig(*checked));
  PHX_TRY(const int64_t ranks_per_group, RanksPerGroup(config));
  JobSizes sizes;
  PHX_TRY(sizes.round_ms_min, RoundMsMin(config));
  PHX_TRY(const int64_t ranks_max, RanksMax(config, std::min(max, kExplainedMax)));
  PHX_TRY(const std::vector<WorldSize> granted, FindWorldSizes(request, ranks_max / ranks_per_group));
  for (const WorldSize& size : granted) {
    const int64_t ranks = size.world_size * ranks_per_group;
    PHX_TRY(const bool is_within, IsWithin(ranks, config));
    if (is_within) sizes.world_sizes.push_back(static_cast<uint32_t>(ranks));
  }
  return sizes;
}

}  // namespace phalanx::elasticity
