// Rounds begin, are held and end. While none is live, nodes are gathered for the next. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// While a round is live: whether a failure, a loss or a planned change ends it.
void SettleRound(Turn& turn);
// While none is: whether the next one begins, or the job gives up.
void SettleGathering(Turn& turn);

// Ends the live round and begins the next with those who are there, or holds the job where they are too few. `change`:
// tell how the number of nodes changes.
void ReformRound(Turn& turn, const std::string& cause, bool change);
// The live round, if any, becomes the last one.
void EndRound(Turn& turn);

// "node c", "nodes c, d and 2 more": the members that are not in the live round, or have come since it was held.
std::string NewcomersText(const Turn& turn, const std::vector<uint64_t>& members);

}  // namespace phalanx::master
