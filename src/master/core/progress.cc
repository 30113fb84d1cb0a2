#include "master/core/progress.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "master/core/checks.h"
#include "master/core/look.h"
#include "master/core/pace.h"
#include "master/core/stalls.h"
#include "master/core/succession.h"
#include "master/core/texts.h"

namespace phalanx::master {
namespace {

// Of the round before the live one, also where the next had no place for it.
bool WasMember(Turn& turn, uint64_t session, uint64_t epoch) {
  JobState& job = turn.job;
  if (!job.last_round || job.last_round->epoch != epoch) return false;
  const Node& node = job.nodes.at(session);
  return node.previous_rank >= 0 || SlotHeldBy(*job.last_round, node, session) != nullptr;
}

void NoteFromStep(Turn& turn, Round& round, int64_t from_step) {
  JobState& job = turn.job;
  round.from_step = from_step;
  std::vector<std::pair<std::string, Record::Value>> detail = {{"from_step", from_step}};
  std::string again;
  if (job.highest_step) {
    detail.insert(detail.end(), {{"last_step", *job.last_step}, {"highest_step", *job.highest_step}});
    if (from_step < *job.highest_step) {
      round.redo_until = job.highest_step;
      again = fmt::format("; it had come to step {}, so {} are done again", *job.highest_step,
                          *job.highest_step - from_step);
    }
  }
  turn.NoteRank(round, "steps-told", "", fmt::format("training begins behind step {}{}", from_step, again), -1,
                std::move(detail));
}

// `told`: the script counts its steps itself. It may begin to behind its first one, or on some ranks alone: numbers
// of two kinds give no pace.
void SeeStep(Turn& turn, int64_t step, bool told) {
  Round& round = *turn.job.round;
  if (round.seen_told && !told) return;
  if (round.first_seen_at == kNever || round.seen_told != told) {
    round.seen_told = told;
    round.first_seen_at = turn.now;
    round.first_seen_step = round.last_seen_step = step;
    const Instant begun_at = std::exchange(round.stall, StallWatch()).begun_at;
    round.stall.begun_at = begun_at;
    // Of a life that an earlier master began it is not known what it took to come this far.
    if (begun_at != kNever) round.stall.behind = told ? round.from_step : std::optional<int64_t>(0);
  }
  round.last_seen_at = turn.now;
  round.last_seen_step = std::max(round.last_seen_step, step);
  NoteStepSeen(turn, round.last_seen_step);
}

// Its largest step stays, and that is no sign of a hang.
void SeeItGoesOn(Round& round, Instant now) {
  SawSaving(round.stall, now);
  round.quiet_since = now;
}

}  // namespace

void On(Turn& turn, uint64_t session, const v1::Beat& beat) {
  Node& node = turn.job.nodes.at(session);
  if (std::exchange(node.ranks_of, beat.epoch()) != 0 && beat.epoch() == 0) OldRanksGone(turn, session);
  node.min_step = beat.min_step();
  node.max_step = beat.max_step();
  node.told_ranks = beat.told_ranks();
  const bool optimizer_stepped = beat.max_optimizer_steps() > node.max_optimizer_steps;
  node.min_optimizer_steps = beat.min_optimizer_steps();
  node.max_optimizer_steps = beat.max_optimizer_steps();
  if (beat.asked_for()) {
    node.ranks.assign(beat.ranks().begin(), beat.ranks().end());
    node.ranks_epoch = beat.epoch();
    node.ranks_told_at = turn.now;
    // What answers a look before that, for steps alone, answers one for ranks not.
    if (!turn.job.look.ranks || beat.ranks_size() > 0) SettleLook(turn.job, node);
  }
  OnProgress(turn, session, beat.epoch(), beat.progress());
  AnswerBeat(turn, session);
  const bool live = turn.IsLive(beat.epoch()) && node.group_rank >= 0;
  if (!live) return;
  Slot& slot = turn.job.round->slots[static_cast<size_t>(node.group_rank)];
  Confirm(turn, slot);
  if (beat.store_refused() > slot.store_refused) {
    turn.job.store_refused += beat.store_refused() - std::exchange(slot.store_refused, beat.store_refused());
  }
  if (beat.paces_size() > 0) OnPaces(turn, slot, beat);
  if (beat.max_step() <= 0) return;
  MarkStepped(turn);
  SeeStep(turn, beat.max_step(), beat.progress().has_step());
  // A script that tells its saves alone, by numbers of its own, trains on between two of them.
  if (optimizer_stepped) SeeItGoesOn(*turn.job.round, turn.now);
}

void On(Turn& turn, uint64_t session, const v1::FirstStep& first) {
  JobState& job = turn.job;
  Node& node = job.nodes.at(session);
  const v1::Progress& told = first.progress();
  OnProgress(turn, session, first.epoch(), told);
  if (!turn.IsLive(first.epoch()) || node.group_rank < 0) return;
  Slot& slot = job.round->slots[static_cast<size_t>(node.group_rank)];
  if (std::exchange(slot.stepped, true)) return;
  MarkStepped(turn);
  SeeStep(turn, told.has_step() ? told.step() : first.step(), told.has_step());
  const int64_t took_ms = turn.now - job.round->begun_at;
  turn.Note("first-step", slot.node, fmt::format("all ranks of node {} have made their first step", slot.node), -1,
            {{"step", first.step()}, {"since_round_ms", took_ms}});
  if (++job.round->slots_stepped < job.round->slots.size()) return;
  turn.Note("round-stepping", "",
            fmt::format("world {} trains: first step on all nodes {} ms after the round began", job.round->world_size,
                        took_ms),
            -1, {{"step", first.step()}, {"since_round_ms", took_ms}, {"saving_ms", job.round->saving_ms}});
  turn.Apply(OnCheckpointsStepped(job.checkpoints, turn.now));
}

void MarkStepped(Turn& turn) {
  if (std::exchange(turn.job.round->stepped, true)) return;
  NoteStep(turn.job.budget, turn.now);
  turn.RememberSoon();
}

void OnProgress(Turn& turn, uint64_t session, uint64_t epoch, const v1::Progress& told) {
  const bool live = turn.IsCurrent(epoch) && turn.job.nodes.at(session).group_rank >= 0;
  if (!live && !WasMember(turn, session, epoch)) return;
  Round& round = live ? *turn.job.round : *turn.job.last_round;
  if (told.saving_ms() > round.saving_ms) SeeItGoesOn(round, turn.now);
  round.saving_ms = std::max(round.saving_ms, told.saving_ms());
  if (!turn.IsLive(epoch) || turn.now - round.saving_noted_at >= kSavingNoticeMs) NoteSaving(turn, round);
  if (!told.has_step()) return;
  round.step = std::max(round.step.value_or(0), told.step());
  if (!live) RememberStep(turn, round);
  if (live && !round.from_step && told.has_from_step()) NoteFromStep(turn, round, told.from_step());
  if (round.redo_until && told.step() >= *round.redo_until && !std::exchange(round.caught_up, true)) {
    turn.NoteRank(round, "caught-up", "",
                  fmt::format("training has come as far as it was before: step {}", *round.redo_until), -1,
                  {{"ms_ago", told.caught_up_ms_ago()}, {"saving_ms", round.saving_ms}});
  }
}

void RememberStep(Turn& turn, const Round& round) {
  if (!round.step) return;
  turn.job.last_step = round.step;
  turn.job.highest_step = std::max(turn.job.highest_step.value_or(0), *round.step);
}

void NoteSaving(Turn& turn, Round& round) {
  if (round.saving_ms <= round.saving_noted_ms) return;
  round.saving_noted_ms = round.saving_ms;
  round.saving_noted_at = turn.now;
  turn.NoteRank(
      round, "saving", "",
      fmt::format("in epoch {} training has waited {} for checkpoints", round.epoch, SecondsText(round.saving_ms)), -1,
      {{"saving_ms", round.saving_ms}});
}

}  // namespace phalanx::master
