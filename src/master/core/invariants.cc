#include "master/core/invariants.h"

#include <fmt/format.h>

#include "base/check.h"

namespace phalanx::master {
namespace {

void CheckRound(const JobState& job, const Round& round) {
  PHX_CHECK(!round.slots.empty(), fmt::format("epoch {} has no members", round.epoch).c_str());
  PHX_CHECK(round.epoch <= job.highest_epoch,
            fmt::format("epoch {} is live, and {} the highest", round.epoch, job.highest_epoch).c_str());
  PHX_CHECK(round.away <= round.slots.size(),
            fmt::format("{} of {} members are away", round.away, round.slots.size()).c_str());
  PHX_CHECK(round.slots_stepped <= round.slots.size(),
            fmt::format("{} of {} members have stepped", round.slots_stepped, round.slots.size()).c_str());
  PHX_CHECK(round.unsafe <= round.slots.size() && round.unanswered <= round.slots.size(),
            fmt::format("{} of {} members are not safe, {} have not answered", round.unsafe, round.slots.size(),
                        round.unanswered)
                .c_str());
  PHX_CHECK(round.ranks_done <= round.ranks_ended,
            fmt::format("{} ranks have ended well, of {} that ended", round.ranks_done, round.ranks_ended).c_str());
}

}  // namespace

void CheckInvariants(const JobState& job) {
  PHX_CHECK(job.session_of.size() <= job.nodes.size(),
            fmt::format("{} nodes have {} streams", job.session_of.size(), job.nodes.size()).c_str());
  PHX_CHECK(job.session_wanting.size() <= job.nodes.size(),
            fmt::format("{} ranks are wanted by {} nodes", job.session_wanting.size(), job.nodes.size()).c_str());
  PHX_CHECK(job.census.candidates() <= job.nodes.size(),
            fmt::format("{} candidates of {} nodes", job.census.candidates(), job.nodes.size()).c_str());
  PHX_CHECK(job.stale_rounds <= job.nodes.size(),
            fmt::format("{} of {} nodes run another round", job.stale_rounds, job.nodes.size()).c_str());
  PHX_CHECK(job.look.owed <= job.nodes.size() && (job.look.owed == 0) == (job.look.until == kNever),
            fmt::format("{} of {} nodes are still to say how far they are", job.look.owed, job.nodes.size()).c_str());
  if (job.round) CheckRound(job, *job.round);
  if (job.phase == Phase::kGathering) PHX_CHECK(!job.round, "nodes are gathered while a round is live");
  if (job.phase == Phase::kRunning) PHX_CHECK(job.round, "the job runs without a round");
  if (job.phase == Phase::kBlaming) {
    PHX_CHECK(job.round && !job.round->failures.empty(), "the first cause is looked for, and nothing has failed");
    PHX_CHECK(job.round->budget_before, "the job is about to end for a failure that was not charged");
  }
  if (job.phase == Phase::kFinished) PHX_CHECK(job.outcome, "the job is over without an outcome");
}

}  // namespace phalanx::master
