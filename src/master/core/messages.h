// What the core says to agents: messages of agent.proto, made where it is decided and sent as they are. Pure.
#pragma once

#include <cstdint>
#include <string>

#include "master/core/core.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

v1::MasterMessage WelcomeTo(const JobState& job, const Node& node);
// The stream ends behind it.
v1::MasterMessage RefusedFor(const std::string& sentence);
// As well; the node looks for the job's master elsewhere.
v1::MasterMessage NotElectedFor(const std::string& sentence);
v1::MasterMessage MessageOf(const v1::Refused& refused);
v1::MasterMessage HoldOf(uint64_t epoch, const std::string& reason);
v1::MasterMessage NoticeOf(const std::string& text);
v1::MasterMessage AnnouncementOf(const Round& round, bool node_leaves);
// The stream ends behind it.
v1::MasterMessage FinishOf(const Outcome& outcome);

// The part of a round that is told; null where the action tells of none.
const v1::StartRound* StartRoundIn(const Action& action);
// How the job ended; null where the action does not tell.
const v1::Finish* FinishIn(const Action& action);
// Nothing follows the message on its stream, which ends.
bool EndsStream(const v1::MasterMessage& message);

}  // namespace phalanx::master
