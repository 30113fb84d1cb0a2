#include "elasticity/config.h"

#include <algorithm>
#include <charconv>
#include <utility>

#include "elasticity/batch.h"

namespace phalanx::elasticity {
namespace {

Error NoNumber(const char* key, const Json& value) {
  return {kRequestError,
          std::string("'") + key + "' in the elasticity block is " + Repr(value) + ": it should be a number"};
}

Result<Done> ReadNumber(const Json& block, const char* key, Number* number) {
  const Json* value = Find(block, key);
  if (value == nullptr) return Done{};
  if (!value->is_number()) return NoNumber(key, *value);
  *number = {value->get<double>(), value->is_number_float()};
  return Done{};
}

Result<Done> ReadVersion(const Json& block, RulesVersion* version) {
  const Json* value = Find(block, "version");
  if (value == nullptr) return Done{};
  version->text = Str(*value);
  version->is_text = value->is_string();
  const char* end = version->text.data() + version->text.size();
  const auto read = std::from_chars(version->text.data(), end, version->number);
  if (read.ec == std::errc() && read.ptr == end && (value->is_number() || version->is_text)) return Done{};
  return NoNumber("version", *value);
}

bool IsEnabled(const Json& block) {
  const Json* enabled = Find(block, "enabled");
  return enabled != nullptr && Truthy(*enabled);
}

Result<Done> ReadMicroBatches(const Json& block, std::vector<int64_t>* sizes) {
  const Json* micro = Find(block, "micro_batch_sizes");
  if (micro == nullptr) return Done{};
  if (!micro->is_array()) {
    return ConfigError("Elasticity expected value of micro_batch_sizes to be a list of micro batches, instead is: " +
                       TypeText(*micro) + ", containing: " + Str(*micro));
  }
  const auto only = [&](const char* what) {  // the f before the list is DeepSpeed's
    return ConfigError("Elasticity expected micro_batch_sizes to only contain " + std::string(what) +
                       ", instead contains: f" + Repr(*micro));
  };
  const auto is_int = [](const Json& size) { return size.is_number_integer(); };
  if (!std::all_of(micro->begin(), micro->end(), is_int)) return only("a list of integers");
  sizes->clear();
  for (const Json& size : *micro) {
    if (size.get<double>() <= 0) return only("positive integers");
    if (size.get<double>() > static_cast<double>(kValueMax)) {
      return Error{kLimitError, "an element of micro_batch_sizes is " + Repr(size) + ": at most " +
                                    std::to_string(kValueMax) + " is taken"};
    }
    sizes->push_back(size.get<int64_t>());
  }
  return Done{};
}

Result<Done> CheckAtLeast(double least, Number number, const char* complaint) {
  if (number.value >= least) return Done{};
  return ConfigError(complaint + Text(number));
}

Result<Done> CheckSizes(const Config& config) {
  const auto given = [&] {
    return "given min_gpus: " + Text(config.min_gpus) + ", max_gpus: " + Text(config.max_gpus);
  };
  if (config.min_gpus.value < 1 || config.max_gpus.value < 1) {
    return ConfigError("Elasticity min/max gpus must be > 0, " + given());
  }
  if (config.max_gpus.value < config.min_gpus.value) {
    return ConfigError("Elasticity min_gpus cannot be greater than max_gpus, " + given());
  }
  PHX_TRY_DONE(CheckAtLeast(1, config.model_parallel_size,
                            "Model-Parallel size cannot be less than 1, given model-parallel size: "));
  PHX_TRY_DONE(CheckAtLeast(1, config.num_gpus_per_node,
                            "Number of GPUs per node cannot be less than 1, given number of GPUs per node: "));
  return CheckAtLeast(0, config.min_time, "Elasticity min time needs to be >= 0: given ");
}

Result<Done> CheckObject(const Json& block) {
  if (block.is_object()) return Done{};
  return Error{"AttributeError", "the elasticity block should be a JSON object, and is " + TypeText(block)};
}

}  // namespace

Error ConfigError(std::string message) { return {"ElasticityConfigError", std::move(message)}; }

Result<Config> ReadConfig(const Json& block) {
  PHX_TRY_DONE(CheckObject(block));
  Config config;
  PHX_TRY_DONE(ReadNumber(block, "max_train_batch_size", &config.max_train_batch_size));
  PHX_TRY_DONE(ReadNumber(block, "min_gpus", &config.min_gpus));
  PHX_TRY_DONE(ReadNumber(block, "max_gpus", &config.max_gpus));
  PHX_TRY_DONE(ReadNumber(block, "num_gpus_per_node", &config.num_gpus_per_node));
  PHX_TRY_DONE(ReadNumber(block, "model_parallel_size", &config.model_parallel_size));
  PHX_TRY_DONE(ReadNumber(block, "min_time", &config.min_time));
  PHX_TRY_DONE(ReadVersion(block, &config.version));
  for (const char* key : {"max_train_batch_size", "micro_batch_sizes"}) {
    const bool is_missing = IsEnabled(block) && Find(block, key) == nullptr;
    if (is_missing) return ConfigError("Elasticity config missing " + std::string(key));
  }
  PHX_TRY_DONE(ReadMicroBatches(block, &config.micro_batch_sizes));
  PHX_TRY_DONE(CheckSizes(config));
  const Json* prefer_larger = Find(block, "prefer_larger_batch");
  config.prefer_larger_batch = prefer_larger == nullptr || Truthy(*prefer_larger);
  return config;
}

Result<const Json*> FindBlock(const Json& ds_config) {
  if (!ds_config.is_object()) {
    return Error{"ValueError", "Expected ds_config to be a dictionary but received a " + TypeText(ds_config) +
                                   ", containing: " + Str(ds_config)};
  }
  const Json* block = Find(ds_config, "elasticity");
  if (block == nullptr) {
    return ConfigError("'elasticity' is missing from config json, please add it if running an elastic training job.");
  }
  PHX_TRY_DONE(CheckObject(*block));
  if (IsEnabled(*block)) return block;
  return ConfigError("Elasticity is disabled, please enable it ('enabled':true) if running an elastic training job.");
}

Result<bool> EnsureImmutable(const Json& runtime_block, const std::optional<std::string>& scheduler_text) {
  if (!scheduler_text) return false;
  PHX_TRY(const Json scheduler_block, ReadJson(*scheduler_text));
  PHX_TRY(const Config scheduler, ReadConfig(scheduler_block));
  PHX_TRY(const Config runtime, ReadConfig(runtime_block));
  const auto compare = [](const char* what, bool is_same, const std::string& seen, const std::string& own) {
    if (is_same) return Result<Done>(Done{});
    return Result<Done>(ConfigError("Elastic config '" + std::string(what) + "=" + seen +
                                    "' seen by resource scheduler does not match config passed to runtime " + what +
                                    "=" + own));
  };
  const Number seen = scheduler.max_train_batch_size;
  const Number own = runtime.max_train_batch_size;
  PHX_TRY_DONE(compare("max_acceptable_batch_size", seen.value == own.value, Text(seen), Text(own)));
  PHX_TRY_DONE(compare("micro_batches", scheduler.micro_batch_sizes == runtime.micro_batch_sizes,
                       Repr(scheduler.micro_batch_sizes), Repr(runtime.micro_batch_sizes)));
  const auto& [number, text, is_text] = scheduler.version;
  const bool is_same =
      runtime.version.is_text == is_text && (is_text ? runtime.version.text == text : runtime.version.number == number);
  PHX_TRY_DONE(compare("version", is_same, text, runtime.version.text));
  return true;
}

}  // namespace phalanx::elasticity
