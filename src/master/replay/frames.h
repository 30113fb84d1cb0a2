// What a replay log keeps of a master's steps: events as the messages that they came from, decisions as text. Pure.
#pragma once

#include <vector>

#include "master/core/core.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::master {

v1::ReplayFrame EventFrame(Instant now, const Event& event);
// Resume (src/master/core/core.h) is called.
v1::ReplayFrame ResumedFrame(Instant now);

v1::ReplayDecisions DecisionsOf(const std::vector<Decision>& decisions);
v1::ReplayFrame DecisionsFrame(const std::vector<Decision>& decisions);

}  // namespace phalanx::master
