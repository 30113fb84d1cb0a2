#include "elasticity/plan.h"

#include <algorithm>
#include <numeric>
#include <utility>
#include <vector>

#include "elasticity/config.h"
#include "elasticity/target_version.h"

namespace phalanx::elasticity {
namespace {

constexpr double kLatestVersion = 0.2;

Result<bool> IsAbove(const Value& value, const Value& bound) {
  PHX_TRY(const Order order, Compare(value, bound, ">"));
  return order == Order::kGreater;
}

// `batch // gpus % micro_batch == 0`
Result<bool> Splits(const Value& batch, const Value& gpus, const Value& micro_batch) {
  PHX_TRY(const Value share, FloorDivide(batch, gpus));
  PHX_TRY(const Value rest, Modulo(share, micro_batch));
  return Equal(rest, Value(0));
}

Result<Int> WholeOf(const Value& value) {
  if (const auto* real = value.as<double>()) return Truncate(*real);
  return *value.as<Int>();
}

// The version of the rules: 0.1 or 0.2.
Result<double> CheckVersion(const Config& config) {
  PHX_TRY(const bool is_parallel, IsAbove(config.model_parallel_size, Value(1)));
  PHX_TRY(const double version, ToFloat(config.version));
  if (is_parallel && version != 0.2) {
    return Error{"ElasticityConfigError", "Elasticity V" + Str(config.version) +
                                              " does not support model-parallel training. Given model-parallel size: " +
                                              Str(config.model_parallel_size)};
  }
  if (version > kLatestVersion) {
    return Error{"ElasticityConfigError", "Attempting to run elasticity version " + Str(config.version) +
                                              " but runtime only supports up to 0.2"};
  }
  return version;
}

// WORLD_SIZE as a number. `whose` begins the sentence that says what it is needed for.
Result<Value> WorldSizeFromVariable(const PlanRequest& request, const std::string& whose) {
  const std::optional<std::string>& text = request.world_size_variable;
  if (text && IsNumeric(*text)) return ToInt(*text);
  return Error{"ElasticityConfigError",
               whose +
                   " Either give it as argument to function compute_elastic_config or set it as an environment "
                   "variable. Value of WORLD_SIZE as environment variable is " +
                   text.value_or("None")};
}

// The micro batch of version 0.2: the first that fits, or the largest.
Result<Value> FirstFitting(const Config& config, bool prefer_larger, const Value& batch, const Value& gpus) {
  const Value* chosen = nullptr;
  for (const Value& micro_batch : config.micro_batch_sizes) {
    PHX_TRY(const bool fits, Splits(batch, gpus, micro_batch));
    if (!fits) continue;
    if (chosen == nullptr) chosen = &micro_batch;
    PHX_TRY(const bool is_larger, IsAbove(micro_batch, *chosen));
    if (prefer_larger && is_larger) chosen = &micro_batch;
  }
  return chosen != nullptr ? *chosen : Value();
}

// The micro batch for a world size that is given. Of equal ones Python keeps the first.
Result<Value> LargestFitting(const Config& config, const Value& batch, const Value& world_size) {
  const Value* chosen = nullptr;
  for (const Value& size : config.micro_batch_sizes) {
    PHX_TRY(const bool fits, Splits(batch, world_size, size));
    if (!fits) continue;
    PHX_TRY(const bool is_larger, chosen == nullptr ? true : IsAbove(size, *chosen));
    if (is_larger) chosen = &size;
  }
  if (chosen != nullptr) return *chosen;
  return Error{"AssertionError", "Unable to find divisible micro batch size world_size=" + Str(world_size) +
                                     ", final_batch_size=" + Str(batch) +
                                     ", and  micro_batches=" + Str(Value(config.micro_batch_sizes)) + "."};
}

// Batch and GPU counts of version 0.2, which thinks in nodes.
struct NodePlan {
  Value batch;
  GpuCounts gpus;
  Value per_node;  // data-parallel groups
};

// The batch and the GPU counts that suit any number of nodes, before one is given.
Result<NodePlan> PlanNodes(const Config& config, BatchRequest request) {
  PHX_TRY(const Value rest, Modulo(config.num_gpus_per_node, config.model_parallel_size));
  if (!Equal(rest, Value(0))) {
    return Error{"ElasticityError", "In Elasticity v0.2, number of GPUs per node:" + Str(config.num_gpus_per_node) +
                                        " should be divisible by model parallel size " +
                                        Str(config.model_parallel_size)};
  }
  NodePlan plan;
  PHX_TRY(plan.per_node, FloorDivide(config.num_gpus_per_node, config.model_parallel_size));
  const auto shared_out = [](const Value& total, const Value& over, Value* share) -> Result<Done> {
    PHX_TRY(const double quotient, Divide(total, over));
    PHX_TRY(const Int whole, Truncate(quotient));
    *share = Value(whole);
    return Done{};
  };
  PHX_TRY_DONE(shared_out(config.max_train_batch_size, plan.per_node, &request.batch_max));
  PHX_TRY_DONE(shared_out(config.min_gpus, config.num_gpus_per_node, &request.gpus_min));
  PHX_TRY_DONE(shared_out(config.max_gpus, config.num_gpus_per_node, &request.gpus_max));
  PHX_TRY(Batch batch, ChooseBatch(request));
  PHX_TRY(plan.batch, Multiply(Value(batch.size), plan.per_node));
  if (!batch.gpus) return Error{"TypeError", "'NoneType' object is not iterable"};
  plan.gpus = *std::move(batch.gpus);
  plan.gpus.are_floats = plan.per_node.as<double>() != nullptr;
  PHX_TRY(const Int factor, WholeOf(plan.per_node));
  for (int64_t& count : plan.gpus.counts) count *= static_cast<int64_t>(factor);
  return plan;
}

// What the plan for a number of GPUs that no number of nodes suits is made of: Python computes it in floats.
struct ExactNumbers {
  std::vector<double> micro_batches;
  double batch_max = 0;
  double gpus_per_node = 0;
  double groups_per_node = 0;
  bool prefer_larger = true;
};

Result<ExactNumbers> ToExactNumbers(const Config& config, const Value& per_node) {
  ExactNumbers numbers;
  for (const Value& micro_batch : config.micro_batch_sizes) {
    PHX_TRY(numbers.micro_batches.emplace_back(), ToFloat(micro_batch));
  }
  PHX_TRY(numbers.batch_max, ToFloat(config.max_train_batch_size));
  PHX_TRY(numbers.gpus_per_node, ToFloat(config.num_gpus_per_node));
  PHX_TRY(numbers.groups_per_node, ToFloat(per_node));
  numbers.prefer_larger = Truthy(config.prefer_larger_batch);
  return numbers;
}

// The largest batch that these GPUs can split (or the smallest of the largest), and how many groups they are.
struct ExactPlan {
  double batch = 0;
  double groups = 0;
};

Result<ExactPlan> PlanExactly(const ExactNumbers& numbers, double gpus) {
  ExactPlan plan;
  plan.groups = gpus / numbers.gpus_per_node * numbers.groups_per_node;
  bool is_first = true;
  for (const double micro_batch : numbers.micro_batches) {
    const double step = micro_batch * plan.groups;
    if (step == 0) return Error{"ZeroDivisionError", "float division by zero"};
    PHX_TRY(const Int steps, Floor(numbers.batch_max / step));
    const double batch = static_cast<double>(steps) * step;
    if (is_first || (numbers.prefer_larger ? batch > plan.batch : batch < plan.batch)) plan.batch = batch;
    is_first = false;
  }
  return plan;
}

// What suits the nodes, if these GPUs are one of its counts.
Result<bool> SuitsNodes(const Config& config, const NodePlan& nodes, const Value& gpus) {
  PHX_TRY(const Value groups, FloorDivide(gpus, config.model_parallel_size));
  return nodes.gpus.Contains(groups);
}

// The plan with its micro batch, whether that is asked for or not.
Result<Plan> PlanByNodes(const Config& config, const Value& gpus, BatchRequest request) {
  const bool prefer_larger = Truthy(config.prefer_larger_batch);
  PHX_TRY(NodePlan nodes, PlanNodes(config, std::move(request)));
  PHX_TRY(const bool is_whole, SuitsNodes(config, nodes, gpus));
  Plan plan;
  Value batch = nodes.batch;
  plan.gpus = std::move(nodes.gpus);
  if (!is_whole) {
    PHX_TRY(const ExactNumbers numbers, ToExactNumbers(config, nodes.per_node));
    PHX_TRY(const double count, ToFloat(gpus));
    PHX_TRY(const ExactPlan exact, PlanExactly(numbers, count));
    batch = Value(exact.batch);
    PHX_TRY(plan.micro_batch, FirstFitting(config, prefer_larger, batch, gpus));
    PHX_TRY(const Int groups, Truncate(exact.groups));
    plan.gpus = GpuCounts{{static_cast<int64_t>(groups)}, {}, false};
  } else {
    PHX_TRY(plan.micro_batch, FirstFitting(config, prefer_larger, batch, gpus));
  }
  PHX_TRY(plan.batch_size, WholeOf(batch));
  return plan;
}

std::optional<Error> FindTooLarge(const Config& config, const Value& world_size) {
  const auto check = [&]() -> Result<Done> {
    PHX_TRY_DONE(CheckLimit("max_train_batch_size", config.max_train_batch_size, kValueMax));
    PHX_TRY_DONE(CheckLimit("min_gpus", config.min_gpus, kValueMax));
    PHX_TRY_DONE(CheckLimit("max_gpus", config.max_gpus, kValueMax));
    PHX_TRY_DONE(CheckLimit("num_gpus_per_node", config.num_gpus_per_node, kValueMax));
    PHX_TRY_DONE(CheckLimit("model_parallel_size", config.model_parallel_size, kValueMax));
    return CheckLimit("the world size", world_size, kWorldSizeMax);
  };
  const Result<Done> checked = check();
  return checked.ok() ? std::nullopt : std::optional(checked.error());
}

// Without the numbers, which the versions make differently.
BatchRequest RequestOf(const Config& config, const PlanRequest& request) {
  BatchRequest batch_request;
  batch_request.micro_batches = &config.micro_batch_sizes;
  batch_request.prefer_larger = Truthy(config.prefer_larger_batch);
  batch_request.behaviour = request.behaviour;
  return batch_request;
}

Result<Plan> PlanVersion01(const PlanRequest& request, const Config& config) {
  BatchRequest batch_request = RequestOf(config, request);
  batch_request.batch_max = config.max_train_batch_size;
  batch_request.gpus_min = config.min_gpus;
  batch_request.gpus_max = config.max_gpus;
  Result<Batch> batch = ChooseBatch(batch_request);
  if (!batch.ok()) return batch.error();
  PHX_TRY_DONE(CheckLimit("the world size", request.world_size, kWorldSizeMax));
  return Plan{batch->size, std::move(batch->gpus), std::nullopt};
}

Result<Plan> PlanVersion02(const PlanRequest& request, const Config& config) {
  Value gpus = request.world_size;
  if (Equal(gpus, Value(0))) {
    PHX_TRY(gpus, WorldSizeFromVariable(request, "Elasticity V 0.2 needs WORLD_SIZE to compute valid batch size."));
  }
  BatchRequest batch_request = RequestOf(config, request);
  batch_request.too_large = FindTooLarge(config, gpus);
  Result<Plan> plan = PlanByNodes(config, gpus, batch_request);
  // Where the arithmetic gave up first, the reason is still what the config says.
  if (!plan.ok() && plan.error().type == kLimitError) return batch_request.too_large.value_or(plan.error());
  return plan;
}

Result<Done> CheckWorldSize(const Value& world_size, const std::optional<GpuCounts>& gpus) {
  if (!gpus) return Error{"TypeError", "argument of type 'NoneType' is not iterable"};
  if (gpus->Contains(world_size)) return Done{};
  return Error{
      "ElasticityIncompatibleWorldSize",
      "World size (" + Str(world_size) + ") is not valid with the current list of valid GPU counts: " + gpus->Repr()};
}

// The world size that version 0.1 takes a micro batch for where none was given as an argument.
Result<Value> LateWorldSize(const PlanRequest& request, const Config& config, const std::optional<GpuCounts>& gpus) {
  if (request.behaviour == Behaviour::kDeepSpeed0165) return request.world_size;
  Value world_size = request.world_size;
  PHX_TRY(const Order order, Compare(world_size, Value(0), "<="));
  if (order == Order::kLess || order == Order::kEqual) {
    PHX_TRY(world_size, WorldSizeFromVariable(request, "Elasticity V " + Str(config.version) +
                                                           " needs WORLD_SIZE to compute a micro batch size."));
    PHX_TRY_DONE(CheckLimit("the world size", world_size, kWorldSizeMax));
  }
  PHX_TRY_DONE(CheckWorldSize(world_size, gpus));
  return world_size;
}

Result<Config> ReadConfigOf(const PlanRequest& request) {
  PHX_TRY(const Value* block, FindBlock(*request.ds_config));
  return ReadConfig(*block);
}

// Whether the config's version thinks in nodes: what is checked behind the config, and before its numbers are looked
// at.
Result<bool> CheckVersions(const PlanRequest& request, const Config& config) {
  PHX_TRY(const double version, CheckVersion(config));
  PHX_TRY_DONE(CheckTargetVersion(*request.target_version));
  if (version == 0.1 || version == 0.2) return version == 0.2;
  return Error{"NotImplementedError", "Unable to find elastic logic for version: " + Str(config.version)};
}

// The sizes of `world_sizes` that can split what `batch_for` says of them; it says nothing of those that do not work.
template <typename BatchFor>
Result<std::vector<WorldSize>> Split(const Config& config, const std::vector<int64_t>& world_sizes,
                                     BatchFor batch_for) {
  std::vector<int64_t> sizes;
  for (const Value& size : config.micro_batch_sizes) {
    sizes.push_back(size.as<bool>() != nullptr ? 1 : static_cast<int64_t>(*size.as<Int>()));
  }
  std::sort(sizes.rbegin(), sizes.rend());
  std::vector<WorldSize> found;
  for (const int64_t world_size : world_sizes) {
    PHX_TRY(const std::optional<Int> batch, batch_for(world_size));
    if (!batch || *batch < world_size) continue;
    const Int share = *batch / world_size;
    const auto fits = std::find_if(sizes.begin(), sizes.end(), [&](int64_t size) { return share % size == 0; });
    if (fits != sizes.end()) found.push_back({world_size, *fits, share / *fits, *batch});
  }
  return found;
}

Result<std::vector<WorldSize>> SplitByNodes(const PlanRequest& request, const Config& config, int64_t max) {
  BatchRequest batch_request = RequestOf(config, request);
  batch_request.too_large = FindTooLarge(config, Value(max));
  PHX_TRY(const NodePlan nodes, PlanNodes(config, batch_request));
  PHX_TRY(const Int for_nodes, WholeOf(nodes.batch));
  PHX_TRY(const ExactNumbers numbers, ToExactNumbers(config, nodes.per_node));
  std::vector<int64_t> all(static_cast<size_t>(max));
  std::iota(all.begin(), all.end(), int64_t{1});
  return Split(config, all, [&](int64_t world_size) -> Result<std::optional<Int>> {
    const Value gpus(world_size);
    PHX_TRY(const bool is_whole, SuitsNodes(config, nodes, gpus));
    if (is_whole) return nodes.gpus.Contains(gpus) ? std::optional(for_nodes) : std::nullopt;
    PHX_TRY(const ExactPlan exact, PlanExactly(numbers, static_cast<double>(world_size)));
    PHX_TRY(const Int groups, Truncate(exact.groups));
    PHX_TRY(const Int batch, Truncate(exact.batch));
    return groups == world_size ? std::optional(batch) : std::nullopt;
  });
}

}  // namespace

Result<Plan> ComputePlan(const PlanRequest& request) {
  const Result<Config> read = ReadConfigOf(request);
  if (!read.ok()) return read.error();
  const Config& config = *read;
  PHX_TRY(const bool by_nodes, CheckVersions(request, config));
  PHX_TRY(Plan plan, by_nodes ? PlanVersion02(request, config) : PlanVersion01(request, config));
  PHX_TRY(const bool is_given, IsAbove(request.world_size, Value(0)));
  if (is_given) {
    PHX_TRY_DONE(CheckWorldSize(request.world_size, plan.gpus));
    PHX_TRY(plan.micro_batch, LargestFitting(config, Value(plan.batch_size), request.world_size));
  } else if (!request.with_micro_batch) {
    plan.micro_batch.reset();
  } else if (!by_nodes) {
    PHX_TRY(const Value world_size, LateWorldSize(request, config, plan.gpus));
    PHX_TRY(plan.micro_batch, LargestFitting(config, Value(plan.batch_size), world_size));
  }
  return plan;
}

Result<std::vector<WorldSize>> FindWorldSizes(const PlanRequest& request, int64_t max) {
  PHX_TRY_DONE(CheckLimit("the largest world size", Value(max), kExplainedMax));
  PHX_TRY(const Config config, ReadConfigOf(request));
  PHX_TRY(const bool by_nodes, CheckVersions(request, config));
  if (by_nodes) return SplitByNodes(request, config, std::max<int64_t>(max, 0));
  PHX_TRY(const Plan plan, PlanVersion01(request, config));
  std::vector<int64_t> counts = plan.gpus ? plan.gpus->counts : std::vector<int64_t>();
  counts.erase(std::upper_bound(counts.begin(), counts.end(), max), counts.end());
  return Split(config, counts, [&](int64_t) -> Result<std::optional<Int>> { return std::optional(plan.batch_size); });
}

}  // namespace phalanx::elasticity
