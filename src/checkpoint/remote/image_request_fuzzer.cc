// Bytes as anybody may send them to an agent that lends images: a request is taken for one only where the same bytes
// are made of it.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "checkpoint/remote/image_request.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::checkpoint;
  const std::string_view arrived(reinterpret_cast<const char*>(data), size);
  size_t used = 0;
  const auto request = ParseRequest(arrived, &used);
  if (request.ok() && *request) {
    if (used > size || FormatRequest(**request) != arrived.substr(0, used)) std::abort();
  }
  const auto answer = ParseAnswer(arrived);
  if (answer.ok() && (answer->bytes > answer->image_bytes || (!answer->found && answer->bytes != 0))) std::abort();
  return 0;
}
