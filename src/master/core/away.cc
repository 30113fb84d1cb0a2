#include "master/core/away.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "master/core/arrivals.h"
#include "master/core/checks.h"
#include "master/core/door.h"
#include "master/core/platform.h"
#include "master/core/rescale.h"
#include "master/core/rounds.h"
#include "master/core/succession.h"
#include "master/core/texts.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

// The member tells again what its memory held when the round began.
void TakeUpCheckpoints(Turn& turn, uint32_t group_rank) {
  JobState& job = turn.job;
  const Round& round = *job.round;
  if (job.checkpoints.epoch != round.epoch) {
    const std::vector<CheckpointMember> nobody(round.slots.size());
    turn.Apply(BeginCheckpoints(job.checkpoints, {round.epoch, round.world_size, nobody, {}, kNever}, turn.now));
  }
  const Slot& slot = round.slots[group_rank];
  OnCheckpointSessionBack(job.checkpoints, group_rank, {slot.session, slot.rank_base, slot.local_world_size});
}

// An earlier master knew that its hardware explains a failure of this round, which has not ended for that yet: others
// were away.
bool IsToBlame(const Round& round, uint32_t group_rank) {
  return std::ranges::any_of(round.failures, [=](const Failure& failure) {
    return failure.told.group_rank() == group_rank && !failure.told.exited().blamed_on().empty();
  });
}

// Whether the round was begun by an earlier master and this one does not know of it, or only of one before.
bool IsNews(const Turn& turn, const v1::StartRound& live) {
  const JobState& job = turn.job;
  const bool knows_nothing = job.phase == Phase::kGathering && !job.last_round;
  if (!knows_nothing && !job.resumed) return false;
  const Round* last = job.round ? &*job.round : job.last_round ? &*job.last_round : nullptr;
  const auto known = last == nullptr ? std::pair<uint64_t, uint64_t>() : std::pair(last->term, last->epoch);
  // A platform may have made the job larger than the first node to come back has been told.
  const uint32_t max_nodes = job.spec->sized_by_platform() ? kMaxNodes : job.spec->max_nodes();
  return std::pair(live.term(), live.epoch()) > known && live.group_world_size() <= max_nodes &&
         live.group_rank() < live.group_world_size();
}

// The job's history up to a round that an earlier master began.
void RecallPast(Turn& turn, const v1::StartRound& round) {
  JobState& job = turn.job;
  job.rounds_begun = round.restart_count() + 1;
  job.budget.used = std::min(round.restarts_used(), AllowedRestarts(job.budget));
  job.budget.lives_without_step = round.lives_without_step();
  if (!round.has_highest_step()) return;
  job.highest_step = std::max(job.highest_step.value_or(0), round.highest_step());
  if (!job.last_step) job.last_step = job.highest_step;
}

void MakeStale(Turn& turn, Node& node) {
  node.group_rank = -1;
  if (!std::exchange(node.stale_round, true)) ++turn.job.stale_rounds;
}

// The round of which a member tells: the other members may come as well.
void Recall(Turn& turn, const v1::StartRound& live) {
  JobState& job = turn.job;
  if (job.round) {
    for (const Slot& slot : job.round->slots) {
      if (slot.session == 0) continue;
      MakeStale(turn, job.nodes.at(slot.session));
      turn.SendHold(slot.session, job.round->epoch, "a later round had begun when the master ended");
    }
    EndRound(turn);
  }
  Round round;
  round.term = live.term();
  round.epoch = live.epoch();
  round.restart_count = live.restart_count();
  round.world_size = live.world_size();
  round.reason = live.reason();
  round.begun_at = round.saving_noted_at = round.quiet_since = turn.now;
  round.slots.resize(live.group_world_size());
  for (Slot& slot : round.slots) slot.away = true;
  round.away = round.slots.size();
  job.round = std::move(round);
  job.phase = Phase::kRunning;
  job.reason = live.reason();
  RecallPast(turn, live);
  TakeRecalledNodes(turn, live.group_world_size());
  job.gather_at = job.gather_limit = job.join_deadline = job.next_notice = job.blame_deadline = kNever;
  job.resumed = true;
  job.back_by = turn.now + job.LeaseMsOf(live.group_world_size());
  PlanGrowth(turn);  // nodes that came before this one may be more than the round has
  turn.remember = true;
  turn.Note("master-resumed", "",
            fmt::format("the job is taken up from what its nodes tell: {} node{} of epoch {} may come back within {}",
                        live.group_world_size(), live.group_world_size() == 1 ? "" : "s", live.epoch(),
                        SecondsText(job.back_by - turn.now)));
}

