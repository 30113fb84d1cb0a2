// What the master's orders are on the wire, where they are more than src/master/core/convert.h makes of them. Pure.
#pragma once

#include <string>

#include "master/core/convert.h"
#include "master/core/core.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

v1::MasterMessage MessageOf(const SendWelcome& action, const std::string& master_id, const std::string& job_id);
v1::MasterMessage MessageOf(const SendRefused& action, const std::string& reason);
v1::MasterMessage MessageOf(const SendHold& action, const std::string& reason);
v1::MasterMessage MessageOf(const SendNotice& action, const std::string& reason);
v1::MasterMessage MessageOf(const SendAnnounceRescale& action, const std::string& reason);
v1::MasterMessage MessageOf(const SendCheckpoint& action, const std::string& reason);

}  // namespace phalanx::master
