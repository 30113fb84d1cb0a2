// Planned changes: the round ends for nodes that come or go once its ranks are at a safe point. Pure.
#pragma once

#include <string>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// A node goes with the change that is announced, and what only its memory has with it.
bool AnyGoes(const JobState& job);

void On(Turn& turn, uint64_t session, const v1::SafePoint& point);

// Every rank that wants to may save first; those that want nothing cost a moment. Once a round.
void AnnounceRescale(Turn& turn, const std::string& why);
// A new master's ranks hear again of the change that the last one had announced: not all may have.
void TakeUpRescale(Turn& turn);
// A member has come back on another stream: the announcement may have been lost with the old one.
void SayRescaleAgain(Turn& turn, Slot& slot);
// While one is announced: whether all ranks are ready, or have had their time.
void SettleRescale(Turn& turn);

// Not the end of the rank's work: it makes room for the next round. So do those that lose such a peer, whose own
// report may be on its way.
bool Yields(const Turn& turn, const v1::WorkerExited& exit);
void OnYield(Turn& turn, Slot& slot, const v1::WorkerExited& exit);

}  // namespace phalanx::master
