// Events of an agent's core as messages, and back. Pure.
#pragma once

#include "agent/core/core.h"
#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::agent {

v1::AgentEvent MessageOf(const Event& event);

// `wire` is distrusted. DataLoss where no agent brings such an event to its core.
StatusOr<Event> EventOf(const v1::AgentEvent& wire);

}  // namespace phalanx::agent
