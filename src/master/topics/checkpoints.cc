// More than 500 lines: saving, restoring, storing and a round that begins all decide on the same directories.
#include "master/topics/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "master/topics/checkpoints_held.h"

namespace phalanx::master {
namespace {

constexpr char kNotInMemory[] = "some of its images are no longer in memory";
constexpr size_t kMaxNodesNamed = 8;
constexpr size_t kMaxValuesTold = 16;
constexpr char kAndMore[] = "; and more";
constexpr char kStoredAlready[] = "it is stored already";
constexpr char kDoubted[] = "lives in a row that went on from it failed without a step";

std::string TooManyDirs(const std::string& name) {
  return fmt::format("{} is one directory too many: a job saves to at most {}", name, kMaxCheckpointDirs);
}

using Found = std::map<std::string, std::map<SaveKey, HeldBySession>>;

// One event's decisions; one object a call, so that helpers need no out-parameters.
class Stepper {
 public:
  Stepper(CheckpointState& state, Instant now) : s_(state), held_(state), now_(now) {}

  CheckpointOrders Take() { return std::move(out_); }

  void Begin(CheckpointRound round) {
    const bool same_world = s_.world_size == round.world_size;
    s_.epoch = round.epoch;
    s_.world_size = round.world_size;
    s_.members = CountedVector<CheckpointMember>(std::move(round.members));
    s_.rank_of.clear();
    for (const CheckpointMember& member : s_.members) {
      if (member.session != 0) s_.rank_of[member.session] = s_.members.IndexOf(member);
    }
    s_.held.clear();
    s_.held_by_gone.clear();
    s_.settled = false;
    s_.limit_told = false;
    BeginLending(round.lenders, round.lenders_by);
    // A directory of which nothing is left makes room for another. Who still uses it opens it again.
    std::erase_if(s_.dirs, [](const auto& entry) {
      const CheckpointDir& dir = entry.second;
      const bool is_doubted = dir.doubts.kept.failed_lives > 0 || !dir.doubts.kept.saves.empty();
      return !dir.committed && !dir.stored && !dir.wanted && !dir.store && !is_doubted;
    });
    for (auto& [name, dir] : s_.dirs) {
      dir.sealed.clear();
      dir.values.clear();
      dir.store_asked.clear();
      dir.milestone_asked.clear();
      if (!same_world) dir.milestones.clear();
      for (auto& [save, sessions] : dir.milestones) sessions.clear();  // they tell again what they hold
      dir.dropped.clear();
      dir.archive.clear();
      dir.covered = dir.offered = dir.borrowed = dir.unreadable = false;
      dir.lenders.clear();
      dir.restored.clear();
      dir.asking.clear();
      dir.decided.clear();
      dir.asking_branch = 0;
      dir.passed_over.clear();
      dir.find_by = kNever;
      dir.check_notice_at = kNever;
      dir.found.reset();
      dir.checking.clear();
      dir.checked.clear();
      dir.damaged.clear();
      dir.unread.clear();
      dir.too_damaged = false;
      BeginDoubts(dir.doubts);
    }
  }

  void LifeEnds(LifeEnd end, uint32_t lives) {
    const bool is_only_one = RestoresFromOneDirectory();
    for (auto& [name, dir] : s_.dirs) {
      const uint32_t before = dir.doubts.kept.failed_lives;
      const bool doubted = EndLife(dir.doubts, end, is_only_one && AllTold(dir), lives);
      out_.remember = out_.remember || dir.doubts.kept.failed_lives != before || doubted;
      if (!doubted) continue;
      const int64_t step = dir.doubts.from->step;
      Note("checkpoint-doubted", name,
           fmt::format("step {} of {}: {} {}; an older save is tried next, where storage has one", step, name,
                       dir.doubts.kept.failed_lives, kDoubted),
           step);
      out_.notes.back().is_for_people = true;
    }
  }

  bool WillDoubt(uint32_t lives) const {
    return RestoresFromOneDirectory() && std::ranges::any_of(s_.dirs, [&](const auto& entry) {
             return WouldDoubt(entry.second.doubts, AllTold(entry.second), lives);
           });
  }

  // Of two, one might go back and the other not: the parts of a state would be of two steps.
  bool RestoresFromOneDirectory() const {
    return std::ranges::count_if(s_.dirs, [](const auto& entry) { return !entry.second.decided.empty(); }) == 1;
  }

  bool AllTold(const CheckpointDir& dir) const { return dir.doubts.told.size() == s_.members.size(); }

  void End(CheckpointEnd end) {
    for (auto& [name, dir] : s_.dirs) {
      const bool wanted = end == CheckpointEnd::kForGood      ? IsWorthKeeping(dir)
                          : end == CheckpointEnd::kBreakpoint ? dir.at_breakpoint && dir.committed.has_value()
                                                              : false;
      if (!wanted || (dir.stored && *dir.committed <= *dir.stored)) continue;
      dir.wanted = true;
      MaybeStore(name, dir);
      if (dir.store) continue;
      // The next round's nodes may hold all of it; a node that goes waits for nothing.
      SendToAll(EndedOrder(name, *dir.committed, false, kNotInMemory));
    }
  }

