// What holds of a job behind every event, whatever comes from outside. Pure, but that it ends the program where the
// core itself is wrong: a master that goes on from there would give two nodes the same ranks, or wait for ever.
#pragma once

#include "master/core/core.h"

namespace phalanx::master {

// Looks at counts, and walks over nothing: an event stays as cheap as it is.
void CheckInvariants(const JobState& job);

}  // namespace phalanx::master
