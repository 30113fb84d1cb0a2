// How far training has come: first steps, the pace of steps, and what the ledger is made from. Pure.
#pragma once

#include <cstdint>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

void On(Turn& turn, uint64_t session, const v1::Beat& beat);
void On(Turn& turn, uint64_t session, const v1::FirstStep& first);

// A rank of the live round has made a step: the budget counts this life as one that trains.
void MarkStepped(Turn& turn);
// What ranks tell of their steps and saves. Also the last words of a round that is over: what was lost is measured by
// them.
void OnProgress(Turn& turn, uint64_t session, uint64_t epoch, const v1::Progress& told);
// The round ends: how far it has come counts for those behind it.
void RememberStep(Turn& turn, const Round& round);
// Records how long training has waited for checkpoints, where that is more than the record says.
void NoteSaving(Turn& turn, Round& round);

}  // namespace phalanx::master
