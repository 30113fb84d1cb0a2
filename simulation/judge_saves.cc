#include "simulation/judge_saves.h"

#include <fmt/format.h>

#include <algorithm>

#include "checkpoint/rank/memory_names.h"
#include "simulation/judge.h"
#include "simulation/sim_master.h"

namespace phalanx::simulation {

namespace ckpt = phalanx::checkpoint;

namespace {

ckpt::ControlPage Parse(const SharedPage& page) {
  ckpt::ControlPage parsed;
  ckpt::ParseControl(page.bytes.data(), page.bytes.size(), &parsed);
  return parsed;
}

std::string Text(const SaveKey& save) { return fmt::format("step {} of epoch {}", save.step, save.epoch); }

bool IsShared(const std::string& page) { return ckpt::IsSharedPage(page); }

}  // namespace

// --- the master ---------------------------------------------------------------------------------------------------

void SaveJudge::OnMasterStep(const SimMaster& master, uint64_t before, const std::vector<master::Decision>& decisions) {
  const v1::MasterMessage* last = nullptr;  // the same for all nodes
  std::set<uint64_t> given_up;              // that have not told in time what they hold
  for (const master::Decision& decision : decisions) {
    const auto* const send = std::get_if<master::Send>(&decision.action);
    if (send == nullptr || !send->message->has_checkpoint()) continue;
    if (send->message->checkpoint().has_lend()) {
      const uint64_t epoch = send->message->checkpoint().lend().epoch();
      if (std::exchange(lent_to_, epoch) != epoch) lenders_.clear();
      lenders_.insert(send->session);
    }
    const bool is_late = parts_.queue.now() >= round_begun_at_ + parts_.scenario.spec.rescale_grace_ms() * kMs;
    if (send->message->checkpoint().has_lending_ended() && is_late) given_up.insert(send->session);
    if (send->message.get() == last) continue;
    last = send->message.get();
    const v1::CheckpointOrder& order = last->checkpoint();
    if (order.has_committed()) CheckCommitted(master, before, KeyOf(order.save()));
    if (order.has_restore()) CheckRestore(master, order);
    const bool stored = order.has_store_ended() && order.store_ended().stored() && !order.store_ended().name().empty();
    if (stored && !counts_.contains(order.store_ended().name())) {
      parts_.judge.Violated("stored-complete",
                            fmt::format("{} is said to be stored, and no such step counts", Text(KeyOf(order.save()))));
    }
  }
  for (const uint64_t session : given_up) lenders_.erase(session);
}

void SaveJudge::OnNewMaster(const master::JobState& state) {
  lenders_.clear();
  const auto dir = state.checkpoints.dirs.find(kCheckpointDir);
  known_ = dir == state.checkpoints.dirs.end() ? std::nullopt : dir->second.committed;
}

void SaveJudge::CheckCommitted(const SimMaster& master, uint64_t before, const SaveKey& save) {
  const master::CheckpointState& state = master.state().checkpoints;
  if (save.epoch == state.epoch) {
    if (!committed_.contains(save)) CheckSealed({state.world_size, state.members.size()}, save);
  } else if (save.epoch == before) {
    // The last seal was heard in the step that began the next round: `state` has the members of that one.
    if (!committed_.contains(save)) CheckSealed(size_of_[before], save);
  } else if (before == state.epoch && MembersStand(master)) {  // else it was said to those of the round that has ended
    if (!CanRestore(master, save, MemoriesOf(master))) {
      parts_.judge.Violated("commit-complete", fmt::format("{} is taken up, and not all hold it", Text(save)));
    }
  }
  known_ = save;
  if (committed_.insert(save).second) Pass(Moment::kCommitted);
}

// Each rank's part of the same step, of the same world, by ranks of one round.
void SaveJudge::CheckSealed(const RoundSize& round, const SaveKey& save) {
  const auto found = sealed_.find(save);
  if (found != sealed_.end()) {
    for (const auto& [timeline, sealed] : found->second) {
      const bool shared = !form().shared || sealed.main.size() == round.nodes;
      if (sealed.ranks.size() == round.world_size && sealed.world_size == round.world_size && shared) return;
    }
  }
  parts_.judge.Violated("commit-complete",
                        fmt::format("{} is committed, and not all ranks have sealed it", Text(save)));
}

// --- restoring ----------------------------------------------------------------------------------------------------

bool SaveJudge::MembersStand(const SimMaster& master) const {
  const master::CheckpointState& state = master.state().checkpoints;
  const auto stands = [&](uint64_t session) { return Stands(master, session); };
  return std::all_of(state.members.begin(), state.members.end(),
                     [&](const master::CheckpointMember& member) { return stands(member.session); }) &&
         std::ranges::all_of(lenders_,
                             [&](uint64_t session) { return master.MachineOf(session) < 0 || stands(session); });
}

bool SaveJudge::Stands(const SimMaster& master, uint64_t session) const {
  const int machine = master.MachineOf(session);
  return machine >= 0 && parts_.machines[static_cast<size_t>(machine)]->changed_at < round_begun_at_;
}

std::vector<SaveJudge::Holdings> SaveJudge::MemoriesOf(const SimMaster& master) const {
  const master::CheckpointState& state = master.state().checkpoints;
  std::vector<Holdings> memories;
  const auto add = [&](uint64_t session) {
    memories.push_back(HoldingsOf(*parts_.machines[static_cast<size_t>(master.MachineOf(session))]));
  };
  for (const master::CheckpointMember& member : state.members) add(member.session);
  for (const uint64_t session : lent_to_ == state.epoch ? lenders_ : std::set<uint64_t>()) {
    if (Stands(master, session)) add(session);
  }
  return memories;
}

SaveJudge::Holdings SaveJudge::HoldingsOf(const Machine& machine) {
  Holdings holdings;
  for (const auto& [name, page] : machine.shared_memory) {
    for (const ckpt::Slot& slot : Parse(*page).slots) {
      if (!slot.sealed() || slot.file_number == 0 || slot.generation <= slot.dropped) continue;
      Holding& holding = holdings[KeyOf(slot.image)];
      holding.committed = holding.committed || slot.is_committed();
      holding.world_size = slot.image.world_size;
      if (IsShared(name)) holding.main = true;
      if (!IsShared(name)) holding.ranks.insert(slot.image.rank);
    }
  }
  return holdings;
}

bool SaveJudge::CanRestore(const SimMaster& master, const SaveKey& save, const std::vector<Holdings>& memories) const {
  const master::CheckpointState& state = master.state().checkpoints;
  // What one node lacks another lends: so it counts who holds it at all.
  std::set<uint32_t> ranks;
  bool committed = known_ == save, main = false, is_half = false;
  uint32_t world_size = 0;
  for (const Holdings& memory : memories) {
    const auto held = memory.find(save);
    if (held == memory.end()) continue;
    ranks.insert(held->second.ranks.begin(), held->second.ranks.end());
    committed = committed || held->second.committed;
    main = main || held->second.main;
    is_half = is_half || !held->second.main;
    world_size = held->second.world_size;
  }
  if (ranks.size() != world_size && !committed) return false;
  if (form().shared && (!main || (is_half && !committed))) return false;
  if (form().own == FileNeed::kNobody) return true;
  return ranks.size() == world_size && (form().own == FileNeed::kAnyRank || world_size == state.world_size);
}

std::optional<SaveKey> SaveJudge::NewestInMemory(const SimMaster& master) const {
  const std::vector<Holdings> memories = MemoriesOf(master);
  std::set<SaveKey> saves;
  for (const Holdings& memory : memories) {
    for (const auto& [save, holding] : memory) saves.insert(save);
  }
  for (auto it = saves.rbegin(); it != saves.rend(); ++it) {
    if (CanRestore(master, *it, memories)) return *it;
  }
  return std::nullopt;
}

// Never older than the newest save that the members' memory holds, together, nor than the newest step that storage was
// found to hold; and the same however often it is asked.
void SaveJudge::CheckRestore(const SimMaster& master, const v1::CheckpointOrder& order) {
  const v1::RestoreDecided& decided = order.restore();
  const SaveKey save = KeyOf(order.save());
  const uint64_t epoch = master.state().checkpoints.epoch;
  const std::string what = fmt::format("{} of {} {}", static_cast<int>(decided.source()), Text(save), decided.name());
  const auto [before, first] = decided_.emplace(epoch, what);
  if (!first) {
    if (before->second != what && parts_.judge.remembered()) {
      parts_.judge.Violated("one-restore",
                            fmt::format("epoch {} restores {}, and has restored {}", epoch, what, before->second));
    }
    return;
  }
  Pass(Moment::kRestore);
  if (decided.source() == v1::RestoreDecided::MEMORY) resumed_.emplace(save, epoch);
  const std::optional<SaveKey> stored = StoredKey(decided.name());
  if (decided.source() == v1::RestoreDecided::DISK && stored) resumed_.emplace(*stored, epoch);
  // It is not tried twice in a row. That a node fails to read what others lend is judged where it does (OnNotRestored).
  const bool unread = order.reason().find("could not read it") != std::string::npos;
  if (!parts_.judge.remembered() || !MembersStand(master) || unread) return;
  const std::optional<SaveKey> memory = NewestInMemory(master);
  const bool silent = order.reason().find("storage has not answered") != std::string::npos;
  const bool looked = looked_ && looked_->epoch == epoch && !silent;
  const bool later = looked && looked_->step >= 0 && (!memory || looked_->save > *memory);
  const auto wrong = [&](const std::string& why) {
    parts_.judge.Violated("restore-newest", fmt::format("epoch {}: {}: {}", epoch, order.reason(), why));
  };
  for (const std::string& folder : looked ? looked_->but : std::set<std::string>()) {
    const std::optional<SaveKey> left_out = StoredKey(folder);
    const bool doubted = order.reason().find(fmt::format("/{}: lives in a row", folder)) != std::string::npos;
    if (doubted && left_out && !MayBePassedOver(*left_out)) return wrong(folder + " is on storage");
  }
  switch (decided.source()) {
    case v1::RestoreDecided::MEMORY:
      if (memory != save) return wrong(memory ? Text(*memory) + " is in memory" : "memory does not hold all of it");
      if (later) return wrong(fmt::format("storage holds step {}", looked_->step));
      return;
    case v1::RestoreDecided::DISK:
      if (looked && looked_->name != decided.name()) return wrong("storage holds " + looked_->name);
      if (memory && stored && *stored <= *memory && !MayBePassedOver(*memory)) {
        return wrong(Text(*memory) + " is in memory");
      }
      return;
    default:
      if (memory) return wrong(Text(*memory) + " is in memory");
      if (later) return wrong(fmt::format("storage holds step {}", looked_->step));
  }
}

// Rounds in a row, some day, that made no step. Which of them failed by themselves the master knows: those that did not
// are among them here.
bool SaveJudge::MayBePassedOver(const SaveKey& save) const {
  const uint32_t lives = parts_.scenario.spec.older_save_after_lives();
  const auto [first, behind_last] = resumed_.equal_range(save);
  uint32_t row = 0, longest = 0;
  for (auto it = first; it != behind_last; ++it) {
    row = stepped_.contains(it->second) ? 0 : row + 1;
    longest = std::max(longest, row);
  }
  return lives > 0 && longest >= lives;
}

std::optional<SaveKey> SaveJudge::StoredKey(const std::string& folder) const {
  const StoredStep* const stored = parts_.storage.Look(folder);
  if (stored == nullptr || !stored->manifest) return std::nullopt;
  return SaveKey{stored->manifest->epoch, stored->manifest->step, stored->manifest->branch};
}

void SaveJudge::OnLookedAtStorage(uint64_t epoch, const std::set<std::string>& but) {
  looked_ = Looked{epoch, -1, {}, "", but};
  for (const ckpt::FoundStep& step : parts_.storage.Find()) {
    if (step.state != ckpt::StepState::kCommitted || but.contains(step.name)) continue;
    looked_->step = step.step;
    looked_->save = {step.epoch, step.step, step.manifest->branch};
    looked_->name = step.name;
    return;
  }
}

// --- ranks --------------------------------------------------------------------------------------------------------

void SaveJudge::OnSealed(const WorkerProcess& process, const ckpt::SlotImage& image, bool main) {
  if (!sealed_.contains(KeyOf(image))) Pass(Moment::kSealed);
  Sealed& sealed = sealed_[KeyOf(image)][image.layout_hash];
  sealed.world_size = image.world_size;
  if (main) sealed.main.insert(process.machine->index);
  if (!main) sealed.ranks.insert(image.rank);
}

void SaveJudge::OnRestored(const Process& process, const std::vector<ckpt::MemoryImage>& images) {
  for (const ckpt::MemoryImage& image : images) {
    const SharedPage* const page = process->machine->shared_memory.at(image.page).get();
    const uint64_t number = Parse(*page).slots[static_cast<size_t>(image.slot)].file_number;
    mapped_[{page, image.slot, number}].push_back(process);
  }
}

// A step that goes while it is restored: docs/simulation.md, "What does not hold".
void SaveJudge::OnNotRestored(const WorkerProcess& process, const std::string& folder, const std::string& why) {
  if (deleted_.contains(folder)) return parts_.judge.Known(why + ": a newer step was stored meanwhile");
  const bool is_lent = folder.empty() && std::ranges::any_of(parts_.machines, [this](const auto& machine) {
                         return std::max(machine->changed_at, machine->cut_at) >= round_begun_at_ || machine->cut > 0;
                       });
  if (is_lent) return;  // a node that lends an image has gone, or is not reached
  const bool is_over = !size_of_.empty() && process.epoch < size_of_.rbegin()->first;
  if (is_over) return;  // its round has failed, for that reason perhaps
  // One that stands still for long is given up, and storage asked in the next round.
  if (why.find("could not read it from those that hold it") != std::string::npos) return;
  // Its agent has reached no master for longer than the join timeout: the keeper sees to that.
  if (why.find("only the job's master can tell") != std::string::npos) return;
  parts_.judge.Violated("restore-delivers",
                        fmt::format("rank {} of epoch {} restores nothing: {}", process.rank, process.epoch, why));
}

void SaveJudge::OnCopyBegins(const WorkerProcess& process, const SharedPage& page, int slot, const SaveKey& save) {
  if (save > copied_) {
    copied_ = save;
    Pass(Moment::kCopy);
  }
  const uint64_t number = Parse(page).slots[static_cast<size_t>(slot)].file_number;
  const auto mapped = mapped_.find({&page, slot, number});
  if (mapped == mapped_.end()) return;
  for (const std::weak_ptr<WorkerProcess>& each : mapped->second) {
    const Process reader = each.lock();
    if (reader == nullptr || !reader->runs || reader->ended) continue;
    parts_.judge.Violated(
        "mapped-kept", fmt::format("rank {} of epoch {} writes over what rank {} of epoch {} has mapped", process.rank,
                                   process.epoch, reader->rank, reader->epoch));
  }
}

// --- storage ------------------------------------------------------------------------------------------------------

void SaveJudge::OnShardWritten(const Machine& machine, const std::string& name, const ckpt::MemoryImage& image) {
  if (++written_[name] == 1) Pass(Moment::kShard);
  const auto page = machine.shared_memory.find(image.page);
  if (page == machine.shared_memory.end()) return;
  const ckpt::ControlPage now = Parse(*page->second);
  const ckpt::Slot& slot = now.slots.at(static_cast<size_t>(image.slot));
  if (slot.state == ckpt::SlotState::kSealed && slot.generation == image.generation) return;
  parts_.judge.Violated("held-kept", fmt::format("{} of {} is written over while storage reads it", image.path,
                                                 Text(KeyOf(image.image))));
}

void SaveJudge::OnStepCounts(const std::string& name) {
  const StoredStep& step = *parts_.storage.Look(name);
  const ckpt::Manifest& manifest = *step.manifest;
  const auto wrong = [&](const std::string& why) {
    parts_.judge.Violated("stored-complete", fmt::format("{}/{}: {}", kCheckpointDir, name, why));
  };
  const uint64_t timeline = step.shards.empty() ? 0 : step.shards.begin()->second.layout_hash;
  for (const auto& [rank, image] : step.shards) {
    const bool same = image.step == manifest.step && image.epoch == manifest.epoch &&
                      image.world_size == manifest.world_size && image.layout_hash == timeline;
    if (!same) return wrong(fmt::format("the shard of rank {} is of {}", rank, Text(KeyOf(image))));
  }
  // What ranks have for themselves beside a state that all share goes with the nodes that are lost.
  const int64_t first = form().shared && !form().several ? ckpt::kMainRank : 0;
  const int64_t behind_last = form().own == FileNeed::kNobody ? 0 : manifest.world_size;
  for (int64_t rank = first; rank < behind_last; ++rank) {
    const bool listed = std::ranges::any_of(manifest.shards, [&](const ckpt::Shard& s) { return s.rank == rank; });
    if (!listed || !step.shards.contains(rank)) return wrong(fmt::format("it has no shard of rank {}", rank));
  }
  if (counts_.insert(name).second) Pass(Moment::kCounts);
}

// What was asked for to be in the archive is there before it goes.
void SaveJudge::JudgeArchived(const std::string& name) {
  const StoredStep* const step = parts_.storage.Look(name);
  const std::optional<Saving>& saving = parts_.scenario.script.saving;
  if (!saving || saving->archive_every <= 0 || step == nullptr || !step->manifest) return;
  if (step->manifest->step % saving->archive_every != 0) return;
  const std::vector<ckpt::FoundStep> archived = parts_.archive.Find();
  const bool is_there = std::ranges::any_of(archived, [&](const ckpt::FoundStep& copy) {
    return copy.manifest && copy.manifest->step == step->manifest->step &&
           copy.manifest->sequence == step->manifest->sequence;
  });
  if (is_there) return;
  parts_.judge.Violated("archived-before-deleted",
                        fmt::format("{}/{} is deleted, and no copy of it is in the archive", kCheckpointDir, name));
}

void SaveJudge::OnStepDeleted(const std::string& name) {
  JudgeArchived(name);
  deleted_.insert(name);
  for (const ckpt::FoundStep& step : parts_.storage.Find()) {
    const bool counts = step.state == ckpt::StepState::kCommitted;
    if (step.name == name) {
      parts_.judge.Violated("newest-kept",
                            fmt::format("{}/{} is deleted, and no newer step counts", kCheckpointDir, name));
    }
    if (step.name == name || counts) return;
  }
}

}  // namespace phalanx::simulation
