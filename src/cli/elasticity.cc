#include "cli/elasticity.h"

#include <fmt/compile.h>
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <utility>

#include "cli/rows.h"
#include "elasticity/config.h"

namespace phalanx::cli {
namespace {

using elasticity::Error;
using elasticity::OneLine;
using elasticity::Plan;
using elasticity::PlanRequest;
using elasticity::Result;
using elasticity::WorldSize;
using Cells = std::vector<std::vector<std::string>>;

constexpr int kRefusedSize = 1;
constexpr int kNoPlan = 2;
// Of long tables and lists a person sees both ends.
constexpr size_t kRowsShown = 40;
constexpr size_t kRangesShown = 24;
constexpr size_t kTail = 8;

ElasticityAnswer Refuse(const ElasticityQuery& query, const Error& error) {
  ElasticityAnswer answer;
  answer.exit_code = error.type == "ElasticityIncompatibleWorldSize" ? kRefusedSize : kNoPlan;
  answer.complaint = error.type + ": " + error.message;
  if (query.json) {
    elasticity::Json refusal;
    refusal["error"]["class"] = error.type;
    refusal["error"]["message"] = error.message;
    answer.text = OneLine(refusal) + "\n";
  }
  return answer;
}

Result<elasticity::Config> ReadQuery(const ElasticityQuery& query) {
  PHX_TRY(const elasticity::Json config, elasticity::ReadJson(query.config));
  PHX_TRY(const elasticity::Json* block, elasticity::FindBlock(config));
  return elasticity::ReadConfig(*block);
}

PlanRequest RequestOf(const ElasticityQuery& query) {
  PlanRequest request;
  request.target_version = query.target_version;
  request.world_size = query.world_size;
  request.world_size_variable = query.world_size_variable;
  request.behaviour = query.behaviour;
  return request;
}

// ---- plan ----

std::string RangeText(int64_t first, int64_t last) {
  return first == last ? fmt::format("{}", first) : fmt::format("{}-{}", first, last);
}

// "1-4, 6, 8"
std::string CountsText(const std::vector<int64_t>& counts) {
  std::vector<std::string> ranges;
  for (size_t begin = 0; begin < counts.size();) {
    size_t end = begin + 1;
    while (end < counts.size() && counts[end] == counts[end - 1] + 1) ++end;
    ranges.push_back(RangeText(counts[begin], counts[end - 1]));
    begin = end;
  }
  if (ranges.size() > kRangesShown) {
    ranges.erase(ranges.begin() + (kRangesShown - kTail), ranges.end() - kTail);
    ranges.insert(ranges.end() - kTail, "...");
  }
  return counts.empty() ? "none" : fmt::format("{} ({} of them)", fmt::join(ranges, ", "), counts.size());
}

// Steps of a GPU for one batch, of a plan for a world size.
std::string AccumulationText(const ElasticityQuery& query, const Plan& plan) {
  return elasticity::Text(plan.batch_size / query.world_size / *plan.micro_batch);
}

std::string PlanText(const ElasticityQuery& query, const Plan& plan) {
  Cells rows = {{"final batch", elasticity::Text(plan.batch_size)},
                {"valid world sizes", plan.gpus ? CountsText(plan.gpus->counts) : "none"}};
  if (query.world_size > 0) {
    rows.push_back({"world size", fmt::format("{}", query.world_size)});
    rows.push_back({"micro batch", fmt::format("{}", *plan.micro_batch)});
    rows.push_back({"accumulation steps", AccumulationText(query, plan)});
  }
  return Table(rows);
}

std::string PlanJson(const ElasticityQuery& query, const Plan& plan) {
  std::string out = "{\"final_batch_size\":" + elasticity::Text(plan.batch_size) + ",\"valid_gpus\":";
  out += plan.gpus ? fmt::format("[{}]", fmt::join(plan.gpus->counts, ",")) : "null";
  if (query.world_size > 0) {
    out += fmt::format(",\"world_size\":{},\"micro_batch_size\":{},\"gradient_accumulation_steps\":{}",
                       query.world_size, *plan.micro_batch, AccumulationText(query, plan));
  }
  return out + "}\n";
}

// ---- explain ----

struct GpuRange {
  int64_t min = 1;
  int64_t max = 1;
};

// What counts of GPUs there are from min_gpus to max_gpus.
Result<GpuRange> RangeOf(const elasticity::Config& config) {
  for (const auto& [name, number] : {std::pair("min_gpus", config.min_gpus), std::pair("max_gpus", config.max_gpus)}) {
    if (number.value <= static_cast<double>(elasticity::kExplainedMax)) continue;
    return Error{elasticity::kLimitError, fmt::format("{} is {}: world sizes are explained up to {}", name,
                                                      Text(number), elasticity::kExplainedMax)};
  }
  return GpuRange{static_cast<int64_t>(std::ceil(config.min_gpus.value)),
                  static_cast<int64_t>(std::floor(config.max_gpus.value))};
}

std::string ExplainText(const std::vector<WorldSize>& sizes, const GpuRange& range) {
  const std::vector<SizeRange> folded = FoldSizes(sizes, range.min, range.max);
  Cells rows = {{"GPUS", "WORLD SIZE", "MICRO BATCH", "ACCUMULATION", "FINAL BATCH", "IDLE"}};
  const bool is_long = folded.size() > kRowsShown;
  for (size_t i = 0; i < folded.size(); ++i) {
    if (is_long && i == kRowsShown - kTail) {
      rows.push_back(
          {"...", "", "", "", "", fmt::format("({} more rows: --json has all)", folded.size() - kRowsShown)});
      i = folded.size() - kTail;
    }
    const SizeRange& it = folded[i];
    const std::string gpus = RangeText(it.gpus_first, it.gpus_last);
    if (!it.first) {
      rows.push_back({gpus, "-", "-", "-", "-", "all"});
      continue;
    }
    const std::string batch = elasticity::Text(it.first->batch_size);
    const std::string last_batch = elasticity::Text(it.last->batch_size);
    rows.push_back({gpus, RangeText(it.first->world_size, it.last->world_size),
                    fmt::format("{}", it.first->micro_batch), elasticity::Text(it.first->accumulation),
                    batch == last_batch ? batch : fmt::format("{}-{}", batch, last_batch),
                    RangeText(0, it.gpus_last - it.last->world_size)});
  }
  return fmt::format("{} of the {} world sizes from {} to {} are valid\n\n{}", sizes.size(), range.max - range.min + 1,
                     range.min, range.max, Table(rows));
}

// One line for each number of GPUs.
std::string ExplainJson(const std::vector<WorldSize>& sizes, const GpuRange& range) {
  constexpr size_t kLineBytes = 160;
  std::string out = fmt::format(R"({{"min_gpus":{},"max_gpus":{},"gpus":[)", range.min, range.max);
  out.reserve(out.size() + static_cast<size_t>(range.max - range.min + 2) * kLineBytes);
  const auto end = std::back_inserter(out);
  auto next = sizes.begin();
  std::string split =
      R"("world_size":null,"micro_batch_size":null,"gradient_accumulation_steps":null,"final_batch_size":null)";
  int64_t used = 0;
  for (int64_t gpus = range.min; gpus <= range.max; ++gpus) {
    if (next != sizes.end() && next->world_size == gpus) {
      split.clear();
      fmt::format_to(
          std::back_inserter(split),
          FMT_COMPILE(
              R"("world_size":{},"micro_batch_size":{},"gradient_accumulation_steps":{},"final_batch_size":{})"),
          gpus, next->micro_batch, next->accumulation, next->batch_size);
      used = gpus;
      ++next;
    }
    fmt::format_to(end, FMT_COMPILE(R"({}{{"gpus":{},{},"idle_gpus":{}}})"), gpus == range.min ? "\n" : ",\n", gpus,
                   split, gpus - used);
  }
  out += "\n]}\n";
  return out;
}

Result<std::string> Explain(const ElasticityQuery& query) {
  PHX_TRY(const elasticity::Config config, ReadQuery(query));
  PHX_TRY(const GpuRange range, RangeOf(config));
  PHX_TRY(std::vector<WorldSize> sizes, FindWorldSizes(config, RequestOf(query), range.max));
  std::erase_if(sizes, [&](const WorldSize& size) { return size.world_size < range.min; });
  return query.json ? ExplainJson(sizes, range) : ExplainText(sizes, range);
}

Result<std::string> MakePlan(const ElasticityQuery& query) {
  PHX_TRY(const elasticity::Config config, ReadQuery(query));
  PHX_TRY(const Plan plan, ComputePlan(config, RequestOf(query)));
  return query.json ? PlanJson(query, plan) : PlanText(query, plan);
}

ElasticityAnswer AnswerOf(const ElasticityQuery& query, Result<std::string> text) {
  return text.ok() ? ElasticityAnswer{*std::move(text), "", 0} : Refuse(query, text.error());
}

}  // namespace

ElasticityAnswer TellPlan(const ElasticityQuery& query) { return AnswerOf(query, MakePlan(query)); }

ElasticityAnswer ExplainSizes(const ElasticityQuery& query) { return AnswerOf(query, Explain(query)); }

std::vector<SizeRange> FoldSizes(const std::vector<WorldSize>& sizes, int64_t min, int64_t max) {
  std::vector<SizeRange> folded;
  const int64_t begin = sizes.empty() ? max + 1 : sizes.front().world_size;
  if (min < begin) folded.push_back({min, begin - 1, std::nullopt, std::nullopt});
  for (size_t i = 0; i < sizes.size(); ++i) {
    const WorldSize& size = sizes[i];
    const int64_t gpus_last = (i + 1 < sizes.size() ? sizes[i + 1].world_size : max + 1) - 1;
    SizeRange* before = folded.empty() || !folded.back().first ? nullptr : &folded.back();
    const bool goes_on = before != nullptr && before->last->world_size == size.world_size - 1 &&
                         gpus_last == size.world_size && before->last->micro_batch == size.micro_batch &&
                         before->last->accumulation == size.accumulation;
    if (goes_on) {
      before->gpus_last = gpus_last;
      before->last = size;
    } else {
      folded.push_back({size.world_size, gpus_last, size, size});
    }
  }
  return folded;
}

}  // namespace phalanx::cli
