// How many nodes of two kinds make a world of a given size: asked with every message of a job whose nodes differ, so it
// costs the same for ten nodes and for ten thousand. Pure.
//
// Nodes are of one kind when they have the same number of ranks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>

namespace phalanx::master {

// Nodes with so many different numbers of ranks train together under an elastic config; the door refuses one more.
constexpr size_t kNodeKindsMax = 2;

struct NodeKind {
  uint64_t ranks = 0;  // of each node; two kinds with nodes differ in it
  size_t nodes = 0;    // that are there; 0: there is no such kind
  size_t members = 0;  // of those, how many were in the last round
};
using NodeKinds = std::array<NodeKind, kNodeKindsMax>;
using NodeCounts = std::array<size_t, kNodeKindsMax>;

// How many nodes a round may have.
struct NodeLimits {
  size_t min = 1;
  size_t max = 1;
  size_t unit = 1;  // whole multiples of it alone; at least 1
};

// How many nodes of each kind make exactly `world_size` ranks: those that keep the most members, and then the fewest.
// Absent: none do. Takes as many steps as the first kind has ranks and the unit has nodes, at most.
std::optional<NodeCounts> CountsFor(const NodeKinds& kinds, uint64_t world_size, const NodeLimits& limits);

}  // namespace phalanx::master
