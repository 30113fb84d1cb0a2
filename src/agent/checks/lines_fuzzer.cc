// What the program that checks a node says, which passes on what other people's programs say: any bytes must be refused
// or understood within their bounds.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "agent/checks/lines.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::agent;
  const auto event = checks::ParseLine(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!event.ok()) return 0;
  if (const auto* told = std::get_if<checking::CheckTold>(&*event)) {
    PHX_CHECK(told->result.values_size() <= 256, "more values than allowed");
    PHX_CHECK(told->result.sentence().size() <= 512, "a longer sentence than allowed");
  }
  return 0;
}
