// The simulator is proved by bugs that are known: each must be found, and nothing where there is none.
#include <gtest/gtest.h>

#include <optional>
#include <string>

#include "simulation/campaign.h"
#include "simulation/plants.h"
#include "simulation/succession_world.h"

namespace phalanx::simulation {
namespace {

struct Found {
  uint64_t seed = 0;
  std::string what;
};

// Of `seeds` seeds, counted from `from`, the first that breaks a rule.
std::optional<Found> Campaign(uint64_t from, uint64_t seeds) {
  CampaignOptions options;
  options.from = from;
  options.seeds = seeds;
  options.until_first = true;
  const CampaignResult result = RunCampaign(options);
  if (result.failed.empty()) return std::nullopt;
  return Found{result.failed.front().seed, result.failed.front().violation->rule};
}

std::optional<Found> Succession(uint64_t from, uint64_t seeds) {
  for (uint64_t seed = from; seed < from + seeds; ++seed) {
    const SuccessionResult run = RunSuccession(seed, false);
    if (run.violated) return Found{seed, *run.violated};
  }
  return std::nullopt;
}

// Of seeds 1 to plant.seeds; first from plant.first on.
std::optional<Found> Search(const Plant& plant) {
  const auto find = plant.succession ? Succession : Campaign;
  const std::optional<Found> found = find(plant.first, plant.seeds - plant.first + 1);
  return found ? found : find(1, plant.first - 1);
}

class Planted : public testing::Test {
 protected:
  ~Planted() override { ChoosePlant(""); }

  // The seed that finds it finds nothing where it is taken out.
  void EachIsFound(bool succession, size_t at_least) {
    size_t planted = 0;
    for (const Plant& plant : Plants()) {
      if (plant.succession != succession) continue;
      ++planted;
      ASSERT_TRUE(ChoosePlant(plant.name));
      ASSERT_LE(plant.first, plant.seeds) << plant.name;
      const std::optional<Found> found = Search(plant);
      EXPECT_TRUE(found) << plant.name << ": not found within " << plant.seeds << " seeds";
      if (!found) continue;
      std::cout << plant.name << ": seed " << found->seed << ", " << found->what << "\n";
      ChoosePlant("");
      const std::optional<Found> without = succession ? Succession(found->seed, 1) : Campaign(found->seed, 1);
      EXPECT_FALSE(without) << "seed " << found->seed << ": " << without->what << ", without " << plant.name;
    }
    EXPECT_GE(planted, at_least);
  }
};

TEST_F(Planted, EachOfAnElectionIsFound) { EachIsFound(true, 5); }

TEST_F(Planted, EachIsFound) { EachIsFound(false, 10); }

TEST_F(Planted, AnUnknownOneIsRefused) { EXPECT_FALSE(ChoosePlant("no-such-bug")); }

}  // namespace
}  // namespace phalanx::simulation
