// A round begins: what its nodes hold in memory, which save of that is whole, and what can never be.
#include <fmt/format.h>

#include <algorithm>

#include "master/topics/checkpoints_decisions.h"

namespace phalanx::master {
namespace {

constexpr char kAndMore[] = "; and more";

std::set<uint64_t> WithOlderUnread(const std::map<SaveKey, HeldBySession>& saves) {
  std::set<uint64_t> sessions;
  for (const auto& [save, by_session] : saves) {
    for (const auto& [session, held] : by_session) {
      if (held->older_unread()) sessions.insert(session);
    }
  }
  return sessions;
}

}  // namespace

void CheckpointDecisions::OnHeld(uint64_t session, const v1::CheckpointsHeld& held) {
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

void CheckpointDecisions::SettleWhereAllHaveTold() {
  if (s_.settled || s_.epoch == 0 || !AllIn(s_.held)) return;
  Found found;
  for (const auto& [from, list] : s_.held) AddTo(found, from, list);
  const bool all_lenders = std::ranges::all_of(s_.lenders, [](const auto& entry) { return entry.second.has_value(); });
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
bool CheckpointDecisions::MembersSuffice(const Found& found) const {
  return std::ranges::all_of(found, [this](const auto& entry) { return s_.dirs.contains(entry.first); }) &&
         std::ranges::all_of(s_.dirs, [&](const auto& entry) {
           const auto saves = found.find(entry.first);
           if (saves == found.end()) return !entry.second.committed;
           const auto& [newest, by_session] = *saves->second.rbegin();
           return entry.second.committed == newest && held_.Missing(by_session, true).empty() &&
                  held_.Unread(by_session).empty();
         });
}

void CheckpointDecisions::AddTo(Found& found, uint64_t session, const v1::CheckpointsHeld& held) const {
  for (const v1::HeldSave& save : held.saves()) {
    if (!IsOneTooMany(save.dir())) found[save.dir()][KeyOf(save.save())][session] = &save;
  }
}

// Nodes read the newest saves first: for large states the others take long, and nearly always nobody needs them. True
// where some are to read on: they tell all that they hold when they have.
bool CheckpointDecisions::OrdersOlderRead(const Found& found) {
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

bool CheckpointDecisions::CanSettle(const CheckpointDir& dir, const std::map<SaveKey, HeldBySession>& saves) const {
  return std::ranges::any_of(saves, [&](const auto& entry) {
    const auto& [save, by_session] = entry;
    const bool was_committed = Holdings::IsCommitted(by_session) || dir.committed == save;
    return held_.Missing(by_session, was_committed).empty() && held_.Unread(by_session).empty();
  });
}

// The newest save that can be restored from memory is committed, if it was not; what can never be is dropped.
void CheckpointDecisions::SettleMemory(const std::string& name, CheckpointDir& dir,
                                       const std::map<SaveKey, HeldBySession>& saves) {
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
void CheckpointDecisions::TellSettled(const std::string& name, const CheckpointDir& dir, const SaveKey& save) {
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

void PassOver(CheckpointDir& dir, const std::string& why) {
  if (dir.passed_over.find(why) != std::string::npos || dir.passed_over.ends_with(kAndMore)) return;
  if (dir.passed_over.size() + why.size() > kMaxPassedOverBytes) {
    dir.passed_over += kAndMore;
    return;
  }
  dir.passed_over += (dir.passed_over.empty() ? "" : "; ") + why;
}

}  // namespace phalanx::master
