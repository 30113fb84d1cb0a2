#include "master/core/failures.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>

#include "master/core/checks.h"
#include "master/core/ending.h"
#include "master/core/progress.h"
#include "master/core/rescale.h"
#include "master/core/texts.h"
#include "master/rules/last_exception.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

Failure MakeFailure(const Round& round, const Slot& slot, const v1::WorkerExited& exit) {
  Failure failure;
  failure.told.set_rank(slot.rank_base + exit.local_rank());
  failure.told.set_local_rank(exit.local_rank());
  failure.told.set_group_rank(static_cast<uint32_t>(round.slots.IndexOf(slot)));
  failure.told.set_hostname(slot.hostname);
  failure.told.set_address(slot.address);
  *failure.told.mutable_exited() = exit;
  failure.told.mutable_exited()->clear_progress();  // the round's, not the failure's
  failure.node = slot.node;
  failure.collateral = IsCollateral(exit);
  return failure;
}

// The first failure of the live round: another life, or the end.
void Judge(Turn& turn, const Failure& failure) {
  JobState& job = turn.job;
  Round& round = *job.round;
  const v1::WorkerExited& exit = failure.told.exited();
  if (round.restart_count == 0 && !exit.script_started() && exit.signal() == 0) {
    return FinishJob(turn, 1, fmt::format("the script could not be started: {}", Describe(failure)));
  }
  if (exit.steps() > 0) MarkStepped(turn);
  round.budget_before = job.budget;
  const bool older_next = !WasKilled(exit) && WillDoubtSave(job.checkpoints, job.spec->older_save_after_lives());
  const bool soon = turn.now - round.begun_at < kSameErrorWithinMs;
  const std::string error = soon && !job.spec->retries_same_error() ? LastingError(exit) : "";
  const Charge charge = ChargeFailure(job.budget, round.stepped, older_next, error, turn.now);
  if (charge == Charge::kRestart) {
    round.failed = fmt::format("{}, restart {} of {}", DescribeCause(round.failures), job.budget.used,
                               AllowedRestarts(job.budget));
    return;
  }
  turn.remember = true;
  job.verdict = VerdictText(charge, job.budget);
  job.phase = Phase::kBlaming;
  job.grow_at = job.grow_limit = kNever;
  job.blame_deadline = turn.now + kBlameMs;
}

void OnFailure(Turn& turn, Round& round, const Failure& failure) {
  JobState& job = turn.job;
  // Many may lose the same peer, and say the same.
  const bool same_again = failure.collateral && !round.failures.empty();
  const std::string told = same_again           ? DescribeEnd(failure) + ", as a peer was gone"
                           : failure.collateral ? Describe(failure) + ", as a peer was gone"
                                                : Describe(failure);
  turn.NoteRank(round, "worker-exited", failure.node, told, failure.told.rank(),
                ExitDetail(failure.told.exited(), failure.collateral));
  const bool first = round.failures.empty();
  const uint32_t blamed = first ? failure.told.rank() : round.failures[FirstCause(round.failures)].told.rank();
  if (first && failure.collateral && round.early) AddFailure(round.failures, *round.early);
  AddFailure(round.failures, failure);
  const Failure& cause = round.failures[FirstCause(round.failures)];
  if (cause.told.rank() != blamed) {
    turn.NoteRank(round, "cause-refined", cause.node,
                  fmt::format("the first cause of the end of epoch {}: {}", round.epoch, Describe(cause)),
                  cause.told.rank());
  }
  // Once: the next life may have to wait for members that are away, and others fail meanwhile.
  if (turn.IsLive(round.epoch) && job.phase == Phase::kRunning && round.failed.empty()) Judge(turn, failure);
  if (job.phase == Phase::kFinished && turn.IsCurrent(round.epoch))
    job.outcome = OutcomeOf(job, job.outcome->exit_code, job.outcome->reason);
}

