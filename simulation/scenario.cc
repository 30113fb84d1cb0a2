#include "simulation/scenario.h"

#include <fmt/format.h>

#include <algorithm>

#include "simulation/random.h"

namespace phalanx::simulation {
namespace {

v1::JobSpec DrawSpec(Random& random, const ScenarioLimits& limits) {
  v1::JobSpec spec = master::DefaultSpec();
  const bool large = random.OneIn(128);
  spec.set_node_unit(random.OneIn(6) ? static_cast<uint32_t>(random.Between(2, 3)) : 1);
  spec.set_min_nodes(
      static_cast<uint32_t>(large ? random.Between(20, 150) : random.Between(1, random.OneIn(3) ? 5 : 2)));
  spec.set_max_nodes(spec.min_nodes() + static_cast<uint32_t>(random.OneIn(3) ? 0 : random.Between(1, large ? 50 : 3)));
  spec.set_max_nodes(std::max(1u, std::min(spec.max_nodes(), limits.max_machines / spec.node_unit())) *
                     spec.node_unit());
  spec.set_min_nodes(std::min(spec.min_nodes() * spec.node_unit(), spec.max_nodes()));
  if (limits.machines > 0) {
    spec.set_node_unit(1);
    spec.set_max_nodes(limits.machines);
    spec.set_min_nodes(limits.machines - limits.machines / 50);
  }
  if (random.OneIn(2)) spec.set_max_restarts(static_cast<uint32_t>(random.OneIn(4) ? 100 : random.Between(0, 4)));
  if (random.OneIn(8)) spec.set_restart_window_ms(random.Between(1'000, 10'000));
  spec.set_join_timeout_ms(random.Between(10'000, 60'000));
  spec.set_last_call_ms(random.OneOf({0, 300, 300, 1'000}));
  spec.set_rescale_grace_ms(random.OneOf({0, 500, 5'000, 30'000}));
  return spec;
}

// Drawn apart, so that other jobs are what they would be without it.
uint32_t DrawOlderSaveAfter(uint64_t seed) {
  Random random(seed, 3);
  return static_cast<uint32_t>(random.OneOf({0, 1, 2, 2, 2, 3}));
}

// Drawn apart, too.
int64_t DrawLease(uint64_t seed) {
  Random random(seed, 6);
  return random.OneIn(8) ? random.OneOf({4'500, 15'000}) : 0;
}

// Grants divisors of its largest batch. Drawn apart, so that other jobs are what they would be without such configs.
std::string DrawElasticConfig(uint64_t seed, const v1::JobSpec& spec) {
  Random random(seed, 2);
  if (!random.OneIn(5)) return "";
  if (spec.max_nodes() > 720) return "";  // of a larger world no divisor is near
  const int64_t batch = spec.min_nodes() > 12 ? 720 : random.OneOf({12, 60, 720});
  const int64_t min_gpus = random.OneIn(2) ? 1 : random.Between(2, 4);
  const char* min_minutes = !random.OneIn(3) ? "0" : random.OneIn(2) ? "0.1" : "0.4";
  return fmt::format(R"({{"enabled":true,"max_train_batch_size":{},"micro_batch_sizes":[1],"version":0.1,)"
                     R"("min_gpus":{},"min_time":{}}})",
                     batch, min_gpus, min_minutes);
}

Script DrawScript(Random& random) {
  Script script;
  script.steps = !random.OneIn(10);
  script.tells_step = !random.OneIn(3);
  script.step = random.OneOf({30, 100, 100, 300, 1'000}) * kMs;
  const bool lasting = random.OneIn(6);
  if (lasting) script.step = kSecond;
  const Micros length = lasting ? 400 * kSecond : random.Between(2, 40) * kSecond;
  script.total_steps = std::max<int64_t>(1, length / script.step);
  script.checkpoint_every = random.OneOf({1, 5, 20, 1'000'000});
  script.first_step = random.Between(1, 400) * kMs;
  script.warm_start = random.Between(5, 300) * kMs;
  script.imports = (random.OneIn(4) ? random.Between(1, 200) : random.Between(200, 4'000)) * kMs;
  script.on_term = random.OneIn(2) ? OnTerm::kDies : random.OneIn(3) ? OnTerm::kIgnores : OnTerm::kSaves;
  if (script.steps && random.OneIn(3)) script.on_rescale = random.OneIn(3) ? OnRescale::kEnds : OnRescale::kWaits;
  script.save = random.Between(10, 3'000) * kMs;
  script.peers_hang = random.OneIn(5);
  script.patience = random.Between(5, 20) * kSecond;
  script.leaves_children = random.OneIn(8);
  return script;
}

std::vector<Arrival> DrawMachines(Random& random, const Scenario& scenario, const ScenarioLimits& limits) {
  const v1::JobSpec& spec = scenario.spec;
  int64_t count = random.Between(spec.min_nodes(), spec.max_nodes());
  if (random.OneIn(3)) count = spec.max_nodes();
  if (random.OneIn(4)) count = spec.max_nodes() + random.Between(1, 2);  // spares
  if (random.OneIn(16)) count = std::max<int64_t>(1, spec.min_nodes() - 1);
  count = std::min<int64_t>(count, limits.max_machines);
  if (limits.machines > 0) count = limits.machines;
  const auto workers = static_cast<uint32_t>(count > 16 ? 1 : random.Between(1, random.OneIn(4) ? 4 : 2));
  const bool uneven = random.OneIn(8);
  const bool places = random.OneIn(8) && count <= spec.max_nodes();  // static rendezvous
  const uint64_t spread_ms = static_cast<uint64_t>(random.OneOf({1, 100, 1'000, 8'000}));
  std::vector<Arrival> machines(static_cast<size_t>(count));
  for (size_t i = 0; i < machines.size(); ++i) {
    Arrival& machine = machines[i];
    machine.at = static_cast<Micros>(random.Below(spread_ms * 1'000));
    if (i > 0 && random.OneIn(6)) machine.at += random.Between(1, 20) * kSecond;  // comes while the job runs
    machine.local_world_size = uneven ? static_cast<uint32_t>(random.Between(1, 3)) : workers;
    machine.wanted_rank = places ? static_cast<int32_t>(i) : -1;
    machine.clock_offset_us = random.Between(0, 1'000'000) * kSecond + random.Between(0, kSecond);
    machine.clock_skew_ppm = random.Between(-100, 100);
    machine.delay = random.OneOf({30, 200, 200, 5'000, 60'000});
    machine.jitter = machine.delay / random.Between(1, 4);
  }
  if (!spec.elastic_config().empty()) {  // nodes of a third kind would be refused
    for (Arrival& machine : machines) {
      if (uneven) machine.local_world_size = std::min(2u, machine.local_world_size);
    }
  }
  if (scenario.embedded) {
    machines.front().at = 0;  // others would find nobody to dial, and dial on
    machines.front().delay = machines.front().jitter = 30;
  }
  return machines;
}

// Names come late in a cluster that starts up; to a node, now and then, never. Drawn apart, so that the job is what it
// would be without.
void DrawNames(Scenario& scenario) {
  Random random(scenario.seed, 7);
  if (!random.OneIn(6)) return;
  for (size_t i = 0; i < scenario.machines.size(); ++i) {
    Arrival& machine = scenario.machines[i];
    if (random.OneIn(2)) machine.named_at = machine.at + random.Between(1, 8'000) * kMs;
    if (i > 0 && random.OneIn(30)) machine.named_at = kNeverNamed;
  }
}

// Some jobs check their nodes, of which up to a quarter is bad, for a while or for ever. Drawn apart as well.
void DrawChecks(Scenario& scenario) {
  Random random(scenario.seed, 9);
  if (!random.OneIn(6)) return;
  v1::CheckSpec& check = *scenario.spec.mutable_check();
  check.set_level(static_cast<uint32_t>(random.Between(1, 2)));
  check.set_limit_ms(random.Between(1'000, 8'000));
  check.set_left_out_ms(random.Between(2'000, 20'000));
  size_t bad = random.OneIn(3) ? 0 : scenario.machines.size() / 4;
  for (; bad > 0; --bad) {
    Arrival& machine = scenario.machines[random.Below(scenario.machines.size())];
    machine.health = random.OneIn(2) ? Health::kFailsAlone : Health::kFailsBesideOthers;
    machine.well_at = random.OneIn(2) ? INT64_MAX : random.Between(0, 40) * kSecond;
  }
}

// Some small jobs run for minutes, and one of their machines becomes slow. Drawn apart as well.
void DrawPaces(Scenario& scenario) {
  Random random(scenario.seed, 10);
  const bool is_small = scenario.machines.size() > 1 && scenario.machines.size() <= 8;
  if (!random.OneIn(8) || !is_small || !scenario.script.steps || !scenario.spec.elastic_config().empty()) return;
  scenario.watches_ranks = true;
  scenario.script.step = random.OneOf({100, 400, 1'500}) * kMs;
  scenario.script.total_steps = 200 * kSecond / scenario.script.step;
  v1::CheckSpec& check = *scenario.spec.mutable_check();
  check.set_excludes_stragglers(random.OneIn(2));
  if (check.left_out_ms() == 0) check.set_left_out_ms(random.Between(20'000, 60'000));
  if (random.OneIn(4)) return;  // none is
  Arrival& slow = scenario.machines[random.Below(scenario.machines.size())];
  slow.slow_from = random.OneIn(2) ? 0 : random.Between(0, 60) * kSecond;
}

// The end of a job is a short moment: now and then its master dies in it, and a node has not heard of the end. Drawn
// apart as well.
void DrawFaultsAtTheEnd(Scenario& scenario) {
  Random random(scenario.seed, 8);
  if (!random.OneIn(12)) return;
  Fault lost;
  lost.kind = FaultKind::kStreamReset;
  lost.moment = Moment::kEnd;
  lost.nth = 1;
  lost.at = random.Between(0, kMs);
  lost.machine = static_cast<uint32_t>(random.Below(scenario.machines.size()));
  lost.amount = 1;  // and Finish with it
  Fault killed = lost;
  killed.kind = FaultKind::kMasterKilled;
  killed.at = random.Between(0, random.OneIn(2) ? kMs : 100 * kMs);
  killed.lasts = random.Between(20, 500) * kMs;
  killed.amount = 0;
  scenario.faults.push_back(lost);
  scenario.faults.push_back(killed);
}

// Ranks that hold all of their own state want the same world again.
bool MayChangeItsWorld(const Scenario& scenario) {
  if (scenario.spec.min_nodes() < scenario.spec.max_nodes() || !scenario.spec.elastic_config().empty()) return true;
  const uint32_t first = scenario.machines.front().local_world_size;
  return std::any_of(scenario.machines.begin(), scenario.machines.end(),
                     [first](const Arrival& machine) { return machine.local_world_size != first; });
}

SaveForm DrawSharedForm(Random& random) {
  switch (random.Below(6)) {
    case 0:
      return kDcpForm;
    case 3:
      return kFilesForm;
    default:
      return kDdpForm;
  }
}

// Drawn apart, so that the job is what it would be without.
std::optional<Saving> DrawSaving(const Scenario& scenario) {
  Random random(scenario.seed, 4);
  if (!scenario.script.steps || random.OneIn(4)) return std::nullopt;
  Saving saving;
  const bool any_kind = !MayChangeItsWorld(scenario);
  saving.form = any_kind && random.OneIn(2) ? kFullForm : DrawSharedForm(random);
  saving.slots = random.OneIn(3) ? 2 : 3;
  saving.store_every = random.OneOf({0, 1, 1, 2, 5});
  saving.at_breakpoint = random.OneIn(4);
  saving.keep_last = static_cast<int>(random.OneOf({0, 1, 1, 2, 3}));
  saving.keep_every = random.OneIn(6) ? scenario.script.checkpoint_every * random.Between(2, 5) : 0;
  saving.waits_at_end = random.OneIn(3);
  saving.copy = random.OneOf({1, 10, 100, 1'000}) * kMs;
  saving.scan = random.OneOf({1, 10, 300}) * kMs;
  saving.write = random.OneOf({1, 20, 200, 1'500}) * kMs;
  saving.archives = random.OneIn(3);
  if (saving.archives) saving.archive_every = random.OneIn(2) ? random.Between(1, 3) : 0;
  return saving;
}

// Some saves a job: each is a message and an order for every node.
int64_t StepsBetweenSaves(const Scenario& scenario) {
  Random random(scenario.seed, 5);
  const int64_t saves = scenario.machines.size() > 64 ? random.Between(1, 3) : random.Between(2, 24);
  return std::max<int64_t>(1, scenario.script.total_steps / saves);
}

std::string Name(const Saving& saving) {
  return fmt::format(
      "checkpoints: {}, {} slots, each {}. to storage, copied in {} ms, written in {} ms, keep {} and each "
      "{}.{}{}{}",
      KindOf(saving.form), saving.slots, saving.store_every, saving.copy / kMs, saving.write / kMs, saving.keep_last,
      saving.keep_every, saving.archives ? fmt::format(", archive each {}.", saving.archive_every) : "",
      saving.at_breakpoint ? ", at a breakpoint, too" : "",
      saving.waits_at_end ? "; ranks await storage before they end" : "");
}

std::string Name(OnRescale on_rescale) {
  return on_rescale == OnRescale::kNothing ? "hears of no rescale"
         : on_rescale == OnRescale::kWaits ? "waits for a rescale at a safe point"
                                           : "ends for a rescale at a safe point";
}

std::string Name(OnTerm on_term) {
  return on_term == OnTerm::kDies ? "dies by" : on_term == OnTerm::kSaves ? "saves and ends on" : "ignores";
}

}  // namespace

Micros Scenario::QuietAt() const {
  Micros quiet = 0;
  for (const Arrival& machine : machines) {
    quiet = std::max({quiet, machine.at, machine.named_at == kNeverNamed ? 0 : machine.named_at});
  }
  for (const Fault& fault : faults) quiet = std::max(quiet, EndOf(fault, kLatestTriggered));
  return quiet;
}

Scenario ScenarioOf(uint64_t seed, const ScenarioLimits& limits) {
  Random random(seed, 1);
  Scenario scenario;
  scenario.seed = seed;
  scenario.spec = DrawSpec(random, limits);
  scenario.spec.set_elastic_config(DrawElasticConfig(seed, scenario.spec));
  scenario.spec.set_older_save_after_lives(DrawOlderSaveAfter(seed));
  scenario.spec.set_lease_ms(DrawLease(seed));
  scenario.embedded = !random.OneIn(3);
  scenario.warm = !random.OneIn(6);
  scenario.script = DrawScript(random);
  scenario.stop_timeout_ms = random.OneOf({1'000, 5'000, 30'000});
  scenario.restart_grace_ms = random.OneOf({0, 500, 500, 2'000});
  scenario.machines = DrawMachines(random, scenario, limits);
  DrawNames(scenario);
  DrawChecks(scenario);
  DrawPaces(scenario);
  // Of many ranks each message is told to the master: a few are enough to meet all that can go wrong.
  scenario.script.takes_shards = seed % 4 == 1 && scenario.script.steps && scenario.machines.size() <= 16;
  scenario.script.saving = DrawSaving(scenario);
  if (scenario.script.saving) {
    scenario.script.checkpoint_every = StepsBetweenSaves(scenario);
    scenario.script.saving->archive_every *= scenario.script.checkpoint_every;
  }
  FaultLimits drawn;
  drawn.machines = static_cast<uint32_t>(scenario.machines.size());
  for (const Arrival& machine : scenario.machines) drawn.workers = std::max(drawn.workers, machine.local_world_size);
  const Micros length = scenario.script.step * scenario.script.total_steps + 5 * kSecond;
  drawn.until = std::min(length, 40 * kSecond);
  drawn.saves = scenario.script.saving.has_value();
  scenario.faults = DrawFaults(random, drawn);
  DrawFaultsAtTheEnd(scenario);
  return scenario;
}

std::vector<std::string> Describe(const Scenario& s) {
  std::vector<std::string> lines;
  const std::string restarts = s.spec.has_max_restarts() ? fmt::format("{}", s.spec.max_restarts()) : "not given";
  lines.push_back(
      fmt::format("job: {}:{} nodes in units of {}, max restarts {}, join timeout {} s, last call {} ms, rescale grace "
                  "{} ms, an older save after {} lives; {} master",
                  s.spec.min_nodes(), s.spec.max_nodes(), s.spec.node_unit(), restarts,
                  s.spec.join_timeout_ms() / 1'000, s.spec.last_call_ms(), s.spec.rescale_grace_ms(),
                  s.spec.older_save_after_lives(), s.embedded ? "embedded" : "standalone"));
  if (s.spec.lease_ms() > 0) lines.push_back(fmt::format("a silent node is believed for {} ms", s.spec.lease_ms()));
  if (!s.spec.elastic_config().empty()) lines.push_back("elastic config: " + s.spec.elastic_config());
  const Script& script = s.script;
  lines.push_back(
      fmt::format("script: {}, starts in {} ms{}, {} SIGTERM, {}; peers of a dead rank {}",
                  script.steps ? fmt::format("{} steps of {} ms, a checkpoint each {}", script.total_steps,
                                             script.step / kMs, script.checkpoint_every)
                               : fmt::format("no steps, ends after {} s", script.total_steps * script.step / kSecond),
                  script.warm_start / kMs, s.warm ? "" : fmt::format(" and {} ms of imports", script.imports / kMs),
                  Name(script.on_term), Name(script.on_rescale), script.peers_hang ? "hang" : "fail"));
  if (script.saving) lines.push_back(Name(*script.saving));
  if (script.takes_shards) lines.push_back("ranks take shards of a dataset");
  std::string machines;
  for (size_t i = 0; i < s.machines.size() && i < 12; ++i) {
    const Arrival& m = s.machines[i];
    machines += fmt::format("{}node{} at {}.{:03} s with {}", i > 0 ? ", " : "", i, m.at / kSecond, m.at / kMs % 1'000,
                            m.local_world_size);
    if (m.named_at == kNeverNamed) machines += " (never knows the endpoint)";
    if (m.named_at > m.at && m.named_at != kNeverNamed) {
      machines += fmt::format(" (knows the endpoint at {}.{:03} s)", m.named_at / kSecond, m.named_at / kMs % 1'000);
    }
  }
  lines.push_back(fmt::format("{} machines: {}{}", s.machines.size(), machines, s.machines.size() > 12 ? ", ..." : ""));
  if (s.spec.check().level() > 0) {
    std::string bad;
    for (size_t i = 0; i < s.machines.size(); ++i) {
      if (s.machines[i].health == Health::kGood) continue;
      bad +=
          fmt::format("; node{} fails {}", i, s.machines[i].health == Health::kFailsAlone ? "alone" : "beside others");
      if (s.machines[i].well_at != INT64_MAX) bad += fmt::format(" until {} s", s.machines[i].well_at / kSecond);
    }
    lines.push_back(fmt::format("nodes are checked, level {}, for {} ms a part, and left out for {} ms{}",
                                s.spec.check().level(), s.spec.check().limit_ms(), s.spec.check().left_out_ms(), bad));
  }
  for (size_t i = 0; s.watches_ranks && i < s.machines.size(); ++i) {
    if (s.machines[i].slow_from == INT64_MAX) continue;
    lines.push_back(fmt::format("node{} is slow from {} s on{}", i, s.machines[i].slow_from / kSecond,
                                s.spec.check().excludes_stragglers() ? ", and may be left out" : ""));
  }
  for (const Fault& fault : s.faults) lines.push_back("fault: " + Describe(fault));
  return lines;
}

}  // namespace phalanx::simulation
