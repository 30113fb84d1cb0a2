// Which node an agent is. All nodes of a job may have one and the same token; so each life of an agent has a key of its
// own, and its id is a digest of that: a master sees at each Hello that the id is this agent's, and whoever is told the
// id only, as other nodes are, cannot come as that node. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include "phalanx/v1/agent.pb.h"

namespace phalanx::wire {

constexpr size_t kNodeKeyBytes = 16;

// 32 hexadecimal digits. `key`: kNodeKeyBytes random bytes.
std::string NodeIdOf(std::string_view key);

// Makes it a Hello of the node with that key.
void SetNode(v1::Hello& hello, const std::string& key);

// Why this is no Hello of the node that it names; empty: it is one, or is of another version, which is refused for
// that.
std::string NodeKeyFault(const v1::Hello& hello);

}  // namespace phalanx::wire
