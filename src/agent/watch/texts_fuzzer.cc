// What the kernel and the helper that asks NVML say: any bytes must be refused or understood within their bounds.
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <variant>

#include "agent/watch/kinds.h"
#include "agent/watch/texts.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::agent;
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  for (const auto& value : {watch::ParseCount(text), watch::ParsePortState(text), watch::ParseNvmeState(text),
                            watch::ParseInterrupts(text, "MCE")}) {
    if (value) PHX_CHECK(*value >= 0 && *value <= watch::kMaxCount, "a number out of its bounds");
  }
  const auto line = watch::ParseGpuLine(text);
  if (!line.ok()) return 0;
  if (const auto* xid = std::get_if<watch::GpuXid>(&*line)) {
    PHX_CHECK(xid->gpu < watch::kMaxGpus && xid->number <= watch::kMaxXid && xid->times > 0, "an XID out of bounds");
  }
  if (const auto* value = std::get_if<watch::GpuValue>(&*line)) {
    PHX_CHECK(watch::FindKind(value->name) != nullptr, "a value that nobody knows");
  }
  return 0;
}
