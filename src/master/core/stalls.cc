#include "master/core/stalls.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "master/core/ending.h"
#include "master/core/texts.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

bool GoesOn(const JobState& job) {
  return job.phase == Phase::kRunning && job.round && job.round->away == 0 && job.round->rescale_by == kNever &&
         job.round->failed.empty() && job.round->broken.empty();
}

// Ranks of a round that is about to end, or of which some have ended, may have no more steps to make.
bool IsWatched(const JobState& job) { return GoesOn(job) && job.round->ranks_ended == 0; }

// Some have ended well and others have not. Whether these do their last work or wait for those in vain nobody can tell
// by their steps, as a rank that waits in a collective has made as many as the one that it waits for.
bool SomeAreThrough(const JobState& job) {
  return GoesOn(job) && job.round->early && job.round->ranks_ended == job.round->ranks_done;
}

// All members hear it.
void TellMembers(Turn& turn, const std::string& kind, const std::string& text,
                 std::vector<std::pair<std::string, Record::Value>> detail) {
  for (const Slot& slot : turn.job.round->slots) {
    if (slot.session != 0) turn.SendNotice(slot.session, text);
  }
  turn.Note(kind, "", text, -1, std::move(detail));
}

// Where some ranks tell their steps and others do not, a script's own count and an optimizer's are no two places on one
// way: all are compared by their optimizers, where these step.
bool ByOptimizer(const JobState& job) {
  uint32_t told = 0;
  uint32_t untold = 0;
  int64_t most = 0;
  for (const Slot& slot : job.round->slots) {
    if (slot.session == 0) continue;
    const Node& node = job.nodes.at(slot.session);
    told += node.told_ranks;
    untold += node.hello.local_world_size() - std::min(node.told_ranks, node.hello.local_world_size());
    most = std::max(most, node.max_optimizer_steps);
  }
  return told > 0 && untold > 0 && most > 0;
}

std::string WhoIsBehind(const JobState& job) {
  const bool by_optimizer = ByOptimizer(job);
  const auto least = [=](const Node& node) { return by_optimizer ? node.min_optimizer_steps : node.min_step; };
  const auto most = [=](const Node& node) { return by_optimizer ? node.max_optimizer_steps : node.max_step; };
  int64_t largest = 0;
  for (const Slot& slot : job.round->slots) {
    if (slot.session != 0) largest = std::max(largest, most(job.nodes.at(slot.session)));
  }
  std::vector<std::string> behind;
  for (const Slot& slot : job.round->slots) {
    if (slot.session == 0) continue;
    const Node& node = job.nodes.at(slot.session);
    if (least(node) >= largest) continue;
    const char* const who = most(node) > least(node) ? "some ranks" : "the ranks";
    behind.push_back(fmt::format("{} of node {} at {} {}", who, slot.node, by_optimizer ? "its" : "step", least(node)));
  }
  const std::string at =
      by_optimizer ? fmt::format("step {} of the optimizer", largest) : fmt::format("step {}", largest);
  if (behind.empty()) return fmt::format("all ranks are at {}", at);
  return fmt::format("the others are at {}, {}", at, ListText(behind, "nodes behind as well"));
}

}  // namespace

void NoteStepSeen(Turn& turn, int64_t step) {
  StallWatch& watch = turn.job.round->stall;
  const bool told = watch.told;
  const std::optional<int64_t> gap_ms = SawStep(watch, step, turn.job.usual_gap_ms, turn.now);
  if (gap_ms) turn.job.round->quiet_since = turn.now;
  if (!gap_ms || !told) return;
  TellMembers(turn, "stall-over", fmt::format("steps go on, after {} without one", SecondsText(*gap_ms)),
              {{"ms", *gap_ms}, {"step", step}});
}

Instant StallDue(const JobState& job) {
  if (IsWatched(job)) return StallsAt(job.round->stall, job.usual_gap_ms);
  return SomeAreThrough(job) ? StallsBehindEndAt(job.round->stall, job.usual_gap_ms) : kNever;
}

namespace {

std::string QuietText(const JobState& job, int64_t quiet_ms) {
  const std::string usual =
      job.usual_gap_ms > 0 ? fmt::format(" (usually within {})", SecondsText(job.usual_gap_ms)) : "";
  return fmt::format("no step for {}{}: {}", SecondsText(quiet_ms), usual, WhoIsBehind(job));
}

// Who is silent says nothing of its ranks, and may be believed for longer: a lone node that was stopped (Ctrl-Z, a
// debugger), or where the job asks for that.
bool AllHeard(const JobState& job, Instant now) {
  return std::ranges::all_of(job.round->slots, [&](const Slot& slot) {
    if (slot.session == 0) return true;
    const Node& node = job.nodes.at(slot.session);
    return now - node.heard_at < kBeatsPerLease * node.beat_interval_ms;
  });
}

}  // namespace

std::string StallText(const JobState& job, Instant now) {
  const int64_t quiet_ms = now - job.round->stall.since;
  if (!SomeAreThrough(job)) return QuietText(job, quiet_ms);
  const Round& round = *job.round;
  return fmt::format(
      "rank {} has ended with 0 and {} of {} ranks have not, with no step for {}: they do their last work, or wait for "
      "a rank that has ended",
      round.early->told.rank(), round.world_size - round.ranks_done, round.world_size, SecondsText(quiet_ms));
}

Instant HangDue(const JobState& job) {
  if (!job.spec || job.spec->hang_timeout_ms() == 0 || !IsWatched(job)) return kNever;
  // Steps are seen in beats.
  const int64_t least_ms = LeaseMs(static_cast<int64_t>(job.round->slots.size()));
  return job.round->quiet_since + std::max(job.spec->hang_timeout_ms(), least_ms);
}

void SettleHang(Turn& turn) {
  JobState& job = turn.job;
  if (turn.now < HangDue(job)) return;
  Round& round = *job.round;
  if (!AllHeard(job, turn.now)) {
    round.quiet_since = turn.now;
    return;
  }
  const int64_t quiet_ms = turn.now - round.quiet_since;
  const std::string what =
      fmt::format("{}: --hang-timeout={} is over", QuietText(job, quiet_ms), SecondsText(job.spec->hang_timeout_ms()));
  turn.Note("hang", "", what, -1, {{"silent_ms", quiet_ms}, {"step", round.stall.step}});
  turn.remember = true;
  const Charge charge = ChargeFailure(job.budget, round.stepped, /*older_next=*/false, /*error=*/"", turn.now);
  if (charge != Charge::kRestart) {
    return FinishJob(turn, 1, fmt::format("{}; {}", what, VerdictText(charge, job.budget)));
  }
  round.failed = fmt::format("{}, restart {} of {}", what, job.budget.used, AllowedRestarts(job.budget));
}

void SettleStall(Turn& turn) {
  if (turn.now < StallDue(turn.job)) return;
  StallWatch& watch = turn.job.round->stall;
  watch.told = true;
  const char* kind = SomeAreThrough(turn.job) ? "stalled-behind-end" : "stalled";
  TellMembers(turn, kind, StallText(turn.job, turn.now), {{"silent_ms", turn.now - watch.since}, {"step", watch.step}});
}

}  // namespace phalanx::master
