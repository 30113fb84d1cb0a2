// Ranks that hold the others up are named, and their nodes left out where the job wants that (src/master/rules/pace.h
// says who is slow). Pure.
#pragma once

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// What a member of the live round has told of its ranks.
void OnPaces(Turn& turn, const Slot& slot, const v1::Beat& beat);

}  // namespace phalanx::master
