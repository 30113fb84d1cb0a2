// The faults of a world: when they strike, and what they do. The rest of World is in world.cc.
#include <signal.h>

#include <algorithm>
#include <utility>

#include "simulation/world.h"

namespace phalanx::simulation {

void World::PlanFaults() {
  for (const Fault& fault : scenario_.faults) {
    if (fault.moment == Moment::kTime) queue_.At(fault.at, [this, fault] { Strike(fault); });
  }
}

void World::SeeMoments() {
  all_moments_seen_ = judge_.CountAll();
  for (size_t i = 1; i < kMoments; ++i) {
    const auto moment = static_cast<Moment>(i);
    while (moments_seen_[i] < judge_.Count(moment)) OnMoment(moment, ++moments_seen_[i]);
  }
}

void World::OnMoment(Moment moment, uint64_t nth) {
  if (queue_.now() > Scenario::kLatestTriggered) return;
  for (const Fault& fault : scenario_.faults) {
    if (fault.moment == moment && fault.nth == nth) queue_.After(fault.at, [this, fault] { Strike(fault); });
  }
}

void World::Strike(const Fault& fault) {
  story_.Say(queue_.now(), "FAULT", "{}", Describe(fault));
  Machine& machine = *machines_[fault.machine];
  switch (fault.kind) {
    case FaultKind::kWorkerCrash:
    case FaultKind::kWorkerExit:
    case FaultKind::kWorkerExitsEarly:
    case FaultKind::kWorkerHang:
      machine.gate.Pass([this, fault] {
        if (SimAgent* const agent = AgentOf(fault.machine)) StrikeWorker(fault, *agent);
      });
      return;
    case FaultKind::kStreamReset:
    case FaultKind::kCutUp:
    case FaultKind::kCutDown:
    case FaultKind::kCutBoth:
    case FaultKind::kSlowLink:
      return StrikeNetwork(fault, machine);
    case FaultKind::kMasterFrozen:
      return FreezeMaster(fault.lasts);
    case FaultKind::kMasterKilled:
      return KillMaster(fault);
    case FaultKind::kNodeTaken:
      return TakeNode(fault);
    case FaultKind::kLook:
      if (MasterListens()) master()->gate().Pass([this, fault] { master()->Look(fault.amount == 1); });
      return;
    case FaultKind::kStorageFails:
    case FaultKind::kStorageHangs:
    case FaultKind::kStorageSlow:
      return StrikeStorage(fault);
    default:
      return StrikeNode(fault, machine);
  }
}

void World::StrikeWorker(const Fault& fault, SimAgent& agent) {
  const Arrival& arrival = scenario_.machines[fault.machine];
  const Process process = agent.workers().Find(static_cast<int>(fault.which % arrival.local_world_size));
  if (process == nullptr) return;
  switch (fault.kind) {
    case FaultKind::kWorkerCrash:
      return agent.workers().Strike(process, {0, static_cast<int>(fault.amount), ""});
    case FaultKind::kWorkerExit:
      return agent.workers().Strike(process, {static_cast<int>(fault.amount), 0, "ValueError: no such thing"});
    case FaultKind::kWorkerExitsEarly:
      return agent.workers().Strike(process, {});
    default:
      return agent.workers().Hang(process, fault.lasts);
  }
}

void World::StrikeNode(const Fault& fault, Machine& machine) {
  StartTroubles& troubles = troubles_[fault.machine];
  SimAgent* const agent = AgentOf(fault.machine);
  switch (fault.kind) {
    case FaultKind::kWorkerUnkillable:
      machine.unkillable_until = queue_.now() + fault.lasts;
      return;
    case FaultKind::kSlowStart:
      troubles.slower_by = fault.lasts;
      return;
    case FaultKind::kCrashLoop:
      troubles.loops = fault.amount;
      return;
    case FaultKind::kStartFails:
      troubles.fails = 1;
      return;
    case FaultKind::kZygoteDies:
      if (agent != nullptr) agent->workers().ZygoteDies();
      return;
    case FaultKind::kAgentKilled:
      return KillAgent(fault, machine);
    case FaultKind::kNodeReset:
      return LoseMachine(fault, machine, true);
    case FaultKind::kNodePowerLoss:
      return LoseMachine(fault, machine, false);
    case FaultKind::kNodeFrozen:
      return Freeze(fault, machine, false);
    case FaultKind::kNodePaused:
      return Freeze(fault, machine, true);
    default:
      return Term(fault, machine);
  }
}

void World::KillAgent(const Fault& fault, Machine&) {
  SimAgent* const agent = AgentOf(fault.machine);
  if (agent == nullptr) return;
  agent->Kill(random_.OneIn(2));
  Return(fault.machine, fault.lasts);
}

// The machine that holds an embedded master loses its agent only: what becomes of a job whose master dies is another
// fault.
void World::LoseMachine(const Fault& fault, Machine& machine, bool seen) {
  if (HoldsMaster(machine)) return KillAgent(fault, machine);
  if (!machine.powered || AgentOf(fault.machine) == nullptr) return;
  machine.powered = false;
  machine.unkillable_until = 0;
  machine.changed_at = queue_.now();
  machine.shared_memory.clear();
  for (const auto& life : agents_[fault.machine]) life->Vanish(seen);
  Return(fault.machine, fault.lasts);
}

void World::Freeze(const Fault& fault, Machine& machine, bool with_clock) {
  if (machine.gate.stopped()) return;
  SimMaster* const its_master = HoldsMaster(machine) ? master() : nullptr;  // null: none yet, or on another machine
  machine.gate.Stop();
  if (its_master != nullptr) its_master->gate().Stop();
  queue_.After(fault.lasts, [this, &machine, lasts = fault.lasts, with_clock, its_master] {
    story_.Say(queue_.now(), machine.name, "goes on");
    if (with_clock) machine.clock.StandStill(lasts);
    if (its_master != nullptr) {
      if (with_clock) its_master->clock().StandStill(lasts);
      judge_.OnMasterThawed(its_master->clock().Read(queue_.now()));
      its_master->gate().Go();
    }
    machine.gate.Go();
    training_.Kick();
  });
}

void World::FreezeMaster(Micros lasts) {
  SimMaster* const frozen = master();
  if (frozen == nullptr) return;
  frozen->gate().Stop();
  queue_.After(lasts, [this, frozen] {
    story_.Say(queue_.now(), "master", "goes on");
    judge_.OnMasterThawed(frozen->clock().Read(queue_.now()));
    frozen->gate().Go();
  });
}

// The platform says that it takes a node away; then it does, or thinks better of it.
void World::TakeNode(const Fault& fault) {
  ++taken_[fault.machine];
  TellPlatform();
  queue_.After(fault.lasts, [this, fault] {
    const bool is_last = --taken_[fault.machine] == 0;
    if (is_last && fault.amount == 1) LoseMachine(fault, *machines_[fault.machine], true);
    if (is_last) taken_.erase(fault.machine);
    TellPlatform();
  });
}

// All that holds, to the master that there is. A new one hears it when it begins.
void World::TellPlatform() {
  v1::PlatformMessage message;
  message.mutable_view()->set_generation(++platform_generation_);
  for (const auto& [number, count] : taken_) {
    v1::Departure& departure = *message.mutable_view()->add_departures();
    departure.set_address(machines_[number]->address);
    departure.set_name(machines_[number]->name);
    departure.set_reason("preempted");
    departure.set_left_ms(30'000);
  }
  if (MasterListens()) master()->gate().Pass([this, message] { master()->HearPlatform(message); });
}

void World::Term(const Fault& fault, Machine& machine) {
  SimAgent* const agent = AgentOf(fault.machine);
  if (agent == nullptr) return;
  judge_.OnSignalled();
  machine.gate.Pass([agent] { agent->Signal(SIGTERM); });
  if (fault.amount == 0) return;
  queue_.After(fault.amount * kMs, [&machine, agent] { machine.gate.Pass([agent] { agent->Signal(SIGTERM); }); });
}

void World::StrikeNetwork(const Fault& fault, Machine& machine) {
  SimAgent* const agent = AgentOf(fault.machine);
  if (HoldsMaster(machine) && fault.kind != FaultKind::kCutBoth) return;  // it speaks to itself
  switch (fault.kind) {
    case FaultKind::kStreamReset:
      if (agent != nullptr) agent->BreakStream(fault.amount == 1);
      return;
    case FaultKind::kCutUp:
      return Stall(fault, machine, true, false);
    case FaultKind::kCutDown:
      return Stall(fault, machine, false, true);
    case FaultKind::kCutBoth:
      return Stall(fault, machine, true, true);
    default:
      return SlowDown(fault, machine);
  }
}

// Of the machine that holds the master all others' paths are cut, and its own is none.
void World::Stall(const Fault& fault, Machine& machine, bool up, bool down) {
  std::vector<int> cut;
  for (const auto& other : machines_) {
    if (HoldsMaster(machine) ? other.get() != &machine : other.get() == &machine) cut.push_back(other->index);
  }
  for (const int index : cut) {
    if (up) network_.Stall(index, Way::kUp);
    if (down) network_.Stall(index, Way::kDown);
  }
  if (up && down) ++machine.cut;
  machine.cut_at = queue_.now();
  const Micros patience = std::min<Micros>(fault.lasts, 2 * kSecond);
  queue_.After(fault.lasts, [this, &machine, cut, up, down, patience, breaks = fault.amount == 1] {
    story_.Say(queue_.now(), machine.name, "is reached again");
    for (const int index : cut) {
      SimAgent* const agent = AgentOf(static_cast<size_t>(index));
      if (breaks && agent != nullptr) agent->BreakStream(true);
      if (up) network_.Heal(index, Way::kUp, patience);
      if (down) network_.Heal(index, Way::kDown, patience);
    }
    if (up && down) --machine.cut;
    machine.cut_at = queue_.now();
    training_.Kick();
  });
}

void World::StrikeStorage(const Fault& fault) {
  const Micros slower = fault.amount * kMs;
  if (fault.kind == FaultKind::kStorageFails) storage_.Break();
  if (fault.kind == FaultKind::kStorageHangs) storage_.Hang();
  if (fault.kind == FaultKind::kStorageSlow) storage_.SlowDown(slower);
  queue_.After(fault.lasts, [this, kind = fault.kind, slower] {
    story_.Say(queue_.now(), "storage", "is as before");
    if (kind == FaultKind::kStorageFails) storage_.Mend();
    if (kind == FaultKind::kStorageHangs) storage_.Wake();
    if (kind == FaultKind::kStorageSlow) storage_.SlowDown(-slower);
  });
}

void World::SlowDown(const Fault& fault, Machine& machine) {
  const Arrival& usual = scenario_.machines[fault.machine];
  network_.SetDelay(machine.index, usual.delay + fault.amount * kMs, usual.jitter + fault.amount * kMs / 4);
  queue_.After(fault.lasts, [this, &machine, &usual] { network_.SetDelay(machine.index, usual.delay, usual.jitter); });
}

}  // namespace phalanx::simulation