void OnExit(Turn& turn, Round& round, Slot& slot, const v1::WorkerExited& exit) {
  if (exit.local_rank() >= slot.local_world_size) return;
  if (slot.done.contains(exit.local_rank()) || slot.failed.contains(exit.local_rank())) return;
  ++round.ranks_ended;
  const int64_t rank = slot.rank_base + exit.local_rank();
  if (exit.exit_code() == 0 && exit.signal() == 0) {
    slot.done.insert(exit.local_rank());
    ++round.ranks_done;
    if (!round.early && !exit.for_rescale()) {
      round.early = MakeFailure(round, slot, exit);
      round.early->collateral = true;  // it did not fail: another one may have
    }
    turn.NoteRank(round, "worker-exited", slot.node, fmt::format("rank {} ended well on node {}", rank, slot.node),
                  rank, ExitDetail(exit, false));
    if (turn.IsLive(round.epoch) && round.ranks_done == round.world_size) {
      FinishJob(turn, 0, fmt::format("all {} ranks ended well", round.world_size));
    }
    return;
  }
  slot.failed.insert(exit.local_rank());
  if (!exit.blamed_on().empty()) DoubtNode(turn, round, turn.job.nodes.at(slot.session));
  OnFailure(turn, round, MakeFailure(round, slot, exit));
}

void GiveBackCharge(Turn& turn, Round& round) {
  turn.job.budget = *std::exchange(round.budget_before, std::nullopt);
  turn.RememberSoon();
  turn.Note("restart-returned", "", "the failure before was this node's loss: it costs no restart");
}

}  // namespace

void On(Turn& turn, uint64_t session, const v1::WorkerExited& exit) {
  JobState& job = turn.job;
  Node& node = job.nodes.at(session);
  const uint64_t epoch = exit.epoch();
  OnProgress(turn, session, epoch, exit.progress());
  if (turn.IsCurrent(epoch) && node.group_rank >= 0) {
    Slot& slot = job.round->slots[static_cast<size_t>(node.group_rank)];
    return Yields(turn, exit) ? OnYield(turn, slot, exit) : OnExit(turn, *job.round, slot, exit);
  }
  if (job.last_round && job.last_round->epoch == epoch) {
    if (Slot* slot = SlotHeldBy(*job.last_round, node, session)) return OnExit(turn, *job.last_round, *slot, exit);
  }
  turn.Note("stale-report", NodeName(job, node.hello),
            fmt::format("a worker's end in epoch {} changes nothing: that round is over", epoch));
}

void ReturnCharge(Turn& turn, const Node& node, uint64_t session) {
  JobState& job = turn.job;
  if (!job.last_round || !job.last_round->budget_before) return;
  Round& last = *job.last_round;
  const Slot* slot = SlotHeldBy(last, node, session);
  if (slot == nullptr || slot->AllDone() || !AllCollateral(last.failures) ||
      turn.now - last.ended_at > job.LeaseMsOf(job.nodes.size()))
    return;
  GiveBackCharge(turn, last);
  ReturnLife(job.checkpoints);
}

void ForgiveCollateral(Turn& turn) {
  Round& round = *turn.job.round;
  if (round.failed.empty() || round.broken.empty() || !round.budget_before || !AllCollateral(round.failures)) return;
  GiveBackCharge(turn, round);
  round.failed.clear();
}

void SettleBlame(Turn& turn) {
  JobState& job = turn.job;
  Round& round = *job.round;
  const bool collateral = AllCollateral(round.failures);
  // Whenever it went: others may have been away then, which puts this off.
  if (!round.broken.empty() && collateral) {
    job.blame_deadline = kNever;
    job.phase = Phase::kRunning;
    return GiveBackCharge(turn, round);
  }
  if (!collateral || round.ranks_ended >= round.world_size || turn.now >= job.blame_deadline) Conclude(turn);
}

void Conclude(Turn& turn) {
  FinishJob(turn, 1, fmt::format("{}; {}", DescribeCause(turn.job.round->failures), turn.job.verdict));
}

}  // namespace phalanx::master
