#include "master/topics/checkpoints.h"

#include <fmt/format.h>

#include <algorithm>

#include "master/topics/checkpoints_decisions.h"

namespace phalanx::master {

std::string TooManyDirs(const std::string& name) {
  return fmt::format("{} is one directory too many: a job saves to at most {}", name, kMaxCheckpointDirs);
}

v1::CheckpointOrder OrderOf(const std::string& name, const SaveKey& save, const std::string& reason) {
  v1::CheckpointOrder order;
  order.set_dir(name);
  SetKey(*order.mutable_save(), save);
  order.set_reason(reason);
  return order;
}

v1::CheckpointOrder AboutAll(const std::string& reason) {
  v1::CheckpointOrder order;
  order.set_reason(reason);
  return order;
}

v1::CheckpointOrder EndedOrder(const std::string& name, const SaveKey& save, bool stored, const std::string& reason) {
  v1::CheckpointOrder order = OrderOf(name, save, reason);
  order.mutable_store_ended()->set_stored(stored);
  return order;
}

void CheckpointDecisions::Begin(CheckpointRound round) {
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

void CheckpointDecisions::LifeEnds(LifeEnd end, uint32_t lives) {
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

bool CheckpointDecisions::WillDoubt(uint32_t lives) const {
  return RestoresFromOneDirectory() && std::ranges::any_of(s_.dirs, [&](const auto& entry) {
           return WouldDoubt(entry.second.doubts, AllTold(entry.second), lives);
         });
}

// Of two, one might go back and the other not: the parts of a state would be of two steps.
bool CheckpointDecisions::RestoresFromOneDirectory() const {
  return std::ranges::count_if(s_.dirs, [](const auto& entry) { return !entry.second.decided.empty(); }) == 1;
}

void CheckpointDecisions::End(CheckpointEnd end) {
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

void CheckpointDecisions::Report(uint64_t session, const v1::CheckpointReport& report) {
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

void CheckpointDecisions::Lost(uint64_t session) {
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

void CheckpointDecisions::Tick() {
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

void CheckpointDecisions::SendTo(uint64_t session, const v1::CheckpointOrder& order) {
  if (session != 0) out_.orders.push_back({{session}, order});
}

void CheckpointDecisions::SendToAll(const v1::CheckpointOrder& order) {
  std::vector<uint64_t> sessions;
  for (const CheckpointMember& member : s_.members) {
    if (member.session != 0) sessions.push_back(member.session);
  }
  if (!sessions.empty()) out_.orders.push_back({std::move(sessions), order});
}

void CheckpointDecisions::Note(const std::string& kind, const std::string& name, const std::string& text,
                               int64_t step) {
  out_.notes.push_back({kind, text, {{"dir", name}, {"step", step}}});
}

// --- more directories than are known at a time ---

bool CheckpointDecisions::IsOneTooMany(const std::string& name) const {
  return !s_.dirs.contains(name) && s_.dirs.size() >= kMaxCheckpointDirs;
}

// Who waits for an answer gets one. A rank must not begin anew where nobody has looked for its steps.
void CheckpointDecisions::Refuse(uint64_t session, const v1::CheckpointReport& report) {
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

// --- what the core calls ---

CheckpointOrders BeginCheckpoints(CheckpointState& state, CheckpointRound round, Instant now) {
  CheckpointDecisions decisions(state, now);
  decisions.Begin(std::move(round));
  return decisions.Take();
}

CheckpointOrders OnCheckpointsStepped(CheckpointState& state, Instant now) {
  CheckpointDecisions decisions(state, now);
  decisions.Stepped();
  decisions.EndLendingWhereOver();
  return decisions.Take();
}

CheckpointOrders EndCheckpoints(CheckpointState& state, CheckpointEnd end, Instant now) {
  CheckpointDecisions decisions(state, now);
  decisions.End(end);
  return decisions.Take();
}

CheckpointOrders EndLending(CheckpointState& state, Instant now) {
  CheckpointDecisions decisions(state, now);
  decisions.EndLending();
  return decisions.Take();
}

CheckpointOrders OnLifeEnds(CheckpointState& state, LifeEnd end, uint32_t lives, Instant now) {
  CheckpointDecisions decisions(state, now);
  decisions.LifeEnds(end, lives);
  return decisions.Take();
}

void ReturnLife(CheckpointState& state) {
  for (auto& [name, dir] : state.dirs) ReturnLife(dir.doubts);
}

bool WillDoubtSave(CheckpointState& state, uint32_t lives) { return CheckpointDecisions(state, 0).WillDoubt(lives); }

void StopRestoring(CheckpointState& state) {
  for (auto& [name, dir] : state.dirs) {
    dir.find_by = dir.check_notice_at = kNever;
    dir.asking.clear();
  }
}

CheckpointOrders OnCheckpointReport(CheckpointState& state, uint64_t session, const v1::CheckpointReport& report,
                                    Instant now) {
  CheckpointDecisions decisions(state, now);
  decisions.Report(session, report);
  decisions.EndLendingWhereOver();
  return decisions.Take();
}

CheckpointOrders OnCheckpointSessionLost(CheckpointState& state, uint64_t session, Instant now) {
  CheckpointDecisions decisions(state, now);
  decisions.Lost(session);
  decisions.EndLendingWhereOver();
  return decisions.Take();
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
  CheckpointDecisions decisions(state, now);
  decisions.Tick();
  decisions.EndLendingWhereOver();
  return decisions.Take();
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
