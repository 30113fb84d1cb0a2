// What a master that is to be does with what comes, until it is elected or gives up: candidacy.h says what it waits
// for. Pure.
#pragma once

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// True where it is elected by this event: those that have come before have their say now, as they came.
bool Stands(Turn& turn, const Event& event);

}  // namespace phalanx::master
