#include "simulation/judge.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "master/rules/lease.h"
#include "simulation/node_workers.h"
#include "simulation/sim_agent.h"
#include "simulation/sim_master.h"
#include "simulation/story.h"

namespace phalanx::simulation {
namespace {

// A Tick may be served behind other news of the same moment.
constexpr int64_t kSlackMs = 2;
// What a machine's clock may be wrong by over a min_time.
constexpr int64_t kClockErrorMs = 10;
// Of a slow rank: its first windows may be those of a round that was just begun.
constexpr Micros kSlowNamedWithin = 120 * kSecond;
// One Tick may bring about what the next one, at once, is for.
constexpr int kMostIdleTicks = 3;

// Of an agent that has not joined: it begins, waits for a master that it starts, or asks again.
bool LooksForMaster(const agent::joining::State& joining) {
  const bool waits =
      joining.phase == agent::joining::Phase::kBefore || joining.phase == agent::joining::Phase::kStarting;
  return waits || agent::joining::NextDeadline(joining) != kNever;
}

// Something is said, and no name in it is empty.
bool IsSentence(const std::string& reason) { return !reason.empty() && reason.find("  ") == std::string::npos; }

bool Share(const std::vector<int>& a, const std::vector<int>& b) {
  return std::find_first_of(a.begin(), a.end(), b.begin(), b.end()) != a.end();
}

template <typename T>
std::vector<const T*> Only(const std::vector<master::Decision>& decisions) {
  std::vector<const T*> found;
  for (const master::Decision& decision : decisions) {
    if (const T* const action = std::get_if<T>(&decision.action)) found.push_back(action);
  }
  return found;
}

bool IsOfOneNode(const master::JobState& state) { return state.spec && state.spec->max_nodes() == 1; }

// The one node of its job is believed until another comes, and from then on for one lease more.
bool IsAlone(const master::JobState& state) { return state.nodes.size() == 1 && IsOfOneNode(state); }

std::vector<ToldPart> PartsIn(const std::vector<master::Decision>& decisions) {
  std::vector<ToldPart> parts;
  for (const auto* send : Only<master::Send>(decisions)) {
    if (send->message->has_start_round()) parts.push_back({send->session, &send->message->start_round()});
  }
  return parts;
}

}  // namespace

void Judge::Violated(const std::string& rule, const std::string& text) {
  if (violation_) return;
  violation_ = Violation{rule, text};
  story_.Say(queue_.now(), "VIOLATED", "{}: {}", rule, text);
}

void Judge::Known(const std::string& text) { story_.Say(queue_.now(), "known", "{}", text); }

// --- the master ---------------------------------------------------------------------------------------------------

MasterBefore Judge::BeforeMasterStep(const master::JobState& state) {
  return {state.phase, state.budget.used, state.round ? state.round->epoch : 0};
}

void Judge::OnMasterStep(const SimMaster& master, const MasterBefore& before, const master::Event& event,
                         const std::vector<master::Decision>& decisions, Instant now) {
  const master::JobState& state = master.state();
  if (IsAlone(state)) alone_at_ = now;
  CheckDrops(master, event, decisions, now);
  const bool due = LooksAtAll(state, event, decisions);
  if (due) CheckLeases(master, now);
  if (decisions.empty()) return;
  CheckReasons(decisions);
  CheckRound(state, before, decisions);
  CheckVerdicts(state);
  CheckPaces(state, decisions);
  if (due) CheckMembers(state);
  CheckBudget(state, before);
  saves_.OnMasterStep(master, before.epoch, decisions);
  if (state.round && state.round->epoch != before.epoch) shards_.CheckDone(state);
  CheckFinish(master, before, decisions, due);
}

void Judge::CheckReasons(const std::vector<master::Decision>& decisions) {
  for (const master::Decision& decision : decisions) {
    if (!IsSentence(decision.reason)) Violated("reason", "a decision of the master says: '" + decision.reason + "'");
  }
}

void Judge::CheckRound(const master::JobState& state, const MasterBefore& before,
                       const std::vector<master::Decision>& decisions) {
  const std::vector<ToldPart> parts = PartsIn(decisions);
  if (parts.empty()) return;
  ++rounds_begun_;
  const uint64_t epoch = parts.front().round->epoch();
  if (epoch <= highest_epoch_ && remembered_) {
    Violated("epochs-rise", fmt::format("epoch {} is begun, and {} has been", epoch, highest_epoch_));
  }
  highest_epoch_ = epoch;
  CheckWorld(parts);
  CheckHealth(state, parts);
  const size_t nodes = parts.size();
  const v1::JobSpec& spec = *state.spec;
  if (nodes < spec.min_nodes() || nodes > spec.max_nodes() || nodes % spec.node_unit() != 0) {
    Violated("nodes-asked-for", fmt::format("a round of {} nodes", nodes));
  }
  if (granted_) CheckGranted(state, before, parts.front().round->world_size());
  for (const ToldPart& part : parts) told_epoch_[state.nodes.at(part.session).hello.node_id()] = epoch;
  world_of_[epoch] = parts.front().round->world_size();
  begun_at_[epoch] = queue_.now();
  saves_.OnRoundBegun(epoch, parts.front().round->world_size(), nodes);
}

void Judge::CheckGranted(const master::JobState& state, const MasterBefore& before, uint32_t world_size) {
  const std::vector<uint32_t>& sizes = granted_->world_sizes;
  if (!std::binary_search(sizes.begin(), sizes.end(), world_size)) {
    Violated("world-size-granted",
             fmt::format("a round of {} ranks, which the elastic config does not grant", world_size));
  }
  const auto begun = begun_at_.find(before.epoch);
  if (before.phase != master::Phase::kRunning || begun == begun_at_.end()) return;
  const master::Round& ended = *state.last_round;
  const bool only_grows =
      ended.failed.empty() && ended.broken.empty() && ended.leaving.empty() && !ended.any_left_out && !ended.any_asked;
  const int64_t ran_ms = (queue_.now() - begun->second) / kMs;
  if (only_grows && world_size > world_of_[before.epoch] && ran_ms < granted_->round_ms_min - kClockErrorMs) {
    Violated("min-time",
             fmt::format("a round is made larger after {} ms, and is to stay for {}", ran_ms, granted_->round_ms_min));
  }
}

// Of the machine that has this address; null: none has.
const Arrival* Judge::ArrivalAt(const std::string& address) const {
  const auto machine =
      std::ranges::find_if(machines_, [&](const std::unique_ptr<Machine>& m) { return m->address == address; });
  return machine == machines_.end() ? nullptr : &scenario_.machines[static_cast<size_t>((*machine)->index)];
}

// Who fails by itself does not train, in a job that checks its nodes. Who fails beside others alone may have come
// alone.
void Judge::CheckHealth(const master::JobState& state, const std::vector<ToldPart>& parts) {
  if (scenario_.spec.check().level() == 0 || !remembered_) return;
  for (const ToldPart& part : parts) {
    const v1::Hello& hello = state.nodes.at(part.session).hello;
    const Arrival* const there = ArrivalAt(hello.address());
    if (there != nullptr && there->health == Health::kFailsAlone && queue_.now() < there->well_at) {
      Violated("bad-nodes-left-out", fmt::format("node {} fails its check, and is to train", hello.hostname()));
    }
  }
}

// Nobody is found at fault who is not, where nothing else goes wrong.
void Judge::CheckVerdicts(const master::JobState& state) {
  if (!scenario_.faults.empty() || state.health.last.run() == checked_run_) return;
  checked_run_ = state.health.last.run();
  for (const v1::CheckedNode& node : state.health.last.nodes()) {
    const Arrival* const there = ArrivalAt(node.address());
    if (there != nullptr && there->health == Health::kGood && node.verdict() == v1::CheckedNode::FAILED) {
      Violated("good-nodes-train", fmt::format("node {} is good, and left out: {}", node.node(), node.sentence()));
    }
  }
}

Micros Judge::BegunAt(uint64_t epoch) const {
  const auto begun = begun_at_.find(epoch);
  return begun == begun_at_.end() ? 0 : begun->second;
}

// Whether the rank is on a machine that is slow by now.
bool Judge::IsSlow(const master::Round& round, int64_t rank) const {
  const auto slot = std::ranges::find_if(round.slots, [rank](const master::Slot& s) {
    return rank >= s.rank_base && rank < s.rank_base + s.local_world_size;
  });
  const Arrival* const there = slot == round.slots.end() ? nullptr : ArrivalAt(slot->address);
  return there != nullptr && there->slow_from <= queue_.now();
}

// Who is called slow is; and who is for long enough is called so, where nothing else goes wrong.
void Judge::CheckPaces(const master::JobState& state, const std::vector<master::Decision>& decisions) {
  if (!scenario_.watches_ranks || !state.round) return;
  const uint64_t epoch = state.round->epoch;
  for (const master::Decision& decision : decisions) {
    const auto* record = std::get_if<master::Record>(&decision.action);
    if (record == nullptr || !record->kind.starts_with("rank-slow")) continue;
    const bool is_over = record->kind == "rank-slow-over";
    const bool was_ended = state.last_round && record->epoch == state.last_round->epoch;  // by that, at once
    const master::Round& round = was_ended ? *state.last_round : *state.round;
    if (is_over || !IsSlow(round, record->rank)) Violated("slow-ranks-named", decision.reason);
    slow_named_in_ = round.epoch;
  }
  if (!scenario_.faults.empty() || state.phase != master::Phase::kRunning || slow_named_in_ == epoch) return;
  uint32_t slow = 0;
  Micros since = begun_at_[epoch];
  for (const master::Slot& slot : state.round->slots) {
    const Arrival* const there = ArrivalAt(slot.address);
    if (there == nullptr || there->slow_from > queue_.now()) continue;
    slow += slot.local_world_size;
    since = std::max(since, there->slow_from);
  }
  const bool is_odd_one = slow > 0 && 2 * slow <= state.round->world_size;
  const bool steps = state.round->slots_stepped == state.round->slots.size() && state.round->rescale_by == kNever;
  if (is_odd_one && steps && queue_.now() - since > kSlowNamedWithin) {
    Violated("slow-ranks-named", fmt::format("a machine is slow since {} s, and nobody says so", since / kSecond));
  }
}

// Dense and unique, and the same world for all.
void Judge::CheckWorld(const std::vector<ToldPart>& parts) {
  const v1::StartRound& first = *parts.front().round;
  std::set<uint64_t> sessions;
  uint32_t base = 0;
  for (size_t rank = 0; rank < parts.size(); ++rank) {
    const auto& [session, told] = parts[rank];
    const v1::StartRound& part = *told;
    const bool dense = part.group_rank() == rank && part.group_world_size() == parts.size() && part.rank_base() >= base;
    if (!dense || !sessions.insert(session).second) {
      return Violated("ranks-dense",
                      fmt::format("node of session {} is told group rank {} of {}, ranks from {}", session,
                                  part.group_rank(), part.group_world_size(), part.rank_base()));
    }
    base = part.rank_base() + 1;
    const bool same = part.epoch() == first.epoch() && part.world_size() == first.world_size() &&
                      part.store_port() == first.store_port() && part.store_address() == first.store_address() &&
                      part.restart_count() == first.restart_count() && part.store_port() != 0;
    if (!same) Violated("one-world", "nodes of one round are told different worlds");
  }
}

void Judge::CheckMembers(const master::JobState& state) {
  const bool live = state.phase == master::Phase::kRunning || state.phase == master::Phase::kBlaming;
  if (!live) return;
  uint32_t base = 0;
  for (const master::Slot& slot : state.round->slots) {
    if (slot.away && slot.local_world_size == 0) return;  // not known yet
    if (slot.rank_base != base) return Violated("ranks-dense", fmt::format("no node holds rank {}", base));
    base += slot.local_world_size;
    if (slot.session == 0) {
      const bool held = slot.away || state.round->away > 0;  // decisions wait for those that are away
      if (state.phase == master::Phase::kRunning && !slot.AllDone() && !held)
        return Violated("members-there", "a member of the live round has gone, and the round goes on");
      continue;
    }
    if (!state.nodes.contains(slot.session)) return Violated("members-there", "a member without a stream");
    const auto told = told_epoch_.find(state.nodes.at(slot.session).hello.node_id());
    if (told == told_epoch_.end() || (told->second != state.round->epoch && remembered_)) {
      return Violated("members-told", fmt::format("node {} has not been told its place", slot.node));
    }
  }
  if (base != state.round->world_size) Violated("ranks-dense", "world size and ranks differ");
}

// Whether the event calls for a walk over all nodes. In a small world every one that decides something does, and each
// tick. In a large one that would cost far more than the event: one in some hundred does, and what begins a round. What
// breaks a rule there goes on to break it.
bool Judge::LooksAtAll(const master::JobState& state, const master::Event& event,
                       const std::vector<master::Decision>& decisions) {
  if (decisions.empty() && !std::holds_alternative<master::Tick>(event)) return false;
  if (++not_looked_at_ <= state.nodes.size() / kNodesPerLook && PartsIn(decisions).empty()) return false;
  not_looked_at_ = 0;
  return true;
}

// By what the shell has really heard, not by what the core believes.
void Judge::CheckDrops(const SimMaster& master, const master::Event& event,
                       const std::vector<master::Decision>& decisions, Instant now) {
  const bool tick = std::holds_alternative<master::Tick>(event);
  for (const auto* drop : tick ? Only<master::Drop>(decisions) : std::vector<const master::Drop*>()) {
    const int64_t silent_ms = now - master.HeardAt(drop->session);
    if (silent_ms < master::kLeaseMs) {
      return Violated("lease-kept", fmt::format("a node is dropped {} ms after it spoke", silent_ms));
    }
  }
}

void Judge::CheckLeases(const SimMaster& master, Instant now) {
  const master::JobState& state = master.state();
  if (IsAlone(state)) return;
  const int64_t leases = IsOfOneNode(state) ? 2 : 1;
  // Both in the order of sessions: in a large world looking each one up would cost more than all else.
  auto next = state.nodes.begin();
  master.EachHeard([&](uint64_t session, Instant heard_at) {
    while (next != state.nodes.end() && next->first < session) ++next;
    if (next == state.nodes.end() || next->first != session) return;
    const auto& node = next->second;
    const Instant heard = std::max({heard_at, thawed_at_, alone_at_});
    if (now - heard <= node.lease_ms * leases + kSlackMs) return;
    Violated("lease-ends",
             fmt::format("node {} counts, and has been silent for {} ms", node.hello.hostname(), now - heard));
  });
}

void Judge::CheckBudget(const master::JobState& state, const MasterBefore& before) {
  const uint32_t used = state.budget.used;
  if (used > master::AllowedRestarts(state.budget)) {
    Violated("budget", fmt::format("{} restarts are used", used));
  }
  const bool renewed = scenario_.spec.restart_window_ms() < master::kDefaultRestartWindowMs;  // now and then
  if (used == before.budget_used || !remembered_ || renewed) return;
  if (used < before.budget_used) {
    const bool returned = used + 1 == before.budget_used && used > 0;
    if (!returned || charged_.empty()) return charged_.clear();  // renewed by its window, or all given back
    charged_.erase(std::prev(charged_.end()));
    return;
  }
  if (used > before.budget_used + 1) Violated("charged-once", "one event has cost two restarts");
  if (!charged_.insert(before.epoch).second) {
    Violated("charged-once", fmt::format("the failure of epoch {} is charged twice", before.epoch));
  }
}

void Judge::CheckFinish(const SimMaster& master, const MasterBefore& before,
                        const std::vector<master::Decision>& decisions, bool due) {
  const master::JobState& state = master.state();
  for (const auto* send : Only<master::Send>(decisions)) {
    if (!send->message->has_finish()) continue;
    const v1::Finish& finish = send->message->finish();
    told_finish_.insert(send->session);
    const bool same = finish.exit_code() == state.outcome->exit_code && finish.reason() == state.outcome->reason;
    if (!same) Violated("one-end", "agents are told different ends");
  }
  if (state.phase != master::Phase::kFinished) return;
  if (due) CheckAllTold(state);
  if (before.phase == master::Phase::kFinished) {
    if (*job_exit_code_ != state.outcome->exit_code) Violated("one-end", "the job's end has changed");
    return;
  }
  job_exit_code_ = state.outcome->exit_code;
  finished_at_ = queue_.now();
  CheckJustified(master);
}

void Judge::CheckAllTold(const master::JobState& state) {
  if (state.tell_end_by != kNever) return;  // storage takes the last checkpoint first
  for (const auto& [session, node] : state.nodes) {
    if (!node.leaving && !told_finish_.contains(session)) {
      Violated("all-told", fmt::format("node {} is not told that the job is over", node.hello.hostname()));
    }
  }
}

void Judge::CheckJustified(const SimMaster& master) {
  const master::JobState& state = master.state();
  if (state.outcome->exit_code == 0) {
    const uint64_t epoch = state.round ? state.round->epoch : 0;
    if ((ended_well_[epoch].size() != world_of_[epoch] && remembered_) || epoch == 0) {
      Violated("success", fmt::format("success, and {} of {} ranks of epoch {} ended well", ended_well_[epoch].size(),
                                      world_of_[epoch], epoch));
    }
    return;
  }
  const bool failed = state.round && !state.round->failures.empty();
  if (failed && (!own_failures_.empty() || LossMayBeHidden())) return;
  if (signalled_ && state.census.candidates() == 0) return;
  std::vector<uint32_t> ranks;  // of each node that is there
  for (const auto& [session, node] : state.nodes) {
    if (!node.leaving && node.left_out.empty()) ranks.push_back(node.hello.local_world_size());
  }
  const bool too_few =
      ranks.size() < state.spec->min_nodes() || (granted_ && LargestWorld(ranks, scenario_.spec, *granted_) == 0);
  if (!failed && too_few) return;
  Violated("justified", fmt::format("the job ends with {}: {}", state.outcome->exit_code, state.outcome->reason));
}

// A node that is lost while its path carries nothing is found by its lease alone, and the first cause is waited for no
// longer than master::kBlameMs (docs/simulation.md, "What does not hold").
bool Judge::LossMayBeHidden() const {
  return std::any_of(scenario_.faults.begin(), scenario_.faults.end(), [](const Fault& fault) {
    return fault.kind == FaultKind::kCutUp || fault.kind == FaultKind::kCutBoth || fault.kind == FaultKind::kSlowLink;
  });
}

void Judge::OnToldTooLate(uint64_t session, const v1::MasterMessage& message) {
  Violated("told-after-end", fmt::format("session {} is over, and is told: {}", session, message.ShortDebugString()));
}

void Judge::OnMasterKilled(JournalDamage damage) {
  if (damage != JournalDamage::kNone) remembered_ = false;
}

// Its sessions have numbers of their own.
void Judge::OnNewMaster(const master::JobState& state) {
  told_finish_.clear();
  // What was charged and is not in the journal is forgotten with the failure itself.
  saves_.OnNewMaster(state);
  while (charged_.size() > state.budget.used) charged_.erase(std::prev(charged_.end()));
  ForgiveCharges();
}

void Judge::OnMasterThawed(Instant now) {
  thawed_at_ = now;
  ForgiveCharges();
}

// docs/simulation.md, "What does not hold": a node's loss is found late, and what its peers said before has cost a
// restart.
void Judge::ForgiveCharges() {
  own_failures_.insert(charged_.begin(), charged_.end());
  own_failures_.insert(highest_epoch_);
}

// --- agents -------------------------------------------------------------------------------------------------------

void Judge::OnAgentDecided(const SimAgent& agent, const std::string& reason) {
  if (IsSentence(reason)) return;
  Violated("reason", fmt::format("a decision of {} says: '{}'", agent.node_id(), reason));
}

void Judge::OnAgentSettled(const SimAgent& agent, int idle_ticks) {
  const agent::CoreState& core = agent.core();
  if (idle_ticks > kMostIdleTicks) {
    Violated("deadline", fmt::format("a deadline of {}'s that its Tick has not consumed", agent.node_id()));
  }
  const bool over = core.exited || core.finish || core.phase == agent::Phase::kLeaving || !core.master_gone.empty();
  if (!over && !agent.joined() && !LooksForMaster(agent.joining())) {
    Violated("finds-its-master", fmt::format("{} knows no master and does not look for one", agent.node_id()));
  }
  if (!over && agent.joined() && !agent.up() && !agent.dialling() && core.next_dial == kNever) {
    Violated("dials-again", fmt::format("{} has no master and does not look for one", agent.node_id()));
  }
}

void Judge::OnAgentTold(const SimAgent& agent, const v1::MasterMessage& message) {
  if (message.has_finish()) told_end_.insert(agent.node_id());
}

void Judge::OnMasterTicks(int idle_ticks) {
  if (idle_ticks > kMostIdleTicks) Violated("deadline", "a deadline of the master's that its Tick has not consumed");
}

void Judge::OnAgentExit(const SimAgent& agent) {
  const agent::CoreState& core = agent.core();
  const int code = agent.exit_code();
  const bool unkillable = std::any_of(scenario_.faults.begin(), scenario_.faults.end(),
                                      [](const Fault& fault) { return fault.kind == FaultKind::kWorkerUnkillable; });
  if (core.phase == agent::Phase::kLeaving) {
    if (code != 128 + core.stop_signal && !unkillable) Violated("exit-code", "a node that left does not say so");
    return;
  }
  if (told_end_.contains(agent.node_id()) && code != *job_exit_code_ && !unkillable) {
    Violated("exit-code", fmt::format("{} was told that the job ended with {}, and exits with {}", agent.node_id(),
                                      *job_exit_code_, code));
  }
}

// A new life waits for the whole of the old one.
void Judge::OnWorkerStart(const Machine& machine, const NodeWorkers& workers, uint64_t epoch) {
  for (const auto& [local_rank, process] : workers.workers()) {
    if (process->epoch != epoch && process->runs) {
      return Violated("old-groups-gone", fmt::format("{} starts epoch {}, and local rank {} of epoch {} is still there",
                                                     machine.name, epoch, local_rank, process->epoch));
    }
  }
}

// --- ranks --------------------------------------------------------------------------------------------------------

void Judge::OnRankUp(const WorkerProcess& process) {
  story_.Say(queue_.now(), process.machine->name, "rank {} of epoch {} looks for its group{}", process.rank,
             process.epoch, process.warm ? "" : " (cold start)");
}

// An old round whose nodes know of no newer one, and which shares none with it, cannot be held up by anybody
// (docs/simulation.md, "What does not hold"); any other makes no step more.
void Judge::OnTrainingStep(uint64_t epoch, int64_t step, const std::vector<int>& machines) {
  saves_.OnTrainingStep(epoch);
  if (epoch >= stepped_epoch_) {
    stepped_epoch_ = epoch;
    stepped_on_ = machines;
    return;
  }
  if (Share(machines, stepped_on_) && remembered_) {
    return Violated("one-epoch",
                    fmt::format("epoch {} makes step {}, and epoch {} has stepped", epoch, step, stepped_epoch_));
  }
  split_ = true;
  story_.Say(queue_.now(), "known", "epoch {} makes step {} on machines that have not heard of epoch {}", epoch, step,
             stepped_epoch_);
}

void Judge::OnCheckpoint(int64_t before, int64_t step, const std::vector<int>& machines) {
  const bool shared = Share(machines, saved_on_);
  saved_on_ = machines;
  if (step < before && !shared) split_ = true;
  if (step >= before || split_ || !remembered_) return;
  Violated("steps-grow", fmt::format("step {} is saved over step {}", step, before));
}

void Judge::OnRankEnded(const WorkerProcess& process, const RankEnd& end) {
  shards_.OnRankEnded(process);
  story_.Say(queue_.now(), process.machine->name, "rank {} of epoch {} is gone: {}", process.rank, process.epoch,
             agent::DescribeEnd(end.exit_code, end.signal));
  // One that has come to a safe point makes room for the next round; its work is not done.
  if (end.exit_code == 0 && end.signal == 0 && !process.safe) ended_well_[process.epoch].insert(process.rank);
}

// The next round was over as well before the node was found lost: the master knows no more of the one that was charged.
bool Judge::WasOvertaken(uint64_t epoch) const {
  const auto next = begun_at_.find(epoch + 1);
  const auto after = begun_at_.find(epoch + 2);
  const Micros until = after == begun_at_.end() ? finished_at_ : after->second;
  return next != begun_at_.end() && until - next->second < master::kLeaseMs * kMs;
}

void Judge::AtTheEnd() {
  if (!remembered_) return;
  for (const uint64_t epoch : charged_) {
    if (!own_failures_.contains(epoch) && !WasOvertaken(epoch)) {
      Violated("membership-is-free", fmt::format("epoch {} lost nothing but nodes, and cost a restart", epoch));
    }
  }
}

}  // namespace phalanx::simulation
