#include "master/rules/placement.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

namespace phalanx::master {
namespace {

constexpr uint64_t kHole = UINT64_MAX;

// Lower goes first: members before, then those that want a place, then by arrival.
auto Precedence(const Candidate& c) { return std::tuple(c.previous_rank < 0, c.wanted_rank < 0, c.arrival); }

// Order in which those without a place of their own fill the holes: moving survivors first, then wishes, then arrivals.
auto FillOrder(const Candidate& c) {
  return std::tuple(c.previous_rank < 0, c.previous_rank, c.wanted_rank < 0, c.wanted_rank, c.arrival);
}

// Of newcomers in order of arrival: each one's place in the order of switches, by which came first.
class SwitchOrder {
 public:
  std::tuple<bool, size_t, size_t> operator()(const Switches& switches) {
    if (switches.access == 0) return {true, 0, 0};
    const size_t pod = pods_.try_emplace(switches.pod, pods_.size()).first->second;
    const size_t access = accesses_.try_emplace({switches.pod, switches.access}, accesses_.size()).first->second;
    return {false, pod, access};
  }

 private:
  std::map<uint32_t, size_t> pods_;
  std::map<std::pair<uint32_t, uint32_t>, size_t> accesses_;
};

// `first` to `last` come in order of arrival.
void GroupBySwitches(std::vector<Candidate>::iterator first, std::vector<Candidate>::iterator last) {
  SwitchOrder order;
  std::vector<std::pair<std::tuple<bool, size_t, size_t>, Candidate>> keyed;
  for (auto candidate = first; candidate != last; ++candidate) {
    keyed.emplace_back(order(candidate->switches), *candidate);
  }
  std::ranges::stable_sort(keyed, {}, [](const auto& each) { return each.first; });
  for (auto& [key, candidate] : keyed) *first++ = candidate;
}

}  // namespace

void SortByPrecedence(std::vector<Candidate>& candidates) {
  std::sort(candidates.begin(), candidates.end(),
            [](const Candidate& a, const Candidate& b) { return Precedence(a) < Precedence(b); });
}

std::vector<uint64_t> Place(std::vector<Candidate> candidates, size_t max_nodes) {
  SortByPrecedence(candidates);
  if (candidates.size() > max_nodes) candidates.resize(max_nodes);

  std::vector<uint64_t> ranks(candidates.size(), kHole);
  auto settle = [&ranks](const Candidate& c, int32_t rank) {
    if (rank < 0 || static_cast<size_t>(rank) >= ranks.size() || ranks[static_cast<size_t>(rank)] != kHole)
      return false;
    ranks[static_cast<size_t>(rank)] = c.id;
    return true;
  };
  std::vector<Candidate> moving;
  for (const Candidate& c : candidates) {
    if (!settle(c, c.wanted_rank)) moving.push_back(c);
  }
  std::erase_if(moving, [&settle](const Candidate& c) { return settle(c, c.previous_rank); });
  std::sort(moving.begin(), moving.end(),
            [](const Candidate& a, const Candidate& b) { return FillOrder(a) < FillOrder(b); });
  const auto newcomers = std::find_if(moving.begin(), moving.end(),
                                      [](const Candidate& c) { return c.previous_rank < 0 && c.wanted_rank < 0; });
  GroupBySwitches(newcomers, moving.end());
  auto hole = ranks.begin();
  for (const Candidate& c : moving) {
    hole = std::find(hole, ranks.end(), kHole);
    *hole = c.id;
  }
  return ranks;
}

uint32_t LayOut(std::vector<Span>& spans) {
  uint32_t world_size = 0;
  std::map<std::string, uint32_t> role_sizes;
  for (Span& span : spans) {
    span.rank_base = world_size;
    world_size += span.local_world_size;
    uint32_t& role_size = role_sizes[span.role];
    span.role_rank_base = role_size;
    role_size += span.local_world_size;
  }
  for (Span& span : spans) span.role_world_size = role_sizes[span.role];
  return world_size;
}

}  // namespace phalanx::master
