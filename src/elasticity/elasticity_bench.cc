// How fast plans are made, for bench/elasticity.py.
//
//   phalanx-elasticity-bench PASSES < rows
//
// Rows are requests (rows.h) with all their members. Prints the seconds of CPU time of all passes over all of them: of
// configs that are parsed, as DeepSpeed is called with them, and of lines of JSON that are answered by lines of JSON.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <iostream>
#include <string>
#include <vector>

#include "elasticity/plan.h"
#include "elasticity/python_json.h"
#include "elasticity/rows.h"

namespace phalanx::elasticity {
namespace {

PlanRequest RequestOf(const Value& row) {
  PlanRequest request;
  request.ds_config = Find(row, "ds_config");
  request.target_version = Find(row, "target_version");
  request.world_size = *Find(row, "world_size");
  request.with_micro_batch = Truthy(*Find(row, "return_microbatch"));
  const Value* variables = Find(row, "env");
  const Value* world_size = variables != nullptr ? Find(*variables, "WORLD_SIZE") : nullptr;
  if (world_size != nullptr) request.world_size_variable = Str(*world_size);
  return request;
}

// Something of each answer, so that none is left out as unused.
size_t Weigh(const Result<Plan>& plan) {
  if (!plan.ok()) return plan.error().message.size();
  return plan->gpus ? plan->gpus->counts.size() : 0;
}

template <typename Pass>
double CpuSecondsOf(int64_t passes, Pass pass) {
  const std::clock_t begin = std::clock();
  for (int64_t i = 0; i < passes; ++i) pass();
  return static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
}

int Measure(int64_t passes) {
  std::vector<std::string> lines;
  std::vector<Value> rows;
  for (std::string line; std::getline(std::cin, line);) {
    Result<Value> row = ReadJson(line);
    if (!row.ok()) return 2;
    rows.push_back(*std::move(row));
    lines.push_back(std::move(line));
  }
  std::vector<PlanRequest> requests;
  requests.reserve(rows.size());
  for (const Value& row : rows) requests.push_back(RequestOf(row));
  size_t weight = 0;
  const auto plan_all = [&] {
    for (const PlanRequest& request : requests) weight += Weigh(ComputePlan(request));
  };
  const auto answer_all = [&] {
    for (const std::string& line : lines) weight += AnswerRow(line, Behaviour::kDeepSpeed0165).size();
  };
  const double parsed_s = CpuSecondsOf(passes, plan_all);
  const double lines_s = CpuSecondsOf(passes, answer_all);
  std::printf("{\"parsed_s\":%.9f,\"lines_s\":%.9f,\"weight\":%zu}\n", parsed_s, lines_s, weight);
  return 0;
}

}  // namespace
}  // namespace phalanx::elasticity

int main(int argc, char** argv) {
  const int64_t passes = argc == 2 ? std::atoll(argv[1]) : 0;
  if (passes < 1) {
    std::fputs("usage: phalanx-elasticity-bench PASSES < rows\n", stderr);
    return 2;
  }
  return phalanx::elasticity::Measure(passes);
}
