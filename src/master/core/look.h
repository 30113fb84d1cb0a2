// A person looks at the job: its nodes are asked how far they are, so that what is shown is no older than the question.
// Nothing is decided by that. Pure.
#pragma once

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

void On(Turn& turn, const LookedAt& event);
// The node has told how far it is, because it was asked; or it will not any more.
void SettleLook(JobState& job, Node& node);
// Who has not answered in time is not waited for.
void ExpireLook(Turn& turn);

}  // namespace phalanx::master
