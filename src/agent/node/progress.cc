#include "agent/node/progress.h"

#include <algorithm>

namespace phalanx::agent {
namespace {

constexpr int64_t kNsPerUs = 1'000;
constexpr int64_t kNsPerMs = 1'000'000;

int64_t SavingNs(const RankProgress& rank, int64_t now_ns) {
  const BoardSlot& slot = rank.slot;
  if (slot.saving_since_ns == 0) return slot.saving_ns;
  const int64_t until = rank.ended_ns != 0 ? rank.ended_ns : now_ns;
  return slot.saving_ns + std::max<int64_t>(0, until - slot.saving_since_ns);
}

}  // namespace

int64_t StepOf(const BoardSlot& slot) {
  return slot.step >= 0 ? slot.step : static_cast<int64_t>(slot.optimizer_steps);
}

void FillBeat(const std::vector<RankProgress>& ranks, int64_t now_ns, v1::Beat& beat) {
  if (ranks.empty()) return;
  std::vector<int64_t> told;
  std::vector<int64_t> made;
  for (const RankProgress& rank : ranks) {
    made.push_back(static_cast<int64_t>(rank.slot.optimizer_steps));
    if (rank.slot.step >= 0) told.push_back(rank.slot.step);
  }
  beat.set_told_ranks(static_cast<uint32_t>(told.size()));
  const auto [least_made, most_made] = std::ranges::minmax(made);
  beat.set_min_optimizer_steps(least_made);
  beat.set_max_optimizer_steps(most_made);
  const auto [least, most] = std::ranges::minmax(told.empty() ? made : told);
  beat.set_min_step(least);
  beat.set_max_step(most);
  *beat.mutable_progress() = ProgressOf(ranks, now_ns);
}

v1::RankStatus RankStatusOf(const RankProgress& rank, int64_t now_ns) {
  const BoardSlot& slot = rank.slot;
  v1::RankStatus status;
  status.set_pid(slot.pid);
  status.set_step(StepOf(slot));
  status.set_step_told(slot.step >= 0);
  status.set_optimizer_steps(static_cast<int64_t>(slot.optimizer_steps));
  const int64_t since_ns = slot.changed_ns != 0 ? slot.changed_ns : slot.started_ns;
  status.set_quiet_ms(since_ns != 0 ? (now_ns - since_ns) / kNsPerMs : -1);
  status.set_age_ms(slot.started_ns != 0 ? (now_ns - slot.started_ns) / kNsPerMs : -1);
  if (rank.ended_ns != 0) {
    status.set_doing(v1::RankStatus::ENDED);
  } else if (slot.saving_since_ns != 0) {
    status.set_doing(v1::RankStatus::SAVING);
  } else if (slot.phase == RankPhase::kStepping) {
    status.set_doing(v1::RankStatus::STEPPING);
  } else if (slot.phase == RankPhase::kScript) {
    status.set_doing(v1::RankStatus::RUNNING);
  } else if (slot.phase == RankPhase::kExiting) {
    status.set_doing(v1::RankStatus::EXITING);
  }
  return status;
}

void FillPaces(const std::vector<RankProgress>& ranks, v1::Beat& beat) {
  for (size_t i = 0; i < ranks.size(); ++i) {
    const BoardSlot& slot = ranks[i].slot;
    if (slot.pid == 0 || slot.split_steps == 0) continue;
    v1::RankPace& pace = *beat.add_paces();
    pace.set_local_rank(static_cast<uint32_t>(i));
    pace.set_steps(slot.split_steps);
    pace.set_own_us(slot.own_ns / kNsPerUs);
    pace.set_waited_us(slot.waited_ns / kNsPerUs);
  }
}

v1::Progress ProgressOf(const std::vector<RankProgress>& ranks, int64_t now_ns) {
  v1::Progress progress;
  int64_t saving_ns = 0;
  int64_t caught_up_ns = 0;
  for (const RankProgress& rank : ranks) {
    const BoardSlot& slot = rank.slot;
    if (slot.pid == 0) continue;
    saving_ns = std::max(saving_ns, SavingNs(rank, now_ns));
    if (slot.step < 0) continue;
    progress.set_step(std::max(progress.step(), slot.step));
    if (slot.from_step >= 0 && (!progress.has_from_step() || slot.from_step < progress.from_step())) {
      progress.set_from_step(slot.from_step);
    }
    // The first of them: often one rank alone tells its steps.
    const bool caught_up = slot.caught_up_ns != 0;
    if (caught_up && (caught_up_ns == 0 || slot.caught_up_ns < caught_up_ns)) caught_up_ns = slot.caught_up_ns;
  }
  progress.set_saving_ms(saving_ns / kNsPerMs);
  if (caught_up_ns != 0) progress.set_caught_up_ms_ago((now_ns - caught_up_ns) / kNsPerMs);
  return progress;
}

}  // namespace phalanx::agent
