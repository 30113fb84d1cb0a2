#include "master/endpoint/first_bytes.h"

#include <algorithm>

namespace phalanx::master {
namespace {

constexpr std::string_view kHttp2("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
// A record of the handshake, in the version's first byte: RFC 8446, 5.1.
constexpr std::string_view kTlsRecord("\x16\x03", 2);
// VALIDATE and its magic number: docs/formats/c10d-store.md.
constexpr std::string_view kValidate("\x00\xce\xf7\x85\x3c", 5);

static_assert(kHttp2.size() == kFirstBytes);

// Whether `bytes` begins as `whole` does, as far as both go.
bool MayBe(std::string_view bytes, std::string_view whole) {
  const size_t common = std::min(bytes.size(), whole.size());
  return bytes.substr(0, common) == whole.substr(0, common);
}

}  // namespace

Caller WhoCalls(std::string_view bytes) {
  if (bytes.empty()) return Caller::kUnknown;
  if (MayBe(bytes, kHttp2)) return bytes.size() < kHttp2.size() ? Caller::kUnknown : Caller::kPlain;
  if (MayBe(bytes, kTlsRecord)) return bytes.size() < kTlsRecord.size() ? Caller::kUnknown : Caller::kTls;
  if (MayBe(bytes, kValidate)) return bytes.size() < kValidate.size() ? Caller::kUnknown : Caller::kStore;
  return Caller::kStranger;
}

}  // namespace phalanx::master
