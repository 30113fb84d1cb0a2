#include "master/core/rescale.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "master/core/checks.h"
#include "master/core/departures.h"
#include "master/core/members.h"
#include "master/core/messages.h"
#include "master/core/rounds.h"
#include "master/core/texts.h"

namespace phalanx::master {
namespace {

int64_t SafePointAheadMs(const Turn& turn) {
  return std::min(kSafePointAheadMs, turn.job.spec->rescale_grace_ms() / 4);
}

// Of steps and of milliseconds: the product of two such numbers is one.
constexpr int64_t kMostInAPace = int64_t{1} << 31;

// A step that no rank will have come to before all have heard of it. The pace is that of one step more than was seen:
// the next one may be almost done.
int64_t SafeStep(const Turn& turn) {
  const Round& round = *turn.job.round;
  if (round.last_seen_at == kNever) return 1;
  const int64_t steps = std::clamp<int64_t>(1 + round.last_seen_step - round.first_seen_step, 1, kMostInAPace);
  const int64_t took_ms = std::max<int64_t>(1, round.last_seen_at - round.first_seen_at);
  const int64_t ahead_ms = std::min(kMostInAPace, turn.now - round.last_seen_at + SafePointAheadMs(turn));
  return round.last_seen_step + 1 + (steps * ahead_ms + took_ms - 1) / took_ms;
}

void SendAnnouncement(Turn& turn) {
  JobState& job = turn.job;
  const auto message = std::make_shared<const v1::MasterMessage>(AnnouncementOf(*job.round, AnyGoes(job)));
  for (const Slot& slot : job.round->slots) {
    if (slot.session != 0) turn.Send(slot.session, message, job.round->rescale_why);
  }
}

void AskHowFar(Turn& turn) {
  turn.job.round->ask_again = kNever;
  for (Slot& slot : turn.job.round->slots) turn.job.round->SetAnswered(slot, false);
  SendAnnouncement(turn);
}

// When all nodes have told how far their ranks are. Beats alone are too old: ranks that have passed the step stop
// behind another one each, in the middle of each other's collectives.
void ChooseSafeStep(Turn& turn) {
  Round& round = *turn.job.round;
  if (turn.now >= round.ask_again) return AskHowFar(turn);
  if (round.unanswered > 0 || round.ask_again != kNever) return;
  if (round.last_seen_at != kNever && turn.now - round.first_seen_at < SafePointAheadMs(turn)) {
    round.ask_again = round.first_seen_at + SafePointAheadMs(turn);
    return;
  }
  round.safe_step = SafeStep(turn);
  turn.RememberFirst(Remember::When::kBefore);  // ranks that have heard of it stop there, whoever asks them next
  SendAnnouncement(turn);
  turn.Note("safe-step", "", fmt::format("the ranks come to a safe point behind step {}", round.safe_step), -1,
            {{"at_step", round.safe_step}});
}

// Some ranks have come to the end of their work before any was told to save: so will the others.
bool IsDone(const Round& round) {
  const bool told_to_save = round.safe_step > 0 || round.any_saved || round.AnyYielded();
  return round.ranks_done > 0 && round.leaving.empty() && !told_to_save;
}

// The round goes on as if nothing had been announced.
void Withdraw(Turn& turn) {
  Round& round = *turn.job.round;
  round.rescale_by = round.ask_again = kNever;
  turn.remember = true;
  for (Slot& slot : round.slots) round.SetSafe(slot, false);
}

}  // namespace

bool AnyGoes(const JobState& job) { return !job.round->leaving.empty() || !MembersLeftOut(job).empty(); }

void On(Turn& turn, uint64_t session, const v1::SafePoint& point) {
  JobState& job = turn.job;
  const Node& node = job.nodes.at(session);
  if (!turn.IsLive(point.epoch()) || node.group_rank < 0 || job.phase != Phase::kRunning) return;
  Slot& slot = job.round->slots[static_cast<size_t>(node.group_rank)];
  job.round->SetSafe(slot, point.reached());
  job.round->SetAnswered(slot, true);
  if (point.asked() > 0) job.round->any_asked = true;
  if (point.asked() > 0 && point.reached() && !slot.AllDone()) job.round->any_saved = true;
  if (job.round->rescale_by == kNever && !IsDone(*job.round))
    AnnounceRescale(turn, "a change that an earlier master had announced");
  if (point.asked() > 0 && point.reached()) {
    turn.Note("safe-point", slot.node, fmt::format("node {} is at a safe point", slot.node), -1,
              {{"ranks", int64_t{point.asked()}}});
  }
}

void AnnounceRescale(Turn& turn, const std::string& why) {
  Round& round = *turn.job.round;
  if (round.rescale_by != kNever) return;
  round.rescale_by = turn.now + turn.job.spec->rescale_grace_ms();
  round.rescale_why = why;
  round.safe_step = 0;
  turn.remember = true;
  AskHowFar(turn);
  turn.Note("rescale-announced", "", fmt::format("{}: the ranks may come to a safe point first", why));
}

void TakeUpRescale(Turn& turn) {
  const Round& round = *turn.job.round;
  if (round.rescale_by == kNever || !round.broken.empty() || !round.failed.empty()) return;
  AskHowFar(turn);  // where the safe point is chosen, it is said again
}

void SayRescaleAgain(Turn& turn, Slot& slot) {
  Round& round = *turn.job.round;
  if (round.rescale_by == kNever) return;
  if (round.safe_step == 0) round.SetAnswered(slot, false);
  turn.Send(slot.session, AnnouncementOf(round, AnyGoes(turn.job)), round.rescale_why);
}

void SettleRescale(Turn& turn) {
  Round& round = *turn.job.round;
  if (IsDone(round)) return Withdraw(turn);
  if (turn.now < round.rescale_by && round.unsafe > 0) {
    if (round.safe_step == 0) ChooseSafeStep(turn);
    return;
  }
  if (round.unsafe > 0) turn.Note("rescale-grace-over", "", "some ranks have not come to a safe point in time");
  if (!round.leaving.empty() && turn.job.last_left && turn.job.census.candidates() == 0 && turn.job.left_out.empty()) {
    round.rescale_by = round.ask_again = kNever;
    return SettleLastLeft(turn);
  }
  if (!round.leaving.empty()) return ReformRound(turn, ListText(round.leaving, "others"), true);
  const std::vector<std::string> left_out = MembersLeftOut(turn.job);
  if (!left_out.empty()) return ReformRound(turn, ListText(left_out, "others"), true);
  if (IsLarger(turn.job, NextWorld(turn.job))) {
    return ReformRound(turn, NewcomersText(turn, NextMembers(turn.job)) + " joined", true);
  }
  if (round.any_asked)
    return ReformRound(turn, "the nodes that were to join have gone, and ranks had stopped for them", false);
  Withdraw(turn);
}

bool Yields(const Turn& turn, const v1::WorkerExited& exit) {
  if (exit.for_rescale()) return true;
  return IsCollateral(exit) && (turn.job.round->AnyYielded() || turn.job.round->rescale_by != kNever);
}

void OnYield(Turn& turn, Slot& slot, const v1::WorkerExited& exit) {
  if (exit.local_rank() >= slot.local_world_size || !slot.yielded.insert(exit.local_rank()).second) return;
  if (slot.yielded.size() == 1) ++turn.job.round->slots_yielded;
  const int64_t rank = slot.rank_base + exit.local_rank();
  turn.NoteRank(*turn.job.round, "worker-exited", slot.node,
                fmt::format("rank {} ended on node {} to make room for the next round", rank, slot.node), rank,
                ExitDetail(exit, false));
  turn.job.round->any_asked = true;
  if (turn.job.phase == Phase::kRunning) AnnounceRescale(turn, "a change that an earlier master had announced");
}

}  // namespace phalanx::master
