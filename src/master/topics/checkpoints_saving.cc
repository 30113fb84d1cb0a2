// A save is committed when all members have sealed it, and dropped for all where one has not.
#include <fmt/format.h>

#include <algorithm>

#include "master/topics/checkpoints_decisions.h"

namespace phalanx::master {
namespace {

constexpr size_t kMaxValuesTold = 16;

}  // namespace

void CheckpointDecisions::OnOpened(const std::string& name, const v1::CheckpointOpened& opened) {
  CheckpointDir& dir = s_.dirs[name];
  dir.form = FormOf(opened.form());
  dir.at_breakpoint = opened.at_breakpoint();
  dir.opened = true;
  if (!opened.archive().empty()) dir.archive = opened.archive();
}

void CheckpointDecisions::OnSealed(uint64_t session, const std::string& name, const v1::CheckpointSealed& sealed) {
  CheckpointDir& dir = s_.dirs[name];
  const SaveKey save = KeyOf(sealed.save());
  if (save.epoch != s_.epoch) return;
  if (dir.dropped.contains(save)) return TellDropped(session, name, save);
  if (dir.committed && save <= *dir.committed) {  // said again: the order was lost with its stream
    v1::CheckpointOrder order = OrderOf(name, *dir.committed, "it is committed");
    order.mutable_committed();
    if (const auto milestone = dir.milestones.find(save); milestone != dir.milestones.end()) {
      milestone->second.insert(session);
    }
    if (sealed.store() && dir.stored && save <= *dir.stored) {
      SendTo(session, EndedOrder(name, *dir.stored, true, kStoredAlready));
    } else if (sealed.store()) {
      WantStored(name, dir, save);
    }
    return SendTo(session, order);
  }
  Compare(session, name, dir, sealed);
  std::set<uint64_t>& sessions = dir.sealed[save];
  sessions.insert(session);
  if (sealed.store()) dir.store_asked.insert(save);
  if (sealed.milestone()) dir.milestone_asked.insert(save);
  if (AllIn(sessions)) Commit(name, dir, save);
}

// Of a value that differs only that of one rank is saved, on storage, or on a node: who gave it to all ranks to save
// would never hear that theirs are lost. Each name is told once.
void CheckpointDecisions::Compare(uint64_t session, const std::string& name, CheckpointDir& dir,
                                  const v1::CheckpointSealed& sealed) {
  const uint32_t rank_base = s_.members[s_.rank_of.at(session)].rank_base;
  std::map<std::string, RankValue>& known = dir.values[KeyOf(sealed.save())];
  for (const v1::SharedValue& value : sealed.values()) {
    const RankValue told{value.crc32(), rank_base + value.local_rank()};
    const auto [first, is_first] = known.try_emplace(value.name(), told);
    if (is_first || first->second.crc32 == told.crc32 || dir.values_told.size() == kMaxValuesTold) continue;
    if (!dir.values_told.insert(value.name()).second) continue;
    const int64_t step = sealed.save().step();
    Note("checkpoint-differs", name,
         fmt::format("step {} of {}: '{}' is not the same on ranks {} and {}; each rank is given back that of one, or "
                     "its own where the script saves PerRank(..)",
                     step, name, value.name(), std::min(first->second.rank, told.rank),
                     std::max(first->second.rank, told.rank)),
         step);
    out_.notes.back().is_for_people = true;
  }
}

// Said again: the order was lost with its stream.
void CheckpointDecisions::TellDropped(uint64_t session, const std::string& name, const SaveKey& save) {
  v1::CheckpointOrder order = OrderOf(name, save, "some rank has not saved this step");
  order.mutable_dropped();
  SendTo(session, order);
}

void CheckpointDecisions::Commit(const std::string& name, CheckpointDir& dir, const SaveKey& save) {
  dir.committed = save;
  dir.committed_world_size = s_.world_size;
  dir.committed_form = dir.form;
  dir.covered = dir.offered = true;
  dir.borrowed = false;
  dir.lenders.clear();
  dir.sealed_unix_ms = 0;
  const bool store = dir.store_asked.contains(save);
  const bool milestone = store && dir.milestone_asked.contains(save);
  if (milestone) dir.milestones[save] = dir.sealed.at(save);
  dir.milestone_asked.erase(dir.milestone_asked.begin(), dir.milestone_asked.upper_bound(save));
  dir.sealed.erase(dir.sealed.begin(), dir.sealed.upper_bound(save));
  dir.values.erase(dir.values.begin(), dir.values.upper_bound(save));
  dir.store_asked.erase(dir.store_asked.begin(), dir.store_asked.upper_bound(save));
  v1::CheckpointOrder order = OrderOf(name, save, "all ranks have sealed it");
  order.mutable_committed()->set_hold(milestone);
  SendToAll(order);
  out_.remember = true;
  if (milestone) return MaybeStore(name, dir);
  if (store) WantStored(name, dir, save);
}

void CheckpointDecisions::OnSkipped(uint64_t session, const std::string& name, const v1::CheckpointSkipped& skipped) {
  CheckpointDir& dir = s_.dirs[name];
  const SaveKey save = KeyOf(skipped.save());
  if (save.epoch != s_.epoch) return;
  if (dir.dropped.contains(save)) return TellDropped(session, name, save);
  if (dir.committed && save <= *dir.committed) return;
  dir.dropped.insert(save);
  if (dir.dropped.size() > kMaxDropped) dir.dropped.erase(dir.dropped.begin());
  out_.remember = true;
  dir.sealed.erase(save);
  dir.values.erase(save);
  dir.store_asked.erase(save);
  dir.milestone_asked.erase(save);
  v1::CheckpointOrder order = OrderOf(name, save, skipped.why());
  order.mutable_dropped();
  SendToAll(order);
  Note("checkpoint-skipped", name, fmt::format("step {} of {} is not saved: {}", save.step, name, skipped.why()),
       save.step);
}

}  // namespace phalanx::master
