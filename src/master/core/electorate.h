// Who votes, as nodes say it in their Hello. Pure.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "master/rules/voters.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::master {

// Rounds in the order of their masters' terms, then of their epochs.
using RoundRank = std::pair<uint64_t, uint64_t>;
inline RoundRank RankOf(const v1::World& world) { return {world.term(), world.epoch()}; }
inline RoundRank RankOf(const Voters& voters) { return {voters.term(), voters.epoch()}; }

// Of the latest rounds that any of these nodes, all of them here, knows of.
Electorate ElectorateOf(const std::vector<const v1::Hello*>& hellos);
// One more node is here, that knows of no later one.
void Join(Electorate& electorate, const v1::Hello& hello);
// It knows of a later one.
bool KnowsLater(const Electorate& electorate, const v1::Hello& hello);

}  // namespace phalanx::master
