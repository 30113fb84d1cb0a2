// The clock door: the only place that asks what time it is.
#pragma once

#include <cstdint>

namespace phalanx {

// Milliseconds on this machine's monotonic clock. Cores receive it as a parameter and never ask for it.
using Instant = int64_t;

constexpr Instant kNever = INT64_MAX;

Instant MonotonicMs();
// Nanoseconds on the same clock; comparable with Python's time.monotonic_ns() on the same machine.
int64_t MonotonicNs();
// Wall clock, for people and records only; never for a decision.
int64_t UnixMs();

}  // namespace phalanx
