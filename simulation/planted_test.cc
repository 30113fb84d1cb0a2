// The simulator is proved by bugs that are known: each must be found, and nothing where there is none.
#include <gtest/gtest.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "simulation/campaign.h"
#include "simulation/plants.h"
#include "simulation/succession_world.h"

namespace phalanx::simulation {
namespace {

CampaignResult RunUntilFirst(uint64_t seeds) {
  CampaignOptions options;
  options.seeds = seeds;
  options.until_first = true;
  return RunCampaign(options);
}

// The first seed that breaks a rule, and the rule.
std::optional<std::pair<uint64_t, std::string>> FirstSuccession(uint64_t seeds) {
  for (uint64_t seed = 1; seed <= seeds; ++seed) {
    const SuccessionResult run = RunSuccession(seed, false);
    if (run.violated) return std::pair{seed, *run.violated};
  }
  return std::nullopt;
}

TEST(Planted, EachOfAnElectionIsFound) {
  size_t planted = 0;
  for (const Plant& plant : Plants()) {
    if (!plant.succession) continue;
    ++planted;
    ASSERT_TRUE(ChoosePlant(plant.name));
    const auto found = FirstSuccession(plant.seeds);
    EXPECT_TRUE(found) << plant.name << ": not found within " << plant.seeds << " seeds";
    if (found) std::cout << plant.name << ": seed " << found->first << ", " << found->second << "\n";
  }
  EXPECT_GE(planted, 5U);
  ChoosePlant("");
}

TEST(Planted, EachIsFound) {
  ASSERT_GE(Plants().size(), 10U);
  for (const Plant& plant : Plants()) {
    if (plant.succession) continue;
    ASSERT_TRUE(ChoosePlant(plant.name));
    const CampaignResult result = RunUntilFirst(plant.seeds);
    EXPECT_FALSE(result.failed.empty()) << plant.name << ": not found within " << plant.seeds << " seeds";
    if (result.failed.empty()) continue;
    RecordProperty(plant.name, static_cast<int>(result.failed.front().seed));
    std::cout << plant.name << ": seed " << result.failed.front().seed << ", " << result.failed.front().violation->rule
              << "\n";
  }
  ChoosePlant("");
}

TEST(Planted, WithoutThemThereIsNothingToFind) {
  ASSERT_TRUE(ChoosePlant(""));
  uint64_t seeds = 0;
  uint64_t successions = 0;
  for (const Plant& plant : Plants()) {
    uint64_t& most = plant.succession ? successions : seeds;
    most = std::max(most, plant.seeds);
  }
  const auto found = FirstSuccession(successions);
  EXPECT_FALSE(found) << "seed " << found->first << ": " << found->second;
  const CampaignResult result = RunUntilFirst(seeds);
  EXPECT_EQ(result.seeds, seeds);
  for (const RunResult& run : result.failed) ADD_FAILURE() << "seed " << run.seed << ": " << run.violation->text;
}

TEST(Planted, AnUnknownOneIsRefused) { EXPECT_FALSE(ChoosePlant("no-such-bug")); }

}  // namespace
}  // namespace phalanx::simulation
