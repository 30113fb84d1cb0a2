#include "simulation/node_workers.h"

#include <signal.h>

#include <algorithm>
#include <cstdint>
#include <optional>
#include <utility>
#include <variant>

#include "agent/core/core.h"
#include "agent/workers/lives.h"
#include "simulation/judge.h"
#include "simulation/story.h"

namespace phalanx::simulation {

NodeWorkers::NodeWorkers(const Parts& parts, NodeWorkersEvents events) : parts_(parts), events_(std::move(events)) {}

// --- zygote and spares --------------------------------------------------------------------------------------------
// As src/agent/workers/spare_pool.cc and workers.cc have it. No zygote here gets stuck, and no rank teaches it
// anything: the core has nothing to wait for.

void NodeWorkers::Start() {
  if (!parts_.scenario.warm) return TellOfCold();
  spares_.Start({});
  Run();
}

void NodeWorkers::Run() {
  if (std::exchange(running_, true)) return;
  for (std::vector<agent::SpareAction> actions = spares_.Take(); !actions.empty(); actions = spares_.Take()) {
    for (const agent::SpareAction& action : actions) std::visit([this](const auto& each) { Do(each); }, action);
  }
  running_ = false;
}

void NodeWorkers::WantSpares(int count) {
  spares_.Keep(count, Now());
  Run();
}

void NodeWorkers::NeedSpares() {
  spares_.Need(static_cast<int>(pending_.size()), Now());
  Run();
}

void NodeWorkers::Do(const agent::StartZygote& action) {
  zygotes_.insert(action.zygote);
  Later(parts_.scenario.script.imports, [this, zygote = action.zygote] {
    if (!Serves(zygote)) return;
    spares_.OnZygoteReady(zygote, Now());
    Run();
  });
}

void NodeWorkers::Do(const agent::EndZygote& action) {
  Later(kMs, [this, zygote = action.zygote, why = action.why] { EndOfZygote(zygote, why); });
}

void NodeWorkers::Do(const agent::DropZygote& action) { zygotes_.erase(action.zygote); }

void NodeWorkers::Do(const agent::ForkSpare& action) {
  Later(parts_.machine.random.Between(5, 40) * kMs, [this, zygote = action.zygote, fork = action.fork] {
    if (!Serves(zygote)) return;
    spares_.OnSpareWaits(fork, ++parts_.machine.next_pid, Now());
    Run();
  });
}

void NodeWorkers::Do(const agent::LookAtMemory&) { spares_.OnMemory(INT64_MAX, Now()); }

void NodeWorkers::Do(const agent::TellWaiting& action) {
  Later(0, [this, waiting = action.waiting] {
    if (told_of_) events_.on_spares_changed(waiting);
  });
}

void NodeWorkers::Do(const agent::TellSpare&) {
  for (std::optional<int64_t> pid = spares_.Next(); pid && !pending_.empty(); pid = spares_.Next()) {
    spares_.Taken(*pid);
    const Process process = pending_.front();
    pending_.pop_front();
    Launch(process, true);
  }
  NeedSpares();
}

void NodeWorkers::Do(const agent::TellWithheld&) { TellOfCold(); }

void NodeWorkers::Do(const agent::TellCold&) {
  TellOfCold();
  for (const Process& process : std::exchange(pending_, {})) Launch(process, false);
}

void NodeWorkers::TellOfCold() {
  Later(0, [this] {
    if (told_of_) events_.on_cold();
  });
}

void NodeWorkers::EndOfZygote(int zygote, const std::string& how) {
  if (!Serves(zygote)) return;
  zygotes_.erase(zygote);
  spares_.OnZygoteEnded(zygote, {agent::ZygoteEnd::Kind::kDied, "", how});
  Run();
}

void NodeWorkers::ZygoteDies() {
  if (!zygotes_.empty()) EndOfZygote(*zygotes_.begin(), "killed by signal 9");
}

// --- starts -------------------------------------------------------------------------------------------------------

void NodeWorkers::StartWorker(const v1::StartRound& round, int local_rank) {
  auto process = std::make_shared<WorkerProcess>();
  process->machine = &parts_.machine;
  process->local_rank = local_rank;
  process->epoch = round.epoch();
  process->rank = round.rank_base() + static_cast<uint32_t>(local_rank);
  process->world_size = round.world_size();
  process->store_address = round.store_address();
  process->store_port = round.store_port();
  workers_[local_rank] = process;
  if (parts_.troubles.fails > 0) {
    --parts_.troubles.fails;
    parts_.judge.OnOwnFailure(process->epoch);
    return Later(kMs, [this, process] {
      if (!Current(process)) return;
      workers_.erase(process->local_rank);
      if (told_of_) events_.on_start_failed(process, "no such program");
    });
  }
  const std::optional<int64_t> spare = spares_.Next();
  switch (agent::BeginningOf(false, spare.has_value(), spares_.alive())) {
    case agent::Beginning::kFromSpare:
      spares_.Taken(*spare);
      return Launch(process, true);
    case agent::Beginning::kAwaitsSpare:
      pending_.push_back(process);
      return NeedSpares();
    case agent::Beginning::kCold:
    case agent::Beginning::kRefused:  // the judge sees to it that no agent asks for that
      return Launch(process, false);
  }
}

void NodeWorkers::Launch(const Process& process, bool warm) {
  process->pid = ++parts_.machine.next_pid;
  process->runs = true;
  process->warm = warm;
  process->child_left = parts_.scenario.script.leaves_children;
  ++parts_.machine.groups_alive;
  Later(0, [this, process] {
    if (told_of_ && Current(process)) events_.on_started(process);
  });
  const Script& script = parts_.scenario.script;
  const Micros slower = std::exchange(parts_.troubles.slower_by, 0);
  const Micros jitter = static_cast<Micros>(parts_.machine.random.Below(static_cast<uint64_t>(script.warm_start)));
  Later(script.warm_start / 2 + jitter + (warm ? 0 : script.imports) + slower, [this, process] { RunScript(process); });
}

void NodeWorkers::RunScript(const Process& process) {
  if (process->dying || process->ended || process->saving) return;
  process->script_started = true;
  if (parts_.troubles.loops > 0) {
    --parts_.troubles.loops;
    parts_.judge.OnOwnFailure(process->epoch);
    return RankEnds(process, {1, 0, "ValueError: the script is broken"});
  }
  parts_.training.Join(process, this);
}

// --- ends ---------------------------------------------------------------------------------------------------------

Process NodeWorkers::Find(int local_rank) const {
  const auto found = workers_.find(local_rank);
  const bool lives = found != workers_.end() && found->second->runs && !found->second->dying && !found->second->ended;
  return lives ? found->second : nullptr;
}

bool NodeWorkers::Current(const Process& process) const {
  const auto found = workers_.find(process->local_rank);
  return found != workers_.end() && found->second == process;
}

void NodeWorkers::Strike(const Process& process, const RankEnd& end) {
  parts_.judge.OnOwnFailure(process->epoch);
  RankEnds(process, end);
}

void NodeWorkers::Hang(const Process& process, Micros lasts) {
  process->hung = true;
  parts_.judge.OnOwnFailure(process->epoch);
  Later(lasts, [this, process] {
    process->hung = false;
    parts_.training.Kick();
  });
}

void NodeWorkers::RankEnds(const Process& process, const RankEnd& end) {
  Die(process, end, parts_.machine.random.Between(0, 2 * kMs));
}

void NodeWorkers::RankStepped(const Process& process) {
  if (told_of_ && Current(process)) events_.on_first_step(process);
}

void NodeWorkers::RankSafe(const Process& process) {
  if (told_of_ && Current(process)) events_.on_safe_point(process);
}

// From here on it does nothing; its connections break when the kernel has torn it down.
void NodeWorkers::Die(const Process& process, const RankEnd& end, Micros delay) {
  if (process->ended || (process->dying && end.signal != SIGKILL)) return;
  process->dying = true;
  const Micros at = std::max(parts_.queue.now() + delay, parts_.machine.unkillable_until);
  Later(at - parts_.queue.now(), [this, process, end] { Ended(process, end); });
}

void NodeWorkers::Ended(const Process& process, const RankEnd& end) {
  if (std::exchange(process->ended, true)) return;
  parts_.judge.OnRankEnded(*process, end);
  parts_.training.OnEnded(process, end, true);
  if (told_of_ && Current(process)) events_.on_exited(process, end);
  if (!told_of_) process->child_left = false;
  if (!process->child_left) {
    Later(parts_.machine.random.OneIn(3) ? parts_.machine.random.Between(0, 20 * kMs) : 0,
          [this, process] { Gone(process); });
  }
}

void NodeWorkers::Gone(const Process& process) {
  if (!std::exchange(process->runs, false)) return;
  --parts_.machine.groups_alive;
  if (!Current(process)) return;
  workers_.erase(process->local_rank);
  if (told_of_) events_.on_group_gone(process);
}

// --- signals ------------------------------------------------------------------------------------------------------

bool NodeWorkers::GroupWithstands(int local_rank, int signal) const {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end() || found->second->ended || !found->second->script_started) return false;
  return signal != SIGKILL && parts_.scenario.script.on_term != OnTerm::kDies;
}

