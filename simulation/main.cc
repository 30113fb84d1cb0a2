// phalanx-sim: flags in, calls out.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <charconv>
#include <cstdio>
#include <optional>
#include <string>
#include <thread>

#include "base/clock.h"
#include "simulation/campaign.h"
#include "simulation/plants.h"
#include "simulation/shrink.h"
#include "simulation/succession_world.h"

namespace phalanx::simulation {
namespace {

struct Flags {
  uint64_t seeds = 1'000;
  uint64_t from = 1;
  std::optional<uint64_t> seed;
  uint32_t machines = 0;
  bool explain = false;
  bool shrink = false;
  unsigned threads = 0;
  std::string plant;
  bool list_plants = false;
  bool succession = false;
};

constexpr uint64_t kMostSeeds = 1'000'000'000'000;
constexpr uint64_t kLastSeed = 1'000'000'000'000'000'000;
constexpr uint64_t kMostThreads = 256;
constexpr uint64_t kMostMachines = 20'000;

CLI::Validator Number(uint64_t least, uint64_t most) {
  return CLI::Validator(
      [least, most](const std::string& given) {
        uint64_t number = 0;
        const auto [end, error] = std::from_chars(given.data(), given.data() + given.size(), number);
        const bool fits = error == std::errc() && end == given.data() + given.size() && number >= least;
        return fits && number <= most ? "" : fmt::format("'{}' is no number from {} to {}", given, least, most);
      },
      "", "");
}

void Declare(CLI::App& app, Flags& f) {
  CLI::Option* const seeds =
      app.add_option("--seeds", f.seeds, "run so many seeds")->check(Number(1, kMostSeeds))->capture_default_str();
  CLI::Option* const from =
      app.add_option("--from", f.from, "the first of them")->check(Number(0, kLastSeed))->capture_default_str();
  CLI::Option* const seed = app.add_option("--seed", f.seed, "run this one")->check(Number(0, kLastSeed));
  seed->excludes(seeds)->excludes(from);
  app.add_option("--machines", f.machines, "worlds of so many machines; 0: as drawn, 1 to some hundred")
      ->check(Number(0, kMostMachines))
      ->capture_default_str();
  app.add_flag("--explain", f.explain, "tell its story, one line an event")->needs(seed);
  app.add_flag("--shrink", f.shrink, "find the smallest list of its faults that still fails, and tell that story")
      ->needs(seed);
  app.add_option("--threads", f.threads, "over seeds; 0: one for each CPU")
      ->check(Number(0, kMostThreads))
      ->capture_default_str();
  app.add_option("--plant", f.plant, "with this known bug in the cores (--list-plants)");
  app.add_flag("--succession", f.succession, "other worlds: masters are lost, and other nodes take the job up");
  app.add_flag("--list-plants", f.list_plants, "the known bugs that can be planted");
}

void PrintStory(const RunResult& run) {
  for (const std::string& line : run.story) fmt::print("{}\n", line);
  fmt::print("seed {}: {} events in {} s of virtual time, digest {:016x}\n", run.seed, run.events, run.lasted / kSecond,
             run.digest);
}

std::string Verdict(const RunResult& run) {
  if (run.violation) return fmt::format("VIOLATED {}: {}", run.violation->rule, run.violation->text);
  return run.exit_code ? fmt::format("ok: the job ended with exit code {}", *run.exit_code)
                       : std::string("ok: the job never came to an end of its own, as nobody stayed for it");
}

int RunOne(const Flags& flags, const ScenarioLimits& limits) {
  Scenario scenario = ScenarioOf(*flags.seed, limits);
  RunResult run = RunScenario(scenario, flags.explain);
  if (flags.shrink && !run.violation) {
    fmt::print("seed {} breaks no rule: there is nothing to shrink\n", *flags.seed);
    return 0;
  }
  if (flags.shrink) {
    const size_t before = scenario.faults.size();
    scenario = Shrink(std::move(scenario), [rule = run.violation->rule](const Scenario& smaller) {
      const RunResult again = RunScenario(smaller, false);
      return again.violation && again.violation->rule == rule;
    });
    run = RunScenario(scenario, true);
    PrintStory(run);
    fmt::print("shrunk from {} faults to {}:\n", before, scenario.faults.size());
    for (const Fault& fault : scenario.faults) fmt::print("  {}\n", Describe(fault));
  } else if (flags.explain) {
    PrintStory(run);
  }
  fmt::print("seed {}: {}\n", run.seed, Verdict(run));
  return run.violation ? 1 : 0;
}

int RunMany(const Flags& flags, const ScenarioLimits& limits) {
  CampaignOptions options;
  options.from = flags.from;
  options.seeds = flags.seeds;
  options.threads = flags.threads > 0 ? flags.threads : std::max(1u, std::thread::hardware_concurrency());
  options.limits = limits;
  const Instant began = MonotonicMs();
  const auto rate = [began](const CampaignResult& r) {
    return static_cast<int64_t>(r.events) * 1'000 / std::max<int64_t>(1, MonotonicMs() - began);
  };
  const CampaignResult result = RunCampaign(options, [&](const CampaignResult& r) {
    fmt::print(stderr, "{} of {} seeds, {} events, {} events/s, {} failed\n", r.seeds, flags.seeds, r.events, rate(r),
               r.failed.size());
  });
  std::string with = flags.plant.empty() ? "" : fmt::format(" --plant {}", flags.plant);
  if (flags.machines > 0) with += fmt::format(" --machines {}", flags.machines);
  for (const RunResult& run : result.failed) {
    fmt::print("seed {}: {} (./run sim --seed {} --shrink{})\n", run.seed, Verdict(run), run.seed, with);
  }
  const int64_t took_ms = MonotonicMs() - began;
  fmt::print("{} seeds from {}, {} events in {}.{:03} s ({} events/s), {} failed, digest {:016x}\n", result.seeds,
             flags.from, result.events, took_ms / 1'000, took_ms % 1'000, rate(result), result.failed.size(),
             result.digest);
  return result.failed.empty() ? 0 : 1;
}

int RunSuccessions(const Flags& flags) {
  uint64_t failed = 0;
  SuccessionResult all;
  const uint64_t from = flags.seed.value_or(flags.from);
  const uint64_t seeds = flags.seed ? 1 : flags.seeds;
  for (uint64_t seed = from; seed < from + seeds; ++seed) {
    const SuccessionResult run = RunSuccession(seed, flags.explain);
    for (const std::string& line : run.story) fmt::print("{}\n", line);
    all.events += run.events;
    all.elections += run.elections;
    all.worlds += run.worlds;
    all.held += run.held;
    all.digest = (all.digest ^ run.digest) * 0x100000001B3ULL;
    if (!run.violated) continue;
    ++failed;
    fmt::print("seed {}: VIOLATED {} (./run sim --succession --seed {} --explain)\n", seed, *run.violated, seed);
  }
  fmt::print("{} seeds from {}, {} events, {} masters elected, {} worlds, {} held, {} failed, digest {:016x}\n", seeds,
             from, all.events, all.elections, all.worlds, all.held, failed, all.digest);
  return failed == 0 ? 0 : 1;
}

int ListPlants() {
  if (Plants().empty()) fmt::print("this program has none; phalanx-sim-planted has (./run sim --list-plants)\n");
  for (const Plant& plant : Plants()) fmt::print("{:<24} {}\n", plant.name, plant.what);
  return 0;
}

}  // namespace

int Main(int argc, char** argv) {
  CLI::App app("The production cores of master and agent in a simulated world, by seed.", "phalanx-sim");
  Flags flags;
  Declare(app, flags);
  app.failure_message([](const CLI::App*, const CLI::Error& error) {
    return fmt::format("phalanx-sim: {}; --help lists the flags\n", error.what());
  });
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    return app.exit(error) == 0 ? 0 : 2;
  }
  if (flags.list_plants) return ListPlants();
  if (!ChoosePlant(flags.plant)) {
    fmt::print(stderr, "phalanx-sim: --plant={}: there is none of that name; --list-plants shows them\n", flags.plant);
    return 2;
  }
  if (flags.succession) return RunSuccessions(flags);
  ScenarioLimits limits;
  limits.machines = flags.machines;
  return flags.seed ? RunOne(flags, limits) : RunMany(flags, limits);
}

}  // namespace phalanx::simulation

int main(int argc, char** argv) { return phalanx::simulation::Main(argc, argv); }
