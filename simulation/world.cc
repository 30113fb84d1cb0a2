#include "simulation/world.h"

#include <algorithm>
#include <utility>

#include "agent/core/joining.h"
#include "master/journal/snapshot.h"
#include "master/replay/start.h"

namespace phalanx::simulation {
namespace {

constexpr Micros kMasterStart = 20 * kMs;
constexpr uint64_t kMostEvents = 20'000'000;

uint64_t Mix(uint64_t digest, uint64_t value) { return (digest ^ value) * 0x100000001B3ULL; }

}  // namespace

RunResult RunScenario(const Scenario& scenario, bool told) { return World(scenario, told).Run(); }

World::World(const Scenario& scenario, bool told)
    : scenario_(scenario),
      story_(told),
      judge_(queue_, story_, scenario_, machines_, storage_, archive_),
      network_(queue_, scenario.seed, scenario.machines.size()),
      troubles_(scenario.machines.size()),
      training_({queue_, story_, judge_, scenario_.script, machines_, storage_, scenario.seed}),
      agents_(scenario.machines.size()),
      random_(scenario.seed, 3) {
  master_clock_ = MachineClock(random_.Between(0, 1'000'000) * kSecond, random_.Between(-100, 100));
  MakeMachines();
}

void World::MakeMachines() {
  for (size_t i = 0; i < scenario_.machines.size(); ++i) {
    const Arrival& arrival = scenario_.machines[i];
    auto machine = std::make_unique<Machine>();
    machine->index = static_cast<int>(i);
    machine->name = fmt::format("node{}", i);
    machine->address = fmt::format("10.0.{}.{}", i / 250, i % 250 + 1);
    machine->clock = MachineClock(arrival.clock_offset_us, arrival.clock_skew_ppm);
    machine->random = Random(scenario_.seed, 10'000 + i);
    network_.SetDelay(machine->index, arrival.delay, arrival.jitter);
    machines_.push_back(std::move(machine));
  }
}

RunResult World::Run() {
  for (const std::string& line : Describe(scenario_)) story_.Say(0, "scenario", "{}", line);
  arriving_ = scenario_.machines.size();
  if (!scenario_.embedded) StartMaster(false);
  for (size_t i = 0; i < scenario_.machines.size(); ++i) {
    const Micros head_start = HoldsMaster(*machines_[i]) ? 0 : kMasterStart;
    queue_.At(scenario_.machines[i].at + head_start, [this, i] { Arrive(i); });
  }
  PlanFaults();
  const Micros settled = scenario_.QuietAt() + kSettles;
  queue_.At(settled, [this] { CheckLiveness(); });
  queue_.At(settled + scenario_.spec.join_timeout_ms() * kMs + kEnds, [this] { ended_late_ = true; });
  uint64_t digest = 0xCBF29CE484222325ULL;
  while (!queue_.empty() && !judge_.violation() && !given_up_ && !Over()) {
    queue_.ServeNext();
    digest = Mix(digest, static_cast<uint64_t>(queue_.now()));
    if (judge_.CountAll() != all_moments_seen_) SeeMoments();
    if (queue_.served() > kMostEvents) judge_.Violated("it-ends", "so many events that something runs in circles");
    if (ended_late_) CheckEnded();
  }
  if (!judge_.violation()) judge_.AtTheEnd();
  digest = Mix(digest, static_cast<uint64_t>(training_.highest_step()));
  RunResult result{scenario_.seed,         queue_.served(),    queue_.now(), digest,
                   judge_.job_exit_code(), judge_.violation(), {},           {}};
  result.story = story_.lines();
  for (size_t i = 0; i < kMoments; ++i) result.moments[i] = judge_.Count(static_cast<Moment>(i));
  return result;
}

// --- who is there -------------------------------------------------------------------------------------------------

void World::StartMaster(bool resume) {
  MasterSetup setup;
  setup.job_id = "job";
  setup.resume = resume;
  if (scenario_.embedded) {
    setup.linger_ms = agent::joining::MasterLingerMs(scenario_.spec.max_nodes());
  } else {
    setup.spec = scenario_.spec;
  }
  const MachineClock& clock = scenario_.embedded ? machines_.front()->clock : master_clock_;
  if (resume) {
    const StatusOr<std::string> payload = journal_.Read(std::exchange(damage_, JournalDamage::kNone), random_);
    if (payload.ok()) {
      StatusOr<master::JobState> past = master::RestoreState(*payload, setup.job_id, clock.Read(queue_.now()));
      if (!past.ok())
        judge_.Violated("journal", "a journal of the master's own that it does not read: " + Message(past.status()));
      if (past.ok()) setup.past = *std::move(past);
    }
    if (setup.past && setup.spec) master::TakeOwnSpec(*setup.past, *setup.spec);
  }
  const SimMaster::Parts parts{queue_, network_, story_, judge_, journal_, [this] { OnMasterEnd(); }};
  masters_.push_back(std::make_unique<SimMaster>(parts, clock, std::move(setup)));
  if (!taken_.empty()) TellPlatform();
}

SimAgent* World::AgentOf(size_t machine) const {
  return agents_[machine].empty() || !agents_[machine].back()->alive() ? nullptr : agents_[machine].back().get();
}

void World::Arrive(size_t machine) {
  --arriving_;
  machines_[machine]->powered = true;
  if (JobOver() || AgentOf(machine) != nullptr) return;
  const auto holder = [this] { return master(); };
  const auto start = [this](SimAgent& agent, bool resume) { StartEmbedded(agent, resume); };
  const auto on_end = [this](const SimAgent& agent) { OnAgentEnd(agent); };
  const SimAgent::Parts parts{
      queue_,    network_,           story_,   judge_,   scenario_, training_, *machines_[machine],
      machines_, troubles_[machine], storage_, archive_, holder,    start,     on_end};
  agents_[machine].push_back(std::make_unique<SimAgent>(parts, static_cast<int>(agents_[machine].size()) + 1));
  machines_[machine]->gate.Pass([agent = agents_[machine].back().get()] { agent->Start(); });
}

void World::Return(size_t machine, Micros after) {
  if (after == 0) return;
  ++arriving_;
  queue_.After(after, [this, machine] { Arrive(machine); });
}

// Nobody starts a node for a job that has ended; nor for one whose embedded master has.
bool World::JobOver() const {
  if (judge_.job_exit_code()) return true;
  return scenario_.embedded && master_parent_ != nullptr && !MasterListens() && !HasParent();
}

bool World::Over() const {
  if (arriving_ > 0 || (MasterListens() && !WaitsForEver())) return false;
  return std::all_of(agents_.begin(), agents_.end(),
                     [](const auto& lives) { return lives.empty() || !lives.back()->alive(); });
}

// A standalone one is started again by whoever runs it, an embedded one by its agent; where that is no more, nobody
// would.
void World::KillMaster(const Fault& fault) {
  if (!MasterListens() || master()->gate().stopped()) return;
  if (scenario_.embedded && !HasParent() && !HasParentAtTheEnd()) return;
  // The end of a job is told only when the journal holds it.
  damage_ = judge_.job_exit_code() ? JournalDamage::kNone : static_cast<JournalDamage>(fault.amount);
  judge_.OnMasterKilled(damage_);
  master_pause_ = fault.lasts;
  master()->Kill();
  if (!scenario_.embedded) {
    ++arriving_;
    queue_.After(master_pause_, [this] {
      --arriving_;
      StartMaster(true);
    });
    return;
  }
}

// The agent whose child an embedded one was sees it at once, whyever it ended.
void World::OnMasterEnd() {
  if (!scenario_.embedded) return;
  queue_.After(kMs,
               [this] { machines_.front()->gate.Pass([this] { master_parent_->OnMasterEnded(master()->killed()); }); });
}

bool World::HasParent() const {
  if (master_parent_ == nullptr || !master_parent_->alive()) return false;
  const agent::CoreState& core = master_parent_->core();
  return core.phase != agent::Phase::kLeaving && !core.finish;
}

bool World::HasParentAtTheEnd() const {
  if (master_parent_ == nullptr || !master_parent_->alive()) return false;
  return master_parent_->core().finish && master_parent_->leaving().phase < agent::leaving::Phase::kMasterStarts;
}

// Nodes that have not heard of the job's end hear of it from its master, or from the one that is started for that.
void World::OnAgentEnd(const SimAgent& agent) {
  const bool told = MasterListens() || master_starts_ || !judge_.job_exit_code() || !master()->killed();
  if (&agent != master_parent_ || told) return;
  for (const auto& lives : agents_) {
    if (lives.empty() || !lives.back()->alive() || lives.back()->core().finish) continue;
    if (lives.back()->core().phase == agent::Phase::kLeaving) continue;
    judge_.Violated("all-told", fmt::format("the master was killed at the job's end, and nobody tells {}",
                                            lives.back()->node_id()));
  }
}

void World::StartEmbedded(SimAgent& agent, bool resume) {
  if (!scenario_.embedded) return judge_.Violated("one-master", "a node starts a master beside that of the job");
  ++arriving_;
  master_starts_ = true;
  queue_.After(!resume || master_pause_ > kSecond ? kMasterStart : master_pause_, [this, &agent, resume] {
    machines_.front()->gate.Pass([this, &agent, resume] {
      --arriving_;
      OnEmbeddedReady(agent, resume);
    });
  });
}

// Where the job's master has ended, a new life would begin another job: here it finds somebody at the endpoint who does
// not answer.
void World::OnEmbeddedReady(SimAgent& agent, bool resume) {
  master_starts_ = false;
  if (!resume && master_parent_ != nullptr) return agent.OnMasterInUse();
  master_parent_ = &agent;
  StartMaster(resume);
  agent.OnMasterReady();
}

// A standalone master waits for a first node as long as it takes, and believes in the only node of its job as long as
// nobody else comes (docs/simulation.md, "What does not hold").
bool World::WaitsForEver() const {
  const master::JobState& state = master()->state();
  const bool nobody_came = state.arrivals == 0 && !scenario_.embedded;
  return nobody_came || (state.nodes.size() == 1 && scenario_.spec.max_nodes() == 1);
}

// --- what must come about -----------------------------------------------------------------------------------------

void World::CheckLiveness() {
  const std::string why = WhyNotLive();
  if (!why.empty()) return judge_.Violated("it-trains", why);
  story_.Say(queue_.now(), "world", "all is quiet, and the job is as it should be; its script comes to an end");
  training_.EndSoon();
}

// What waits for an answer that will never come is left out: docs/simulation.md, "What does not hold".
void World::CheckEnded() {
  std::string who;
  bool waits = false;
  for (const auto& lives : agents_) {
    if (lives.empty() || !lives.back()->alive()) continue;
    const SimAgent& agent = *lives.back();
    const bool for_storage = agent.awaits_storage() && !judge_.IsToldEnd(agent.node_id());
    if (for_storage) judge_.Known(fmt::format("{} gave up, and waits for storage for 10 min", agent.node_id()));
    waits = waits || for_storage;
    if (!for_storage) who += " " + agent.node_id();
  }
  given_up_ = waits && who.empty();
  if (given_up_) return;
  judge_.Violated("it-ends", fmt::format("the job's script has ended long ago, and there are:{}{}", who,
                                         MasterListens() ? " and its master" : ""));
}

// "" where the job trains with all the nodes it may have, waits for more with a deadline, or has ended.
std::string World::WhyNotLive() const {
  if (judge_.job_exit_code() || master() == nullptr) return "";
  std::vector<uint32_t> ranks;  // of each node that is there
  for (const auto& lives : agents_) {
    if (lives.empty() || !lives.back()->alive()) continue;
    const agent::CoreState& core = lives.back()->core();
    // Who has failed its check waits, and takes no part.
    const auto session = master()->state().session_of.find(lives.back()->node_id());
    const bool known = session != master()->state().session_of.end();
    if (known && master()->state().left_out.contains(session->second)) continue;
    if (core.phase != agent::Phase::kLeaving && !core.finish) {
      ranks.push_back(static_cast<uint32_t>(core.options.local_world_size));
    }
  }
  const size_t there = ranks.size();
  if (there == 0) return "";
  if (!master()->listening()) {
    const bool nobody_would = scenario_.embedded && !HasParent();
    return nobody_would ? "" : fmt::format("{} agents and no master", there);
  }
  const master::JobState& state = master()->state();
  const v1::JobSpec& spec = scenario_.spec;
  const auto& granted = judge_.granted();
  const uint64_t largest = granted ? LargestWorld(ranks, spec, *granted) : 0;
  if (there < spec.min_nodes() || (granted && largest == 0)) {
    return state.join_deadline == kNever ? fmt::format("{} agents wait without a deadline", there) : "";
  }
  if (state.phase != master::Phase::kRunning) {
    return fmt::format("{} of at least {} nodes are there, and the job is {}", there, spec.min_nodes(),
                       master::PhaseText(state.phase));
  }
  if (state.round->ranks_done > 0) return "";
  // A slow node goes and comes again for ever: now and then it is on its way.
  const bool begins = queue_.now() - judge_.BegunAt(state.round->epoch) < 30 * kSecond;
  const bool changes = begins || state.round->rescale_by != kNever || state.grow_at != kNever || state.health.run;
  if (scenario_.watches_ranks && changes) return "";
  // A full round stays as it is, also where a node with more ranks waits.
  const bool full = state.round->slots.size() == spec.max_nodes();
  if (granted && !full && state.round->world_size != largest) {
    return fmt::format("{} ranks train, and the nodes that are there could be {}", state.round->world_size, largest);
  }
  if (!granted && state.round->slots.size() != master::UsableNodes(spec, there)) {
    return fmt::format("{} nodes are there, and {} train", there, state.round->slots.size());
  }
  const uint64_t at_work = training_.EpochAtWork(queue_.now() - 30 * kSecond);
  if (at_work != state.round->epoch) {
    return fmt::format("epoch {} is live, and its ranks do not work", state.round->epoch);
  }
  return "";
}

}  // namespace phalanx::simulation
