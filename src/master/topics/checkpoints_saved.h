// What of the job's checkpoints outlives its master: to the journal's snapshot and back (docs/formats/journal.md).
// Pure.
//
// Decisions are in it: what is committed, dropped, stored, wanted on storage, and what is restored. What nodes say
// again of their own is not: what they hold, which saves they have sealed.
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/status.h"
#include "master/topics/checkpoints.h"
#include "phalanx/v1/journal.pb.h"

namespace phalanx::master {

// Into `wire`, which is new.
void SaveCheckpoints(const CheckpointState& state, v1::Snapshot::Checkpoints& wire);

// As decided in the live round of that epoch (0: none is live) with so many members, none of which is here yet.
// `saved` is distrusted: DataLoss where it is no state of a job.
StatusOr<CheckpointState> RestoreCheckpoints(const v1::Snapshot::Checkpoints& saved, uint64_t epoch, size_t members);

}  // namespace phalanx::master