  void Report(uint64_t session, const v1::CheckpointReport& report) {
    const bool live = report.epoch() == s_.epoch && s_.rank_of.contains(session);
    if (report.has_going()) return OnGoing(session);
    if (!report.has_held() && IsOneTooMany(report.dir())) {
      if (live) Refuse(session, report);
      return;
    }
    switch (report.body_case()) {
      case v1::CheckpointReport::kHeld:
        if (live) OnHeld(session, report.held());
        if (report.epoch() == s_.epoch && s_.lenders.contains(session)) OnLent(session, report.held());
        return;
      case v1::CheckpointReport::kOpened:
        if (live) OnOpened(report.dir(), report.opened());
        return;
      case v1::CheckpointReport::kSealed:
        if (live) OnSealed(session, report.dir(), report.sealed());
        return;
      case v1::CheckpointReport::kSkipped:
        if (live) OnSkipped(session, report.dir(), report.skipped());
        return;
      case v1::CheckpointReport::kRestoreAsked:
        if (live) OnRestoreAsked(session, report.dir(), report.restore_asked());
        return;
      case v1::CheckpointReport::kFound:
        // By the one who was asked: what is there decides what all go on from.
        if (live && session == s_.members.front().session) OnFound(report.dir(), report.found());
        return;
      case v1::CheckpointReport::kChecked:
        if (live) OnChecked(session, report.dir(), report.checked());
        return;
      case v1::CheckpointReport::kStorePrepared:
        return OnPrepared(session, report.dir(), report.store_prepared());
      case v1::CheckpointReport::kShardsWritten:
        return OnShards(session, report.dir(), report.shards_written());
      case v1::CheckpointReport::kManifestWritten:
        return OnManifest(session, report.dir(), report.manifest_written());
      case v1::CheckpointReport::kDeparting:
        return OnDeparting(session, report.dir(), KeyOf(report.departing().save()));
      case v1::CheckpointReport::kRestoreDone:
        if (live) OnRestoreDone(session, report.dir(), report.restore_done().branch());
        return;
      case v1::CheckpointReport::kGoing:
      case v1::CheckpointReport::BODY_NOT_SET:
        return;
    }
  }

  void Lost(uint64_t session) {
    const bool finds = !s_.members.empty() && session == s_.members.front().session;
    // First, so that no new store begins with it when one of its own ends.
    if (const auto rank = s_.rank_of.extract(session)) s_.members[rank.mapped()].session = 0;
    if (auto told = s_.held.extract(session)) s_.held_by_gone.insert(std::move(told));
    if (s_.lenders.erase(session) > 0) LoseLender();
    for (auto& [name, dir] : s_.dirs) {
      dir.asking.erase(session);
      dir.checking.erase(session);
      dir.checked.erase(session);
      dir.restored.erase(session);
      // When it comes back, and its ranks still want to restore, it is asked again.
      if (finds) dir.find_by = kNever;
      for (auto& [save, sessions] : dir.sealed) sessions.erase(session);
      for (auto& [save, sessions] : dir.milestones) sessions.erase(session);
      if (dir.store) LoseWriter(name, dir, session);
    }
  }

