// The cores in the simulated world: many seeds, each the same on every run.
#include "simulation/campaign.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace phalanx::simulation {
namespace {

// Under a sanitizer a seed takes some fifty times as long, and what that looks for is in the first as in the last.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr uint64_t kSeeds = 600;
#else
constexpr uint64_t kSeeds = 12'000;
#endif

TEST(Simulation, SeedsBreakNoRule) {
  CampaignOptions options;
  options.from = 1;
  options.seeds = kSeeds;
  const CampaignResult result = RunCampaign(options);
  EXPECT_EQ(result.seeds, options.seeds);
  for (const RunResult& run : result.failed) {
    ADD_FAILURE() << run.violation->rule << ": " << run.violation->text << " (./run sim --seed " << run.seed
                  << " --shrink)";
  }
}

// 90074: a node that was told twice to stop had removed its memory, and the master, which had not heard, restored from
// it.
TEST(Simulation, SeedsThatHaveFoundSomethingBreakNoRule) {
  for (const uint64_t seed : {90074}) {
    const RunResult run = RunScenario(ScenarioOf(seed, {}), false);
    EXPECT_FALSE(run.violation) << "seed " << seed << ": " << run.violation->rule << ": " << run.violation->text;
  }
}

// As large a world as a lease of 7.5 s stands for, with all that goes wrong in small ones.
TEST(Simulation, WorldsOf5000MachinesBreakNoRule) {
  CampaignOptions options;
  options.seeds = 4;
  options.limits.machines = 5'000;
  const CampaignResult result = RunCampaign(options);
  for (const RunResult& run : result.failed) {
    ADD_FAILURE() << run.violation->rule << ": " << run.violation->text << " (./run sim --seed " << run.seed
                  << " --machines 5000 --shrink)";
  }
  EXPECT_GT(result.events, 1'000'000U);
}

TEST(Simulation, ASeedIsTheSameStoryEachTime) {
  for (uint64_t seed = 1; seed <= 100; ++seed) {
    const Scenario scenario = ScenarioOf(seed, {});
    const RunResult once = RunScenario(scenario, true);
    const RunResult again = RunScenario(ScenarioOf(seed, {}), true);
    ASSERT_FALSE(once.story.empty());
    ASSERT_EQ(once.story, again.story) << "seed " << seed;
    ASSERT_EQ(once.digest, again.digest);
    ASSERT_EQ(once.digest, RunScenario(scenario, false).digest) << "telling changes what happens";
  }
}

TEST(Simulation, ThreadsChangeNothing) {
  CampaignOptions options;
  options.seeds = 300;
  const CampaignResult one = RunCampaign(options);
  options.threads = 4;
  const CampaignResult four = RunCampaign(options);
  EXPECT_EQ(one.digest, four.digest);
  EXPECT_EQ(one.events, four.events);
}

// The numbers behind a seed are the same on every machine; a report of a failing seed would mean nothing otherwise.
TEST(Simulation, ASeedMeansTheSameEverywhere) {
  Random random(42, 1);
  EXPECT_EQ(random.Next(), 0xDA5CA97D7C037811ULL);
  EXPECT_EQ(Random(1).Below(1'000'000), 265'552U);
}

// Every kind of fault strikes, and jobs end in every way: what nobody meets proves nothing.
TEST(Simulation, SeedsMeetAllThatIsSimulated) {
  std::vector<int> kinds(FaultTable().size());
  std::vector<uint64_t> moments(kMoments);
  std::map<std::string_view, int> checkpoints;
  int good = 0, failed = 0, left = 0, large = 0, elastic = 0, late = 0, never = 0;
  for (uint64_t seed = 1; seed <= 2'000; ++seed) {
    const Scenario scenario = ScenarioOf(seed, {});
    for (const Fault& fault : scenario.faults) ++kinds[static_cast<size_t>(fault.kind)];
    large += scenario.machines.size() > 50 ? 1 : 0;
    elastic += scenario.spec.elastic_config().empty() ? 0 : 1;
    for (const Arrival& machine : scenario.machines) {
      never += machine.named_at == kNeverNamed ? 1 : 0;
      late += machine.named_at > machine.at && machine.named_at != kNeverNamed ? 1 : 0;
    }
    const RunResult run = RunScenario(scenario, false);
    good += run.exit_code == 0 ? 1 : 0;
    failed += run.exit_code == 1 ? 1 : 0;
    left += run.exit_code == 143 ? 1 : 0;
    for (size_t i = 0; i < kMoments; ++i) moments[i] += run.moments[i];
    if (scenario.script.saving) ++checkpoints[KindOf(scenario.script.saving->form)];
  }
  for (const FaultRow& row : FaultTable()) EXPECT_GT(kinds[static_cast<size_t>(row.kind)], 20) << row.name;
  for (size_t i = 1; i < kMoments; ++i) EXPECT_GT(moments[i], 1'000U) << "moment " << i;
  for (const SaveKind& kind : kSaveKinds) EXPECT_GT(checkpoints[kind.name], 100) << kind.name;
  EXPECT_GT(good, 1'000);
  EXPECT_GT(failed, 100);
  EXPECT_GT(left, 5);
  EXPECT_GT(large, 5);
  EXPECT_GT(elastic, 300);
  EXPECT_GT(late, 300);
  EXPECT_GT(never, 20);
}

}  // namespace
}  // namespace phalanx::simulation
