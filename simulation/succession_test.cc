#include <gtest/gtest.h>

#include "simulation/succession_world.h"

namespace phalanx::simulation {
namespace {

// Masters are lost, alone and with their nodes, networks fall apart and heal: at no time train two rounds, and after
// few faults the job trains again with all its nodes. `./run sim --succession --seeds 10000` runs more.
TEST(Succession, NeverTwoMastersMoveRanks) {
  uint64_t elections = 0;
  uint64_t held = 0;
  constexpr uint64_t kSeeds = 400;
  for (uint64_t seed = 1; seed <= kSeeds; ++seed) {
    const SuccessionResult run = RunSuccession(seed, false);
    EXPECT_FALSE(run.violated) << "seed " << seed << ": " << run.violated.value_or("");
    elections += run.elections;
    held += run.held;
  }
  EXPECT_GT(elections, kSeeds / 4) << "the worlds are to be such that somebody is elected";
  EXPECT_LT(held, kSeeds / 10);
}

TEST(Succession, ASeedIsOneStory) {
  const SuccessionResult once = RunSuccession(7, true);
  const SuccessionResult again = RunSuccession(7, false);
  EXPECT_EQ(once.digest, again.digest);
  EXPECT_FALSE(once.story.empty());
  EXPECT_TRUE(again.story.empty());
}

}  // namespace
}  // namespace phalanx::simulation