  // Nobody hears what is said to it any more. Its memory may hold the save still when it, or the next agent at its
  // place, is here: the save, or a newer one in its place, is stored then.
  void LoseWriter(const std::string& name, CheckpointDir& dir, uint64_t session) {
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

  void Tick() {
    if (now_ >= s_.lenders_by) GiveUpLenders();
    for (auto& [name, dir] : s_.dirs) {
      if (now_ >= dir.find_by) OnSilentStorage(name, dir);
      if (now_ >= dir.check_notice_at) OnSlowCheck(name, dir);
      if (!dir.store || now_ < dir.store->notice_at) continue;
      dir.store->notice_at = now_ + kStoreLagNoticeMs;
      Note("checkpoint-lag", name,
           fmt::format("step {} of {} is on its way to storage for {} s", dir.store->save.step, name,
                       (now_ - dir.store->begun_at) / 1'000),
           dir.store->save.step);
      if (!dir.found) Decide(name, dir);  // where it was awaited for long enough
    }
  }

  // --- nodes that are no members, and lend ---

  void BeginLending(const std::vector<uint64_t>& lenders, Instant by) {
    for (const auto& [session, held] : std::exchange(s_.lenders, {})) {
      if (std::ranges::find(lenders, session) == lenders.end()) SendLendingEnded(session);
    }
    v1::CheckpointOrder order = AboutAll("what it holds may be needed");
    order.mutable_lend()->set_epoch(s_.epoch);
    for (const uint64_t session : lenders) {
      s_.lenders[session];
      SendTo(session, order);
    }
    s_.lenders_by = lenders.empty() ? kNever : by;
  }

  // Its ranks have ended, and it would end. It is answered when nobody needs it any more.
  void OnGoing(uint64_t session) {
    if (!s_.lenders.contains(session)) SendLendingEnded(session);
  }

  void OnLent(uint64_t session, const v1::CheckpointsHeld& held) {
    if (s_.settled) return;  // told once more: what it holds does not change
    s_.lenders[session] = held;
    SettleWhereAllHaveTold();
  }

  void OnRestoreDone(uint64_t session, const std::string& name, uint32_t branch) {
    CheckpointDir& dir = s_.dirs[name];
    if (!dir.decided.empty() && dir.decided.rbegin()->first == branch) dir.restored.insert(session);
  }

  // What they hold nobody knows: it counts for nothing.
  void GiveUpLenders() {
    s_.lenders_by = kNever;
    for (auto lender = s_.lenders.begin(); lender != s_.lenders.end();) {
      if (!lender->second) SendLendingEnded(lender->first);
      lender = lender->second ? std::next(lender) : s_.lenders.erase(lender);
    }
    SettleWhereAllHaveTold();
  }

  // Who was given a part of it must not go on from that, nor wait for the rest.
  void LoseLender() {
    if (!s_.settled) return SettleWhereAllHaveTold();
    for (auto& [name, dir] : s_.dirs) {
      if (!dir.borrowed || held_.IsWhole(name, *dir.committed)) continue;
      out_.breaks_round = out_.breaks_round || (!dir.decided.empty() && !AllIn(dir.restored));
      StopBorrowing(dir);
      PassOver(dir, fmt::format("step {} in memory: a node that lent a part of it has gone", dir.committed->step));
      Decide(name, dir);
    }
  }

  // Nobody begins to read it any more.
  static void StopBorrowing(CheckpointDir& dir) {
    dir.borrowed = dir.offered = false;
    dir.lenders.clear();
  }

  // The last of what an event causes.
  void EndLendingWhereOver() {
    const auto is_borrowed = [](const auto& entry) { return entry.second.borrowed; };
    if (s_.settled && !s_.lenders.empty() && std::ranges::none_of(s_.dirs, is_borrowed)) EndLending();
  }

  void EndLending() {
    s_.lenders_by = kNever;
    for (const auto& [session, held] : std::exchange(s_.lenders, {})) SendLendingEnded(session);
  }

  void Stepped() {
    for (auto& [name, dir] : s_.dirs) {
      if (dir.borrowed) StopBorrowing(dir);
    }
  }

  void SendLendingEnded(uint64_t session) {
    v1::CheckpointOrder order = AboutAll("nobody needs what it holds");
    order.mutable_lending_ended();
    SendTo(session, order);
  }

 private:
  // --- small things ---

  bool AllHere() const { return s_.rank_of.size() == s_.members.size(); }

  // All members are here and in that set, or map, of sessions of members that are here.
  template <typename Sessions>
  bool AllIn(const Sessions& sessions) const {
    return AllHere() && sessions.size() == s_.members.size();
  }

  static v1::CheckpointOrder OrderOf(const std::string& name, const SaveKey& save, const std::string& reason) {
    v1::CheckpointOrder order;
    order.set_dir(name);
    SetKey(*order.mutable_save(), save);
    order.set_reason(reason);
    return order;
  }

  // Of no directory.
  static v1::CheckpointOrder AboutAll(const std::string& reason) {
    v1::CheckpointOrder order;
    order.set_reason(reason);
    return order;
  }

  // What was to go to storage is there, or will not be.
  static v1::CheckpointOrder EndedOrder(const std::string& name, const SaveKey& save, bool stored,
                                        const std::string& reason) {
    v1::CheckpointOrder order = OrderOf(name, save, reason);
    order.mutable_store_ended()->set_stored(stored);
    return order;
  }

  void SendTo(uint64_t session, const v1::CheckpointOrder& order) {
    if (session != 0) out_.orders.push_back({{session}, order});
  }

  void SendToAll(const v1::CheckpointOrder& order) {
    std::vector<uint64_t> sessions;
    for (const CheckpointMember& member : s_.members) {
      if (member.session != 0) sessions.push_back(member.session);
    }
    if (!sessions.empty()) out_.orders.push_back({std::move(sessions), order});
  }

  void Note(const std::string& kind, const std::string& name, const std::string& text, int64_t step) {
    out_.notes.push_back({kind, text, {{"dir", name}, {"step", step}}});
  }

  // --- more directories than are known at a time ---

  bool IsOneTooMany(const std::string& name) const {
    return !s_.dirs.contains(name) && s_.dirs.size() >= kMaxCheckpointDirs;
  }

  // Who waits for an answer gets one. A rank must not begin anew where nobody has looked for its steps.
  void Refuse(uint64_t session, const v1::CheckpointReport& report) {
    const std::string& name = report.dir();
    if (!std::exchange(s_.limit_told, true)) Note("checkpoint-skipped", name, TooManyDirs(name), -1);
    if (report.has_restore_asked()) {
      v1::CheckpointOrder order = OrderOf(name, {}, TooManyDirs(name));
      order.clear_save();
      order.mutable_restore()->set_source(v1::RestoreDecided::NOTHING);
      return SendTo(session, order);
    }
    if (!report.has_sealed() && !report.has_skipped()) return;
    const v1::SaveId& save = report.has_sealed() ? report.sealed().save() : report.skipped().save();
    v1::CheckpointOrder order = OrderOf(name, KeyOf(save), TooManyDirs(name));
    order.mutable_dropped();
    SendTo(session, order);
  }

  // --- saving ---

  void OnOpened(const std::string& name, const v1::CheckpointOpened& opened) {
    CheckpointDir& dir = s_.dirs[name];
    dir.form = FormOf(opened.form());
    dir.at_breakpoint = opened.at_breakpoint();
    dir.opened = true;
    if (!opened.archive().empty()) dir.archive = opened.archive();
  }

  void OnSealed(uint64_t session, const std::string& name, const v1::CheckpointSealed& sealed) {
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
  void Compare(uint64_t session, const std::string& name, CheckpointDir& dir, const v1::CheckpointSealed& sealed) {
    const uint32_t rank_base = s_.members[s_.rank_of.at(session)].rank_base;
    std::map<std::string, RankValue>& known = dir.values[KeyOf(sealed.save())];
    for (const v1::SharedValue& value : sealed.values()) {
      const RankValue told{value.crc32(), rank_base + value.local_rank()};
      const auto [first, is_first] = known.try_emplace(value.name(), told);
      if (is_first || first->second.crc32 == told.crc32 || dir.values_told.size() == kMaxValuesTold) continue;
      if (!dir.values_told.insert(value.name()).second) continue;
      const int64_t step = sealed.save().step();
      Note(
          "checkpoint-differs", name,
          fmt::format("step {} of {}: '{}' is not the same on ranks {} and {}; each rank is given back that of one, or "
                      "its own where the script saves PerRank(..)",
                      step, name, value.name(), std::min(first->second.rank, told.rank),
                      std::max(first->second.rank, told.rank)),
          step);
      out_.notes.back().is_for_people = true;
    }
  }

  // Said again: the order was lost with its stream.
  void TellDropped(uint64_t session, const std::string& name, const SaveKey& save) {
    v1::CheckpointOrder order = OrderOf(name, save, "some rank has not saved this step");
    order.mutable_dropped();
    SendTo(session, order);
  }

  void Commit(const std::string& name, CheckpointDir& dir, const SaveKey& save) {
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

  void OnSkipped(uint64_t session, const std::string& name, const v1::CheckpointSkipped& skipped) {
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

  // --- a round begins ---

  void OnHeld(uint64_t session, const v1::CheckpointsHeld& held) {
    s_.held[session] = held;
    OnAwaited(session, held);
    if (s_.settled) {  // said again on a new stream; nothing has changed but that the node is here again
      for (auto& [name, dir] : s_.dirs) {
        StoreWanted(name, dir);
        Decide(name, dir);  // what it was asked about storage went with its stream
      }
      return;
    }
    SettleWhereAllHaveTold();
  }

  void SettleWhereAllHaveTold() {
    if (s_.settled || s_.epoch == 0 || !AllIn(s_.held)) return;
    Found found;
    for (const auto& [from, list] : s_.held) AddTo(found, from, list);
    const bool all_lenders =
        std::ranges::all_of(s_.lenders, [](const auto& entry) { return entry.second.has_value(); });
    if (!all_lenders && !MembersSuffice(found)) return;
    for (const auto& [from, list] : s_.lenders) {
      if (list) AddTo(found, from, *list);
    }
    if (OrdersOlderRead(found)) return;
    s_.settled = true;
    s_.lenders_by = kNever;
    for (auto& [name, saves] : found) SettleMemory(name, s_.dirs[name], saves);
    for (auto& [name, dir] : s_.dirs) {
      StoreWanted(name, dir);
      Decide(name, dir);
    }
  }

  // What was committed last the members hold themselves, and nothing newer that a lender might complete. `found`: what
  // they hold.
  bool MembersSuffice(const Found& found) const {
    return std::ranges::all_of(found, [this](const auto& entry) { return s_.dirs.contains(entry.first); }) &&
           std::ranges::all_of(s_.dirs, [&](const auto& entry) {
             const auto saves = found.find(entry.first);
             if (saves == found.end()) return !entry.second.committed;
             const auto& [newest, by_session] = *saves->second.rbegin();
             return entry.second.committed == newest && held_.Missing(by_session, true).empty() &&
                    held_.Unread(by_session).empty();
           });
  }

  void AddTo(Found& found, uint64_t session, const v1::CheckpointsHeld& held) const {
    for (const v1::HeldSave& save : held.saves()) {
      if (!IsOneTooMany(save.dir())) found[save.dir()][KeyOf(save.save())][session] = &save;
    }
  }

  // Nodes read the newest saves first: for large states the others take long, and nearly always nobody needs them. True
  // where some are to read on: they tell all that they hold when they have.
  bool OrdersOlderRead(const Found& found) {
    std::set<uint64_t> reading;
    for (const auto& [name, saves] : found) {
      if (CanSettle(s_.dirs[name], saves)) continue;
      for (const uint64_t session : WithOlderUnread(saves)) {
        if (s_.lenders.contains(session) && s_.lenders_by == kNever) continue;  // nobody waits for it any more
        v1::CheckpointOrder order = OrderOf(name, {}, "no newer step can be restored from memory");
        order.clear_save();
        order.mutable_read_older();
        SendTo(session, order);
        reading.insert(session);
      }
    }
    for (const uint64_t session : reading) {
      s_.held.erase(session);
      if (const auto lender = s_.lenders.find(session); lender != s_.lenders.end()) lender->second.reset();
    }
    return !reading.empty();
  }

  bool CanSettle(const CheckpointDir& dir, const std::map<SaveKey, HeldBySession>& saves) const {
    return std::ranges::any_of(saves, [&](const auto& entry) {
      const auto& [save, by_session] = entry;
      const bool was_committed = Holdings::IsCommitted(by_session) || dir.committed == save;
      return held_.Missing(by_session, was_committed).empty() && held_.Unread(by_session).empty();
    });
  }

  static std::set<uint64_t> WithOlderUnread(const std::map<SaveKey, HeldBySession>& saves) {
    std::set<uint64_t> sessions;
    for (const auto& [save, by_session] : saves) {
      for (const auto& [session, held] : by_session) {
        if (held->older_unread()) sessions.insert(session);
      }
    }
    return sessions;
  }

  // The newest save that can be restored from memory is committed, if it was not; what can never be is dropped.
  void SettleMemory(const std::string& name, CheckpointDir& dir, const std::map<SaveKey, HeldBySession>& saves) {
    const std::optional<SaveKey> known = std::exchange(dir.committed, std::nullopt);
    for (auto it = saves.rbegin(); it != saves.rend(); ++it) {
      const auto& [save, by_session] = *it;
      const bool was_committed = Holdings::IsCommitted(by_session) || known == save;
      std::string missing = held_.Missing(by_session, was_committed);
      const std::string unread = missing.empty() ? held_.Unread(by_session) : "";
      dir.unreadable = dir.unreadable || !unread.empty();
      if (!unread.empty()) missing = unread;
      if (missing.empty()) {
        dir.committed = save;
        dir.committed_world_size = by_session.begin()->second->world_size();
        dir.committed_form = FormOf(by_session.begin()->second->form());
        dir.covered = held_.HoldAll(by_session);
        dir.offered = true;
        const HeldBySession of_members = held_.OfMembers(by_session);
        dir.borrowed = of_members.empty() || !held_.Missing(of_members, true).empty();
        dir.lenders = held_.LendersWhereNeeded(dir.borrowed ? by_session : of_members);
        dir.sealed_unix_ms = 0;
        for (const auto& [session, held] : by_session) {
          dir.sealed_unix_ms = std::max(dir.sealed_unix_ms, held->sealed_unix_ms());
        }
        return TellSettled(name, dir, save);
      }
      PassOver(dir, fmt::format("step {} in memory: {}", save.step, missing));
      if (was_committed) continue;
      v1::CheckpointOrder order = OrderOf(name, save, missing);
      order.mutable_dropped();
      for (const auto& [session, held] : by_session) SendTo(session, order);
    }
  }

  // A node that lacks something of it reads that while its ranks begin.
  void TellSettled(const std::string& name, const CheckpointDir& dir, const SaveKey& save) {
    v1::CheckpointOrder order = OrderOf(name, save, "the memory of this round's nodes holds it");
    order.mutable_committed();
    if (dir.lenders.empty() || IsDoubtedInMemory(dir)) return SendToAll(order);
    std::vector<uint64_t> others;
    for (size_t group_rank = 0; group_rank < s_.members.size(); ++group_rank) {
      const uint64_t session = s_.members[group_rank].session;
      if (session == 0) continue;
      Elsewhere lent = held_.LentTo(group_rank, name, dir);
      if (lent.empty()) {
        others.push_back(session);
        continue;
      }
      v1::CheckpointOrder own = order;
      *own.mutable_committed()->mutable_elsewhere() = std::move(lent);
      SendTo(session, own);
    }
    if (!others.empty()) out_.orders.push_back({std::move(others), std::move(order)});
  }

  // Once: the master before may have said so already.
  static void PassOver(CheckpointDir& dir, const std::string& why) {
    if (dir.passed_over.find(why) != std::string::npos || dir.passed_over.ends_with(kAndMore)) return;
    if (dir.passed_over.size() + why.size() > kMaxPassedOverBytes) {
      dir.passed_over += kAndMore;
      return;
    }
    dir.passed_over += (dir.passed_over.empty() ? "" : "; ") + why;
  }

  // --- restoring ---

  // Each branch has one decision, the same for all ranks, however late they ask: that of a later one is what is newest
  // then.
  void OnRestoreAsked(uint64_t session, const std::string& name, const v1::RestoreAsked& asked) {
    const uint32_t branch = asked.branch();
    CheckpointDir& dir = s_.dirs[name];
    const auto known = dir.decided.lower_bound(branch);
    // Who lends what is known when all have told what they hold: a new master has yet to hear it.
    const bool can_tell =
        known != dir.decided.end() && (s_.settled || known->second.restore().source() != v1::RestoreDecided::MEMORY);
    if (can_tell && asked.request() != 0) return SendImages(session, name, known->second, asked);
    if (can_tell) return SendDecision(session, name, dir, known->second);
    if (dir.asking.empty() && !dir.decided.empty()) AskAnew(dir);
    dir.asking.insert(session);
    dir.asking_branch = std::max(dir.asking_branch, branch);
    Decide(name, dir);
  }

  // What storage held when the round began it may hold no more.
  static void AskAnew(CheckpointDir& dir, const std::string& passed_over = "") {
    dir.found.reset();
    dir.find_by = dir.check_notice_at = kNever;
    dir.checking.clear();
    dir.checked.clear();
    dir.passed_over = passed_over;
  }

  // With the images that this node needs and lacks.
  void SendDecision(uint64_t session, const std::string& name, CheckpointDir& dir,
                    const v1::CheckpointOrder& decision) {
    if (s_.rank_of.contains(session)) dir.doubts.told.insert(s_.rank_of.at(session));
    const bool lacks = decision.restore().source() == v1::RestoreDecided::MEMORY && !dir.lenders.empty();
    if (!lacks || !s_.rank_of.contains(session)) return SendTo(session, decision);
    v1::CheckpointOrder order = decision;
    *order.mutable_restore()->mutable_elsewhere() = held_.LentTo(s_.rank_of.at(session), name, dir);
    SendTo(session, order);
  }

  // Also where each node holds what its ranks need: a rank may want another one's all the same.
  void SendImages(uint64_t session, const std::string& name, const v1::CheckpointOrder& decision,
                  const v1::RestoreAsked& asked) {
    v1::CheckpointOrder order = decision;
    order.mutable_restore()->set_request(asked.request());
    *order.mutable_restore()->mutable_elsewhere() =
        held_.ImagesFor(s_.rank_of.at(session), name, KeyOf(decision.save()), asked.images());
    SendTo(session, order);
  }

  void OnFound(const std::string& name, const v1::FoundOnDisk& found) {
    CheckpointDir& dir = s_.dirs[name];
    if (dir.find_by == kNever) return;
    dir.find_by = kNever;
    dir.found = found;
    Decide(name, dir);
  }

  void OnSilentStorage(const std::string& name, CheckpointDir& dir) {
    const std::string silence = fmt::format("storage has not answered for {} s", (now_ - dir.asked_at) / 1'000);
    if (MayDoWithMemory(dir, dir.asked_at, kFindOnDiskMs)) {
      v1::FoundOnDisk silent;
      silent.set_step(-1);
      silent.set_why(silence);
      return OnFound(name, silent);
    }
    dir.find_by = now_ + kFindOnDiskMs;
    Note("checkpoint-lag", name,
         fmt::format("memory holds nothing of {}{}, and {}: training waits for what it holds", name,
                     IsDoubtedInMemory(dir) ? " that lives got on with" : "", silence),
         -1);
  }

  static bool OffersMemory(const CheckpointDir& dir) { return dir.committed && dir.offered; }

  // What is on its way there is newer than all that is there: storage is looked at when it has ended, or takes too
  // long.
  bool AwaitsStore(const CheckpointDir& dir) const {
    return dir.store && !OffersMemory(dir) && now_ - dir.store->begun_at < kCheckOnDiskMs;
  }

  void Decide(const std::string& name, CheckpointDir& dir) {
    if (!s_.settled || dir.asking.empty()) return;
    if (const auto known = dir.decided.lower_bound(dir.asking_branch); known != dir.decided.end()) {
      for (const uint64_t session : std::exchange(dir.asking, {})) SendDecision(session, name, dir, known->second);
      return;
    }
    if (AwaitsStore(dir)) dir.found.reset();
    if (!dir.found) return Find(name, dir);
    if (IsDoubtedOnStorage(dir)) {
      NoteFolder(dir.doubts, KeyOf(*dir.found), dir.found->name());
      dir.found.reset();
      return Find(name, dir);
    }
    if (IsDoubtedInMemory(dir)) PassOver(dir, fmt::format("step {} in memory: {}", dir.committed->step, kDoubted));
    v1::CheckpointOrder choice = Choose(name, dir);
    if (choice.restore().source() == v1::RestoreDecided::NOTHING && TrustAgain(dir.doubts)) {
      PassOver(dir, "nothing older can be restored: it is tried again");
      out_.remember = true;
      AskAnew(dir, dir.passed_over);
      return Find(name, dir);
    }
    if (choice.restore().source() == v1::RestoreDecided::DISK && !AllIn(dir.checked)) {
      return Check(name, dir);
    }
    dir.check_notice_at = kNever;
    const bool from_memory = choice.restore().source() == v1::RestoreDecided::MEMORY;
    if (!from_memory && dir.committed) dir.stale = dir.committed;
    if (!from_memory && dir.borrowed) StopBorrowing(dir);
    dir.restored.clear();
    NoteDecided(dir.doubts, GoneOnFrom(dir, choice));
    choice.mutable_restore()->set_branch(dir.asking_branch);
    const v1::CheckpointOrder& decision = dir.decided[dir.asking_branch] = std::move(choice);
    out_.remember_first = true;  // some ranks may have restored it when a new master is asked by the others
    for (const uint64_t session : std::exchange(dir.asking, {})) SendDecision(session, name, dir, decision);
    Note("checkpoint-restore", name, decision.reason(), decision.has_save() ? decision.save().step() : -1);
    if (dir.decided.size() > kMaxDecided) dir.decided.erase(dir.decided.begin());
  }

  void Find(const std::string& name, CheckpointDir& dir) {
    const uint64_t first = s_.members.front().session;
    if (dir.find_by != kNever || first == 0) return;
    if (AwaitsStore(dir)) return;
    dir.asked_at = now_;
    dir.find_by = now_ + kFindOnDiskMs;
    v1::CheckpointOrder order = OrderOf(name, {}, "a rank wants to restore");
    order.mutable_find()->set_archive(dir.archive);
    for (const std::string& damaged : dir.damaged) order.mutable_find()->add_but(damaged);
    for (const std::string& unread : dir.unread) order.mutable_find()->add_but(unread);
    for (const auto& [save, folder] : dir.doubts.kept.saves) {
      if (folder.empty()) continue;
      order.mutable_find()->add_but(folder);
      order.mutable_find()->add_doubted(folder);
      PassOver(dir, fmt::format("{}/{}: {}", name, folder, kDoubted));
    }
    SendTo(first, order);
  }

  // --- saves that no life gets anywhere with ---

  static bool IsDoubtedOnStorage(const CheckpointDir& dir) {
    const v1::FoundOnDisk& found = *dir.found;
    return found.step() >= 0 && found.same_job() && dir.doubts.kept.saves.contains(KeyOf(found));
  }

  static bool IsDoubtedInMemory(const CheckpointDir& dir) {
    return OffersMemory(dir) && dir.doubts.kept.saves.contains(*dir.committed);
  }

  // Of another job's saves it is not for this one to say which is taken.
  static std::optional<SaveKey> GoneOnFrom(const CheckpointDir& dir, const v1::CheckpointOrder& choice) {
    switch (choice.restore().source()) {
      case v1::RestoreDecided::MEMORY:
        return dir.committed;
      case v1::RestoreDecided::DISK:
        return dir.found->same_job() ? std::optional(KeyOf(*dir.found)) : std::nullopt;
      default:
        return std::nullopt;
    }
  }

  // Memory has something to go on from where storage does not answer for so long. What lives got nowhere with is worth
  // more patience.
  bool MayDoWithMemory(const CheckpointDir& dir, Instant since, int64_t patience_ms) const {
    return OffersMemory(dir) && now_ - since >= (IsDoubtedInMemory(dir) ? kDoubtedPatienceMs : patience_ms);
  }

  // Each node reads its own part, once a stream: what is damaged is known before any rank has loaded a part of it.
  void Check(const std::string& name, CheckpointDir& dir) {
    v1::CheckpointOrder order = OrderOf(name, {0, dir.found->step()}, "it may be restored");
    order.mutable_check()->set_name(dir.found->name());
    order.mutable_check()->set_archive(dir.archive);
    if (dir.check_notice_at == kNever) {
      dir.check_at = now_;
      dir.check_notice_at = now_ + kStoreLagNoticeMs;
    }
    if (dir.checking.size() == s_.rank_of.size()) return;  // all that are here: a lost one is in neither
    for (const CheckpointMember& member : s_.members) {
      if (member.session != 0 && dir.checking.insert(member.session).second) SendTo(member.session, order);
    }
  }

  // A node's storage may hang while another one's answers.
  void OnSlowCheck(const std::string& name, CheckpointDir& dir) {
    dir.check_notice_at = kNever;
    if (dir.asking.empty() || !dir.found) return;  // the next who asks has it checked on
    const std::string text = fmt::format("step {} of {} is read on storage for {} s, and {} not answered",
                                         dir.found->step(), name, (now_ - dir.check_at) / 1'000, Unheard(dir.checked));
    if (MayDoWithMemory(dir, dir.check_at, kCheckOnDiskMs)) {
      dir.found->set_step(-1);
      dir.found->set_why(text);
      return Decide(name, dir);
    }
    dir.check_notice_at = now_ + kStoreLagNoticeMs;
    Note("checkpoint-lag", name, text, dir.found->step());
  }

  // The members that are not in that set of sessions, by group rank; the first ones of many.
  std::string Unheard(const std::set<uint64_t>& sessions) const {
    std::vector<size_t> ranks;
    for (size_t group_rank = 0; group_rank < s_.members.size(); ++group_rank) {
      if (!sessions.contains(s_.members[group_rank].session)) ranks.push_back(group_rank);
    }
    if (ranks.size() == 1) return fmt::format("the node of group rank {} has", ranks.front());
    const size_t named = std::min(ranks.size(), kMaxNodesNamed);
    const std::string more = ranks.size() > named ? fmt::format(" and {} more", ranks.size() - named) : "";
    return fmt::format("the nodes of group ranks {}{} have",
                       fmt::join(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(named), ", "), more);
  }

  void OnChecked(uint64_t session, const std::string& name, const v1::CheckedOnDisk& checked) {
    CheckpointDir& dir = s_.dirs[name];
    if (dir.asking.empty() || !dir.found || dir.found->name() != checked.name() || !dir.checking.contains(session))
      return;
    if (checked.error().empty()) {
      dir.checked.insert(session);
    } else if (dir.damaged.size() + dir.unread.size() >= kMaxDamaged) {
      dir.too_damaged = true;
      dir.found->set_step(-1);
      dir.found->set_why(fmt::format("more than {} steps on storage are damaged", kMaxDamaged));
      dir.check_notice_at = kNever;
    } else {
      out_.remember = out_.remember || !checked.unreadable();  // a new master need not have it read once more
      (checked.unreadable() ? dir.unread : dir.damaged).insert(checked.name());
      PassOver(dir, checked.error());
      dir.checking.clear();
      dir.checked.clear();
      dir.found.reset();
      dir.check_notice_at = kNever;
    }
    Decide(name, dir);
  }

  // Whether what storage holds was saved behind what memory offers. Of what this run is known to have stored the order
  // of its saves says so. A step of another job, or of a run before that had the same name, says nothing by its number:
  // what it was when memory was sealed, it had been written by then, if the clocks of two nodes are right.
  static bool IsNewerOnDisk(const CheckpointDir& dir) {
    const v1::FoundOnDisk& found = *dir.found;
    const SaveKey on_disk = KeyOf(found);
    if (!found.same_job() || on_disk <= *dir.committed) return false;
    return dir.stored == on_disk || found.written_unix_ms() >= dir.sealed_unix_ms;
  }

  static std::string PlaceOf(const std::string& name, const v1::FoundOnDisk& found) {
    return found.place().empty() ? fmt::format("{}/{}", name, found.name()) : found.place();
  }

  // Memory before storage, unless that holds a later save.
  v1::CheckpointOrder Choose(const std::string& name, const CheckpointDir& dir) const {
    const bool memory = OffersMemory(dir) && !IsDoubtedInMemory(dir);
    const bool disk = dir.found->step() >= 0 && (!memory || IsNewerOnDisk(dir));
    std::string passed_over = dir.passed_over;
    if (!dir.found->why().empty()) passed_over += (passed_over.empty() ? "" : "; ") + dir.found->why();
    if (!passed_over.empty()) passed_over = fmt::format(" (passed over: {})", passed_over);
    if (disk) {
      v1::CheckpointOrder order = OrderOf(name, {0, dir.found->step()},
                                          fmt::format("step {} is restored from storage, {}{}", dir.found->step(),
                                                      PlaceOf(name, *dir.found), passed_over));
      order.mutable_restore()->set_source(v1::RestoreDecided::DISK);
      order.mutable_restore()->set_name(dir.found->name());
      order.mutable_restore()->set_world_size(dir.found->world_size());
      return order;
    }
    if (memory) {
      v1::CheckpointOrder order = OrderOf(
          name, *dir.committed, fmt::format("step {} is restored from memory{}", dir.committed->step, passed_over));
      order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
      order.mutable_restore()->set_world_size(dir.committed_world_size);
      return order;
    }
    const bool is_known = !dir.too_damaged && dir.unread.empty();
    const std::string what = !is_known        ? "whether there is a step to restore is not known of"
                             : dir.unreadable ? "not all nodes can have the step that memory holds of"
                                              : "there is nothing to restore in";
    v1::CheckpointOrder order = OrderOf(name, {0, -1}, fmt::format("{} {}{}", what, name, passed_over));
    if (!is_known || dir.unreadable) order.clear_save();  // the ranks fail: none begins anew
    order.mutable_restore()->set_source(v1::RestoreDecided::NOTHING);
    return order;
  }

  // --- storing ---

  // What no rank of this job has asked for is another run's, and what was passed over is no newer than storage.
  static bool IsWorthKeeping(const CheckpointDir& dir) {
    return dir.opened && dir.committed && !(dir.stale && *dir.committed <= *dir.stale);
  }

  // Its ranks have ended, so there is nothing newer to come. Each is answered: by the end of a store that it takes part
  // in, or at once.
  void OnDeparting(uint64_t session, const std::string& name, const SaveKey& save) {
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

  // In the store under way, or the one that follows it.
  static bool TakesPart(const CheckpointDir& dir, uint64_t session, const SaveKey& save, bool is_member) {
    if (!dir.store) return false;
    const bool in_store = std::ranges::any_of(
        dir.store->members, [session](const CheckpointMember& member) { return member.session == session; });
    const bool in_next = is_member && dir.wanted && dir.committed && save <= *dir.committed;
    return (in_store && save <= dir.store->save) || in_next;
  }

  void WantStored(const std::string& name, CheckpointDir& dir, const SaveKey& save) {
    if (dir.stored && save <= *dir.stored) return SendToAll(EndedOrder(name, *dir.stored, true, kStoredAlready));
    dir.wanted = true;
    MaybeStore(name, dir);
  }

  // A node awaits the end of stores that this master may never have heard of. It hears one end a directory: that of the
  // newest stored save counts for all before it.
  void OnAwaited(uint64_t session, const v1::CheckpointsHeld& held) {
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
  void OnMilestoneHeld(CheckpointDir& dir, const SaveKey& save, uint64_t session) {
    if (dir.milestones.contains(save) || save.epoch == s_.epoch) dir.milestones[save].insert(session);
  }

  // The newest save goes to storage where that is wanted, milestones before it. When memory has none any more, those
  // who await one hear so.
  void StoreWanted(const std::string& name, CheckpointDir& dir) {
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

  void MaybeStore(const std::string& name, CheckpointDir& dir) {
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
  std::optional<SaveKey> NextMilestone(CheckpointDir& dir) const {
    if (dir.stored) dir.milestones.erase(dir.milestones.begin(), dir.milestones.upper_bound(*dir.stored));
    for (const auto& [save, sessions] : dir.milestones) {
      if (AllIn(sessions)) return save;
    }
    return std::nullopt;
  }

  void BeginStore(const std::string& name, CheckpointDir& dir, const SaveKey& save, uint32_t world_size) {
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
  CheckpointDir* StoringFor(uint64_t session, const std::string& name, const v1::SaveId& save) {
    CheckpointDir* dir = Storing(name, save);
    return dir != nullptr && dir->store->members.front().session == session ? dir : nullptr;
  }

  // The store under way, if it is of that save.
  CheckpointDir* Storing(const std::string& name, const v1::SaveId& save) {
    const auto dir = s_.dirs.find(name);
    if (dir == s_.dirs.end() || !dir->second.store || dir->second.store->save != KeyOf(save)) return nullptr;
    return &dir->second;
  }

  void OnPrepared(uint64_t session, const std::string& name, const v1::StorePrepared& prepared) {
    CheckpointDir* dir = StoringFor(session, name, prepared.save());
    if (dir == nullptr || !dir->store->name.empty()) return;
    if (!prepared.error().empty()) return EndStore(name, *dir, prepared.error());
    dir->store->name = prepared.name();
    v1::CheckpointOrder order = OrderOf(name, dir->store->save, "its folder is made");
    order.mutable_store_shards()->set_name(prepared.name());
    for (const CheckpointMember& member : dir->store->members) SendTo(member.session, order);
  }

  void OnShards(uint64_t session, const std::string& name, const v1::ShardsWritten& written) {
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

  void OnManifest(uint64_t session, const std::string& name, const v1::ManifestWritten& written) {
    CheckpointDir* dir = StoringFor(session, name, written.save());
    if (dir == nullptr || !dir->store->closing) return;
    if (!written.error().empty()) return EndStore(name, *dir, written.error());
    EndStore(name, *dir, "");
  }

  void EndStore(const std::string& name, CheckpointDir& dir, const std::string& error) {
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

  CheckpointState& s_;
  const Holdings held_;
  const Instant now_;
  CheckpointOrders out_;
};

}  // namespace

CheckpointOrders BeginCheckpoints(CheckpointState& state, CheckpointRound round, Instant now) {
  Stepper stepper(state, now);
  stepper.Begin(std::move(round));
  return stepper.Take();
}

CheckpointOrders OnCheckpointsStepped(CheckpointState& state, Instant now) {
  Stepper stepper(state, now);
  stepper.Stepped();
  stepper.EndLendingWhereOver();
  return stepper.Take();
}

CheckpointOrders EndCheckpoints(CheckpointState& state, CheckpointEnd end, Instant now) {
  Stepper stepper(state, now);
  stepper.End(end);
  return stepper.Take();
}

CheckpointOrders EndLending(CheckpointState& state, Instant now) {
  Stepper stepper(state, now);
  stepper.EndLending();
  return stepper.Take();
}

CheckpointOrders OnLifeEnds(CheckpointState& state, LifeEnd end, uint32_t lives, Instant now) {
  Stepper stepper(state, now);
  stepper.LifeEnds(end, lives);
  return stepper.Take();
}

void ReturnLife(CheckpointState& state) {
  for (auto& [name, dir] : state.dirs) ReturnLife(dir.doubts);
}

bool WillDoubtSave(CheckpointState& state, uint32_t lives) { return Stepper(state, 0).WillDoubt(lives); }

void StopRestoring(CheckpointState& state) {
  for (auto& [name, dir] : state.dirs) {
    dir.find_by = dir.check_notice_at = kNever;
    dir.asking.clear();
  }
}

CheckpointOrders OnCheckpointReport(CheckpointState& state, uint64_t session, const v1::CheckpointReport& report,
                                    Instant now) {
  Stepper stepper(state, now);
  stepper.Report(session, report);
  stepper.EndLendingWhereOver();
  return stepper.Take();
}

CheckpointOrders OnCheckpointSessionLost(CheckpointState& state, uint64_t session, Instant now) {
  Stepper stepper(state, now);
  stepper.Lost(session);
  stepper.EndLendingWhereOver();
  return stepper.Take();
}

void OnCheckpointSessionBack(CheckpointState& state, uint32_t group_rank, const CheckpointMember& member) {
  if (group_rank >= state.members.size()) return;
  state.rank_of.erase(state.members[group_rank].session);
  state.members[group_rank] = member;
  state.rank_of[member.session] = group_rank;
}

std::string StoringText(const CheckpointState& state) {
  std::string text;
  for (const auto& [name, dir] : state.dirs) {
    if (!dir.store) continue;
    text += fmt::format("{}step {} of {}", text.empty() ? "" : ", ", dir.store->save.step, name);
  }
  return text;
}

bool IsStoring(const CheckpointState& state) {
  return std::any_of(state.dirs.begin(), state.dirs.end(),
                     [](const auto& entry) { return entry.second.store.has_value(); });
}

CheckpointOrders OnCheckpointTick(CheckpointState& state, Instant now) {
  Stepper stepper(state, now);
  stepper.Tick();
  stepper.EndLendingWhereOver();
  return stepper.Take();
}

Instant NextCheckpointDeadline(const CheckpointState& state) {
  Instant next = state.lenders_by;
  for (const auto& [name, dir] : state.dirs) {
    next = std::min({next, dir.find_by, dir.check_notice_at});
    if (dir.store) next = std::min(next, dir.store->notice_at);
  }
  return next;
}

}  // namespace phalanx::master
