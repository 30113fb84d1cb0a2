#include "master/core/members.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <numeric>

#include "master/core/door.h"
#include "master/core/texts.h"

namespace phalanx::master {
namespace {

// Of the jobs that there are none is larger, and a config that grants all sizes is looked through at once.
constexpr int64_t kRanksMax = 1 << 17;

// Nodes with the same number of ranks.
struct Kind {
  uint64_t ranks = 0;
  size_t nodes = 0;
  size_t members = 0;  // of the last round
};
using Kinds = std::array<Kind, kNodeKindsMax>;
using Counts = std::array<size_t, kNodeKindsMax>;

Kinds KindsOf(const std::vector<Candidate>& candidates) {
  Kinds kinds;
  for (const Candidate& c : candidates) {
    const auto kind = std::find_if(kinds.begin(), kinds.end(),
                                   [&c](const Kind& k) { return k.nodes == 0 || k.ranks == c.local_world_size; });
    if (kind == kinds.end()) continue;
    kind->ranks = c.local_world_size;
    ++kind->nodes;
    if (c.previous_rank >= 0) ++kind->members;
  }
  return kinds;
}

// How many nodes of each kind make exactly `world_size` ranks: those that keep the most members, and then the fewest.
std::optional<Counts> CountsFor(const Kinds& kinds, uint64_t world_size, const JobSpec& spec) {
  std::optional<Counts> best;
  const auto kept = [&kinds](const Counts& counts) {
    return std::min(counts[0], kinds[0].members) + std::min(counts[1], kinds[1].members);
  };
  for (size_t of_second = 0; of_second <= kinds[1].nodes && of_second * kinds[1].ranks <= world_size; ++of_second) {
    const uint64_t rest = world_size - of_second * kinds[1].ranks;
    const Counts counts = {rest / kinds[0].ranks, of_second};
    const size_t nodes = counts[0] + counts[1];
    const bool exact = rest % kinds[0].ranks == 0 && counts[0] <= kinds[0].nodes;
    if (!exact || nodes < spec.min_nodes || nodes > spec.max_nodes || nodes % spec.node_unit != 0) continue;
    const bool better =
        !best || kept(counts) > kept(*best) || (kept(counts) == kept(*best) && nodes < (*best)[0] + (*best)[1]);
    if (better) best = counts;
  }
  return best;
}

// The first of each kind, so many.
std::vector<Candidate> Take(const std::vector<Candidate>& candidates, const Kinds& kinds, Counts left) {
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

std::vector<Candidate> ChooseWorld(const std::vector<Candidate>& candidates, const JobSpec& spec,
                                   const std::vector<uint32_t>& world_sizes) {
  if (candidates.empty()) return {};
  const Kinds kinds = KindsOf(candidates);
  const uint64_t ranks = kinds[0].nodes * kinds[0].ranks + kinds[1].nodes * kinds[1].ranks;
  auto size = std::upper_bound(world_sizes.begin(), world_sizes.end(), ranks);
  while (size != world_sizes.begin()) {
    if (const auto counts = CountsFor(kinds, *--size, spec)) return Take(candidates, kinds, *counts);
  }
  return {};
}

std::vector<Candidate> CandidatesOf(const JobState& s, bool only_ready) {
  std::vector<Candidate> candidates;
  candidates.reserve(s.candidates);
  for (const auto& [session, node] : s.nodes) {
    if (node.leaving || (only_ready && node.info.warming)) continue;
    // Who was lost and has come back goes before newcomers, but its rank may be a survivor's by now.
    const int32_t previous_rank = s.round && node.came_back ? INT32_MAX : node.previous_rank;
    candidates.push_back({session, node.info.wanted_rank, previous_rank, node.arrival, node.info.local_world_size});
  }
  return candidates;
}

bool IsLarger(const JobState& s, const std::vector<Candidate>& members) {
  if (!s.sizes) return members.size() > s.round->slots.size();
  const auto add = [](uint64_t ranks, const Candidate& c) { return ranks + c.local_world_size; };
  return std::accumulate(members.begin(), members.end(), uint64_t{0}, add) > s.round->world_size;
}

// The ranks of each node that is there; 0: they differ.
uint64_t CommonRanks(const std::vector<Candidate>& candidates) {
  const Kinds kinds = KindsOf(candidates);
  return kinds[1].nodes == 0 ? kinds[0].ranks : 0;
}

bool IsGranted(const JobState& s, uint64_t ranks) {
  return std::binary_search(s.sizes->world_sizes.begin(), s.sizes->world_sizes.end(), ranks);
}

}  // namespace

elasticity::Result<elasticity::JobSizes> SizesOf(const JobSpec& spec) {
  return elasticity::FindJobSizes(spec.elastic_config,
                                  std::min(kRanksMax, int64_t{spec.max_nodes} * kMaxLocalWorldSize));
}

std::vector<Candidate> Choose(std::vector<Candidate> candidates, const JobSpec& spec,
                              const std::optional<elasticity::JobSizes>& sizes) {
  SortByPrecedence(candidates);
  if (sizes) return ChooseWorld(candidates, spec, sizes->world_sizes);
  candidates.resize(spec.Usable(candidates.size()));
  return candidates;
}

std::vector<uint64_t> NextMembers(const JobState& s) {
  std::vector<Candidate> chosen;
  if (s.phase == Phase::kRunning) chosen = Choose(CandidatesOf(s, true), *s.spec, s.sizes);
  if (chosen.size() < s.spec->min_nodes) chosen = Choose(CandidatesOf(s, false), *s.spec, s.sizes);
  const size_t count = chosen.size();
  return Place(std::move(chosen), count);
}

bool CanBegin(const JobState& s) {
  if (s.candidates < s.spec->min_nodes) return false;
  return !s.sizes || !Choose(CandidatesOf(s, false), *s.spec, s.sizes).empty();
}

bool IsLarger(const JobState& s, const std::vector<uint64_t>& members) {
  std::vector<Candidate> candidates;
  candidates.reserve(members.size());
  for (const uint64_t session : members) {
    candidates.push_back({session, -1, -1, 0, s.nodes.at(session).info.local_world_size});
  }
  return IsLarger(s, candidates);
}

bool CanGrow(const JobState& s) {
  if (s.round->slots.size() >= s.spec->max_nodes) return false;
  return IsLarger(s, Choose(CandidatesOf(s, false), *s.spec, s.sizes));
}

Instant GrowthFrom(const JobState& s) { return s.round->begun_at + (s.sizes ? s.sizes->round_ms_min : 0); }

std::string WaitingText(const JobState& s) {
  const JobSpec& spec = *s.spec;
  if (!s.sizes || s.candidates < spec.min_nodes) return MissingText(s.candidates, spec);
  const uint64_t ranks = CommonRanks(CandidatesOf(s, false));
  for (size_t nodes = s.candidates + 1; ranks > 0 && nodes <= spec.max_nodes; ++nodes) {
    if (!IsGranted(s, nodes * ranks) || nodes % spec.node_unit != 0) continue;
    return fmt::format(
        "waiting for {} more node{}: {} x {} ranks is no valid world size of the elastic config; {} x {} "
        "is",
        nodes - s.candidates, nodes - s.candidates == 1 ? "" : "s", s.candidates, ranks, nodes, ranks);
  }
  return "waiting for other nodes: those that are there make no valid world size of the elastic config";
}

std::string LeftOverText(const JobState& s) {
  if (s.phase != Phase::kRunning || !s.sizes || s.candidates <= s.round->slots.size() || CanGrow(s)) return "";
  const size_t members = s.round->slots.size();
  const size_t there = std::min<size_t>(s.candidates, s.spec->max_nodes);
  if (there <= members) return "";
  const uint64_t ranks = CommonRanks(CandidatesOf(s, false));
  if (ranks == 0) {
    return fmt::format("no valid world size of the elastic config that the {} nodes make is above {} ranks", there,
                       s.round->world_size);
  }
  if (IsGranted(s, there * ranks)) return fmt::format("{} is no multiple of --node-unit={}", there, s.spec->node_unit);
  return fmt::format("{} x {} ranks is no valid world size of the elastic config; {} x {} is", there, ranks, members,
                     ranks);
}

}  // namespace phalanx::master
