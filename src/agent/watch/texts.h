// What the kernel's files below /sys and /proc say, and what the helper that asks NVML does. Pure; any bytes are
// understood or refused.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>

#include "base/status.h"

namespace phalanx::agent::watch {

// Counters of 64 bits that are larger count as this.
constexpr int64_t kMaxCount = int64_t{1} << 62;

// "12\n", "0x1f\n": a number and nothing else but blanks.
std::optional<int64_t> ParseCount(std::string_view text);
// "4: ACTIVE\n" -> 1; another state of a port -> 0.
std::optional<int64_t> ParsePortState(std::string_view text);
// "live\n" -> 1; another state of an NVMe controller -> 0.
std::optional<int64_t> ParseNvmeState(std::string_view text);
// "MCE:  0  3  Machine check exceptions" of /proc/interrupts -> 3, the sum over all CPUs.
std::optional<int64_t> ParseInterrupts(std::string_view text, std::string_view name);

// --- lines of the helper (docs/formats/node-watch.md) ---------------------------------------------------------------

constexpr size_t kMaxGpuLineBytes = 256;
constexpr int64_t kMaxGpus = 256;

struct GpusFound {  // the first line: what is watched
  int64_t count = 0;
  bool events = false;  // its driver tells of XIDs
};
struct GpuXid {
  int64_t gpu = 0;
  int64_t number = 0;
  int64_t times = 1;
};
struct GpuValue {
  int64_t gpu = 0;
  std::string name;  // one that the table has
  int64_t value = 0;
};
struct GpusRead {};  // a reading is complete
// Why XIDs are heard no more, in words; values are.
struct GpusDeaf {
  std::string why;
};
// Why GPUs are not watched, in words; the helper ends.
struct GpusUnwatched {
  std::string why;
};

using GpuLine = std::variant<GpusFound, GpuXid, GpuValue, GpusRead, GpusDeaf, GpusUnwatched>;

// `line`: without its end. InvalidArgument: it is none of the helper's.
StatusOr<GpuLine> ParseGpuLine(std::string_view line);

}  // namespace phalanx::agent::watch
