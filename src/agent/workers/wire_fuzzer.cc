// What a Python process says, cut and read: any bytes must be refused or understood within their bounds.
#include <cstddef>
#include <cstdint>

#include "agent/workers/wire.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::agent;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  [[maybe_unused]] const auto direct = ParsePeerMessage(bytes);
  FrameReader reader;
  const size_t half = size / 2;
  reader.Feed(bytes.substr(0, half));
  for (bool fed = false;;) {
    auto text = reader.Next();
    if (!text.ok()) break;
    if (text->has_value()) {
      const auto message = ParsePeerMessage(**text);
      if (message.ok() && std::holds_alternative<FirstStep>(*message)) {
        PHX_CHECK(std::get<FirstStep>(*message).modules.size() <= kModulesMax, "more modules than allowed");
      }
      continue;
    }
    if (fed) break;
    fed = true;
    reader.Feed(bytes.substr(half));
  }
  return 0;
}
