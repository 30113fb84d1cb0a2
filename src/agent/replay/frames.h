// What a replay log keeps of an agent's steps: where the state began, events as messages, decisions as text. Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/core/core.h"
#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::agent {

// Of a state that no event has come to.
v1::AgentStart StartOf(const CoreOptions& options, const std::string& node_id, const std::string& hostname);
// And back; DataLoss where no flags come to such options.
StatusOr<CoreOptions> OptionsAtStart(const v1::AgentStart& start);

v1::ReplayFrame EventFrame(Instant now, const Event& event);
v1::ReplayDecisions DecisionsOf(const std::vector<Decision>& decisions);
v1::ReplayFrame DecisionsFrame(const std::vector<Decision>& decisions);

}  // namespace phalanx::agent
