// What a rank says on its checkpoint socket: any bytes must be refused or understood within their bounds.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "agent/checkpoint/wire.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::agent;
  const auto packet = ParseRankPacket({reinterpret_cast<const char*>(data), size});
  if (!packet.ok()) return 0;
  std::visit(
      [](const auto& each) {
        if constexpr (requires { each.dir; }) PHX_CHECK(each.dir.starts_with('/'), "a relative directory");
        if constexpr (requires { each.request; })
          PHX_CHECK(!each.request.dataset().empty(), "a dataset without a name");
        if constexpr (requires { each.step; }) PHX_CHECK(each.step >= 0, "a step below 0");
        if constexpr (requires { each.slots; }) PHX_CHECK(each.slots >= 2 && each.slots <= 3, "a strange slot count");
      },
      *packet);
  return 0;
}
