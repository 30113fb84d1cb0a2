#include "master/core/turn.h"

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "master/core/messages.h"

namespace phalanx::master {

std::vector<Decision> Turn::Take() {
  if (!remember) return std::move(decisions_);
  job.remember_at = kNever;
  // What replaces the line that says so must be as sure as that was.
  if (job.phase == Phase::kFinished) RememberFirst(Remember::When::kSynced);
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

void Turn::Send(uint64_t session, std::shared_ptr<const v1::MasterMessage> message, const std::string& reason) {
  Do(master::Send{session, std::move(message)}, reason);
}

void Turn::Send(uint64_t session, v1::MasterMessage message, const std::string& reason) {
  Send(session, std::make_shared<const v1::MasterMessage>(std::move(message)), reason);
}

void Turn::SendNotice(uint64_t session, const std::string& text) { Send(session, NoticeOf(text), text); }

void Turn::SendHold(uint64_t session, uint64_t epoch, const std::string& reason) {
  Send(session, HoldOf(epoch, reason), reason);
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
  for (CheckpointOrders::Order& each : orders.orders) {
    const std::string reason = each.order.reason();
    v1::MasterMessage message;
    *message.mutable_checkpoint() = std::move(each.order);
    const auto shared = std::make_shared<const v1::MasterMessage>(std::move(message));
    for (const uint64_t session : each.sessions) Send(session, shared, reason);
  }
  if (orders.remember) RememberSoon();
  if (orders.remember_first) RememberFirst(Remember::When::kBefore);
  for (CheckpointOrders::Note& note : orders.notes) {
    const uint64_t first = job.round && !job.round->slots.empty() ? job.round->slots.front().session : 0;
    if (note.is_for_people && first != 0) SendNotice(first, note.text);
    Note(note.kind, "", note.text, -1, std::move(note.detail));
  }
}

std::string Turn::Because() const {
  if (job.round && !job.round->failed.empty()) return "failure";
  return job.round || job.last_round ? "nodes" : "start";
}

}  // namespace phalanx::master
