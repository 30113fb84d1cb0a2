// Requests as anybody may write them: bytes that are no JSON, configs of any shape, numbers of any size. Each has an
// answer, in time.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "elasticity/config.h"
#include "elasticity/plan.h"
#include "elasticity/python_json.h"
#include "elasticity/rows.h"

namespace phalanx::elasticity {
namespace {

void CheckAnswer(const std::string& answer) {
  const Result<Value> read = ReadJson(answer);
  PHX_CHECK(read.ok(), "an answer that is no JSON");
  PHX_CHECK((Find(*read, "ok") != nullptr) != (Find(*read, "error") != nullptr), "an answer that is both, or neither");
}

void CheckValue(const Value& value) {
  std::string text;
  WriteJson(value, &text);
  const Result<Value> again = ReadJson(text);
  PHX_CHECK(again.ok() && Repr(*again) == Repr(value), "a value that changes when it is written");
  const bool is_text = value.as<std::string>() != nullptr;
  PHX_CHECK(is_text || !Str(value).empty(), "a value without a text");
}

// The bytes as an elasticity block, for all world sizes that matter.
void CheckPlans(const std::string& block) {
  for (const char* rest :
       {R"(,"world_size":0)", R"(,"world_size":8)", R"(,"return_microbatch":1,"env":{"WORLD_SIZE":"6"})"}) {
    const std::string row = R"({"ds_config":{"elasticity":)" + block + "}" + rest + "}";
    CheckAnswer(AnswerRow(row, Behaviour::kDeepSpeed0165));
    CheckAnswer(AnswerRow(row, Behaviour::kDeepSpeed0197));
  }
  CheckAnswer(AnswerRequest(R"({"runtime":)" + block + R"(,"scheduler_env":)" + block + "}"));
}

}  // namespace
}  // namespace phalanx::elasticity

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::elasticity;
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckAnswer(AnswerRequest(text));
  const Result<Value> value = ReadJson(text);
  if (!value.ok()) {
    PHX_CHECK(!value.error().message.empty(), "a refusal without a reason");
    return 0;
  }
  CheckValue(*value);
  CheckPlans(text);
  return 0;
}
