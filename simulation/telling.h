// What the cores heard and decided, in words.
#pragma once

#include <string>
#include <vector>

#include "agent/core/core.h"
#include "agent/core/joining.h"
#include "agent/core/leaving.h"
#include "master/core/core.h"
#include "simulation/event_queue.h"

namespace phalanx::simulation {

class SimMaster;
class Story;

void TellMasterStep(Story& story, Micros at, const SimMaster& master, const master::Event& event,
                    const std::vector<master::Decision>& decisions);
void TellMasterDecisions(Story& story, Micros at, const SimMaster& master,
                         const std::vector<master::Decision>& decisions);
void TellAgentStep(Story& story, Micros at, const std::string& who, const agent::Event& event,
                   const std::vector<agent::Decision>& decisions);
void TellAgentStep(Story& story, Micros at, const std::string& who, const agent::joining::Event& event,
                   const std::vector<agent::joining::Decision>& decisions);
void TellAgentStep(Story& story, Micros at, const std::string& who, const agent::leaving::Event& event,
                   const std::vector<agent::leaving::Decision>& decisions);

void TellOrder(Story& story, Micros at, const std::string& who, const v1::CheckpointOrder& order);

}  // namespace phalanx::simulation
