#include "elasticity/rows.h"

#include <utility>

#include "elasticity/config.h"
#include "elasticity/plan.h"
#include "elasticity/python_json.h"

namespace phalanx::elasticity {
namespace {

constexpr const char* kVersion0165 = "0.16.5";
constexpr const char* kVersion0197 = "0.19.7";

std::string BeginAnswer(const Value& id) {
  std::string out = "{\"id\":";
  WriteJson(id, &out);
  return out + ",";
}

std::string ErrorAnswer(const Value& id, const Error& error) {
  std::string out = BeginAnswer(id) + "\"error\":{\"class\":";
  WriteJsonText(error.type, &out);
  out += ",\"message\":";
  WriteJsonText(error.message, &out);
  return out + "}}";
}

void WriteGpus(const std::optional<GpuCounts>& gpus, std::string* out) {
  if (!gpus) {
    out->append("null");
    return;
  }
  out->append("{\"list\":[");
  for (size_t i = 0; i < gpus->counts.size(); ++i) {
    if (i > 0) out->push_back(',');
    gpus->AppendCount(i, out);
  }
  out->append("]}");
}

std::string PlanAnswer(const Value& id, const Plan& plan) {
  std::string out = BeginAnswer(id) + "\"ok\":{\"final_batch_size\":" + Text(plan.batch_size) + ",\"valid_gpus\":";
  WriteGpus(plan.gpus, &out);
  if (plan.micro_batch) {
    out += ",\"micro_batch_size\":";
    WriteJson(*plan.micro_batch, &out);
  }
  return out + "}}";
}

Value IdOf(const Value& row) {
  const Value* id = Find(row, "id");
  return id != nullptr ? *id : Value();
}

Result<const Value*> FindMember(const Value& row, const char* name) {
  if (row.as<Dict>() == nullptr) return Error{kRequestError, "a request is a JSON object, this is " + TypeText(row)};
  const Value* member = Find(row, name);
  if (member == nullptr) return Error{kRequestError, "the request has no \"" + std::string(name) + "\""};
  return member;
}

Result<std::optional<std::string>> WorldSizeVariable(const Value& row) {
  const Value* variables = Find(row, "env");
  if (variables == nullptr || variables->as<std::monostate>() != nullptr) return std::optional<std::string>();
  if (variables->as<Dict>() == nullptr) {
    return Error{kRequestError, "\"env\" is an object of texts, this is " + TypeText(*variables)};
  }
  const Value* world_size = Find(*variables, "WORLD_SIZE");
  if (world_size == nullptr) return std::optional<std::string>();
  const auto* text = world_size->as<std::string>();
  if (text == nullptr) return Error{kRequestError, "WORLD_SIZE in \"env\" is a text, this is " + TypeText(*world_size)};
  return std::optional(*text);
}

Result<Plan> PlanRow(const Value& row, Behaviour behaviour) {
  PlanRequest request;
  request.behaviour = behaviour;
  PHX_TRY(request.ds_config, FindMember(row, "ds_config"));
  const Value own_version(std::string(behaviour == Behaviour::kDeepSpeed0197 ? kVersion0197 : kVersion0165));
  const Value* target_version = Find(row, "target_version");
  request.target_version = target_version != nullptr ? target_version : &own_version;
  const Value* world_size = Find(row, "world_size");
  if (world_size != nullptr) request.world_size = *world_size;
  const Value* with_micro_batch = Find(row, "return_microbatch");
  request.with_micro_batch = with_micro_batch != nullptr && Truthy(*with_micro_batch);
  PHX_TRY(request.world_size_variable, WorldSizeVariable(row));
  return ComputePlan(request);
}

Result<bool> CompareRow(const Value& row) {
  PHX_TRY(const Value* runtime, FindMember(row, "runtime"));
  PHX_TRY(const Value* scheduler, FindMember(row, "scheduler_env"));
  std::optional<std::string> text;
  if (const auto* given = scheduler->as<std::string>()) {
    text = *given;
  } else if (scheduler->as<std::monostate>() == nullptr) {
    WriteJson(*scheduler, &text.emplace());
  }
  return EnsureImmutable(*runtime, text);
}

std::string AnswerPlan(const Value& row, Behaviour behaviour) {
  const Result<Plan> plan = PlanRow(row, behaviour);
  return plan.ok() ? PlanAnswer(IdOf(row), *plan) : ErrorAnswer(IdOf(row), plan.error());
}

std::string AnswerComparison(const Value& row) {
  const Result<bool> compared = CompareRow(row);
  if (!compared.ok()) return ErrorAnswer(IdOf(row), compared.error());
  return BeginAnswer(IdOf(row)) + "\"ok\":" + (*compared ? "true" : "false") + "}";
}

std::string Answer(const Value& row, Behaviour behaviour) {
  return Find(row, "runtime") != nullptr ? AnswerComparison(row) : AnswerPlan(row, behaviour);
}

}  // namespace

std::optional<Behaviour> BehaviourNamed(std::string_view deepspeed_version) {
  if (deepspeed_version == kVersion0165) return Behaviour::kDeepSpeed0165;
  if (deepspeed_version == kVersion0197) return Behaviour::kDeepSpeed0197;
  return std::nullopt;
}

std::string AnswerRow(std::string_view line, Behaviour behaviour) {
  const Result<Value> row = ReadJson(line);
  return row.ok() ? Answer(*row, behaviour) : ErrorAnswer(Value(), row.error());
}

std::string AnswerRequest(std::string_view request) {
  const Result<Value> row = ReadJson(request);
  if (!row.ok()) return ErrorAnswer(Value(), row.error());
  const Value* version = Find(*row, "deepspeed_version");
  const std::optional<Behaviour> behaviour = BehaviourNamed(version != nullptr ? Str(*version) : kVersion0165);
  if (behaviour) return Answer(*row, *behaviour);
  return ErrorAnswer(IdOf(*row), {kRequestError, "deepspeed_version is " + Repr(*version) + ": it may be '" +
                                                     kVersion0165 + "' or '" + kVersion0197 + "'"});
}

}  // namespace phalanx::elasticity
