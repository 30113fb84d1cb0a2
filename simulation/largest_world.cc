#include "simulation/largest_world.h"

#include <algorithm>
#include <set>
#include <utility>

#include "master/core/members.h"

namespace phalanx::simulation {

std::optional<elasticity::JobSizes> GrantedBy(const v1::JobSpec& spec) {
  if (spec.elastic_config().empty()) return std::nullopt;
  auto granted = master::SizesOf(spec);
  if (!granted.ok()) return std::nullopt;
  return *std::move(granted);
}

uint64_t LargestWorld(const std::vector<uint32_t>& ranks, const v1::JobSpec& spec,
                      const elasticity::JobSizes& granted) {
  std::set<std::pair<size_t, uint64_t>> parts = {{0, 0}};  // nodes and ranks of every part of the nodes
  for (const uint32_t more : ranks) {
    const std::set<std::pair<size_t, uint64_t>> without = parts;
    for (const auto& [nodes, world_size] : without) parts.insert({nodes + 1, world_size + more});
  }
  uint64_t largest = 0;
  for (const auto& [nodes, world_size] : parts) {
    const bool may = nodes >= spec.min_nodes() && nodes <= spec.max_nodes() && nodes % spec.node_unit() == 0;
    const auto& sizes = granted.world_sizes;
    if (may && std::binary_search(sizes.begin(), sizes.end(), world_size)) largest = std::max(largest, world_size);
  }
  return largest;
}

}  // namespace phalanx::simulation
