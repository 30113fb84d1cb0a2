// Events of how a node joins and leaves as messages, and back: the part of events.h that is theirs. Pure.
#pragma once

#include "agent/core/joining.h"
#include "agent/core/leaving.h"
#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::agent {

v1::JoiningEvent MessageOf(const joining::Event& event);
v1::LeavingEvent MessageOf(const leaving::Event& event);

// DataLoss where no agent brings such an event to its core.
StatusOr<joining::Event> JoiningEventOf(const v1::JoiningEvent& wire);
StatusOr<leaving::Event> LeavingEventOf(const v1::LeavingEvent& wire);

}  // namespace phalanx::agent
