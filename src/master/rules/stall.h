// Whether a job that steps has stopped to: no step for long beside its own usual gap. Pure.
//
// Steps are seen in beats, so gaps are known to a beat (a second in small worlds). The very first of a life say nothing
// of the others, as compilers, caches and data loaders work then, and only kStallFirstMs is long. Until
// kStallKnownSteps beats have brought steps it is kStallTimesEarly times the longest gap that the job has had,
// kStallEarlyMs at least and never more than behind the very first. Afterwards it is kStallTimesUsual times the longest
// gap that the job has had, kStallLeastMs at least. Quick steps come many in a beat: a life that has made
// kStallKnownSteps of them in fewer beats is known as well, by the longest time that it took from its begin to a beat
// with steps, where that makes less. Behind the end of a rank that ended well only kStallFirstMs is long: the others
// may have an export to write. A gap that was told of, and ended, counts as one: an evaluation of two minutes is told
// of once.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace phalanx::master {

constexpr int64_t kStallLeastMs = 12'000;
constexpr int64_t kStallTimesUsual = 2;
constexpr int64_t kStallEarlyMs = 60'000;
constexpr int64_t kStallTimesEarly = 10;
constexpr int64_t kStallFirstMs = 300'000;
// Beats of a life that told of steps forward: so many are not taken for usual, and behind so many, or so many steps, it
// is known what is.
constexpr int kStallUnusualSteps = 2;
constexpr int kStallKnownSteps = 10;

struct StallWatch {
  Instant begun_at = kNever;      // the life; kNever: not known
  std::optional<int64_t> behind;  // the step behind which it began. Absent: the first that is seen
  Instant since = kNever;         // the largest step was seen first then; kNever: none was
  int64_t step = 0;               // the largest
  int64_t longest_ms = 0;         // from one to the next in this life, its begin to the first among them
  int forward = 0;                // how often it has grown in this life
  bool told = false;              // that it stalls
};

// How long no step is usual, and how long is a stall. `usual_ms` is the longest gap that the job has had.
int64_t StallMs(const StallWatch& watch, int64_t usual_ms);
// When the job stalls if no step comes; kNever: it is told, or there was no step.
Instant StallsAt(const StallWatch& watch, int64_t usual_ms);

// The same where a rank has ended well: the others do their last work, or wait for it in vain.
Instant StallsBehindEndAt(const StallWatch& watch, int64_t usual_ms);

// The largest step is `step`. The gap before it, where it is a new one; then `usual_ms` is brought up to date, and the
// next stall may be told.
std::optional<int64_t> SawStep(StallWatch& watch, int64_t step, int64_t& usual_ms, Instant now);
// Training waits for a checkpoint: that is no stall, and no gap either.
void SawSaving(StallWatch& watch, Instant now);

}  // namespace phalanx::master
