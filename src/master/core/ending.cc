#include "master/core/ending.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <string>
#include <utility>

#include "master/core/away.h"
#include "master/core/messages.h"
#include "master/core/progress.h"
#include "master/core/texts.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

// What is told of failures beside the first cause.
constexpr size_t kOthersTextBytes = 1'024;

void HoldAll(Turn& turn, const std::string& reason) {
  for (const auto& [session, node] : turn.job.nodes) {
    if (node.group_rank >= 0) turn.SendHold(session, turn.job.round->epoch, reason);
  }
}

// Its place is given up, and its agent ends by itself. One that leaves and waits for a safe point still runs its ranks.
bool HasGone(const Node& node) { return node.leaving && node.group_rank < 0; }

// Nodes whose ranks had all ended well when their stream broke, beside those that are away already: they dial, and must
// hear of the end.
void AwaitUntold(Turn& turn) {
  JobState& job = turn.job;
  if (!job.round) return;
  for (Slot& slot : job.round->slots) {
    if (slot.session != 0 || slot.left || slot.away || !slot.AllDone()) continue;
    slot.away = true;
    ++job.round->away;
  }
  if (job.round->away > 0) job.back_by = turn.now + job.LeaseMsOf(job.round->slots.size());
}

// Whoever sees no rank run any more wants to know what for.
void TellOfWait(Turn& turn) {
  JobState& job = turn.job;
  if (turn.now < job.tell_wait_at) return;
  job.tell_wait_at = kNever;
  const std::string text = fmt::format("checkpoint: the job has ended; storage is waited for, to take {}, for up to {}",
                                       StoringText(job.checkpoints), SecondsText(job.tell_end_by - turn.now));
  for (const auto& [session, node] : job.nodes) {
    if (!HasGone(node)) turn.SendNotice(session, text);
  }
}

}  // namespace

void TellOfEnd(Turn& turn, const AgentAttached& e) {
  JobState& job = turn.job;
  const bool waits = job.tell_end_by != kNever;
  Slot* slot = job.round && (waits || job.round->away > 0) ? job.round->SlotOfNode(e.hello().node_id()) : nullptr;
  if (slot != nullptr && (slot->away || (waits && slot->session == 0))) IsHere(turn, *slot, e.session);
  if (!waits) return turn.Send(e.session, FinishOf(*job.outcome), job.outcome->reason);
  const uint64_t runs = e.hello().live_round().epoch();
  if (runs > 0 && job.outcome->exit_code != 0) turn.SendHold(e.session, runs, job.outcome->reason);
}

void FinishJob(Turn& turn, int32_t exit_code, const std::string& reason) {
  JobState& job = turn.job;
  job.phase = Phase::kFinished;
  job.reason = reason;
  job.outcome = OutcomeOf(job, exit_code, reason);
  job.gather_at = job.gather_limit = job.grow_at = job.grow_limit = kNever;
  job.join_deadline = job.next_notice = job.blame_deadline = kNever;
  WaitForNobody(turn);
  turn.remember = true;
  turn.Apply(
      EndCheckpoints(job.checkpoints, exit_code == 0 ? CheckpointEnd::kForGood : CheckpointEnd::kBreakpoint, turn.now));
  StopRestoring(job.checkpoints);
  turn.Apply(EndLending(job.checkpoints, turn.now));
  job.tell_end_by = turn.now + kStoreAtEndMs;
  job.tell_wait_at = turn.now + kStoreAtEndToldMs;
  if (exit_code != 0 && IsStoring(job.checkpoints)) HoldAll(turn, reason);  // what still runs is of no more use
  SettleEnd(turn);
  if (job.round) NoteSaving(turn, *job.round);
  turn.Note("job-finished", "", reason, -1, {{"exit_code", int64_t{exit_code}}});
}

void SettleEnd(Turn& turn) {
  JobState& job = turn.job;
  if (job.tell_end_by == kNever) return;
  if (IsStoring(job.checkpoints) && turn.now < job.tell_end_by) return TellOfWait(turn);
  job.tell_end_by = job.tell_wait_at = kNever;
  // A new master must not begin a job again that some nodes have been told the end of.
  turn.RememberFirst(Remember::When::kSynced);
  const auto finish = std::make_shared<const v1::MasterMessage>(FinishOf(*job.outcome));
  for (const auto& [session, node] : job.nodes) {
    if (!HasGone(node)) turn.Send(session, finish, job.outcome->reason);
  }
  AwaitUntold(turn);
}

std::shared_ptr<const Outcome> OutcomeOf(const JobState& state, int32_t exit_code, const std::string& reason) {
  auto outcome = std::make_shared<Outcome>();
  outcome->exit_code = exit_code;
  outcome->reason = reason;
  outcome->restart_count = state.rounds_begun == 0 ? 0 : state.rounds_begun - 1;
  if (exit_code == 0 || !state.round || state.round->failures.empty()) return outcome;
  outcome->failures = state.round->failures;
  std::swap(outcome->failures.front(), outcome->failures[FirstCause(outcome->failures)]);
  for (size_t i = 1; i < outcome->failures.size(); ++i) {
    v1::WorkerExited& exit = *outcome->failures[i].told.mutable_exited();
    // A shortened JSON text is none.
    if (exit.error_json().size() > kOthersTextBytes) exit.clear_error_json();
    std::string& words = *exit.mutable_last_words();
    if (words.size() > kOthersTextBytes) words.erase(0, words.size() - kOthersTextBytes);
  }
  return outcome;
}

}  // namespace phalanx::master