// Whether the ranks that a node says it has go between those of its neighbours, as far as these are known. Ranks with
// holes would be a round that nobody has begun, and a journal that no later master takes up.
bool RanksFit(const Round& round, const v1::Hello& hello, const v1::StartRound& live) {
  const size_t at = live.group_rank();
  const uint64_t end = uint64_t{live.rank_base()} + hello.local_world_size();
  const Slot* before = at > 0 ? &round.slots[at - 1] : nullptr;
  const Slot* behind = at + 1 < round.slots.size() ? &round.slots[at + 1] : nullptr;
  if (before == nullptr && live.rank_base() != 0) return false;
  if (behind == nullptr && end != round.world_size) return false;
  if (before != nullptr && before->local_world_size > 0 &&
      uint64_t{before->rank_base} + before->local_world_size != live.rank_base()) {
    return false;
  }
  return behind == nullptr || behind->local_world_size == 0 || end == behind->rank_base;
}

// The place that waits for this node; null: none does.
Slot* SlotOf(Turn& turn, const v1::Hello& hello, const v1::StartRound& live) {
  if (!turn.HasLiveRound() || live.term() != turn.job.round->term || live.epoch() != turn.job.round->epoch ||
      live.group_rank() >= turn.job.round->slots.size())
    return nullptr;
  Slot& slot = turn.job.round->slots[live.group_rank()];
  // One whose ranks had all ended well is waited for by nobody, and has its place all the same.
  if (!slot.away && (slot.session != 0 || !slot.AllDone())) return nullptr;
  if (!RanksFit(*turn.job.round, hello, live)) return nullptr;
  const bool known = slot.local_world_size > 0;
  if (known && (slot.node_id != hello.node_id() || slot.local_world_size != hello.local_world_size())) return nullptr;
  return &slot;
}

void GiveUpAway(Turn& turn) {
  Round& round = *turn.job.round;
  for (Slot& slot : round.slots) {
    if (!std::exchange(slot.away, false) || turn.job.phase == Phase::kFinished) continue;
    const std::string name = slot.node.empty() ? fmt::format("of group rank {}", round.slots.IndexOf(slot)) : slot.node;
    const std::string what = fmt::format("node {} was lost ({})", name,
                                         turn.job.resumed && turn.job.term > 0 && !turn.job.at_endpoint
                                             ? "it did not come to the master that was elected"
                                         : turn.job.resumed ? "it did not come back to the master that was started anew"
                                                            : "its stream broke while the master stood still");
    turn.Note("node-lost", slot.node, what, -1, {{"broke_round", int64_t{1}}});
    round.broken.push_back(what);
  }
  round.away = 0;
}

}  // namespace

void TakeUpJob(Turn& turn) {
  JobState& job = turn.job;
  const bool finished = job.phase == Phase::kFinished;
  size_t members = 1;
  if (job.round) {
    members = job.round->slots.size();
    for (Slot& slot : job.round->slots) {
      job.round->Vacate(slot);
      slot.away = !slot.left && (finished || (!slot.AllDone() && !slot.leaving));
      if (slot.away) ++job.round->away;
    }
    // Nodes that were about to go end when their master does, and do not come back.
    std::vector<std::string>& leaving = job.round->leaving;
    job.round->broken.insert(job.round->broken.end(), leaving.begin(), leaving.end());
    leaving.clear();
    // Nodes that lend go with the master that would tell them when they may.
    const bool borrows = std::ranges::any_of(job.checkpoints.dirs, [](const auto& dir) { return dir.second.borrowed; });
    if (borrows && job.round->slots_stepped < members) {
      job.round->broken.emplace_back("the master ended while nodes that go lent what is restored");
    }
  }
  BewareStill(job, turn.now);
  ++job.incarnation;
  turn.RememberFirst(Remember::When::kBefore);
  job.resumed = true;
  job.back_by = turn.now + job.LeaseMsOf(members);
  if (job.blame_deadline != kNever) job.blame_deadline = job.back_by;
  turn.Note("master-resumed", "",
            job.round
                ? fmt::format("the job is taken up from the journal: {} node{} of epoch {} may come back within {}",
                              job.round->away, job.round->away == 1 ? "" : "s", job.round->epoch,
                              SecondsText(job.back_by - turn.now))
                : "the job is taken up from the journal: no round was live",
            -1, {{"incarnation", static_cast<int64_t>(job.incarnation)}});
}

