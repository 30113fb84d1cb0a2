// The state that a master begins with, of what its replay log keeps of it. Pure.
#pragma once

#include "base/status.h"
#include "master/core/core.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::master {

// The job as its journal has it, or a new one; `start` is of a master. DataLoss where it contradicts itself,
// FailedPrecondition where the journal is another job's.
StatusOr<JobState> StateOf(const v1::ReplayStart& start);

// Which master of the job the state is one of, and where: what `master` says beside the job.
void TakeItsPlace(JobState& state, const v1::MasterStart& master, Instant now);

// Own flags count for a job that a journal tells of, whether or not it had come to a size of its own.
void TakeOwnSpec(JobState& restored, const v1::JobSpec& own);

}  // namespace phalanx::master
