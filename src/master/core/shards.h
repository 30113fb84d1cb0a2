// Ranks ask for shards of datasets, and report them done: the requests of the live round's ranks go to the topic
// (src/master/topics/shards.h), its replies behind the journal to their agents. Pure.
#pragma once

#include <cstdint>

#include "master/core/turn.h"

namespace phalanx::master {

void On(Turn& turn, uint64_t session, const v1::ShardRequest& request);
// A worker of the live round has ended: others may have what it holds.
void ReturnShards(Turn& turn, uint64_t session, const v1::WorkerExited& exited);
// Replies whose time has come go out, when the journal has what they say.
void SettleShards(Turn& turn);
// When the next ones go; kNever: none waits.
Instant ShardsDue(const JobState& job);

}  // namespace phalanx::master
