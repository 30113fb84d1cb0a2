#include "simulation/campaign.h"

#include <algorithm>
#include <atomic>
#include <mutex>
#include <thread>

namespace phalanx::simulation {
namespace {

constexpr uint64_t kProgressEach = 500;

}  // namespace

CampaignResult RunCampaign(const CampaignOptions& options, const std::function<void(const CampaignResult&)>& progress) {
  std::atomic<uint64_t> next{0};
  std::atomic<bool> enough{false};
  std::mutex mutex;  // guards result
  CampaignResult result;
  const auto work = [&] {
    for (uint64_t i = next++; i < options.seeds && !enough; i = next++) {
      RunResult run = RunScenario(ScenarioOf(options.from + i, options.limits), false);
      const std::lock_guard<std::mutex> lock(mutex);
      ++result.seeds;
      result.events += run.events;
      result.digest ^= run.digest;
      if (run.violation) {
        result.failed.push_back(std::move(run));
        if (options.until_first) enough = true;
      }
      if (progress && result.seeds % kProgressEach == 0) progress(result);
    }
  };
  std::vector<std::thread> others;
  for (unsigned i = 1; i < options.threads; ++i) others.emplace_back(work);
  work();
  for (std::thread& thread : others) thread.join();
  std::sort(result.failed.begin(), result.failed.end(),
            [](const RunResult& a, const RunResult& b) { return a.seed < b.seed; });
  return result;
}

}  // namespace phalanx::simulation
