#include "elasticity/plan.h"

#include <algorithm>
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

// The micro batch for a world size that is given: the largest that fits. Of equal ones Python keeps the first.
Result<Value> LargestFitting(const Config& config, const Value& batch, const Value& world_size) {
  std::vector<const Value*> sizes;
  for (const Value& size : config.micro_batch_sizes) sizes.push_back(&size);
  std::sort(sizes.begin(), sizes.end(), [](const Value* a, const Value* b) {
    const Result<Order> order = Compare(*a, *b, ">");
    return order.ok() && *order == Order::kEqual ? a < b : order.ok() && *order == Order::kGreater;
  });
  for (const Value* size : sizes) {
    PHX_TRY(const bool fits, Splits(batch, world_size, *size));
    if (fits) return *size;
  }
  return Error{"AssertionError", "Unable to find divisible micro batch size world_size=" + Str(world_size) +
                                     ", final_batch_size=" + Str(batch) +
                                     ", and  micro_batches=" + Str(Value(config.micro_batch_sizes)) + "."};
}

// Batch, GPU counts and micro batch of version 0.2, which thinks in nodes.
struct NodePlan {
  Value batch;
  GpuCounts gpus;
  Value micro_batch;
};

// The batch and the GPU counts that suit any number of nodes, before one is given.
Result<NodePlan> PlanNodes(const Config& config, const Value& per_node, BatchRequest request) {
  const auto shared_out = [](const Value& total, const Value& over, Value* share) -> Result<Done> {
    PHX_TRY(const double quotient, Divide(total, over));
    PHX_TRY(const Int whole, Truncate(quotient));
    *share = Value(whole);
    return Done{};
  };
  PHX_TRY_DONE(shared_out(config.max_train_batch_size, per_node, &request.batch_max));
  PHX_TRY_DONE(shared_out(config.min_gpus, config.num_gpus_per_node, &request.gpus_min));
  PHX_TRY_DONE(shared_out(config.max_gpus, config.num_gpus_per_node, &request.gpus_max));
  PHX_TRY(const Batch batch, ChooseBatch(request));
  NodePlan plan;
  PHX_TRY(plan.batch, Multiply(Value(batch.size), per_node));
  if (!batch.gpus) return Error{"TypeError", "'NoneType' object is not iterable"};
  plan.gpus = *batch.gpus;
  plan.gpus.are_floats = per_node.as<double>() != nullptr;
  PHX_TRY(const Int factor, WholeOf(per_node));
  for (int64_t& count : plan.gpus.counts) count *= static_cast<int64_t>(factor);
  return plan;
}

// For a number of GPUs that no number of nodes suits: the largest batch that it can split, and itself.
Result<NodePlan> PlanExactly(const Config& config, const Value& gpus, const Value& per_node) {
  const bool prefer_larger = Truthy(config.prefer_larger_batch);
  PHX_TRY(const double nodes, Divide(gpus, config.num_gpus_per_node));
  PHX_TRY(const Value data_parallel, Multiply(Value(nodes), per_node));
  std::optional<double> best;
  for (const Value& micro_batch : config.micro_batch_sizes) {
    PHX_TRY(const Value step, Multiply(micro_batch, data_parallel));
    PHX_TRY(const double steps, Divide(config.max_train_batch_size, step));
    PHX_TRY(const Int whole_steps, Floor(steps));
    const double batch = static_cast<double>(whole_steps) * *step.as<double>();
    if (!best || (prefer_larger ? batch > *best : batch < *best)) best = batch;
  }
  if (!best) return Error{"ValueError", "max() arg is an empty sequence"};
  NodePlan plan;
  plan.batch = Value(*best);
  PHX_TRY(plan.micro_batch, FirstFitting(config, prefer_larger, plan.batch, gpus));
  PHX_TRY(const Int count, Truncate(*data_parallel.as<double>()));
  plan.gpus = {{static_cast<int64_t>(count)}, {false}, false};
  return plan;
}

Result<NodePlan> PlanByNodes(const Config& config, const Value& gpus, BatchRequest request) {
  PHX_TRY(const Value rest, Modulo(config.num_gpus_per_node, config.model_parallel_size));
  if (!Equal(rest, Value(0))) {
    return Error{"ElasticityError", "In Elasticity v0.2, number of GPUs per node:" + Str(config.num_gpus_per_node) +
                                        " should be divisible by model parallel size " +
                                        Str(config.model_parallel_size)};
  }
  PHX_TRY(const Value per_node, FloorDivide(config.num_gpus_per_node, config.model_parallel_size));
  PHX_TRY(NodePlan plan, PlanNodes(config, per_node, std::move(request)));
  PHX_TRY(const Value groups, FloorDivide(gpus, config.model_parallel_size));
  if (!plan.gpus.Contains(groups)) return PlanExactly(config, gpus, per_node);
  PHX_TRY(plan.micro_batch, FirstFitting(config, Truthy(config.prefer_larger_batch), plan.batch, gpus));
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
  PHX_TRY(Batch batch, ChooseBatch(batch_request));
  PHX_TRY_DONE(CheckLimit("the world size", request.world_size, kWorldSizeMax));
  return Plan{batch.size, std::move(batch.gpus), std::nullopt};
}

// Leaves the micro batch in the plan, whether it is asked for or not.
Result<Plan> PlanVersion02(const PlanRequest& request, const Config& config) {
  Value gpus = request.world_size;
  if (Equal(gpus, Value(0))) {
    PHX_TRY(gpus, WorldSizeFromVariable(request, "Elasticity V 0.2 needs WORLD_SIZE to compute valid batch size."));
  }
  BatchRequest batch_request = RequestOf(config, request);
  batch_request.too_large = FindTooLarge(config, gpus);
  Result<NodePlan> nodes = PlanByNodes(config, gpus, batch_request);
  if (!nodes.ok()) {  // where the arithmetic gave up first, the reason is still what the config says
    return nodes.error().type == kLimitError ? batch_request.too_large.value_or(nodes.error()) : nodes.error();
  }
  PHX_TRY(const Int batch_size, WholeOf(nodes->batch));
  return Plan{batch_size, std::move((*nodes).gpus), std::move((*nodes).micro_batch)};
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

}  // namespace

Result<Plan> ComputePlan(const PlanRequest& request) {
  PHX_TRY(const Value* block, FindBlock(*request.ds_config));
  PHX_TRY(const Config config, ReadConfig(*block));
  PHX_TRY(const double version, CheckVersion(config));
  PHX_TRY_DONE(CheckTargetVersion(*request.target_version));
  if (version != 0.1 && version != 0.2) {
    return Error{"NotImplementedError", "Unable to find elastic logic for version: " + Str(config.version)};
  }
  const bool by_nodes = version == 0.2;
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

}  // namespace phalanx::elasticity
