#include "master/core/departures.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/signal_name.h"
#include "master/core/checks.h"
#include "master/core/ending.h"
#include "master/core/failures.h"
#include "master/core/look.h"
#include "master/core/rescale.h"
#include "master/core/succession.h"
#include "master/core/texts.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

// Its host's addresses are forgotten with the last of its nodes: until then the others are called as before.
void LeaveHost(JobState& job, const v1::Hello& hello) {
  const auto host = job.hosts.find(hello.hostname());
  if (host != job.hosts.end() && --host->second.nodes == 0) job.hosts.erase(host);
}

void FreeWantedPlace(Turn& turn, const v1::Hello& hello, uint64_t session) {
  const auto wanting = turn.job.session_wanting.find(hello.node_rank_wanted());
  if (wanting != turn.job.session_wanting.end() && wanting->second == session) turn.job.session_wanting.erase(wanting);
}

// Takes the node out of the live round, which that may break.
void GiveUpPlace(Turn& turn, Node& node, uint64_t session, const std::string& kind, const std::string& what,
                 std::optional<int64_t> silent_ms = std::nullopt) {
  JobState& job = turn.job;
  const int32_t group_rank = std::exchange(node.group_rank, -1);
  ReturnCharge(turn, node, session);
  std::vector<std::pair<std::string, Record::Value>> detail;
  if (silent_ms) detail.push_back({"silent_ms", *silent_ms});
  if (group_rank < 0 || job.phase == Phase::kFinished) {
    return turn.Note(kind, NodeName(job, node.hello), what, -1, std::move(detail));
  }
  Slot& slot = job.round->slots[static_cast<size_t>(group_rank)];
  job.round->Vacate(slot);
  slot.left = node.leaving;
  const bool done = slot.AllDone();
  if (!done) detail.push_back({"broke_round", int64_t{1}});
  turn.Note(kind, slot.node, done ? what + "; all its workers had ended well" : what, -1, std::move(detail));
  if (done) {
    turn.remember = true;  // nobody else will ever say it
  } else {
    job.round->broken.push_back(what);
  }
}

// While storage is waited for: its node dials again and must hear of the end, unless it went on purpose.
void VacateUntold(Turn& turn, const Node& node, uint64_t session) {
  JobState& job = turn.job;
  Slot* slot = job.round && job.tell_end_by != kNever ? job.round->SlotOfNode(node.hello.node_id()) : nullptr;
  if (slot == nullptr || slot->session != session) return;
  job.round->Vacate(*slot);
  slot->left = node.leaving;
  slot->away = !slot->left;
  if (slot->away) ++job.round->away;
}

// The node, which is no longer among the job's.
void GiveUpNode(Turn& turn, Node& node, uint64_t session, const std::string& cause, bool may_return,
                std::optional<int64_t> silent_ms) {
  JobState& job = turn.job;
  CheckpointOrders lost = OnCheckpointSessionLost(job.checkpoints, session, turn.now);
  const bool breaks_round = lost.breaks_round && job.phase == Phase::kRunning && job.round;
  turn.Apply(std::move(lost));
  if (breaks_round) {
    job.round->broken.push_back(fmt::format("node {} has gone before all had read what they go on from in its memory",
                                            NodeName(job, node.hello)));
  }
  if (node.stale_round) --job.stale_rounds;
  const auto known = job.session_of.find(node.hello.node_id());
  if (known != job.session_of.end() && known->second == session) job.session_of.erase(known);
  const std::string name = NodeName(job, node.hello);
  if (node.leaving || job.phase == Phase::kFinished) {
    FreeWantedPlace(turn, node.hello, session);
    if (job.phase == Phase::kFinished) VacateUntold(turn, node, session);
    if (node.group_rank >= 0 && job.phase != Phase::kFinished) {  // it went before the others were ready for it
      GiveUpPlace(turn, node, session, "node-left", fmt::format("node {} left", name));
    }
    return turn.Note("node-gone", name, fmt::format("the agent of node {} has ended its stream", name));
  }
  FreeWantedPlace(turn, node.hello, session);
  if (may_return && node.group_rank >= 0) {
    Slot& slot = job.round->slots[static_cast<size_t>(node.group_rank)];
    job.round->Vacate(slot);
    slot.away = !slot.AllDone();
    if (slot.away) ++job.round->away;
    return turn.Note("node-away", name, fmt::format("node {} is away ({})", name, cause));
  }
  if (node.previous_rank >= 0) job.lost_places[node.hello.node_id()] = {node.previous_rank, job.highest_epoch};
  const std::string what = fmt::format("node {} was lost ({})", name, cause);
  GiveUpPlace(turn, node, session, "node-lost", what, silent_ms);
}

