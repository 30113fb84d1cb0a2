#include "base/clock.h"

#include <time.h>

namespace phalanx {
namespace {

int64_t ReadNs(clockid_t id) {
  timespec ts{};
  clock_gettime(id, &ts);
  return static_cast<int64_t>(ts.tv_sec) * 1'000'000'000 + ts.tv_nsec;
}

}  // namespace

Instant MonotonicMs() { return ReadNs(CLOCK_MONOTONIC) / 1'000'000; }

int64_t MonotonicNs() { return ReadNs(CLOCK_MONOTONIC); }

int64_t UnixMs() { return ReadNs(CLOCK_REALTIME) / 1'000'000; }

}  // namespace phalanx
