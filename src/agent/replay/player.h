// An agent's log, played again. Pure.
#pragma once

#include <memory>

#include "base/status.h"
#include "phalanx/v1/replay.pb.h"
#include "replay/player.h"

namespace phalanx::agent {

// `start` is of an agent. DataLoss where it contradicts itself.
StatusOr<std::unique_ptr<replay::Player>> PlayAgent(const v1::ReplayStart& start);

}  // namespace phalanx::agent
