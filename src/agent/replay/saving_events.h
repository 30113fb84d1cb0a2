// Events of a node's checkpoints as messages, and back: the part of events.h that is theirs. Pure.
#pragma once

#include "agent/checkpoint/saving.h"
#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::agent {

v1::SavingEvent MessageOf(const saving::Event& event);

// DataLoss where no agent brings such an event to its checkpoints.
StatusOr<saving::Event> SavingEventOf(const v1::SavingEvent& wire);

}  // namespace phalanx::agent
