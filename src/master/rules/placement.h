// Who gets which rank. Pure.
//
// Survivors keep their rank; a newcomer takes the fallen one's; on a shrink the highest survivors move into the holes
// and nobody else moves. Static rendezvous (--node-rank) asks for a fixed place and gets it wherever it exists.
// Newcomers of one access switch get ranks next to each other, and so do those of one pod switch: that of the first
// node that came is the first, and nodes of which nobody knows where they are go last.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "master/rules/switches.h"

namespace phalanx::master {

struct Candidate {
  uint64_t id = 0;
  int32_t wanted_rank = -1;    // -1: any
  int32_t previous_rank = -1;  // group rank in the last round it was a member of; -1: none
  uint64_t arrival = 0;        // order of arrival
  uint32_t local_world_size = 0;
  Switches switches = {};
};

// Those that were members before go first, then those that ask for a place, then by arrival.
void SortByPrecedence(std::vector<Candidate>& candidates);

// The members of the next round, by group rank: the first `max_nodes` of the candidates by precedence; the rest are
// spares. Ids, arrivals and wanted ranks (but -1) are unique; no two candidates have the same previous rank (but -1).
std::vector<uint64_t> Place(std::vector<Candidate> candidates, size_t max_nodes);

// Where a member's workers stand in the world.
struct Span {
  std::string role;
  uint32_t local_world_size = 0;
  // Filled by LayOut.
  uint32_t rank_base = 0;
  uint32_t role_rank_base = 0;
  uint32_t role_world_size = 0;
};

// Fills in the bases of `spans`, which are in order of group rank; returns the world size.
uint32_t LayOut(std::vector<Span>& spans);

}  // namespace phalanx::master
