#include "master/rules/stall.h"

#include <algorithm>

namespace phalanx::master {

int64_t StallMs(const StallWatch& watch, int64_t usual_ms) {
  if (watch.forward >= kStallKnownSteps) return std::max(kStallLeastMs, kStallTimesUsual * usual_ms);
  const int64_t first_ms = std::max(kStallFirstMs, kStallTimesUsual * usual_ms);
  int64_t long_ms = first_ms;
  if (watch.behind && watch.step - *watch.behind >= kStallKnownSteps) {
    long_ms = std::min(long_ms, std::max(kStallLeastMs, kStallTimesUsual * std::max(usual_ms, watch.longest_ms)));
  }
  if (watch.forward > kStallUnusualSteps) {
    long_ms = std::min(long_ms, std::max(kStallEarlyMs, kStallTimesEarly * usual_ms));
  }
  return long_ms;
}

Instant StallsAt(const StallWatch& watch, int64_t usual_ms) {
  return watch.since == kNever || watch.told ? kNever : watch.since + StallMs(watch, usual_ms);
}

Instant StallsBehindEndAt(const StallWatch& watch, int64_t usual_ms) {
  if (watch.since == kNever || watch.told) return kNever;
  return watch.since + std::max(kStallFirstMs, kStallTimesUsual * usual_ms);
}

std::optional<int64_t> SawStep(StallWatch& watch, int64_t step, int64_t& usual_ms, Instant now) {
  if (watch.since != kNever && step <= watch.step) return std::nullopt;
  const bool first = watch.since == kNever;
  const int64_t gap_ms = first ? 0 : now - watch.since;
  if (watch.forward >= kStallUnusualSteps) usual_ms = std::max(usual_ms, gap_ms);
  if (!first) ++watch.forward;
  if (!watch.behind) watch.behind = step;
  if (!first || watch.begun_at != kNever) {
    watch.longest_ms = std::max(watch.longest_ms, now - (first ? watch.begun_at : watch.since));
  }
  watch.since = now;
  watch.step = step;
  watch.told = false;
  return gap_ms;
}

void SawSaving(StallWatch& watch, Instant now) {
  if (watch.since != kNever && !watch.told) watch.since = now;
}

}  // namespace phalanx::master
