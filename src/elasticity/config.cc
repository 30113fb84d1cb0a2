#include "elasticity/config.h"

#include <algorithm>
#include <utility>

#include "elasticity/python_json.h"

namespace phalanx::elasticity {
namespace {

Error ConfigError(std::string message) { return {"ElasticityConfigError", std::move(message)}; }

Value Or(const Value* value, const Value& fallback) { return value != nullptr ? *value : fallback; }

Result<bool> IsBelow(const Value& value, const Value& bound) {
  PHX_TRY(const Order order, Compare(value, bound, "<"));
  return order == Order::kLess;
}

Result<bool> IsBelow(const Value& value, int bound) { return IsBelow(value, Value(bound)); }

// The largest batch and the micro batches: DeepSpeed has values for those of a block that is not enabled.
Result<Done> ReadBatches(const Value& block, Config* config) {
  const Value* enabled = Find(block, "enabled");
  const bool is_enabled = enabled != nullptr && Truthy(*enabled);
  const Value* largest = Find(block, "max_train_batch_size");
  const Value* micro = Find(block, "micro_batch_sizes");
  if (is_enabled && largest == nullptr) return ConfigError("Elasticity config missing max_train_batch_size");
  if (is_enabled && micro == nullptr) return ConfigError("Elasticity config missing micro_batch_sizes");
  config->max_train_batch_size = Or(largest, Value(2000));
  if (micro == nullptr) {
    config->micro_batch_sizes = {Value(2), Value(4), Value(6)};
    return Done{};
  }
  const List* sizes = micro->as<List>();
  if (sizes == nullptr) {
    return ConfigError("Elasticity expected value of micro_batch_sizes to be a list of micro batches, instead is: " +
                       TypeText(*micro) + ", containing: " + Str(*micro));
  }
  // The f before the list is DeepSpeed's.
  if (!std::all_of(sizes->begin(), sizes->end(), IsInt)) {
    return ConfigError("Elasticity expected micro_batch_sizes to only contain a list of integers, instead contains: f" +
                       Repr(*micro));
  }
  for (const Value& size : *sizes) {
    PHX_TRY(const Order order, Compare(size, Value(0), ">"));
    if (order == Order::kGreater) continue;
    return ConfigError("Elasticity expected micro_batch_sizes to only contain positive integers, instead contains: f" +
                       Repr(*micro));
  }
  config->micro_batch_sizes = *sizes;
  return Done{};
}

Result<Done> ReadGpuRange(const Value& block, Config* config) {
  config->min_gpus = Or(Find(block, "min_gpus"), Value(1));
  config->max_gpus = Or(Find(block, "max_gpus"), Value(10000));
  const auto given = [&] {
    return "given min_gpus: " + Str(config->min_gpus) + ", max_gpus: " + Str(config->max_gpus);
  };
  PHX_TRY(bool too_small, IsBelow(config->min_gpus, 1));
  if (!too_small) {
    PHX_TRY(too_small, IsBelow(config->max_gpus, 1));
  }
  if (too_small) return ConfigError("Elasticity min/max gpus must be > 0, " + given());
  PHX_TRY(const bool turned_round, IsBelow(config->max_gpus, config->min_gpus));
  if (turned_round) return ConfigError("Elasticity min_gpus cannot be greater than max_gpus, " + given());
  return Done{};
}

Result<Done> ReadSizes(const Value& block, Config* config) {
  config->model_parallel_size = Or(Find(block, "model_parallel_size"), Value(1));
  PHX_TRY(const bool few_parallel, IsBelow(config->model_parallel_size, 1));
  if (few_parallel) {
    return ConfigError("Model-Parallel size cannot be less than 1, given model-parallel size: " +
                       Str(config->model_parallel_size));
  }
  config->num_gpus_per_node = Or(Find(block, "num_gpus_per_node"), Value(1));
  PHX_TRY(const bool few_gpus, IsBelow(config->num_gpus_per_node, 1));
  if (few_gpus) {
    return ConfigError("Number of GPUs per node cannot be less than 1, given number of GPUs per node: " +
                       Str(config->num_gpus_per_node));
  }
  config->min_time = Or(Find(block, "min_time"), Value(0));
  PHX_TRY(const bool negative, IsBelow(config->min_time, 0));
  if (negative) return ConfigError("Elasticity min time needs to be >= 0: given " + Str(config->min_time));
  return Done{};
}

Result<Done> CheckDict(const Value& block) {
  if (block.as<Dict>() != nullptr) return Done{};
  return Error{"AttributeError", "the elasticity block should be a JSON object, and is " + TypeText(block)};
}

Error Mismatch(const char* what, const std::string& scheduler, const std::string& runtime) {
  return ConfigError("Elastic config '" + std::string(what) + "=" + scheduler +
                     "' seen by resource scheduler does not match config passed to runtime " + what + "=" + runtime);
}

}  // namespace

Result<Config> ReadConfig(const Value& block) {
  PHX_TRY_DONE(CheckDict(block));
  Result<Config> config = Config{};
  PHX_TRY_DONE(ReadBatches(block, &*config));
  PHX_TRY_DONE(ReadGpuRange(block, &*config));
  PHX_TRY_DONE(ReadSizes(block, &*config));
  config->version = Or(Find(block, "version"), Value(0.2));
  config->prefer_larger_batch = Or(Find(block, "prefer_larger_batch"), Value(true));
  return config;
}

Result<const Value*> FindBlock(const Value& ds_config) {
  if (ds_config.as<Dict>() == nullptr) {
    return Error{"ValueError", "Expected ds_config to be a dictionary but received a " + TypeText(ds_config) +
                                   ", containing: " + Str(ds_config)};
  }
  const Value* block = Find(ds_config, "elasticity");
  if (block == nullptr) {
    return ConfigError("'elasticity' is missing from config json, please add it if running an elastic training job.");
  }
  PHX_TRY_DONE(CheckDict(*block));
  const Value* enabled = Find(*block, "enabled");
  if (enabled == nullptr || !Truthy(*enabled)) {
    return ConfigError("Elasticity is disabled, please enable it ('enabled':true) if running an elastic training job.");
  }
  return block;
}

Result<bool> EnsureImmutable(const Value& runtime_block, const std::optional<std::string>& scheduler_text) {
  if (!scheduler_text) return false;
  PHX_TRY(const Value scheduler_block, ReadJson(*scheduler_text));
  PHX_TRY(const Config scheduler, ReadConfig(scheduler_block));
  PHX_TRY(const Config runtime, ReadConfig(runtime_block));
  if (!Equal(runtime.max_train_batch_size, scheduler.max_train_batch_size)) {
    return Mismatch("max_acceptable_batch_size", Str(scheduler.max_train_batch_size),
                    Str(runtime.max_train_batch_size));
  }
  const Value scheduler_sizes(scheduler.micro_batch_sizes);
  const Value runtime_sizes(runtime.micro_batch_sizes);
  if (!Equal(runtime_sizes, scheduler_sizes))
    return Mismatch("micro_batches", Str(scheduler_sizes), Str(runtime_sizes));
  if (!Equal(runtime.version, scheduler.version)) {
    return Mismatch("version", Str(scheduler.version), Str(runtime.version));
  }
  return true;
}

}  // namespace phalanx::elasticity
