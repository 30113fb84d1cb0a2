// A master's log, played again. Pure.
#pragma once

#include <memory>

#include "base/status.h"
#include "phalanx/v1/replay.pb.h"
#include "replay/player.h"

namespace phalanx::master {

// `start` is of a master. Errors are those of StateOf (start.h).
StatusOr<std::unique_ptr<replay::Player>> PlayMaster(const v1::ReplayStart& start);

}  // namespace phalanx::master
