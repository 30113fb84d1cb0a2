#include "master/core/turn.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

namespace phalanx::master {

std::vector<Decision> Turn::Take() {
  if (!remember) return std::move(decisions_);
  job.remember_at = kNever;
  const bool first = remember_when != Remember::When::kBehind;
  decisions_.insert(first ? decisions_.begin() : decisions_.end(),
                    {Remember{remember_when}, "a master that is started anew must know"});
  return std::move(decisions_);
}

void Turn::RememberFirst(Remember::When when) {
  remember = true;
  remember_when = std::max(remember_when, when);
}

void Turn::RememberSoon() {
  const int64_t members = job.round ? static_cast<int64_t>(job.round->slots.size()) : 0;
  const int64_t delay_ms = members / kMembersPerRememberMs;
  if (delay_ms == 0) remember = true;
  job.remember_at = std::min(job.remember_at, now + delay_ms);
}

void Turn::Note(const std::string& kind, const std::string& node, const std::string& reason, int64_t rank,
                std::vector<std::pair<std::string, Record::Value>> detail) {
  const uint64_t epoch = job.round ? job.round->epoch : job.last_round ? job.last_round->epoch : 0;
  Do(Record{kind, epoch, node, rank, std::move(detail)}, reason);
}

void Turn::NoteRank(const Round& round, const std::string& kind, const std::string& node, const std::string& reason,
                    int64_t rank, std::vector<std::pair<std::string, Record::Value>> detail) {
  Do(Record{kind, round.epoch, node, rank, std::move(detail)}, reason);
}

void Turn::Apply(CheckpointOrders orders) {
  for (auto& [session, order] : orders.orders) {
    const std::string reason = order.reason();
    Do(SendCheckpoint{session, std::move(order)}, reason);
  }
  if (orders.remember) RememberSoon();
  if (orders.remember_first) RememberFirst(Remember::When::kBefore);
  for (CheckpointOrders::Note& note : orders.notes) Note(note.kind, "", note.text, -1, std::move(note.detail));
}

std::string Turn::Because() const {
  if (job.round && !job.round->failed.empty()) return "failure";
  return job.round || job.last_round ? "nodes" : "start";
}

}  // namespace phalanx::master
