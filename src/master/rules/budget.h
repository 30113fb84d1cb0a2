// How many worker failures a job survives. Membership changes never come here. Pure.
//
// With --max-restarts N, torchrun's meaning: N failures are survived in all, 0 included. Without it: kDefaultRestarts,
// renewed when the job has been stepping for window_ms since its last failure; and kCrashLoopLives lives in a row that
// failed without a single step end the job, since another restart would only repeat them: unless the next one is to go
// on from another save.
#pragma once

#include <cstdint>
#include <optional>

#include "base/clock.h"

namespace phalanx::master {

constexpr uint32_t kDefaultRestarts = 3;
constexpr uint32_t kCrashLoopLives = 2;
constexpr int64_t kDefaultRestartWindowMs = 3'600'000;

struct Budget {
  std::optional<uint32_t> given;  // --max-restarts
  int64_t window_ms = kDefaultRestartWindowMs;
  uint32_t used = 0;
  uint32_t lives_without_step = 0;  // in a row, ended by a failure
  Instant stepping_since = kNever;  // the first step after the last failure
};

enum class Charge { kRestart, kExhausted, kCrashLoop };

// Failures survived in all, or within a window.
uint32_t AllowedRestarts(const Budget& budget);
// Failures that would still be survived at `now`.
uint32_t RestartsLeft(const Budget& budget, Instant now);

// A step was made in the live round.
void NoteStep(Budget& budget, Instant now);

// One life ended by the failure of one or more workers; `stepped`: any of its ranks had made a step; `older_next`: else
// the next one goes on from an older save.
Charge ChargeFailure(Budget& budget, bool stepped, bool older_next, Instant now);

}  // namespace phalanx::master