// No node is left that could go on.
void EndBehindLast(Turn& turn, const LastLeft& end) {
  if (turn.job.phase == Phase::kBlaming) return Conclude(turn);
  FinishJob(turn, end.exit_code, end.reason);
}

}  // namespace

void On(Turn& turn, const AgentDetached& e) {
  JobState& job = turn.job;
  const auto node = job.nodes.find(e.session);
  if (node != job.nodes.end() && HasLeftSilence(turn, node->second)) {
    const Instant back_by = turn.now + kHasLeftMs;
    job.back_by = job.back_by == kNever ? back_by : std::max(job.back_by, back_by);
  }
  RemoveNode(turn, e.session, e.cause, job.back_by != kNever && turn.now < job.back_by);
}

void On(Turn& turn, uint64_t session, const v1::Leaving& leaving) {
  JobState& job = turn.job;
  Node& node = job.nodes.at(session);
  if (node.leaving) return;
  job.ChangeNode(node, [](Node& n) { n.leaving = true; });
  LoseChecked(turn, session);
  job.voters.BeGone(node.hello.node_id());
  FreeWantedPlace(turn, node.hello, session);
  const int32_t signal = leaving.signal();
  const std::string why = signal != 0 ? SignalName(signal) : leaving.reason().empty() ? "on purpose" : leaving.reason();
  const std::string what = fmt::format("node {} left ({})", NodeName(job, node.hello), why);
  const bool live = job.phase == Phase::kRunning && node.group_rank >= 0;
  // A platform makes others in their place, and ends the job itself.
  const bool is_last = job.census.candidates() == 0 && job.left_out.empty() && !job.platform.attached;
  LastLeft end = {signal != 0 ? 128 + signal : 1, fmt::format("job stopped: all nodes left ({})", why)};
  const bool may_return = job.back_by != kNever && (job.resumed || (job.round && job.round->away > 0));
  if (leaving.waits() && live && job.spec->rescale_grace_ms() > 0 && !(is_last && may_return)) {
    turn.Note("node-leaving", NodeName(job, node.hello),
              fmt::format("node {} is about to leave ({})", NodeName(job, node.hello), why));
    job.round->leaving.push_back(what);
    job.round->slots[static_cast<size_t>(node.group_rank)].leaving = true;
    if (is_last) job.last_left = std::move(end);
    turn.remember = true;
    return AnnounceRescale(turn, what);
  }
  // While its memory is here. Of the last node, or of all, it is asked for when their ranks have ended.
  if (live && !is_last) turn.Apply(EndCheckpoints(job.checkpoints, CheckpointEnd::kForGood, turn.now));
  if (leaving.waits()) turn.SendHold(session, job.round ? job.round->epoch : job.highest_epoch, what);
  GiveUpPlace(turn, node, session, "node-left", what);
  if (!is_last || job.phase == Phase::kFinished) return;
  if (may_return) {
    job.last_left = std::move(end);  // who is away trains on, and is heard first
    return;
  }
  EndBehindLast(turn, end);
}