bool RunsOn(const Turn& turn, uint64_t session, const v1::Hello& hello) {
  if (!turn.HasLiveRound() || hello.live_round().epoch() != turn.job.round->epoch ||
      hello.live_round().term() != turn.job.round->term) {
    return false;
  }
  const Node& node = turn.job.nodes.at(session);
  return node.group_rank == static_cast<int64_t>(hello.live_round().group_rank()) &&
         node.hello.local_world_size() == hello.local_world_size();
}

bool GoesOn(Turn& turn, uint64_t session, const v1::StartRound& live) {
  Node& node = turn.job.nodes.at(session);
  if (IsNews(turn, live)) Recall(turn, live);
  if (Slot* slot = SlotOf(turn, node.hello, live)) {
    // One that is left out still, as when it came back in the time that was given to the ranks to save, is a member
    // until the round ends for it.
    turn.job.ChangeNode(node, [&live](Node& n) {
      n.group_rank = n.previous_rank = static_cast<int32_t>(live.group_rank());
      n.warming = n.came_back = n.unchecked = false;
    });
    if (!node.left_out.empty()) turn.job.round->any_left_out = true;
    node.place = {live.epoch(), live.group_rank()};
    turn.job.round->by_node_id.clear();
    slot->node_id = node.hello.node_id();
    slot->node = NodeName(turn.job, node.hello);
    slot->hostname = node.hello.hostname();
    slot->address = node.hello.address();
    slot->presence_port = node.hello.presence_port();
    slot->rank_base = live.rank_base();
    slot->local_world_size = node.hello.local_world_size();
    IsHere(turn, *slot, session);
    Confirm(turn, *slot);
    if (IsToBlame(*turn.job.round, live.group_rank())) DoubtNode(turn, *turn.job.round, node);
    if (!turn.job.resumed) SayRescaleAgain(turn, *slot);  // else all are told when all are back
    TakeUpCheckpoints(turn, live.group_rank());
    turn.Note("node-back", slot->node, fmt::format("node {} is back: its ranks have gone on", slot->node));
    return true;
  }
  MakeStale(turn, node);
  turn.SendHold(session, live.epoch(), "the node lost its place while it was away; its old workers end");
  return false;
}

void RecallHeld(Turn& turn, const v1::StartRound& last) {
  if (turn.job.phase != Phase::kGathering || turn.job.last_round || last.restart_count() < turn.job.rounds_begun)
    return;
  RecallPast(turn, last);
  turn.remember = true;
}

void IsHere(Turn& turn, Slot& slot, uint64_t session) {
  turn.job.round->Occupy(slot, session);
  if (std::exchange(slot.away, false)) --turn.job.round->away;
}

void SettleAway(Turn& turn) {
  JobState& job = turn.job;
  if (job.back_by == kNever) return;
  const size_t away = job.round ? job.round->away : 0;
  if (turn.now < job.back_by) {
    const bool over = job.phase == Phase::kFinished;
    if (away > job.stale_rounds || (!job.resumed && !over) || job.phase == Phase::kGathering) return;
  }
  if (away > 0) {
    GiveUpAway(turn);
  } else if (job.resumed && turn.HasLiveRound()) {
    TakeUpRescale(turn);
    const bool goes_on = job.round->broken.empty() && job.round->failed.empty();
    if (goes_on) {
      TellSuccessors(turn);
      turn.Note("job-resumed", "",
                fmt::format("all nodes of epoch {} are back: no rank was restarted", job.round->epoch));
    }
  }
  WaitForNobody(turn);
}

void WaitForNobody(Turn& turn) {
  JobState& job = turn.job;
  job.back_by = kNever;
  job.resumed = false;
  if (std::exchange(job.stale_rounds, 0) == 0) return;
  for (auto& [session, node] : job.nodes) node.stale_round = false;
}

}  // namespace phalanx::master
