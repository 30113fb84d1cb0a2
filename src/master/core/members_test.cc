#include "master/core/members.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>
#include <set>

namespace phalanx::master {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

// Nodes with so many ranks each, in order of arrival; those of `members` have been some before. Ids count from 0.
std::vector<Candidate> Nodes(const std::vector<uint32_t>& ranks, const std::set<uint64_t>& members = {}) {
  std::vector<Candidate> nodes;
  for (const uint32_t local_world_size : ranks) {
    const uint64_t id = nodes.size();
    const int32_t previous_rank = members.contains(id) ? static_cast<int32_t>(id) : -1;
    nodes.push_back({id, -1, previous_rank, id, local_world_size});
  }
  return nodes;
}

v1::JobSpec Spec(uint32_t min_nodes, uint32_t max_nodes, uint32_t node_unit = 1) {
  v1::JobSpec spec = DefaultSpec();
  spec.set_min_nodes(min_nodes);
  spec.set_max_nodes(max_nodes);
  spec.set_node_unit(node_unit);
  return spec;
}

std::vector<uint64_t> Chosen(const std::vector<Candidate>& nodes, const v1::JobSpec& spec,
                             const std::vector<uint32_t>& world_sizes) {
  std::vector<uint64_t> ids;
  for (const Candidate& c : Choose(nodes, spec, elasticity::JobSizes{world_sizes, 0})) ids.push_back(c.id);
  return ids;
}

TEST(Choose, TakesTheLargestValidWorld) {
  EXPECT_THAT(Chosen(Nodes({1, 1, 1}), Spec(1, 4), {2, 4}), ElementsAre(0, 1));
  EXPECT_THAT(Chosen(Nodes({1, 1, 1, 1, 1}), Spec(1, 4), {2, 4, 5}), ElementsAre(0, 1, 2, 3));
  EXPECT_THAT(Chosen(Nodes({2, 2, 2}), Spec(1, 4), {2, 4}), ElementsAre(0, 1));
  EXPECT_THAT(Chosen(Nodes({3, 3}), Spec(1, 4), {2, 4}), IsEmpty());
  EXPECT_THAT(Chosen({}, Spec(1, 4), {2, 4}), IsEmpty());
  EXPECT_THAT(Chosen(Nodes({1, 1}), Spec(1, 4), {}), IsEmpty());
}

TEST(Choose, KeepsToTheNodesAskedFor) {
  EXPECT_THAT(Chosen(Nodes({1, 1, 1, 1}), Spec(3, 4), {2}), IsEmpty());
  EXPECT_THAT(Chosen(Nodes({1, 1, 1, 1, 1, 1}), Spec(2, 6, 2), {3, 4, 5}), ElementsAre(0, 1, 2, 3));
}

TEST(Choose, KeepsMembersAmongEquals) {
  EXPECT_THAT(Chosen(Nodes({1, 1, 1}, {2}), Spec(1, 2), {2}), ElementsAre(2, 0));
  // 2 + 2 and 2 + 1 + 1: the three have trained.
  EXPECT_THAT(Chosen(Nodes({2, 2, 1, 1}, {1, 2, 3}), Spec(1, 4), {4}), ElementsAre(1, 2, 3));
  EXPECT_THAT(Chosen(Nodes({2, 2, 1, 1}), Spec(1, 4), {4}), ElementsAre(0, 1));
}

TEST(Choose, MixesUnlikeNodes) {
  EXPECT_THAT(Chosen(Nodes({8, 8, 7, 8}), Spec(1, 4), {8, 16, 24}), ElementsAre(0, 1, 3));
  EXPECT_THAT(Chosen(Nodes({3, 1, 3}), Spec(1, 4), {6}), ElementsAre(0, 2));
  EXPECT_THAT(Chosen(Nodes({4, 4, 8, 8}), Spec(1, 4), {16, 24}), ElementsAre(0, 1, 2, 3));
}

TEST(Choose, WithoutAConfigTakesAllThatMay) {
  EXPECT_EQ(Choose(Nodes({1, 2, 3}), Spec(1, 2), std::nullopt).size(), 2U);
  EXPECT_EQ(Choose(Nodes({1, 2, 3}), Spec(2, 4, 2), std::nullopt).size(), 2U);
  EXPECT_EQ(Choose(Nodes({1}), Spec(2, 4), std::nullopt).size(), 1U);
}

// The largest valid world of any part of the nodes, tried one by one.
uint64_t LargestWorld(const std::vector<Candidate>& nodes, const v1::JobSpec& spec, const std::set<uint32_t>& sizes) {
  uint64_t largest = 0;
  for (uint64_t part = 1; part < uint64_t{1} << nodes.size(); ++part) {
    uint64_t ranks = 0;
    uint32_t count = 0;
    for (size_t i = 0; i < nodes.size(); ++i) {
      if ((part >> i & 1) == 0) continue;
      ranks += nodes[i].local_world_size;
      ++count;
    }
    const bool may = count >= spec.min_nodes() && count <= spec.max_nodes() && count % spec.node_unit() == 0;
    if (may && sizes.contains(static_cast<uint32_t>(ranks))) largest = std::max(largest, ranks);
  }
  return largest;
}

TEST(Choose, IsAsLargeAsCanBe) {
  std::mt19937_64 random(1);
  const auto pick = [&random](uint64_t bound) { return static_cast<uint32_t>(random() % bound); };
  for (int i = 0; i < 3'000; ++i) {
    const uint32_t kinds[] = {1 + pick(8), 1 + pick(8)};
    std::vector<uint32_t> ranks;
    std::set<uint64_t> members;
    for (uint32_t node = 0, count = pick(9); node < count; ++node) {
      ranks.push_back(kinds[pick(2)]);
      if (pick(2) == 0) members.insert(node);
    }
    const uint32_t unit = pick(3) == 0 ? 2 : 1;
    const uint32_t min_nodes = (1 + pick(3)) * unit;
    const v1::JobSpec spec = Spec(min_nodes, min_nodes + pick(4) * unit, unit);
    std::set<uint32_t> sizes;
    for (uint32_t size = 0, count = pick(5); size < count; ++size) sizes.insert(1 + pick(40));

    const std::vector<Candidate> nodes = Nodes(ranks, members);
    const auto chosen = Choose(nodes, spec, elasticity::JobSizes{{sizes.begin(), sizes.end()}, 0});
    uint64_t world_size = 0;
    for (const Candidate& c : chosen) world_size += c.local_world_size;
    ASSERT_EQ(world_size, LargestWorld(nodes, spec, sizes)) << "case " << i;
    ASSERT_TRUE(chosen.empty() || (chosen.size() >= spec.min_nodes() && chosen.size() <= spec.max_nodes() &&
                                   chosen.size() % spec.node_unit() == 0))
        << "case " << i;
  }
}

}  // namespace
}  // namespace phalanx::master
