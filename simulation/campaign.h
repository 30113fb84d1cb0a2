// Many seeds, on several threads; each seed is a world of its own.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "simulation/scenario.h"
#include "simulation/world.h"

namespace phalanx::simulation {

struct CampaignOptions {
  uint64_t from = 1;
  uint64_t seeds = 1'000;
  unsigned threads = 1;
  ScenarioLimits limits;
  bool until_first = false;  // end at the first violation
};

struct CampaignResult {
  uint64_t seeds = 0;
  uint64_t events = 0;
  uint64_t digest = 0;            // of all seeds, whatever the threads
  std::vector<RunResult> failed;  // by seed
};

// `progress` is called now and then, from one thread at a time, with what is done so far.
CampaignResult RunCampaign(const CampaignOptions& options,
                           const std::function<void(const CampaignResult&)>& progress = {});

}  // namespace phalanx::simulation
