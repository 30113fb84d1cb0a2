// Any bytes, in any pieces: one verdict, which stands once it is given, and is given soon.
#include <cstddef>
#include <cstdint>

#include "base/check.h"
#include "master/endpoint/first_bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::master;
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  const Caller last = WhoCalls(bytes);
  PHX_CHECK(size < kFirstBytes || last != Caller::kUnknown, "a caller that nobody can tell");
  bool told = false;
  for (size_t n = 0; n <= size && n <= kFirstBytes; ++n) {
    const Caller caller = WhoCalls(bytes.substr(0, n));
    PHX_CHECK(!told || caller == last, "a verdict that changes");
    told = caller != Caller::kUnknown;
    PHX_CHECK(!told || caller == last, "more bytes, another verdict");
  }
  return 0;
}
