// Workers end: what it costs, whether there is another life, and which end was the first cause of the others. Pure.
#pragma once

#include <cstdint>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

void On(Turn& turn, uint64_t session, const v1::WorkerExited& exit);

// A round that failed only in ranks that lost a peer, right before that peer's node is found lost: the node was the
// cause, and a membership change costs no restart.
void ReturnCharge(Turn& turn, const Node& node, uint64_t session);
// The same for the live round, which has waited for members that were away.
void ForgiveCollateral(Turn& turn);

// While the job is blaming: whether the first cause has been heard of by now.
void SettleBlame(Turn& turn);
// Ends the job that is blaming with what is known of the first cause.
void Conclude(Turn& turn);

}  // namespace phalanx::master
