// Nodes that had a place in the round before, and lend what they hold until nobody needs it.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include "master/topics/checkpoints_decisions.h"

namespace phalanx::master {

void CheckpointDecisions::BeginLending(const std::vector<uint64_t>& lenders, Instant by) {
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
void CheckpointDecisions::OnGoing(uint64_t session) {
  if (!s_.lenders.contains(session)) SendLendingEnded(session);
}

void CheckpointDecisions::OnLent(uint64_t session, const v1::CheckpointsHeld& held) {
  if (s_.settled) return;  // told once more: what it holds does not change
  s_.lenders[session] = held;
  SettleWhereAllHaveTold();
}

void CheckpointDecisions::OnRestoreDone(uint64_t session, const std::string& name, uint32_t branch) {
  CheckpointDir& dir = s_.dirs[name];
  if (!dir.decided.empty() && dir.decided.rbegin()->first == branch) dir.restored.insert(session);
}

// What they hold nobody knows: it counts for nothing.
void CheckpointDecisions::GiveUpLenders() {
  s_.lenders_by = kNever;
  for (auto lender = s_.lenders.begin(); lender != s_.lenders.end();) {
    if (!lender->second) SendLendingEnded(lender->first);
    lender = lender->second ? std::next(lender) : s_.lenders.erase(lender);
  }
  SettleWhereAllHaveTold();
}

// Who was given a part of it must not go on from that, nor wait for the rest.
void CheckpointDecisions::LoseLender() {
  if (!s_.settled) return SettleWhereAllHaveTold();
  for (auto& [name, dir] : s_.dirs) {
    if (!dir.borrowed || held_.IsWhole(name, *dir.committed)) continue;
    out_.breaks_round = out_.breaks_round || (!dir.decided.empty() && !AllIn(dir.restored));
    StopBorrowing(dir);
    PassOver(dir, fmt::format("step {} in memory: a node that lent a part of it has gone", dir.committed->step));
    Decide(name, dir);
  }
}

void StopBorrowing(CheckpointDir& dir) {
  dir.borrowed = dir.offered = false;
  dir.lenders.clear();
}

// The last of what an event causes.
void CheckpointDecisions::EndLendingWhereOver() {
  const auto is_borrowed = [](const auto& entry) { return entry.second.borrowed; };
  if (s_.settled && !s_.lenders.empty() && std::ranges::none_of(s_.dirs, is_borrowed)) EndLending();
}

void CheckpointDecisions::EndLending() {
  s_.lenders_by = kNever;
  for (const auto& [session, held] : std::exchange(s_.lenders, {})) SendLendingEnded(session);
}

void CheckpointDecisions::Stepped() {
  for (auto& [name, dir] : s_.dirs) {
    if (dir.borrowed) StopBorrowing(dir);
  }
}

void CheckpointDecisions::SendLendingEnded(uint64_t session) {
  v1::CheckpointOrder order = AboutAll("nobody needs what it holds");
  order.mutable_lending_ended();
  SendTo(session, order);
}

}  // namespace phalanx::master
