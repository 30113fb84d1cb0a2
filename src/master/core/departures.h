// Nodes go: on purpose, with their stream, with their lease, or for a newer stream of the same node. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

void On(Turn& turn, const AgentDetached& e);
void On(Turn& turn, uint64_t session, const v1::Leaving& leaving);

// The session is over, by its stream, its lease or a newer one. `may_return`: where it is a member it is away, not
// lost.
void RemoveNode(Turn& turn, uint64_t session, const std::string& cause, bool may_return,
                std::optional<int64_t> silent_ms = std::nullopt);

// The last node has left while others were away: when nobody is waited for any more, the job ends, or goes on with
// those that came back.
void SettleLastLeft(Turn& turn);

// Gives up the nodes that have said nothing for the length of their lease.
void ExpireLeases(Turn& turn);
// Before any event: a master that looks at its leases much too late, or at who is away, was itself stopped. It forgives
// their silence, and waits anew.
void ForgiveStandstill(Turn& turn);
// When the master looks at that node's lease next: not only as it ends, so that it notices soon that it stood still.
Instant NextLook(const Node& node, Instant now);

}  // namespace phalanx::master
