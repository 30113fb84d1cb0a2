// Nodes come: who is let in, what a waiting one is told, and when the live round makes room for it. Pure.
#pragma once

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// A node's first message: it is refused, takes the place that it had, or waits for one.
void On(Turn& turn, const AgentAttached& e);
// A node that had to warm up could now start at once.
void On(Turn& turn, uint64_t session, const v1::Ready& ready);

// A round begins: nodes that wait although the job has places left hear why, once. Looks at each node; one that comes
// later hears it alone.
void TellSpares(Turn& turn);
// While a round is live: sets when it is made larger, which later arrivals put off up to a limit.
void PlanGrowth(Turn& turn);

}  // namespace phalanx::master
