#include "master/rules/mixed_world.h"

#include <gtest/gtest.h>

#include <random>

namespace phalanx::master {
namespace {

size_t KeptBy(const NodeKinds& kinds, const NodeCounts& counts) {
  return std::min(counts[0], kinds[0].members) + std::min(counts[1], kinds[1].members);
}

// The same by trying all.
std::optional<NodeCounts> Tried(const NodeKinds& kinds, uint64_t world_size, const NodeLimits& limits) {
  std::optional<NodeCounts> best;
  for (size_t first = 0; first <= kinds[0].nodes; ++first) {
    for (size_t second = 0; second <= kinds[1].nodes; ++second) {
      const NodeCounts counts = {first, second};
      const size_t nodes = first + second;
      if (first * kinds[0].ranks + second * kinds[1].ranks != world_size) continue;
      if (nodes < limits.min || nodes > limits.max || nodes % limits.unit != 0) continue;
      const bool better = !best || KeptBy(kinds, counts) > KeptBy(kinds, *best) ||
                          (KeptBy(kinds, counts) == KeptBy(kinds, *best) && nodes < (*best)[0] + (*best)[1]);
      if (better) best = counts;
    }
  }
  return best;
}

TEST(MixedWorld, IsWhatTryingAllFinds) {
  std::mt19937 random(1);
  const auto upto = [&random](size_t most) { return random() % (most + 1); };
  size_t found = 0;
  for (int i = 0; i < 20'000; ++i) {
    NodeKinds kinds;
    kinds[0].ranks = 1 + upto(11);
    kinds[1].ranks = 1 + upto(11);
    kinds[0].nodes = 1 + upto(11);
    kinds[1].nodes = kinds[0].ranks == kinds[1].ranks ? 0 : upto(12);
    for (NodeKind& kind : kinds) kind.members = upto(kind.nodes);
    const size_t min = 1 + upto(3);
    const NodeLimits limits = {min, min + upto(20), 1 + upto(5)};
    const uint64_t world_size = 1 + upto(150);
    const auto counts = CountsFor(kinds, world_size, limits);
    ASSERT_EQ(counts, Tried(kinds, world_size, limits))
        << kinds[0].nodes << " x " << kinds[0].ranks << ", " << kinds[1].nodes << " x " << kinds[1].ranks << ", world "
        << world_size << ", " << limits.min << ":" << limits.max << " by " << limits.unit;
    found += counts ? 1 : 0;
  }
  EXPECT_GT(found, 1'000U);
}

// A walk over them would not end before the test's limit.
TEST(MixedWorld, CostsTheSameForAnyNumberOfNodes) {
  constexpr size_t kMany = 1'000'000'000'000;
  const NodeKinds kinds = {NodeKind{8, kMany, kMany / 2}, NodeKind{4, kMany, kMany / 4}};
  EXPECT_EQ(CountsFor(kinds, 9 * kMany, {1, 2 * kMany, 1}), (NodeCounts{kMany, kMany / 4}));
  EXPECT_EQ(CountsFor(kinds, 9 * kMany + 1, {1, 2 * kMany, 1}), std::nullopt);
}

}  // namespace
}  // namespace phalanx::master
