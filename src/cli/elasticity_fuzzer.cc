// Requests as anybody may write them: bytes that are no JSON, configs of any shape, numbers of any size. Each has an
// answer, in time.
#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "base/check.h"
#include "cli/elasticity_rows.h"
#include "elasticity/capi.h"
#include "elasticity/job_sizes.h"
#include "elasticity/plan.h"

namespace phalanx::cli {
namespace {

using elasticity::Find;
using elasticity::Json;
using elasticity::OneLine;
using elasticity::Result;
using elasticity::Str;

void CheckAnswer(std::string_view row) {
  for (const auto behaviour : {elasticity::Behaviour::kDeepSpeed0165, elasticity::Behaviour::kDeepSpeed0197}) {
    const Result<Json> read = elasticity::ReadJson(AnswerRow(row, behaviour));
    PHX_CHECK(read.ok(), "an answer that is no JSON");
    PHX_CHECK((Find(*read, "ok") != nullptr) != (Find(*read, "error") != nullptr),
              "an answer that is both, or neither");
  }
}

void CheckValue(const Json& value) {
  const Result<Json> again = elasticity::ReadJson(OneLine(value));
  PHX_CHECK(again.ok() && OneLine(*again) == OneLine(value), "a value that changes when it is written");
  PHX_CHECK(value.is_string() || !Str(value).empty(), "a value without a text");
}

// The bytes as an elasticity block.
void CheckBlock(const std::string& block) {
  for (const char* rest :
       {R"(,"world_size":0)", R"(,"world_size":8)", R"(,"return_microbatch":1,"env":{"WORLD_SIZE":"6"})"}) {
    CheckAnswer(R"({"ds_config":{"elasticity":)" + block + "}" + rest + "}");
  }
  CheckAnswer(R"({"runtime":)" + block + R"(,"scheduler_env":)" + block + "}");
  const auto sizes = elasticity::FindJobSizes(block, 1000);
  PHX_CHECK(sizes.ok() || !sizes.error().message.empty(), "a refusal without a reason");
}

// The bytes as the numbers of a search.
void CheckSearch(const uint8_t* data, size_t size) {
  std::vector<int64_t> numbers(size / sizeof(int64_t));
  if (numbers.size() < 5) return;
  std::memcpy(numbers.data(), data, numbers.size() * sizeof(int64_t));
  std::array<int64_t, 8> counts{};
  int64_t batch = 0;
  const int64_t found =
      phx_elasticity_choose_batch(numbers.data() + 4, numbers.size() - 4, numbers[0], numbers[1], numbers[2],
                                  static_cast<uint32_t>(numbers[3]), &batch, counts.data(), nullptr, counts.size());
  PHX_CHECK(found >= PHX_ELASTICITY_BEYOND_LIMITS, "a number of counts that is none");
}

}  // namespace
}  // namespace phalanx::cli

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::cli;
  CheckSearch(data, size);
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckAnswer(text);
  const auto value = phalanx::elasticity::ReadJson(text);
  if (!value.ok()) {
    PHX_CHECK(!value.error().message.empty(), "a refusal without a reason");
    return 0;
  }
  CheckValue(*value);
  CheckBlock(text);
  return 0;
}
