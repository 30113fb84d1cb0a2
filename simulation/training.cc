#include "simulation/training.h"

#include <signal.h>

#include <algorithm>
#include <utility>

#include "simulation/judge.h"
#include "simulation/saving.h"
#include "simulation/sim_shards.h"
#include "simulation/story.h"

namespace phalanx::simulation {
namespace {

// How long torch looks for its store, and for the rest of its group; shorter than in life, as all else is.
constexpr Micros kJoinPatience = 40 * kSecond;

constexpr const char* kPeerClosed =
    "RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711";
constexpr const char* kWatchdog = "[Rank 0] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=7)";
constexpr const char* kNoStore = "torch.distributed.DistNetworkError: The client socket has failed to connect";

constexpr const char* kStoreGone = "torch.distributed.DistNetworkError: failed to recv, got 0 bytes";

}  // namespace

Training::Training(const Parts& parts) : parts_(parts), random_(parts.seed, 2), total_steps_(parts.script.total_steps) {
  if (!parts.script.saving) return;
  saves_ = std::make_unique<RankSaves>(
      RankSaves::Parts{parts.queue, parts.story, parts.judge, parts.storage, *parts.script.saving, parts.seed});
}

Training::~Training() = default;

void Training::Join(const Process& process, RankOwner* owner) {
  Group& group = groups_[KeyOf(*process)];
  if (group.members.empty()) {
    group.key = KeyOf(*process);
    group.epoch = process->epoch;
    group.world_size = process->world_size;
  } else {
    const WorkerProcess& first = *group.members.front().process;
    if (first.world_size != process->world_size) {
      parts_.judge.Violated("one-world", "ranks of one epoch were told different world sizes");
    }
  }
  parts_.judge.OnRankUp(*process);
  group.members.push_back({process, owner, false});
  const int index = process->machine->index;
  if (group.machines.empty() || group.machines.back() != index) group.machines.push_back(index);
  const Member member = group.members.back();
  parts_.queue.After(kJoinPatience, [this, member] {
    const Group& waited = groups_.at(KeyOf(*member.process));
    if (!waited.formed) EndLater(member, 0, {1, 0, kNoStore}, /*own=*/true);
  });
  TryJoin(group);
}

const Store* Training::StoreAt(const WorkerProcess& process) const {
  for (const auto& machine : parts_.machines) {
    if (machine->address != process.store_address || !machine->Works() || !machine->store) continue;
    if (machine.get() != process.machine && (machine->cut > 0 || process.machine->cut > 0)) return nullptr;
    return machine->store->port == process.store_port ? &*machine->store : nullptr;
  }
  return nullptr;
}

// Ranks of another epoch find none of their keys there (torch prefixes them by TORCHELASTIC_RESTART_COUNT), and fail
// when that store goes.
void Training::TryJoin(Group& group) {
  for (Member& member : group.members) {
    if (member.joined || member.process->dying || !member.process->machine->Works()) continue;
    const Store* const store = StoreAt(*member.process);
    const uint64_t reached = store == nullptr ? 0 : store->epoch;
    if (member.misled_by != 0) {
      if (reached != member.misled_by) EndLater(member, kMs, {1, 0, kStoreGone}, /*own=*/false);
    } else if (reached == group.epoch) {
      member.joined = true;
      ++group.joined;
    } else if (reached != 0) {
      parts_.story.Say(parts_.queue.now(), member.process->machine->name,
                       "rank {} of epoch {} has reached the store of epoch {}", member.process->rank, group.epoch,
                       reached);
      member.misled_by = reached;
      parts_.judge.OnOwnFailure(group.epoch);  // docs/simulation.md, "What does not hold"
    }
  }
  if (!group.formed && !group.broken && group.joined == group.world_size) Form(group);
}

bool Training::Together(const Group& group) const {
  return std::all_of(group.members.begin(), group.members.end(),
                     [&](const Member& m) { return m.process->machine == group.members.front().process->machine; });
}

bool Training::Able(const Group& group, const Member& member) const {
  const WorkerProcess& p = *member.process;
  if (!p.runs || p.dying || p.hung || p.saving || p.ended || !p.machine->Works()) return false;
  return p.machine->cut == 0 || Together(group);
}

void Training::Form(Group& group) {
  group.formed = true;
  group.worked_at = parts_.queue.now();
  for (const Member& member : group.members) member.process->in_group = true;
  if (saves_ == nullptr) return Begin(group, checkpoint_);
  for (const Member& member : group.members) {
    const auto fail = [this, member](const std::string& why) { EndLater(member, 0, {1, 0, why}, /*own=*/true); };
    saves_->Load(
        member.process, member.owner->Keeper(),
        [this, key = group.key](const Restored& restored) { OnRestored(key, restored); }, fail);
  }
}

void Training::OnRestored(const Key& key, const Restored& restored) {
  Group& group = groups_.at(key);
  if (group.broken) return;
  if (group.from == nullptr) group.from = std::make_unique<Restored>(restored);
  if (*group.from != restored) {
    parts_.judge.Violated("one-restore", fmt::format("ranks of epoch {} restore step {} and step {}", group.epoch,
                                                     group.from->save.step, restored.save.step));
  }
  if (++group.restored < group.world_size) return;
  Begin(group, restored.source == v1::RestoreDecided::NOTHING ? 0 : restored.save.step);
}

void Training::Begin(Group& group, int64_t step) {
  group.step = step;
  group.worked_at = parts_.queue.now();
  for (const Member& member : group.members) member.process->from_step = step;
  parts_.story.Say(parts_.queue.now(), "training", "epoch {}: all {} ranks are up, from step {}", group.epoch,
                   group.world_size, step);
  const Script& script = parts_.script;
  const Micros wait = script.steps ? script.first_step + script.step : script.step * total_steps_;
  parts_.queue.After(wait, [this, key = group.key] { Advance(groups_.at(key)); });
}

// All ranks of the group have come to the same collective, or wait for one that has not.
void Training::Advance(Group& group) {
  if (group.broken || group.finishing) return;
  const bool all = std::all_of(group.members.begin(), group.members.end(),
                               [&](const Member& member) { return Able(group, member); });
  const bool safe = std::any_of(group.members.begin(), group.members.end(),
                                [](const Member& member) { return member.process->safe; });
  if (safe) return;  // those that wait, and those that wait for them, until the round ends
  if (!all) return Stall(group);
  group.worked_at = parts_.queue.now();
  if (!parts_.script.steps) return Finish(group);
  Step(group);
}

void Training::Stall(Group& group) {
  group.stalled = true;
  const uint64_t number = ++group.stalls;
  parts_.queue.After(parts_.script.patience, [this, key = group.key, number] {
    Group& waited = groups_.at(key);
    if (!waited.stalled || waited.stalls != number || waited.broken) return;
    waited.broken = true;
    for (const Member& member : waited.members) EndLater(member, 0, {0, SIGABRT, kWatchdog}, /*own=*/true);
  });
}

void Training::Step(Group& group) {
  ++group.step;
  highest_step_ = std::max(highest_step_, group.step);
  const bool first = ++group.members.front().process->steps == 1;
  for (size_t i = 1; i < group.members.size(); ++i) ++group.members[i].process->steps;
  parts_.judge.OnTrainingStep(group.epoch, group.step, group.machines);
  if (first) {
    parts_.story.Say(parts_.queue.now(), "training", "epoch {}: first step, {}", group.epoch, group.step);
    for (const Member& member : group.members) {
      parts_.queue.After(random_.Between(0, 5 * kMs), [member] {
        member.process->machine->gate.Pass([member] {
          if (!member.process->dying && !member.process->ended) member.owner->RankStepped(member.process);
        });
      });
    }
  }
  if (parts_.script.takes_shards) {
    for (const Member& member : group.members) member.owner->Shards().Work(member.process);
  }
  const Micros copies = Save(group);
  ComeToSafePoint(group);
  if (ending_ || group.step >= total_steps_) return Finish(group);
  parts_.queue.After(std::max(parts_.script.step, copies), [this, key = group.key] { Advance(groups_.at(key)); });
}

Micros Training::Save(Group& group) {
  const int64_t every = parts_.script.checkpoint_every;
  const bool due = group.step % every == 0;
  if (saves_ == nullptr && due) {
    parts_.judge.OnCheckpoint(checkpoint_, group.step, group.machines);
    checkpoint_ = std::max(checkpoint_, group.step);
  }
  const bool safe = std::any_of(group.members.begin(), group.members.end(), [&](const Member& member) {
    const WorkerProcess& p = *member.process;
    return p.safe_step >= 0 && !p.safe && (parts_.script.tells_step ? group.step : p.steps) >= p.safe_step;
  });
  if (saves_ == nullptr || (!due && !safe)) return 0;
  const int64_t store_every = parts_.script.saving->store_every;
  const bool store = due && store_every > 0 && group.step / every % store_every == 0;
  Micros longest = 0;
  for (const Member& member : group.members) {
    longest = std::max(longest, saves_->Save(member.process, member.owner->Keeper(), group.step, store));
  }
  return longest;
}

void Training::ComeToSafePoint(Group& group) {
  for (const Member& member : group.members) {
    WorkerProcess& p = *member.process;
    const int64_t step = parts_.script.tells_step ? group.step : p.steps;
    if (p.safe_step < 0 || p.safe || step < p.safe_step) continue;
    p.safe = true;
    if (parts_.script.on_rescale == OnRescale::kEnds) {
      EndLater(member, parts_.script.save, {}, /*own=*/false);
      continue;
    }
    parts_.queue.After(parts_.script.save, [member] {
      member.process->machine->gate.Pass([member] {
        if (!member.process->dying && !member.process->ended) member.owner->RankSafe(member.process);
      });
    });
  }
}

void Training::Finish(Group& group) {
  group.finishing = true;
  parts_.story.Say(parts_.queue.now(), "training", "epoch {}: the work is done at step {}", group.epoch, group.step);
  const bool waits = saves_ != nullptr && parts_.script.saving->waits_at_end;
  for (const Member& member : group.members) {
    const Micros delay = random_.Between(0, random_.OneIn(8) ? 2 * kSecond : 20 * kMs);
    const auto end = [this, member, delay] { EndLater(member, delay, {}, /*own=*/false); };
    if (waits) {
      saves_->AwaitStored(member.process, member.owner->Keeper(), end);
    } else {
      end();
    }
  }
}

void Training::OnEnded(const Process& process, const RankEnd& end, bool seen) {
  const auto found = groups_.find(KeyOf(*process));
  if (found == groups_.end()) return;
  Group& group = found->second;
  const bool member = std::any_of(group.members.begin(), group.members.end(),
                                  [&](const Member& m) { return m.process == process && m.joined; });
  if (!member || group.broken) return;
  if (group.finishing) return;
  static_cast<void>(end);
  Break(group, process, seen);
}

void Training::Break(Group& group, const Process& by, bool seen) {
  group.broken = true;
  const bool fail = seen && !parts_.script.peers_hang && group.formed;
  for (const Member& member : group.members) {
    if (member.process == by || !member.joined) continue;
    const bool reached =
        member.process->machine == by->machine || (member.process->machine->cut + by->machine->cut == 0);
    if (fail && reached) {
      EndLater(member, random_.Between(1, 40) * kMs, {1, 0, kPeerClosed}, /*own=*/false);
    } else {
      EndLater(member, parts_.script.patience, {0, SIGABRT, kWatchdog}, /*own=*/true);
    }
  }
}

// `own`: the failure is none that another's death explains at once; the job may pay for it.
void Training::EndLater(const Member& member, Micros delay, RankEnd end, bool own) {
  parts_.queue.After(delay, [this, member, own, end = std::move(end)] {
    member.process->machine->gate.Pass([this, member, own, end] {
      const WorkerProcess& p = *member.process;
      if (!p.runs || p.dying || p.ended || !p.machine->powered) return;
      if (own) parts_.judge.OnOwnFailure(p.epoch);
      member.owner->RankEnds(member.process, end);
    });
  });
}

void Training::Kick() {
  for (auto& [key, group] : groups_) {
    if (group.broken || group.finishing) continue;
    if (!group.formed) {
      TryJoin(group);
    } else if (group.stalled && std::all_of(group.members.begin(), group.members.end(),
                                            [&, g = &group](const Member& m) { return Able(*g, m); })) {
      group.stalled = false;
      parts_.queue.After(random_.Between(1, 10) * kMs, [this, k = key] { Advance(groups_.at(k)); });
    }
  }
}

void Training::EndSoon() {
  if (parts_.script.steps) {
    ending_ = true;
    return;
  }
  total_steps_ = 1;
  for (auto& [key, group] : groups_) {
    if (group.formed && !group.broken && !group.finishing) Advance(group);
  }
}

uint64_t Training::EpochAtWork(Micros since) const {
  for (auto group = groups_.rbegin(); group != groups_.rend(); ++group) {
    const Group& g = group->second;
    if (!g.formed || g.broken || g.stalled) continue;
    if (g.finishing || !parts_.script.steps || g.worked_at >= since) return g.epoch;
  }
  return 0;
}

}  // namespace phalanx::simulation
