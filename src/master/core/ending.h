// The job ends: how, and when its nodes hear of it. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

void FinishJob(Turn& turn, int32_t exit_code, const std::string& reason);
// While the job is finished: agents hear of it when what is on its way to storage is there, since they carry it.
void SettleEnd(Turn& turn);
// A node has come to a job that is over.
void TellOfEnd(Turn& turn, const AgentAttached& e);

}  // namespace phalanx::master
