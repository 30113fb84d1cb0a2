// A manifest as anybody may have left it. The CRC is also made right: a fuzzer would not come past it.
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include "base/check.h"
#include "base/crc/crc32.h"
#include "checkpoint/disk/manifest.h"

namespace phalanx::checkpoint {
namespace {

void Try(std::string_view text) {
  const StatusOr<Manifest> manifest = ParseManifest(text);
  if (!manifest.ok()) {
    PHX_CHECK(!manifest.status().message().empty(), "a refusal without a reason");
    return;
  }
  PHX_CHECK(manifest->step >= 0 && manifest->world_size > 0 && !manifest->shards.empty(), "an empty step");
  for (const Shard& shard : manifest->shards) {
    PHX_CHECK(shard.rank < manifest->world_size && IsFileName(shard.file), "a shard of nobody, or outside");
  }
  const StatusOr<Manifest> again = ParseManifest(ManifestText(*manifest));
  PHX_CHECK(again.ok() && *again == *manifest, "a manifest that changes when it is written");
}

}  // namespace
}  // namespace phalanx::checkpoint

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::checkpoint;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  Try(text);
  const std::string_view body = text.substr(0, text.rfind("crc32 "));
  Try(fmt::format("{}crc32 {:08x}\n", body, phalanx::Crc32(0, body.data(), body.size())));
  return 0;
}
