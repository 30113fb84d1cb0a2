// A job that has stopped to step is told of: who is behind, and what was usual. Nothing is decided by that, but where
// the job has a hang timeout. Pure.
#pragma once

#include <string>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// The live round's largest step is this.
void NoteStepSeen(Turn& turn, int64_t step);
// When the live round is to be told of; kNever: not while nothing happens.
Instant StallDue(const JobState& job);
// Tells of the round where it is time.
void SettleStall(Turn& turn);

// When the live round has hung for so long that it ends (JobSpec.hang_timeout_ms); kNever: not while nothing happens.
Instant HangDue(const JobState& job);
// Ends the round where it is time: a restart, as behind a failure.
void SettleHang(Turn& turn);

// "no step for 13 s (usually within 1.0 s): node b is at step 41, others at 42".
std::string StallText(const JobState& job, Instant now);

}  // namespace phalanx::master
