// What goes to storage, one save of a directory at a time.
#include <fmt/format.h>

#include <algorithm>

#include "master/topics/checkpoints_decisions.h"

namespace phalanx::master {
namespace {

// In the store under way, or the one that follows it.
bool TakesPart(const CheckpointDir& dir, uint64_t session, const SaveKey& save, bool is_member) {
  if (!dir.store) return false;
  const bool in_store = std::ranges::any_of(
      dir.store->members, [session](const CheckpointMember& member) { return member.session == session; });
  const bool in_next = is_member && dir.wanted && dir.committed && save <= *dir.committed;
  return (in_store && save <= dir.store->save) || in_next;
}

}  // namespace

bool IsWorthKeeping(const CheckpointDir& dir) {
  return dir.opened && dir.committed && !(dir.stale && *dir.committed <= *dir.stale);
}

// Its ranks have ended, so there is nothing newer to come. Each is answered: by the end of a store that it takes part
// in, or at once.
void CheckpointDecisions::OnDeparting(uint64_t session, const std::string& name, const SaveKey& save) {
  const auto found = s_.dirs.find(name);
  if (found == s_.dirs.end()) return SendTo(session, EndedOrder(name, save, false, kNotInMemory));
  CheckpointDir& dir = found->second;
  if (dir.stored && save <= *dir.stored) return SendTo(session, EndedOrder(name, *dir.stored, true, kStoredAlready));
  const bool is_member = s_.rank_of.contains(session);
  if (is_member && IsWorthKeeping(dir)) {
    dir.wanted = true;
    MaybeStore(name, dir);
  }
  if (!TakesPart(dir, session, save, is_member)) SendTo(session, EndedOrder(name, save, false, kNotInMemory));
}

void CheckpointDecisions::WantStored(const std::string& name, CheckpointDir& dir, const SaveKey& save) {
  if (dir.stored && save <= *dir.stored) return SendToAll(EndedOrder(name, *dir.stored, true, kStoredAlready));
  dir.wanted = true;
  MaybeStore(name, dir);
}

// A node awaits the end of stores that this master may never have heard of. It hears one end a directory: that of the
// newest stored save counts for all before it.
void CheckpointDecisions::OnAwaited(uint64_t session, const v1::CheckpointsHeld& held) {
  std::map<std::string, SaveKey> too_many;
  std::set<std::string> told;
  for (const v1::AwaitedStore& awaited : held.awaited()) {
    const std::string& name = awaited.dir();
    const SaveKey save = KeyOf(awaited.save());
    if (IsOneTooMany(name)) {
      too_many[name] = std::max(too_many[name], save);
      continue;
    }
    CheckpointDir& dir = s_.dirs[name];
    if (awaited.milestone()) OnMilestoneHeld(dir, save, session);
    if (dir.store && save <= dir.store->save) continue;  // it will be told
    if (!dir.stored || save > *dir.stored) {
      dir.wanted = true;
    } else if (told.insert(name).second) {
      SendTo(session, EndedOrder(name, *dir.stored, true, kStoredAlready));
    }
  }
  for (const auto& [name, save] : too_many) SendTo(session, EndedOrder(name, save, false, TooManyDirs(name)));
}

// Of a round that this master has not seen it does not know whose images make up the save.
void CheckpointDecisions::OnMilestoneHeld(CheckpointDir& dir, const SaveKey& save, uint64_t session) {
  if (dir.milestones.contains(save) || save.epoch == s_.epoch) dir.milestones[save].insert(session);
}

// The newest save goes to storage where that is wanted, milestones before it. When memory has none any more, those
// who await one hear so.
void CheckpointDecisions::StoreWanted(const std::string& name, CheckpointDir& dir) {
  if (dir.store) return;
  MaybeStore(name, dir);
  if (!dir.wanted || dir.store || (dir.committed && dir.covered)) return;
  if (!s_.settled) return;
  dir.wanted = false;
  std::optional<SaveKey> newest;
  for (const auto& [session, held] : s_.held) {
    for (const v1::AwaitedStore& awaited : held.awaited()) {
      if (awaited.dir() != name) continue;
      newest = newest ? std::max(*newest, KeyOf(awaited.save())) : KeyOf(awaited.save());
    }
  }
  if (!newest) return;
  SendToAll(EndedOrder(name, *newest, false, kNotInMemory));
  Note("checkpoint-failed", name, fmt::format("step {} of {} is not stored: {}", newest->step, name, kNotInMemory),
       newest->step);
}

void CheckpointDecisions::MaybeStore(const std::string& name, CheckpointDir& dir) {
  if (dir.committed && dir.stored == dir.committed) dir.wanted = false;
  if (dir.store || !AllHere() || s_.members.empty()) return;  // what is left may be complete in the next round
  if (const std::optional<SaveKey> milestone = NextMilestone(dir))
    return BeginStore(name, dir, *milestone, s_.world_size);
  if (!dir.wanted || !dir.committed || !dir.covered) return;
  // It would be the newest on storage, and the older one that ranks read there might go for it.
  if (IsDoubtedInMemory(dir)) return;
  dir.wanted = false;
  BeginStore(name, dir, *dir.committed, dir.committed_world_size);
}

// That all members hold; nothing older than what is stored, which would be the newest on storage then.
std::optional<SaveKey> CheckpointDecisions::NextMilestone(CheckpointDir& dir) const {
  if (dir.stored) dir.milestones.erase(dir.milestones.begin(), dir.milestones.upper_bound(*dir.stored));
  for (const auto& [save, sessions] : dir.milestones) {
    if (AllIn(sessions)) return save;
  }
  return std::nullopt;
}

void CheckpointDecisions::BeginStore(const std::string& name, CheckpointDir& dir, const SaveKey& save,
                                     uint32_t world_size) {
  if (dir.committed == save) dir.wanted = false;
  Store& store = dir.store.emplace();
  store.save = save;
  store.members.assign(s_.members.begin(), s_.members.end());
  for (const CheckpointMember& member : store.members) store.unwritten.insert(member.session);
  store.world_size = world_size;
  store.form = dir.committed == save ? dir.committed_form : dir.form;  // a milestone is of this life
  store.begun_at = now_;
  store.notice_at = now_ + kStoreLagNoticeMs;
  v1::CheckpointOrder order = OrderOf(name, store.save, "it goes to storage");
  // Storage may be slow to make its folder, and newer saves are committed meanwhile.
  order.mutable_committed()->set_hold(true);
  SendToAll(order);
  order.mutable_prepare_store();
  SendTo(store.members.front().session, order);
}

// The store under way, if it is of that save and its manifest is that session's to write: nobody else can answer for
// the folder.
CheckpointDir* CheckpointDecisions::StoringFor(uint64_t session, const std::string& name, const v1::SaveId& save) {
  CheckpointDir* dir = Storing(name, save);
  return dir != nullptr && dir->store->members.front().session == session ? dir : nullptr;
}

// The store under way, if it is of that save.
CheckpointDir* CheckpointDecisions::Storing(const std::string& name, const v1::SaveId& save) {
  const auto dir = s_.dirs.find(name);
  if (dir == s_.dirs.end() || !dir->second.store || dir->second.store->save != KeyOf(save)) return nullptr;
  return &dir->second;
}

void CheckpointDecisions::OnPrepared(uint64_t session, const std::string& name, const v1::StorePrepared& prepared) {
  CheckpointDir* dir = StoringFor(session, name, prepared.save());
  if (dir == nullptr || !dir->store->name.empty()) return;
  if (!prepared.error().empty()) return EndStore(name, *dir, prepared.error());
  dir->store->name = prepared.name();
  v1::CheckpointOrder order = OrderOf(name, dir->store->save, "its folder is made");
  order.mutable_store_shards()->set_name(prepared.name());
  for (const CheckpointMember& member : dir->store->members) SendTo(member.session, order);
}

void CheckpointDecisions::OnShards(uint64_t session, const std::string& name, const v1::ShardsWritten& written) {
  CheckpointDir* dir = Storing(name, written.save());
  if (dir == nullptr || dir->store->name.empty() || dir->store->closing) return;
  Store& store = *dir->store;
  // Of an earlier store of this save, which ended with a node that was lost: this one's folder has no part of it.
  if (!written.name().empty() && written.name() != store.name) return;
  if (!store.unwritten.contains(session)) return;
  if (!written.error().empty()) return EndStore(name, *dir, written.error());
  store.unwritten.erase(session);
  store.shards.insert(store.shards.end(), written.shards().begin(), written.shards().end());
  if (!store.unwritten.empty()) return;
  store.closing = true;
  v1::CheckpointOrder order = OrderOf(name, store.save, "all its shards are written");
  v1::WriteManifest& manifest = *order.mutable_write_manifest();
  manifest.set_name(store.name);
  SetForm(*manifest.mutable_form(), store.form);
  manifest.set_world_size(store.world_size);
  for (const v1::Shard& shard : store.shards) *manifest.add_shards() = shard;
  SendTo(store.members.front().session, order);
}

void CheckpointDecisions::OnManifest(uint64_t session, const std::string& name, const v1::ManifestWritten& written) {
  CheckpointDir* dir = StoringFor(session, name, written.save());
  if (dir == nullptr || !dir->store->closing) return;
  if (!written.error().empty()) return EndStore(name, *dir, written.error());
  EndStore(name, *dir, "");
}

void CheckpointDecisions::EndStore(const std::string& name, CheckpointDir& dir, const std::string& error) {
  const Store store = *std::exchange(dir.store, std::nullopt);
  out_.remember = true;
  const int64_t took_ms = now_ - store.begun_at;
  if (error.empty()) dir.stored = store.save;
  if (error.empty()) Lift(dir.doubts, store.save, store.name);
  dir.milestones.erase(store.save);
  const std::string text =
      error.empty() ? fmt::format("step {} is stored in {}/{} ({} ms)", store.save.step, name, store.name, took_ms)
                    : fmt::format("step {} of {} is not stored: {}", store.save.step, name, error);
  v1::CheckpointOrder order = EndedOrder(name, store.save, error.empty(), error.empty() ? text : error);
  order.mutable_store_ended()->set_name(store.name);
  std::set<uint64_t> told;
  for (const CheckpointMember& member : store.members) {
    if (told.insert(member.session).second) SendTo(member.session, order);
  }
  for (const CheckpointMember& member : s_.members) {
    if (told.insert(member.session).second) SendTo(member.session, order);
  }
  Note(error.empty() ? "checkpoint-stored" : "checkpoint-failed", name, text, store.save.step);
  StoreWanted(name, dir);
  Decide(name, dir);
}

// Nobody hears what is said to it any more. Its memory may hold the save still when it, or the next agent at its
// place, is here: the save, or a newer one in its place, is stored then.
void CheckpointDecisions::LoseWriter(const std::string& name, CheckpointDir& dir, uint64_t session) {
  Store& store = *dir.store;
  const bool leads = store.members.front().session == session;
  for (CheckpointMember& member : store.members) {
    if (member.session == session) member.session = 0;
  }
  if (!leads && !store.unwritten.contains(session)) return;
  // When the node is here again with its images, it is begun anew; else the newest is stored in its place.
  if (dir.milestones.contains(store.save)) {
    dir.store.reset();
    return Decide(name, dir);
  }
  dir.wanted = true;
  EndStore(name, dir,
           leads ? "the node that writes its manifest was lost" : "a node was lost before its part was written");
}

}  // namespace phalanx::master
