#include "cli/elasticity_rows.h"

#include <utility>

#include "elasticity/config.h"

namespace phalanx::cli {
namespace {

using elasticity::Behaviour;
using elasticity::Error;
using elasticity::Find;
using elasticity::Json;
using elasticity::OneLine;
using elasticity::Plan;
using elasticity::Repr;
using elasticity::Result;
using elasticity::Truthy;
using elasticity::TypeText;

Error RequestError(std::string message) { return {elasticity::kRequestError, std::move(message)}; }

Result<const Json*> FindMember(const Json& row, const char* name) {
  if (!row.is_object()) return RequestError("a request is a JSON object, this is " + TypeText(row));
  const Json* member = Find(row, name);
  if (member == nullptr) return RequestError("the request has no \"" + std::string(name) + "\"");
  return member;
}

Result<std::optional<std::string>> WorldSizeVariable(const Json& row) {
  const Json* variables = Find(row, "env");
  if (variables == nullptr || variables->is_null()) return std::optional<std::string>();
  if (!variables->is_object()) {
    return RequestError("\"env\" is an object of texts, this is " + TypeText(*variables));
  }
  const Json* world_size = Find(*variables, "WORLD_SIZE");
  if (world_size == nullptr) return std::optional<std::string>();
  if (world_size->is_string()) return std::optional(world_size->get<std::string>());
  return RequestError("WORLD_SIZE in \"env\" is a text, this is " + TypeText(*world_size));
}

Result<elasticity::PlanRequest> ReadRequest(const Json& row, Behaviour behaviour) {
  elasticity::PlanRequest request;
  request.behaviour = behaviour;
  request.target_version = behaviour == Behaviour::kDeepSpeed0197 ? "0.19.7" : "0.16.5";
  if (const Json* target = Find(row, "target_version")) {
    if (!target->is_string()) return Error{"InvalidVersion", "Invalid version: " + Repr(*target)};
    request.target_version = target->get<std::string>();
  }
  if (const Json* world_size = Find(row, "world_size")) {
    if (!world_size->is_number_integer() || world_size->get<double>() >= 0x1p63) {
      return RequestError("\"world_size\" is " + Repr(*world_size) + ": it should be a whole number");
    }
    request.world_size = world_size->get<int64_t>();
  }
  const Json* with_micro_batch = Find(row, "return_microbatch");
  request.with_micro_batch = with_micro_batch != nullptr && Truthy(*with_micro_batch);
  PHX_TRY(request.world_size_variable, WorldSizeVariable(row));
  return request;
}

Result<std::string> PlanText(const Json& row, Behaviour behaviour) {
  PHX_TRY(const Json* ds_config, FindMember(row, "ds_config"));
  PHX_TRY(const elasticity::PlanRequest request, ReadRequest(row, behaviour));
  PHX_TRY(const Json* block, elasticity::FindBlock(*ds_config));
  PHX_TRY(const elasticity::Config config, elasticity::ReadConfig(*block));
  PHX_TRY(const Plan plan, ComputePlan(config, request));
  std::string out = "{\"final_batch_size\":" + elasticity::Text(plan.batch_size) + ",\"valid_gpus\":";
  out += plan.gpus ? "{\"list\":[" : "null";
  for (size_t i = 0; plan.gpus && i < plan.gpus->counts.size(); ++i) {
    if (i > 0) out += ',';
    out += plan.CountText(i);
  }
  if (plan.gpus) out += "]}";
  if (plan.has_micro_batch) {
    out += ",\"micro_batch_size\":" + (plan.micro_batch ? std::to_string(*plan.micro_batch) : "null");
  }
  return out + "}";
}

Result<std::string> ComparisonText(const Json& row) {
  PHX_TRY(const Json* runtime, FindMember(row, "runtime"));
  PHX_TRY(const Json* scheduler, FindMember(row, "scheduler_env"));
  std::optional<std::string> text;
  if (!scheduler->is_null()) text = scheduler->is_string() ? scheduler->get<std::string>() : OneLine(*scheduler);
  PHX_TRY(const bool compared, elasticity::EnsureImmutable(*runtime, text));
  return std::string(compared ? "true" : "false");
}

}  // namespace

std::string AnswerRow(std::string_view line, Behaviour behaviour) {
  const Result<Json> row = elasticity::ReadJson(line);
  const Json* id = row.ok() ? Find(*row, "id") : nullptr;
  const std::string begin = "{\"id\":" + (id != nullptr ? OneLine(*id) : "null");
  const auto answer = [&]() -> Result<std::string> {
    if (!row.ok()) return row.error();
    return Find(*row, "runtime") != nullptr ? ComparisonText(*row) : PlanText(*row, behaviour);
  }();
  if (answer.ok()) return begin + ",\"ok\":" + *answer + "}";
  Json refusal;
  refusal["class"] = answer.error().type;
  refusal["message"] = answer.error().message;
  return begin + ",\"error\":" + OneLine(refusal) + "}";
}

}  // namespace phalanx::cli
