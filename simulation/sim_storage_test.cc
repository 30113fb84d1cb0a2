#include "simulation/sim_storage.h"

#include <gtest/gtest.h>

namespace phalanx::simulation {
namespace {

checkpoint::Manifest ManifestOf(int64_t step) {
  checkpoint::Manifest manifest;
  manifest.step = step;
  manifest.epoch = 1;
  manifest.world_size = 1;
  manifest.shards.push_back({0, "rank_0.pt", 4'096, 0});
  return manifest;
}

void Store(SimStorage& storage, int64_t step) {
  const StatusOr<std::string> name = storage.Claim({1, step});
  ASSERT_TRUE(name.ok());
  EXPECT_TRUE(storage.WriteShard(*name, 0, {}).ok());
  EXPECT_TRUE(storage.WriteManifest(*name, ManifestOf(step)).ok());
}

TEST(SimStorage, AStepCountsWithItsManifestAndAllItsShards) {
  SimStorage storage;
  Store(storage, 10);
  ASSERT_TRUE(storage.Claim({1, 20}).ok());
  EXPECT_TRUE(storage.WriteManifest("20", ManifestOf(20)).ok());  // and no shard
  ASSERT_TRUE(storage.Claim({1, 30}).ok());
  const auto found = storage.Find();
  ASSERT_EQ(found.size(), 3U);
  EXPECT_EQ(found[0].state, checkpoint::StepState::kUncommitted);
  EXPECT_EQ(found[1].state, checkpoint::StepState::kDamaged);
  EXPECT_EQ(found[2].state, checkpoint::StepState::kCommitted);
}

TEST(SimStorage, NobodyWritesIntoAStepThatCounts) {
  SimStorage storage;
  Store(storage, 10);
  EXPECT_FALSE(storage.WriteShard("10", 0, {}).ok());
  EXPECT_TRUE(storage.WriteManifest("10", ManifestOf(10)).ok()) << "the same again is fine";
  checkpoint::Manifest other = ManifestOf(10);
  other.epoch = 2;
  EXPECT_FALSE(storage.WriteManifest("10", other).ok());
  EXPECT_EQ(*storage.Claim({2, 10}), "10.2") << "a folder of its own";
}

TEST(SimStorage, RetentionIsTheRealOne) {
  SimStorage storage;
  for (const int64_t step : {10, 20, 30}) Store(storage, step);
  EXPECT_EQ(storage.StepsToDelete({1, 0}), (std::vector<std::string>{"10", "20"}));
  storage.Delete("10");
  EXPECT_EQ(storage.Look("10"), nullptr);
}

TEST(SimStorage, FailsAndHangsUntilAllFaultsAreOver) {
  SimStorage storage;
  storage.Break();
  storage.Break();
  storage.Mend();
  EXPECT_FALSE(storage.Claim({1, 10}).ok());
  storage.Mend();
  EXPECT_TRUE(storage.Claim({1, 10}).ok());
  int answered = 0;
  storage.Hang();
  storage.Hang();
  storage.WhenAwake([&] { ++answered; });
  storage.Wake();
  EXPECT_EQ(answered, 0);
  storage.Wake();
  EXPECT_EQ(answered, 1);
  storage.WhenAwake([&] { ++answered; });
  EXPECT_EQ(answered, 2);
}

}  // namespace
}  // namespace phalanx::simulation
