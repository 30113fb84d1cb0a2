// Events of an agent's cores as messages, and back. Pure.
#pragma once

#include <variant>

#include "agent/checkpoint/saving.h"
#include "agent/core/core.h"
#include "agent/core/joining.h"
#include "agent/core/leaving.h"
#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::agent {

// An event of whichever core.
using AnyEvent = std::variant<Event, joining::Event, leaving::Event, saving::Event>;

v1::AgentEvent MessageOf(const AnyEvent& event);

// `wire` is distrusted. DataLoss where no agent brings such an event to a core.
StatusOr<AnyEvent> EventOf(const v1::AgentEvent& wire);

}  // namespace phalanx::agent
