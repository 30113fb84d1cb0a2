#include "master/core/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <utility>

#include "master/core/door.h"
#include "master/core/platform.h"
#include "master/core/succession.h"
#include "master/core/texts.h"
#include "master/rules/mixed_world.h"

namespace phalanx::master {
namespace {

// More names tell nobody more, and a look at all would take long.
constexpr size_t kMostLeftOutTold = 8;

// Of the jobs that there are none is larger, and a config that grants all sizes is looked through at once.
constexpr int64_t kRanksMax = 1 << 17;

// Of more than the door lets in (a master that was started anew takes its members back, whoever came before them) those
// with the most members count, the smaller first.
NodeKinds Largest(std::vector<NodeKind> all) {
  std::stable_sort(all.begin(), all.end(), [](const NodeKind& a, const NodeKind& b) { return a.members > b.members; });
  NodeKinds kinds;
  for (size_t i = 0; i < std::min(all.size(), kinds.size()); ++i) kinds[i] = all[i];
  return kinds;
}

NodeKinds KindsOf(const std::vector<Candidate>& candidates) {
  std::map<uint32_t, NodeKind> by_ranks;
  for (const Candidate& c : candidates) {
    NodeKind& kind = by_ranks[c.local_world_size];
    kind.ranks = c.local_world_size;
    ++kind.nodes;
    if (c.previous_rank >= 0) ++kind.members;
  }
  std::vector<NodeKind> all;
  all.reserve(by_ranks.size());
  for (const auto& [ranks, kind] : by_ranks) all.push_back(kind);
  return Largest(std::move(all));
}

// The same of all candidates, without a walk over them.
NodeKinds KindsOf(const Census& census, bool only_ready) {
  std::vector<NodeKind> all;
  for (const auto& [ranks, kind] : census.kinds()) {
    const Census::Count& count = only_ready ? kind.ready : kind.candidates;
    if (count.all > 0) all.push_back({ranks, count.all, count.members});
  }
  return Largest(std::move(all));
}

// The first of each kind, so many.
std::vector<Candidate> Take(const std::vector<Candidate>& candidates, const NodeKinds& kinds, NodeCounts left) {
  std::vector<Candidate> taken;
  for (const Candidate& c : candidates) {
    for (size_t i = 0; i < kinds.size(); ++i) {
      if (kinds[i].ranks != c.local_world_size || left[i] == 0) continue;
      --left[i];
      taken.push_back(c);
      break;
    }
  }
  return taken;
}

// How many of each kind make the largest world that is granted; none where none is.
NodeCounts LargestWorld(const NodeKinds& kinds, const v1::JobSpec& spec, const std::vector<uint32_t>& world_sizes) {
  if (kinds[0].nodes == 0) return {};
  const NodeLimits limits = {spec.min_nodes(), spec.max_nodes(), spec.node_unit()};
  const uint64_t ranks = kinds[0].nodes * kinds[0].ranks + kinds[1].nodes * kinds[1].ranks;
  auto size = std::upper_bound(world_sizes.begin(), world_sizes.end(), ranks);
  while (size != world_sizes.begin()) {
    if (const auto counts = CountsFor(kinds, *--size, limits)) return *counts;
  }
  return {};
}

std::vector<Candidate> ChooseWorld(const std::vector<Candidate>& candidates, const v1::JobSpec& spec,
                                   const std::vector<uint32_t>& world_sizes) {
  const NodeKinds kinds = KindsOf(candidates);
  return Take(candidates, kinds, LargestWorld(kinds, spec, world_sizes));
}

// What Choose would choose.
World WorldOf(const JobState& s, bool only_ready) {
  if (!s.sizes) {
    const size_t nodes = UsableNodes(*s.spec, only_ready ? s.census.ready() : s.census.candidates());
    return {nodes, 0};
  }
  const NodeKinds kinds = KindsOf(s.census, only_ready);
  const NodeCounts counts = LargestWorld(kinds, *s.spec, s.sizes->world_sizes);
  return {counts[0] + counts[1], counts[0] * kinds[0].ranks + counts[1] * kinds[1].ranks};
}

enum class Which { kAll, kChecked, kReady };

std::vector<Candidate> CandidatesOf(const JobState& s, Which which) {
  std::vector<Candidate> candidates;
  candidates.reserve(s.census.candidates());
  for (const auto& [session, node] : s.nodes) {
    if (node.leaving || !node.left_out.empty() || (which != Which::kAll && node.unchecked)) continue;
    if (which == Which::kReady && node.warming) continue;
    // Who was lost and has come back goes before newcomers, but its rank may be a survivor's by now.
    const int32_t previous_rank = s.round && node.came_back ? INT32_MAX : node.previous_rank;
    candidates.push_back({session, node.hello.node_rank_wanted(), previous_rank, node.arrival,
                          node.hello.local_world_size(), SwitchesOf(s, node)});
  }
  return candidates;
}

// The ranks of each node that is there; 0: they differ.
uint64_t CommonRanks(const JobState& s) {
  const NodeKinds kinds = KindsOf(s.census, false);
  return kinds[1].nodes == 0 ? kinds[0].ranks : 0;
}

bool IsGranted(const JobState& s, uint64_t ranks) {
  return std::binary_search(s.sizes->world_sizes.begin(), s.sizes->world_sizes.end(), ranks);
}

}  // namespace

elasticity::Result<elasticity::JobSizes> SizesOf(const v1::JobSpec& spec) {
  return elasticity::FindJobSizes(spec.elastic_config(),
                                  std::min(kRanksMax, int64_t{spec.max_nodes()} * kMaxLocalWorldSize));
}

std::vector<Candidate> Choose(std::vector<Candidate> candidates, const v1::JobSpec& spec,
                              const std::optional<elasticity::JobSizes>& sizes) {
  SortByPrecedence(candidates);
  if (sizes) return ChooseWorld(candidates, spec, sizes->world_sizes);
  candidates.resize(UsableNodes(spec, candidates.size()));
  return candidates;
}

std::vector<uint64_t> NextMembers(const JobState& s) {
  std::vector<Candidate> chosen;
  if (s.phase == Phase::kRunning) chosen = Choose(CandidatesOf(s, Which::kReady), *s.spec, s.sizes);
  // Who comes while others are checked is checked when those train: else one that comes again and again holds all up.
  if (s.checked && s.phase != Phase::kRunning) chosen = Choose(CandidatesOf(s, Which::kChecked), *s.spec, s.sizes);
  if (chosen.size() < s.spec->min_nodes()) chosen = Choose(CandidatesOf(s, Which::kAll), *s.spec, s.sizes);
  const size_t count = chosen.size();
  return Place(std::move(chosen), count);
}

World NextWorld(const JobState& s) {
  World world;
  if (s.phase == Phase::kRunning) world = WorldOf(s, true);
  if (world.nodes < s.spec->min_nodes()) world = WorldOf(s, false);
  return world;
}

std::vector<std::string> MemberAddresses(const JobState& s, const std::vector<uint64_t>& members) {
  std::set<std::string> addresses;
  for (const uint64_t session : members) {
    const auto node = s.nodes.find(session);
    if (node == s.nodes.end()) continue;
    const v1::Hello& hello = node->second.hello;
    addresses.insert(hello.address());
    if (!node->second.peer_address.empty()) addresses.insert(node->second.peer_address);
    addresses.insert(hello.interface_addresses().begin(), hello.interface_addresses().end());
  }
  return {addresses.begin(), addresses.end()};
}

bool CanBegin(const JobState& s) {
  if (s.census.candidates() < s.spec->min_nodes()) return false;
  return !s.sizes || WorldOf(s, false).nodes > 0;
}

bool CanGoOn(const JobState& s) {
  if (s.phase != Phase::kRunning) return CanBegin(s);
  const World world = WorldOf(s, true);
  return world.nodes > 0 && world.nodes >= s.spec->min_nodes();
}

bool IsLarger(const JobState& s, const World& world) {
  return s.sizes ? world.ranks > s.round->world_size : world.nodes > s.round->slots.size();
}

bool CanGrow(const JobState& s) {
  if (s.round->slots.size() >= s.spec->max_nodes()) return false;
  return IsLarger(s, WorldOf(s, false));
}

Instant GrowthFrom(const JobState& s) { return s.round->begun_at + (s.sizes ? s.sizes->round_ms_min : 0); }

std::string LeftOutText(const JobState& s) {
  std::vector<std::string> left_out;
  for (const uint64_t session : s.left_out) {
    const Node& node = s.nodes.at(session);
    left_out.push_back(fmt::format("{} ({})", NodeName(s, node.hello), node.left_out));
    if (left_out.size() > kMostLeftOutTold) break;
  }
  return left_out.empty() ? "" : fmt::format("; left out: {}", ListText(left_out, "more"));
}

std::string WaitingText(const JobState& s) {
  const v1::JobSpec& spec = *s.spec;
  const size_t there = s.census.candidates();
  if (there >= spec.min_nodes() && !MayDecide(s)) return UndecidedText(s);
  if (!s.sizes || there < spec.min_nodes()) return MissingText(there, spec) + LeftOutText(s);
  const uint64_t ranks = CommonRanks(s);
  for (size_t nodes = there + 1; ranks > 0 && nodes <= spec.max_nodes(); ++nodes) {
    if (!IsGranted(s, nodes * ranks) || nodes % spec.node_unit() != 0) continue;
    return fmt::format(
        "waiting for {} more node{}: {} x {} ranks is no valid world size of the elastic config; {} x {} "
        "is",
        nodes - there, nodes - there == 1 ? "" : "s", there, ranks, nodes, ranks);
  }
  return "waiting for other nodes: those that are there make no valid world size of the elastic config";
}

std::string LeftOverText(const JobState& s) {
  if (s.phase != Phase::kRunning || !s.sizes || s.census.candidates() <= s.round->slots.size() || CanGrow(s)) return "";
  const size_t members = s.round->slots.size();
  const size_t there = std::min<size_t>(s.census.candidates(), s.spec->max_nodes());
  if (there <= members) return "";
  const uint64_t ranks = CommonRanks(s);
  if (ranks == 0) {
    return fmt::format("no valid world size of the elastic config that the {} nodes make is above {} ranks", there,
                       s.round->world_size);
  }
  if (IsGranted(s, there * ranks))
    return fmt::format("{} is no multiple of --node-unit={}", there, s.spec->node_unit());
  return fmt::format("{} x {} ranks is no valid world size of the elastic config; {} x {} is", there, ranks, members,
                     ranks);
}

}  // namespace phalanx::master
