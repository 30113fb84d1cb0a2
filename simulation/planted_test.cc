// The simulator is proved by bugs that are known: each must be found, and nothing where there is none.
#include <gtest/gtest.h>

#include <algorithm>

#include "simulation/campaign.h"
#include "simulation/plants.h"

namespace phalanx::simulation {
namespace {

CampaignResult RunUntilFirst(uint64_t seeds) {
  CampaignOptions options;
  options.seeds = seeds;
  options.until_first = true;
  return RunCampaign(options);
}

TEST(Planted, EachIsFound) {
  ASSERT_GE(Plants().size(), 10U);
  for (const Plant& plant : Plants()) {
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
  for (const Plant& plant : Plants()) seeds = std::max(seeds, plant.seeds);
  const CampaignResult result = RunUntilFirst(seeds);
  EXPECT_EQ(result.seeds, seeds);
  for (const RunResult& run : result.failed) ADD_FAILURE() << "seed " << run.seed << ": " << run.violation->text;
}

TEST(Planted, AnUnknownOneIsRefused) { EXPECT_FALSE(ChoosePlant("no-such-bug")); }

}  // namespace
}  // namespace phalanx::simulation
