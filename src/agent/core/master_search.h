// Where a node looks for its job's master: where that was, then with those who may have taken its place, then at the
// job's endpoint. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

struct MasterSearch {
  std::string endpoint;  // host:port
  // Of the last master that welcomed this node.
  uint64_t term = 0;
  std::string master_id;  // empty: none has
  std::string address;    // where it was dialled
  std::string ip;         // ... and where that led to; empty: not known
  std::string before;     // where the one before it was dialled; empty: there was none
  v1::Successors successors;
  // Somebody has said that the master is there, and of a later term.
  std::string moved_to;
  uint64_t moved_term = 0;
  std::string own;                     // where this node's own child listens that has taken over, or would
  std::optional<v1::World> world;      // the last round that it was told
  std::optional<v1::World> confirmed;  // ... that all of its members know of

  std::string dialled;  // last
  size_t next = 0;      // of Places(), in this turn of all of them
};

// In the order in which they are dialled; each once, at least one once the node has begun.
std::vector<std::string> Places(const MasterSearch& search);
// Which of the successors this node is, from 0; absent: none.
std::optional<size_t> TurnOf(const MasterSearch& search, const std::string& node_id);

}  // namespace phalanx::agent