// Once its script has come so far that it has registered for it.
bool NodeWorkers::HearsRescale(int local_rank) const {
  const Process process = Find(local_rank);
  return parts_.scenario.script.on_rescale != OnRescale::kNothing && process != nullptr && process->in_group;
}

void NodeWorkers::AnnounceRescale(int local_rank, int64_t at_step) { Find(local_rank)->safe_step = at_step; }

void NodeWorkers::SignalGroup(int local_rank, int signal) {
  const auto found = workers_.find(local_rank);
  if (found == workers_.end()) return;
  const Process process = found->second;
  const auto waits = std::find(pending_.begin(), pending_.end(), process);
  if (waits != pending_.end()) {
    pending_.erase(waits);
    return Later(0, [this, process] {
      if (!Current(process)) return;
      workers_.erase(process->local_rank);
      if (told_of_) events_.on_start_failed(process, "told to end before it began");
    });
  }
  if (!process->runs) return;
  if (process->ended) {
    if (signal == SIGKILL && std::exchange(process->child_left, false)) {
      Later(parts_.machine.random.Between(0, 5 * kMs), [this, process] { Gone(process); });
    }
    return;
  }
  if (signal == SIGKILL) {
    process->child_left = false;
    return Die(process, {0, SIGKILL, ""}, parts_.machine.random.Between(0, 30 * kMs));
  }
  const OnTerm on_term = process->script_started ? parts_.scenario.script.on_term : OnTerm::kDies;
  if (on_term == OnTerm::kDies) return Die(process, {0, signal, ""}, parts_.machine.random.Between(0, 5 * kMs));
  if (on_term == OnTerm::kIgnores || std::exchange(process->saving, true)) return;
  Later(parts_.scenario.script.save, [this, process, signal] { Die(process, {128 + signal, 0, ""}, 0); });
}

void NodeWorkers::KillAll() {
  told_of_ = false;
  pending_.clear();
  const std::map<int, Process> workers = workers_;
  for (const auto& [local_rank, process] : workers) {
    if (!process->runs) continue;
    if (process->ended) {
      process->child_left = false;
      Later(kMs, [this, p = process] { Gone(p); });
    } else {
      process->child_left = false;
      Die(process, {0, SIGKILL, ""}, parts_.machine.random.Between(kMs, 30 * kMs));
    }
  }
}

void NodeWorkers::Vanish(bool seen) {
  told_of_ = false;
  vanished_ = true;
  pending_.clear();
  for (const auto& [local_rank, process] : workers_) {
    if (process->runs) --parts_.machine.groups_alive;
    process->runs = false;
    if (process->ended) continue;
    process->dying = process->ended = true;
    parts_.training.OnEnded(process, {0, SIGKILL, ""}, seen);
  }
  workers_.clear();
}

}  // namespace phalanx::simulation