void SettleLastLeft(Turn& turn) {
  JobState& job = turn.job;
  if (!job.last_left || job.back_by != kNever) return;
  if (job.round && job.round->rescale_by != kNever) return;  // its ranks save first
  const LastLeft end = *std::exchange(job.last_left, std::nullopt);
  if (job.census.candidates() != 0 || !job.left_out.empty() || job.platform.attached) return;
  // Its ranks have saved what they wanted to. Behind the job's end nobody asks any more.
  turn.Apply(EndCheckpoints(job.checkpoints, CheckpointEnd::kForGood, turn.now));
  EndBehindLast(turn, end);
}

Instant NextLook(const Node& node, Instant now) {
  return std::min(node.last_heard + node.lease_ms, now + kBeatsPerLease * node.beat_interval_ms);
}

void ForgiveStandstill(Turn& turn) {
  JobState& job = turn.job;
  const Instant due = std::min(job.lease_check, job.back_by);
  if (due == kNever || turn.now - due < kMasterStallMs) return;
  const int64_t late_ms = turn.now - due;
  if (!job.nodes.empty()) job.lease_check = kNever;
  for (auto& [session, node] : job.nodes) {
    // Once, until it says something: one that is always late would never miss anybody.
    if (node.last_heard == node.heard_at) node.last_heard = turn.now;
    job.lease_check = std::min(job.lease_check, NextLook(node, turn.now));
  }
  if (job.round) {
    job.round->quiet_since = turn.now;
    StallWatch& stall = job.round->stall;  // steps that it did not hear of meanwhile are no stall
    if (stall.since != kNever && !stall.told) stall.since = std::min(turn.now, stall.since + late_ms);
  }
  // Agents may have given up streams that nobody served for long, and who was away stood before a closed door. Behind a
  // job's end that waits for storage, their time begins when that is there.
  const size_t members = job.round ? job.round->slots.size() : 0;
  const Instant back_by = turn.now + LeaseMs(static_cast<int64_t>(std::max(job.nodes.size(), members)));
  const bool may_be_away = late_ms >= kMasterAwayMs || job.back_by != kNever;
  if (job.tell_end_by == kNever && may_be_away) {
    job.back_by = job.back_by == kNever ? back_by : std::max(job.back_by, back_by);
  }
  turn.Note("master-stalled", "",
            fmt::format("this master itself stood still for {} ms: all leases begin anew", late_ms));
}

void RemoveNode(Turn& turn, uint64_t session, const std::string& cause, bool may_return,
                std::optional<int64_t> silent_ms) {
  auto held = turn.job.nodes.extract(session);
  if (held.empty()) return;
  turn.job.UncountNode(held.mapped());
  SettleLook(turn.job, held.mapped());
  LoseChecked(turn, session);
  LoseVoter(turn, held.mapped(), silent_ms.has_value());
  GiveUpNode(turn, held.mapped(), session, cause, may_return, silent_ms);
  LeaveHost(turn.job, held.mapped().hello);
}

void ExpireLeases(Turn& turn) {
  JobState& job = turn.job;
  std::vector<uint64_t> silent;
  job.lease_check = kNever;
  // The one node of its job, with nobody to step in, is not given up while its stream stands: it may have been
  // stopped by a person (Ctrl-Z, a debugger) and goes on later.
  const bool alone = job.nodes.size() == 1 && job.spec->max_nodes() == 1;
  for (auto& [session, node] : job.nodes) {
    if (alone) node.last_heard = turn.now;
    const Instant end = node.last_heard + node.lease_ms;
    if (turn.now >= end) {
      silent.push_back(session);
    } else {
      job.lease_check = std::min(job.lease_check, NextLook(node, turn.now));
    }
  }
  for (const uint64_t session : silent) {
    const int64_t silent_ms = turn.now - job.nodes.at(session).last_heard;
    const std::string cause = fmt::format("silent for {}", SecondsText(silent_ms));
    turn.Do(Drop{session}, cause);
    RemoveNode(turn, session, cause, false, silent_ms);
  }
}

}  // namespace phalanx::master
