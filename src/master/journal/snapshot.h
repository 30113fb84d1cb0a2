// What of a job's state outlives its master: to the journal's payload and back (docs/formats/journal.md). Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"
#include "master/core/core.h"

namespace phalanx::master {

// The payload. Streams and nodes are not in it: they come again.
std::string SaveState(const JobState& state, Instant now);

// The state as it was, with nobody there: Resume (src/master/core/core.h) is to follow. `bytes` are distrusted.
// DataLoss where they are no snapshot or contradict themselves, FailedPrecondition where they are another job's.
StatusOr<JobState> RestoreState(std::string_view bytes, const std::string& job_id, Instant now);

}  // namespace phalanx::master
