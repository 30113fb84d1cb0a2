// A sidecar as anybody may have left it.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "data/sidecar.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::data;
  const auto sidecar = ParseSidecar(std::string_view(reinterpret_cast<const char*>(data), size));
  if (!sidecar.ok()) {
    PHX_CHECK(!sidecar.status().message().empty(), "a refusal without a reason");
    return 0;
  }
  PHX_CHECK(sidecar->options.is_object() && sidecar->inputs.is_array(), "parts of another type");
  const std::string text = SidecarText(*sidecar);
  const auto again = ParseSidecar(text);
  PHX_CHECK(again.ok() && SidecarText(*again) == text, "a sidecar that changes when it is written");
  return 0;
}
