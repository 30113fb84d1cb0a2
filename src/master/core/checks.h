// Nodes are checked before they train (JobSpec.check): which, when, and what their verdict means for the job. What is
// checked, and who is at fault, src/master/topics/health.h decides. Pure.
//
// * Before a round begins with nodes that have not been checked since they came: all that wait, once.
// * While a round is live: newcomers, among themselves; till then they count as not ready.
// * Whoever is left out stays attached, trains not, and is checked again when its time is over.
#pragma once

#include <cstdint>
#include <vector>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// Some of them have not been.
bool AnyUnchecked(const JobState& job, const std::vector<uint64_t>& members);

// A node has come: whether it must be checked first, or is left out still.
void AdmitToCheck(Turn& turn, uint64_t session, Node& node);
void On(Turn& turn, uint64_t session, const v1::CheckReport& report);
// It goes, or has gone.
void LoseChecked(Turn& turn, uint64_t session);
// Deadlines, nodes whose time is over, and newcomers to a live round.
void SettleChecks(Turn& turn);
// A round could begin: whether a check must be over first, which this begins.
bool WaitsForCheck(Turn& turn);
// When SettleChecks has something to do.
Instant ChecksDue(const JobState& job);

}  // namespace phalanx::master
