// How many worker failures a job survives. Membership changes never come here. Pure.
//
// With --max-restarts N, torchrun's meaning: N failures are survived in all, 0 included. Without it: kDefaultRestarts,
// renewed when the job has been stepping for window_ms since its last failure; and kCrashLoopLives lives in a row that
// failed without a single step end the job, since another restart would only repeat them: unless the next one is to go
// on from another save. With it or without, an error that a new try cannot mend ends the job when it has come soon
// in two lives in a row without a step.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/clock.h"

namespace phalanx::master {

constexpr uint32_t kDefaultRestarts = 3;
constexpr uint32_t kCrashLoopLives = 2;
// A life that went on for longer did something, even where its steps are not seen.
constexpr int64_t kSameErrorWithinMs = 300'000;
constexpr int64_t kDefaultRestartWindowMs = 3'600'000;

struct Budget {
  std::optional<uint32_t> given;  // --max-restarts
  int64_t window_ms = kDefaultRestartWindowMs;
  uint32_t used = 0;
  uint32_t lives_without_step = 0;  // in a row, ended by a failure
  Instant stepping_since = kNever;  // the first step after the last failure
  std::string last_error = "";      // LastingError of the last life, where that made no step
};

enum class Charge { kRestart, kExhausted, kCrashLoop, kSameError };

// Failures survived in all, or within a window.
uint32_t AllowedRestarts(const Budget& budget);
// Failures that would still be survived at `now`.
uint32_t RestartsLeft(const Budget& budget, Instant now);

// A step was made in the live round.
void NoteStep(Budget& budget, Instant now);

// One life ended by the failure of one or more workers; `stepped`: any of its ranks had made a step; `older_next`: else
// the next one goes on from an older save; `error`: what a new try cannot mend (LastingError), empty: nothing of that.
Charge ChargeFailure(Budget& budget, bool stepped, bool older_next, const std::string& error, Instant now);

}  // namespace phalanx::master
