// Which of the nodes that are there train next, and why others do not. Pure.
//
// Without an elastic config it is as many as may: --nnodes' maximum, in whole --node-units. With one it is those whose
// ranks together are the largest world size that the config grants: --nnodes and --node-unit still count, and among
// equals as many of the last round's members as can be. Nodes left over wait as spares.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/rules/placement.h"

namespace phalanx::master {

// The world sizes that the job's elastic config grants, of a job that has one.
elasticity::Result<elasticity::JobSizes> SizesOf(const v1::JobSpec& spec);

// Those of the candidates that train, by precedence. Fewer than --nnodes' minimum (with an elastic config: none) where
// they cannot.
std::vector<Candidate> Choose(std::vector<Candidate> candidates, const v1::JobSpec& spec,
                              const std::optional<elasticity::JobSizes>& sizes);

// Sessions of the next round by group rank; fewer than the minimum where none can begin. A job that trains, and can go
// on without them, leaves out those that still warm up.
std::vector<uint64_t> NextMembers(const JobState& state);

// How large a round is; `ranks` where the job has an elastic config.
struct World {
  size_t nodes = 0;
  uint64_t ranks = 0;
};

// Of NextMembers, without a walk over the nodes: asked with every message.
World NextWorld(const JobState& state);

// Every address that workers of these nodes may come from.
std::vector<std::string> MemberAddresses(const JobState& state, const std::vector<uint64_t>& members);

// Whether a round can begin with the nodes that are there.
bool CanBegin(const JobState& state);

// ... and with those alone whose workers could start at once, while a round is live.
bool CanGoOn(const JobState& state);

// Whether that would be a larger round than the live one.
bool IsLarger(const JobState& state, const World& world);

// The same of all nodes that are there, of which some may still warm up.
bool CanGrow(const JobState& state);

// A live round is not made larger before.
Instant GrowthFrom(const JobState& state);

// "; left out: node c (disk_write: ...)", of nodes that are there; empty: none is.
std::string LeftOutText(const JobState& state);

// "waiting for 1 more node: 1 of 2 are there", where no round can begin.
std::string WaitingText(const JobState& state);

// "3 x 2 ranks is no valid world size of the elastic config; 2 x 2 is": why nodes of a running job wait as spares,
// though it has places left. Empty: none does.
std::string LeftOverText(const JobState& state);

}  // namespace phalanx::master
