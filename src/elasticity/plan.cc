#include "elasticity/plan.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <utility>

namespace phalanx::elasticity {
namespace {

// ---- what is checked before anything is computed ----

// The version of DeepSpeed that is to run. Python's rules take "0.4rc1", too.
Result<Done> CheckTargetVersion(const std::string& target) {
  const Error invalid{"InvalidVersion", "Invalid version: '" + target + "'"};
  std::vector<int64_t> release;
  const char* end = target.data() + target.size();
  for (const char* at = target.data();; ++at) {
    const bool is_digit = at != end && *at >= '0' && *at <= '9';
    const auto read = std::from_chars(at, end, release.emplace_back());
    if (!is_digit || read.ec != std::errc()) return invalid;
    at = read.ptr;
    if (at == end) break;
    if (*at != '.') return Error{invalid.type, invalid.message + ": only numbers and dots are taken here"};
  }
  if (release >= std::vector<int64_t>{0, 3, 8}) return Done{};
  return Error{"ElasticityError", "Target deepspeed version of " + target +
                                      " is not compatible with minimum version 0.3.8 supporting elasticity."};
}

// Whether the config's version of the rules is 0.2, which thinks in nodes.
Result<bool> CheckVersions(const Config& config, const PlanRequest& request) {
  const RulesVersion& version = config.version;
  if (config.model_parallel_size.value > 1 && version.number != 0.2) {
    return ConfigError(
        "Elasticity V" + version.text +
        " does not support model-parallel training. Given model-parallel size: " + Text(config.model_parallel_size));
  }
  if (version.number > 0.2) {
    return ConfigError("Attempting to run elasticity version " + version.text + " but runtime only supports up to 0.2");
  }
  PHX_TRY_DONE(CheckTargetVersion(request.target_version));
  if (version.number == 0.1 || version.number == 0.2) return version.number == 0.2;
  return Error{"NotImplementedError", "Unable to find elastic logic for version: " + version.text};
}

Result<Done> CheckLimit(const char* name, Number number, int64_t max) {
  if (number.value <= static_cast<double>(max)) return Done{};
  const std::string bound = ": at most " + std::to_string(max) + " is taken";
  return Error{kLimitError, std::string(name) + " is " + Text(number) + bound};
}

Result<Done> CheckLimits(const Config& config) {
  PHX_TRY_DONE(CheckLimit("max_train_batch_size", config.max_train_batch_size, kValueMax));
  PHX_TRY_DONE(CheckLimit("min_gpus", config.min_gpus, kValueMax));
  PHX_TRY_DONE(CheckLimit("max_gpus", config.max_gpus, kValueMax));
  PHX_TRY_DONE(CheckLimit("num_gpus_per_node", config.num_gpus_per_node, kValueMax));
  PHX_TRY_DONE(CheckLimit("model_parallel_size", config.model_parallel_size, kValueMax));
  const size_t sizes = config.micro_batch_sizes.size();
  if (sizes <= kMicroBatchesMax) return Done{};
  return Error{kLimitError, "micro_batch_sizes has " + std::to_string(sizes) + " elements: at most " +
                                std::to_string(kMicroBatchesMax) + " are taken"};
}

// WORLD_SIZE as a number. `whose` begins the sentence that says what it is needed for.
Result<int64_t> WorldSizeFromVariable(const PlanRequest& request, const std::string& whose) {
  const std::string text = request.world_size_variable.value_or("None");
  if (text.empty() || text.find_first_not_of("0123456789") != std::string::npos) {
    return ConfigError(whose +
                       " Either give it as argument to function compute_elastic_config or set it as an environment "
                       "variable. Value of WORLD_SIZE as environment variable is " +
                       text);
  }
  const Number size = {std::strtod(text.c_str(), nullptr)};
  PHX_TRY_DONE(CheckLimit("the world size", size, kWorldSizeMax));
  return static_cast<int64_t>(size.value);
}

// ---- batches ----

// Limits of 0, which version 0.2 may come to, are none.
Result<Batch> Choose(const Config& config, Behaviour behaviour, Number batch_max, double gpus_min, double gpus_max) {
  const std::vector<int64_t>& sizes = config.micro_batch_sizes;
  for (const int64_t size : sizes) {
    if (static_cast<double>(size) <= batch_max.value) continue;
    return Error{
        "ValueError",
        "All micro batches must be less than             or equal to max_acceptable_batch_size: " + Text(batch_max)};
  }
  if (sizes.empty() && gpus_max == 0) return Error{"ValueError", "min() arg is an empty sequence"};
  if (sizes.empty()) return Error{"UFuncTypeError", "numpy has no least common multiple of an empty list"};
  BatchRequest request;
  request.micro_batches = sizes;
  request.batch_max = static_cast<int64_t>(batch_max.value);  // nothing of the answer depends on the fraction
  request.gpus_min = std::max<int64_t>(1, static_cast<int64_t>(std::ceil(gpus_min)));
  request.gpus_max = static_cast<int64_t>(gpus_max);
  if (gpus_max == 0) request.gpus_max = request.batch_max / *std::min_element(sizes.begin(), sizes.end());
  request.prefer_larger = config.prefer_larger_batch;
  request.within_largest = behaviour == Behaviour::kDeepSpeed0197;
  return ChooseBatch(request);
}

bool Contains(const GpuCounts& gpus, double count) {
  return count == std::floor(count) &&
         std::binary_search(gpus.counts.begin(), gpus.counts.end(), static_cast<int64_t>(count));
}

// `batch // gpus % micro_batch == 0`
bool Splits(Int batch, int64_t gpus, int64_t micro_batch) { return FloorDivide(batch, Int{gpus}) % micro_batch == 0; }
bool Splits(double batch, int64_t gpus, int64_t micro_batch) {
  return std::fmod(FloorDivide(batch, static_cast<double>(gpus)), static_cast<double>(micro_batch)) == 0;
}

// The micro batch for these GPUs: the largest that fits, or the first.
template <typename Size>
std::optional<int64_t> Fitting(const Config& config, Size batch, int64_t gpus, bool largest) {
  std::optional<int64_t> chosen;
  for (const int64_t size : config.micro_batch_sizes) {
    if ((!chosen || (largest && size > *chosen)) && Splits(batch, gpus, size)) chosen = size;
  }
  return chosen;
}

// ---- version 0.2, which thinks in nodes ----

// The batch and the GPU counts that suit any number of nodes, before one is given.
struct NodePlan {
  Number per_node;  // data-parallel groups
  int64_t nodes_batch = 0;
  GpuCounts gpus;
};

Result<NodePlan> PlanNodes(const Config& config, Behaviour behaviour) {
  const Number per_node = config.num_gpus_per_node;
  const Number parallel = config.model_parallel_size;
  if (std::fmod(per_node.value, parallel.value) != 0) {
    return Error{"ElasticityError", "In Elasticity v0.2, number of GPUs per node:" + Text(per_node) +
                                        " should be divisible by model parallel size " + Text(parallel)};
  }
  NodePlan plan;
  plan.per_node = {FloorDivide(per_node.value, parallel.value), per_node.is_float || parallel.is_float};
  const Number batch_max = {std::trunc(config.max_train_batch_size.value / plan.per_node.value)};
  const double gpus_min = std::trunc(config.min_gpus.value / per_node.value);
  const double gpus_max = std::trunc(config.max_gpus.value / per_node.value);
  PHX_TRY(Batch batch, Choose(config, behaviour, batch_max, gpus_min, gpus_max));
  if (!batch.gpus) return Error{"TypeError", "'NoneType' object is not iterable"};
  plan.nodes_batch = batch.size;
  plan.gpus = *std::move(batch.gpus);
  for (int64_t& count : plan.gpus.counts) count *= static_cast<int64_t>(plan.per_node.value);
  return plan;
}

// What version 0.2 has for a number of GPUs: one of the plan for nodes, whose counts are left out, or a plan for this
// number alone.
Result<Plan> PlanSize(const Config& config, const NodePlan& nodes, int64_t gpus) {
  Plan plan;
  const auto real_gpus = static_cast<double>(gpus);
  const bool is_whole = Contains(nodes.gpus, FloorDivide(real_gpus, config.model_parallel_size.value));
  if (is_whole && !nodes.per_node.is_float) {
    plan.batch_size = Int{nodes.nodes_batch} * static_cast<int64_t>(nodes.per_node.value);
    plan.micro_batch = Fitting(config, plan.batch_size, gpus, config.prefer_larger_batch);
    return plan;
  }
  double batch = static_cast<double>(nodes.nodes_batch) * nodes.per_node.value;
  if (!is_whole) {  // the largest batch that these GPUs can split, or the smallest of the largest
    const double groups = real_gpus / config.num_gpus_per_node.value * nodes.per_node.value;
    if (groups == 0) return Error{"ZeroDivisionError", "float division by zero"};
    std::vector<double> batches;
    for (const int64_t size : config.micro_batch_sizes) {
      const double step = static_cast<double>(size) * groups;
      batches.push_back(std::floor(config.max_train_batch_size.value / step) * step);
    }
    const auto [smallest, largest] = std::minmax_element(batches.begin(), batches.end());
    batch = config.prefer_larger_batch ? *largest : *smallest;
    plan.gpus = GpuCounts{{static_cast<int64_t>(groups)}, {0}};
  }
  plan.batch_size = static_cast<Int>(batch);
  plan.micro_batch = Fitting(config, batch, gpus, config.prefer_larger_batch);
  return plan;
}

// ---- plans ----

Result<Plan> PlanVersion01(const Config& config, Behaviour behaviour) {
  PHX_TRY(Batch batch, Choose(config, behaviour, config.max_train_batch_size, config.min_gpus.value,
                              std::floor(config.max_gpus.value)));
  return Plan{batch.size, std::move(batch.gpus)};
}

Result<Plan> PlanVersion02(const Config& config, const PlanRequest& request) {
  int64_t gpus = request.world_size;
  if (gpus == 0) {
    PHX_TRY(gpus, WorldSizeFromVariable(request, "Elasticity V 0.2 needs WORLD_SIZE to compute valid batch size."));
  }
  PHX_TRY(NodePlan nodes, PlanNodes(config, request.behaviour));
  PHX_TRY(Plan plan, PlanSize(config, nodes, gpus));
  if (plan.gpus) return plan;
  plan.gpus = std::move(nodes.gpus);
  plan.are_floats = nodes.per_node.is_float;
  return plan;
}

Result<Done> CheckWorldSize(int64_t world_size, const Plan& plan) {
  if (!plan.gpus) return Error{"TypeError", "argument of type 'NoneType' is not iterable"};
  const auto& [counts, is_numpy] = *plan.gpus;
  if (std::binary_search(counts.begin(), counts.end(), world_size)) return Done{};
  std::string list;
  for (size_t i = 0; i < counts.size(); ++i) {
    if (i > 0) list += ", ";
    const char* kind = plan.are_floats ? "np.float64(" : "np.int64(";
    list += is_numpy[i] != 0 ? kind + plan.CountText(i) + ")" : plan.CountText(i);
  }
  return Error{"ElasticityIncompatibleWorldSize", "World size (" + std::to_string(world_size) +
                                                      ") is not valid with the current list of valid GPU counts: [" +
                                                      list + "]"};
}

}  // namespace

std::string Plan::CountText(size_t index) const {
  return Text(Number{static_cast<double>(gpus->counts[index]), are_floats});
}

Result<Plan> ComputePlan(const Config& config, const PlanRequest& request) {
  PHX_TRY(const bool by_nodes, CheckVersions(config, request));
  PHX_TRY_DONE(CheckLimits(config));
  PHX_TRY_DONE(CheckLimit("the world size", {static_cast<double>(request.world_size)}, kWorldSizeMax));
  PHX_TRY(Plan plan, by_nodes ? PlanVersion02(config, request) : PlanVersion01(config, request.behaviour));
  plan.has_micro_batch = request.with_micro_batch || request.world_size > 0;
  if (!plan.has_micro_batch || (by_nodes && request.world_size <= 0)) return plan;
  int64_t world_size = request.world_size;
  if (world_size <= 0 && request.behaviour == Behaviour::kDeepSpeed0197) {
    PHX_TRY(world_size, WorldSizeFromVariable(request, "Elasticity V " + config.version.text +
                                                           " needs WORLD_SIZE to compute a micro batch size."));
    PHX_TRY_DONE(CheckWorldSize(world_size, plan));
  }
  if (world_size == 0) return Error{"ZeroDivisionError", "integer division or modulo by zero"};
  if (request.world_size > 0) PHX_TRY_DONE(CheckWorldSize(world_size, plan));
  plan.micro_batch = Fitting(config, plan.batch_size, world_size, /*largest=*/true);
  if (plan.micro_batch) return plan;
  return Error{"AssertionError", "Unable to find divisible micro batch size world_size=" + std::to_string(world_size) +
                                     ", final_batch_size=" + Text(plan.batch_size) +
                                     ", and  micro_batches=" + Repr(config.micro_batch_sizes) + "."};
}

Result<std::vector<WorldSize>> FindWorldSizes(const Config& config, const PlanRequest& request, int64_t max) {
  PHX_TRY_DONE(CheckLimit("the largest world size", {static_cast<double>(max)}, kExplainedMax));
  PHX_TRY(const bool by_nodes, CheckVersions(config, request));
  PHX_TRY_DONE(CheckLimits(config));
  std::vector<WorldSize> found;
  const auto add = [&](int64_t world_size, Int batch) {
    const std::optional<int64_t> size = Fitting(config, batch, world_size, /*largest=*/true);
    if (batch >= world_size && size) found.push_back({world_size, *size, batch / world_size / *size, batch});
  };
  if (!by_nodes) {
    PHX_TRY(const Plan plan, PlanVersion01(config, request.behaviour));
    for (const int64_t count : plan.gpus ? plan.gpus->counts : std::vector<int64_t>()) {
      if (count <= max) add(count, plan.batch_size);
    }
    return found;
  }
  PHX_TRY(const NodePlan nodes, PlanNodes(config, request.behaviour));
  for (int64_t world_size = 1; world_size <= max; ++world_size) {
    PHX_TRY(const Plan plan, PlanSize(config, nodes, world_size));
    const GpuCounts& gpus = plan.gpus ? *plan.gpus : nodes.gpus;
    if (Contains(gpus, static_cast<double>(world_size))) add(world_size, plan.batch_size);
  }
  return found;
}

}  // namespace phalanx::elasticity
