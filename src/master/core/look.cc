#include "master/core/look.h"

#include <memory>

namespace phalanx::master {

void On(Turn& turn, const LookedAt& event) {
  JobState& job = turn.job;
  Look& look = job.look;
  const bool known = look.asked_at != kNever && turn.now - look.asked_at < kLookKeptMs && (look.ranks || !event.ranks);
  if (known || !turn.HasLiveRound()) return;
  look = {turn.now, event.ranks, 0, turn.now + kLookMs};
  v1::MasterMessage message;
  message.mutable_tell_steps()->set_ranks(event.ranks);
  const auto shared = std::make_shared<const v1::MasterMessage>(std::move(message));
  for (auto& [session, node] : job.nodes) {
    node.owes_look = node.group_rank >= 0;
    if (!node.owes_look) continue;
    ++look.owed;
    turn.Send(session, shared, "somebody wants to know how far the job is");
  }
  if (look.owed == 0) look.until = kNever;
}

void SettleLook(JobState& job, Node& node) {
  if (!node.owes_look) return;
  node.owes_look = false;
  if (--job.look.owed == 0) job.look.until = kNever;
}

void ExpireLook(Turn& turn) {
  Look& look = turn.job.look;
  if (turn.now < look.until) return;
  for (auto& [session, node] : turn.job.nodes) node.owes_look = false;
  look.owed = 0;
  look.until = kNever;
}

}  // namespace phalanx::master
