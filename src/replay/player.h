// A core that the events of a log are brought to again. Pure.
#pragma once

#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::replay {

class Player {
 public:
  virtual ~Player() = default;
  // What the core decides now. DataLoss where no recorder of this core writes such an event.
  virtual StatusOr<v1::ReplayDecisions> Step(const v1::ReplayEvent& event) = 0;
};

}  // namespace phalanx::replay
