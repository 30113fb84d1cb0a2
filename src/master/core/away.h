// Members without a stream that may still run their workers: behind a standstill of this master, or behind its restart.
// They come back to their places, or are given up; nothing is decided about the round before. Pure.
#pragma once

#include <cstdint>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// Takes up what an earlier master has left.
void TakeUpJob(Turn& turn);

// A node that runs a round has come: true where that round is live, perhaps only now known, and goes on there.
bool GoesOn(Turn& turn, uint64_t session, const v1::StartRound& live);
// A node that waits has come to a master that knows less: the job's lives are counted on, not anew.
void RecallHeld(Turn& turn, const v1::StartRound& last);
// Whether the node of `session` is a member, and `hello` says so, too.
bool RunsOn(const Turn& turn, uint64_t session, const v1::Hello& hello);
// The member of `slot` has the stream `session`.
void IsHere(Turn& turn, Slot& slot, uint64_t session);

// Members that are away come back, or are given up: when their time is over, or when nodes enough to be them are here
// with another round.
void SettleAway(Turn& turn);
// A round has begun, was held, or the job is over: nobody has a place to come back to.
void WaitForNobody(Turn& turn);

}  // namespace phalanx::master
