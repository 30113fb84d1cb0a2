// What the platform that runs the nodes (Kubernetes) tells of them, and what it is told of the job
// (proto/phalanx/v1/platform.proto, docs/formats/platform-link.md). Pure.
//
// * A node that the platform takes away trains no more, once the others can go on without it: they come to a safe point
//   and train on while it is still there. Where too few would be left, it trains until it goes.
// * Where a node is in the network decides which ranks newcomers get (master/rules/placement.h).
// * How many nodes train follows the platform where the nodes' --nnodes does (JobSpec.sized_by_platform).
#pragma once

#include <cstdint>

#include "master/core/core.h"
#include "master/core/turn.h"

namespace phalanx::master {

// More nodes than that are not taken away at a time; further ones are not heard of.
constexpr size_t kMaxDepartures = 8'192;
// Of so many nodes at most it is known where they are.
constexpr size_t kMaxPlaces = 65'536;
// A platform that is not there any more, and has not said otherwise, is believed for so long behind the time at which a
// node was to go.
constexpr int64_t kDepartureKeptMs = 60'000;

// Bounds what a platform says. A text is cut; a departure without an IP address is left out.
PlatformSaid SaidByPlatform(v1::PlatformMessage message);

// Why that platform is not let in; empty: it is.
std::string PlatformRefusal(const JobState& job, const v1::PlatformHello& hello);
// What the platform has to say is not known yet, and no round begins nor changes before it is: under which switches
// nodes are, and which ones go.
bool AwaitsPlatform(const JobState& job, Instant now);

void On(Turn& turn, const PlatformSaid& event);
void On(Turn& turn, const PlatformGone& event);

// A node has come: whether the platform takes it away.
void AdmitDeparting(Turn& turn, uint64_t session, const Node& node);
// The job's spec has just come with its first node.
void TakeWantedNodes(Turn& turn);
// An earlier master has had a round of so many nodes.
void TakeRecalledNodes(Turn& turn, uint32_t nodes);
// A node has come whose command has numbers of its own: so have the others', which happened to be the platform's.
void KeepAskedNodes(Turn& turn);
// --nnodes' minimum, as the first node has brought it.
uint32_t AskedMinNodes(const v1::JobSpec& spec);
// Nodes that go are left out as soon as the others can do without them.
void SettleDepartures(Turn& turn);
// When SettleDepartures has something to do.
Instant DeparturesDue(const JobState& job);

// By any of its addresses: the one that the platform knows may be of another network than that of --local-addr. Null:
// the platform leaves it where it is.
const Departing* DepartureOf(const JobState& job, const Node& node);
// Under which switches it is; none where the platform has not said.
Switches SwitchesOf(const JobState& job, const Node& node);

// All that the platform is to know. Walks over the nodes where some go.
v1::JobView ViewOf(const JobState& job, Instant now);

}  // namespace phalanx::master
