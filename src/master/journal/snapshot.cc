#include "master/journal/snapshot.h"

#include <fmt/format.h>
#include <google/protobuf/arena.h>

#include <algorithm>
#include <utility>

#include "master/core/admit.h"
#include "master/core/door.h"
#include "master/core/succession.h"
#include "master/topics/checkpoints_saved.h"
#include "master/topics/shards.h"
#include "phalanx/v1/journal.pb.h"

namespace phalanx::master {
namespace {

Status Contradiction(const std::string& what) {
  return absl::DataLossError(fmt::format("the journal contradicts itself: {}", what));
}

// --- to the payload -----------------------------------------------------------------------------------------------

void Fill(v1::Snapshot::Budget& wire, const Budget& budget, Instant now) {
  wire.set_used(budget.used);
  wire.set_lives_without_step(budget.lives_without_step);
  if (budget.stepping_since != kNever) wire.set_stepping_for_ms(now - budget.stepping_since);
  wire.set_last_error(budget.last_error);
}

void Fill(v1::Snapshot::Slot& wire, const Slot& slot) {
  wire.set_node_id(slot.node_id);
  wire.set_node(slot.node);
  wire.set_hostname(slot.hostname);
  wire.set_address(slot.address);
  wire.set_rank_base(slot.rank_base);
  wire.set_local_world_size(slot.local_world_size);
  wire.mutable_done()->Add(slot.done.begin(), slot.done.end());
  wire.mutable_failed()->Add(slot.failed.begin(), slot.failed.end());
  wire.set_stepped(slot.stepped);
  wire.set_leaving(slot.leaving);
  wire.set_left(slot.left);
  wire.set_presence_port(slot.presence_port);
}

void Fill(v1::Snapshot::Rescale& wire, const Round& round, Instant now) {
  wire.set_due_in_ms(round.rescale_by - now);
  wire.set_why(round.rescale_why);
  wire.set_safe_step(round.safe_step);
  for (const std::string& what : round.leaving) wire.add_leaving(what);
  wire.set_any_asked(round.any_asked);
}

void Fill(v1::Snapshot::Round& wire, const Round& round, Instant now) {
  wire.set_term(round.term);
  wire.set_confirmed(round.slots_confirmed == round.slots.size());
  wire.set_epoch(round.epoch);
  wire.set_restart_count(round.restart_count);
  wire.set_world_size(round.world_size);
  wire.set_reason(round.reason);
  wire.set_age_ms(now - round.begun_at);
  if (round.ended_at != kNever) wire.set_ended_for_ms(now - round.ended_at);
  for (const Slot& slot : round.slots) Fill(*wire.add_slots(), slot);
  wire.set_stepped(round.stepped);
  for (const Failure& failure : round.failures) *wire.add_failures() = failure.told;
  wire.set_failed(round.failed);
  for (const std::string& what : round.broken) wire.add_broken(what);
  if (round.budget_before) Fill(*wire.mutable_budget_before(), *round.budget_before, now);
  if (round.step) wire.set_step(*round.step);
  if (round.from_step) wire.set_from_step(*round.from_step);
  if (round.redo_until) wire.set_redo_until(*round.redo_until);
  wire.set_caught_up(round.caught_up);
  wire.set_saving_ms(round.saving_ms);
  wire.set_saving_noted_ms(round.saving_noted_ms);
  if (round.rescale_by != kNever && round.ended_at == kNever) Fill(*wire.mutable_rescale(), round, now);
}

// --- and back -----------------------------------------------------------------------------------------------------

Instant Before(Instant now, int64_t span_ms) { return now - std::clamp<int64_t>(span_ms, 0, kMaxSpanMs); }

void Restore(Budget& budget, const v1::Snapshot::Budget& wire, Instant now) {
  budget.used = std::min(wire.used(), AllowedRestarts(budget));
  budget.lives_without_step = wire.lives_without_step();
  budget.stepping_since = wire.has_stepping_for_ms() ? Before(now, wire.stepping_for_ms()) : kNever;
  budget.last_error = wire.last_error();
}

StatusOr<Slot> RestoreSlot(const v1::Snapshot::Slot& wire) {
  Slot slot;
  slot.node_id = wire.node_id();
  slot.node = wire.node();
  slot.hostname = wire.hostname();
  slot.address = wire.address();
  slot.rank_base = wire.rank_base();
  slot.local_world_size = wire.local_world_size();
  if (slot.local_world_size > kMaxLocalWorldSize) {
    return Contradiction(fmt::format("{} workers on one node", slot.local_world_size));
  }
  for (const uint32_t rank : wire.done()) slot.done.insert(rank);
  for (const uint32_t rank : wire.failed()) {
    if (!slot.done.contains(rank)) slot.failed.insert(rank);
  }
  const size_t told = static_cast<size_t>(wire.done_size()) + static_cast<size_t>(wire.failed_size());
  if (slot.done.size() + slot.failed.size() != told) {
    return Contradiction(fmt::format("a local rank of node {} has ended twice", slot.node));
  }
  for (const std::set<uint32_t>* ended : {&slot.done, &slot.failed}) {
    if (!ended->empty() && *ended->rbegin() >= slot.local_world_size) {
      return Contradiction(fmt::format("local rank {} of {} has ended", *ended->rbegin(), slot.local_world_size));
    }
  }
  slot.stepped = wire.stepped();
  slot.leaving = wire.leaving();
  slot.left = wire.left();
  slot.presence_port = wire.presence_port() <= UINT16_MAX ? wire.presence_port() : 0;
  return slot;
}

// Ranks without holes between nodes that are known, so that who comes back to its place is all that it takes.
Status CheckRanks(const Round& round) {
  uint64_t next = 0;
  bool known = true;
  for (const Slot& slot : round.slots) {
    const bool known_before = std::exchange(known, slot.local_world_size > 0);
    if (!known) continue;
    if (known_before && slot.rank_base != next) {
      return Contradiction(fmt::format("a node's first rank is {}", slot.rank_base));
    }
    next = uint64_t{slot.rank_base} + slot.local_world_size;
  }
  if (known && next != round.world_size)
    return Contradiction(fmt::format("world {}, {} ranks", round.world_size, next));
  return absl::OkStatus();
}

Status RestoreRescale(Round& round, const v1::Snapshot::Rescale& wire, Instant now) {
  if (wire.safe_step() < 0) return Contradiction(fmt::format("a safe point behind step {}", wire.safe_step()));
  round.rescale_by = now + std::clamp<int64_t>(wire.due_in_ms(), 0, kMaxSpanMs);
  round.rescale_why = wire.why();
  round.safe_step = wire.safe_step();
  round.leaving.assign(wire.leaving().begin(), wire.leaving().end());
  round.any_asked = wire.any_asked();
  return absl::OkStatus();
}

// Who votes is all in the live round.
bool IsOfVoters(const JobState& state) {
  const bool none = state.voters.confirmed.nodes() == 0 && state.voters.told.nodes() == 0 && state.voters.begun.empty();
  return none || (state.round && state.round->slots_confirmed == state.round->slots.size());
}

void Fill(v1::Snapshot::Voters& wire, const Voters& voters) {
  wire.set_term(voters.term());
  wire.set_epoch(voters.epoch());
  wire.set_nodes(static_cast<uint32_t>(voters.nodes()));
  for (const auto& [node_id, voter] : voters.known()) {
    v1::Snapshot::Voter& known = *wire.add_known();
    known.set_node_id(node_id);
    known.set_address(voter.address);
    known.set_presence_port(voter.presence_port);
    known.set_gone(voter.gone);
  }
}

StatusOr<Voters> VotersFrom(const v1::Snapshot::Voters& voters) {
  if (voters.nodes() > kMaxNodes || voters.known_size() > static_cast<int>(voters.nodes())) {
    return Contradiction(fmt::format("{} voters of {}", voters.known_size(), voters.nodes()));
  }
  Voters restored(voters.term(), voters.epoch(), voters.nodes());
  for (const v1::Snapshot::Voter& voter : voters.known()) {
    if (voter.presence_port() > UINT16_MAX) return Contradiction(fmt::format("port {}", voter.presence_port()));
    restored.Add(voter.node_id(), voter.address(), voter.presence_port());
    if (voter.gone()) restored.BeGone(voter.node_id());
  }
  return restored;
}

Status RestoreVoters(JobState& state, const v1::Snapshot& wire) {
  if (!wire.has_voters()) {
    const bool confirmed = state.round && state.round->slots_confirmed == state.round->slots.size();
    if (confirmed) state.voters.confirmed = VotersOf(*state.round);
    return absl::OkStatus();
  }
  PHX_ASSIGN_OR_RETURN(state.voters.confirmed, VotersFrom(wire.voters()));
  if (wire.has_told_voters()) {
    PHX_ASSIGN_OR_RETURN(state.voters.told, VotersFrom(wire.told_voters()));
  }
  state.voters.strict = wire.strict_voters();
  for (const v1::Snapshot::Voters& begun : wire.begun_voters()) {
    PHX_ASSIGN_OR_RETURN(Voters round, VotersFrom(begun));
    state.voters.Begin(std::move(round));
  }
  return absl::OkStatus();
}

StatusOr<Round> RestoreRound(const v1::Snapshot::Round& wire, const Budget& budget, Instant now) {
  Round round;
  round.term = wire.term();
  round.epoch = wire.epoch();
  round.restart_count = wire.restart_count();
  round.world_size = wire.world_size();
  round.reason = wire.reason();
  round.begun_at = round.saving_noted_at = Before(now, wire.age_ms());
  round.quiet_since = now;  // what its ranks have done since is not known
  if (wire.has_ended_for_ms()) round.ended_at = Before(now, wire.ended_for_ms());
  if (wire.slots().empty() || wire.slots_size() > static_cast<int>(kMaxNodes)) {
    return Contradiction(fmt::format("a round of {} nodes", wire.slots_size()));
  }
  for (const v1::Snapshot::Slot& slot : wire.slots()) {
    PHX_ASSIGN_OR_RETURN(Slot restored, RestoreSlot(slot));
    round.slots_stepped += restored.stepped ? 1 : 0;
    round.ranks_done += static_cast<uint32_t>(restored.done.size());
    round.ranks_ended += static_cast<uint32_t>(restored.done.size() + restored.failed.size());
    restored.confirmed = wire.confirmed();
    round.slots_confirmed += wire.confirmed() ? 1 : 0;
    round.slots.push_back(std::move(restored));
  }
  PHX_RETURN_IF_ERROR(CheckRanks(round));
  round.stepped = wire.stepped();
  for (const v1::Failure& failure : wire.failures()) {
    if (failure.group_rank() >= round.slots.size() || round.failures.size() == kMaxFailures) {
      return Contradiction("a failure of no member");
    }
    AddFailure(round.failures, AdmitFailure(failure, round.slots[failure.group_rank()].node));
  }
  round.failed = wire.failed();
  round.broken.assign(wire.broken().begin(), wire.broken().end());
  if (wire.has_budget_before()) Restore(round.budget_before.emplace(budget), wire.budget_before(), now);
  if (wire.has_step()) round.step = wire.step();
  if (wire.has_from_step()) round.from_step = wire.from_step();
  if (wire.has_redo_until()) round.redo_until = wire.redo_until();
  round.caught_up = wire.caught_up();
  round.saving_ms = wire.saving_ms();
  round.saving_noted_ms = wire.saving_noted_ms();
  if (wire.has_rescale()) PHX_RETURN_IF_ERROR(RestoreRescale(round, wire.rescale(), now));
  return round;
}

Status RestorePhase(JobState& state, const v1::Snapshot& wire) {
  const bool has_round = state.round.has_value();
  switch (wire.phase()) {
    case v1::Snapshot::GATHERING:
      state.phase = Phase::kGathering;
      return has_round ? Contradiction("a round is live, and nodes are gathered") : absl::OkStatus();
    case v1::Snapshot::RUNNING:
      state.phase = Phase::kRunning;
      return has_round ? absl::OkStatus() : Contradiction("no round is live, and the job runs");
    case v1::Snapshot::BLAMING:
      state.phase = Phase::kBlaming;
      state.blame_deadline = 0;  // Resume sets it
      return has_round && !state.round->failures.empty() && state.round->budget_before
                 ? absl::OkStatus()
                 : Contradiction("nobody is to blame");
    case v1::Snapshot::FINISHED:
      state.phase = Phase::kFinished;
      return wire.has_exit_code() ? absl::OkStatus() : Contradiction("the job is over without an exit code");
    default:
      return Contradiction(fmt::format("phase {}", static_cast<int>(wire.phase())));
  }
}

}  // namespace

std::string SaveState(const JobState& state, Instant now) {
  google::protobuf::Arena arena;  // all parts come and go at once
  auto& wire = *google::protobuf::Arena::CreateMessage<v1::Snapshot>(&arena);
  wire.set_job_id(state.job_id);
  if (state.spec) *wire.mutable_spec() = *state.spec;
  wire.set_spec_of_first_node(state.spec_of_first_node);
  switch (state.phase) {
    case Phase::kGathering:
      wire.set_phase(v1::Snapshot::GATHERING);
      break;
    case Phase::kRunning:
      wire.set_phase(v1::Snapshot::RUNNING);
      break;
    case Phase::kBlaming:
      wire.set_phase(v1::Snapshot::BLAMING);
      break;
    case Phase::kFinished:
      wire.set_phase(v1::Snapshot::FINISHED);
      break;
  }
  Fill(*wire.mutable_budget(), state.budget, now);
  wire.set_highest_epoch(state.highest_epoch);
  wire.set_rounds_begun(state.rounds_begun);
  if (state.round) Fill(*wire.mutable_round(), *state.round, now);
  if (state.last_round) Fill(*wire.mutable_last_round(), *state.last_round, now);
  if (state.highest_step) wire.set_highest_step(*state.highest_step);
  if (state.last_step) wire.set_last_step(*state.last_step);
  wire.set_reason(state.reason);
  wire.set_verdict(state.verdict);
  if (state.outcome) wire.set_exit_code(state.outcome->exit_code);
  wire.set_incarnation(state.incarnation);
  wire.set_term(state.term);
  for (const auto& [node_id, lost] : state.lost_places) {
    v1::Snapshot::LostPlace& place = *wire.add_lost_places();
    place.set_node_id(node_id);
    place.set_rank(lost.rank);
    place.set_epoch(lost.epoch);
  }
  for (v1::LeftOut& left_out : LeftOutNow(state.health, now)) *wire.add_left_out() = std::move(left_out);
  if (state.health.last_is_kept) *wire.mutable_last_check() = state.health.last;
  wire.set_written_ms(now);
  SaveCheckpoints(state.checkpoints, *wire.mutable_checkpoints());
  if (!state.shards.datasets.empty()) SaveShards(state.shards, *wire.mutable_shards());
  if (!IsOfVoters(state)) {
    Fill(*wire.mutable_voters(), state.voters.confirmed);
    if (state.voters.told.nodes() > 0) Fill(*wire.mutable_told_voters(), state.voters.told);
    wire.set_strict_voters(state.voters.strict);
    for (const Voters& round : state.voters.begun) Fill(*wire.add_begun_voters(), round);
  }
  return wire.SerializeAsString();
}

StatusOr<JobState> RestoreState(std::string_view bytes, const std::string& job_id, Instant now) {
  v1::Snapshot wire;
  if (!wire.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return absl::DataLossError("the journal holds no snapshot");
  }
  if (wire.job_id() != job_id) {
    return absl::FailedPreconditionError(fmt::format("the journal is of job '{}', not '{}'", wire.job_id(), job_id));
  }
  JobState state;
  state.job_id = job_id;
  if (wire.has_spec()) {
    v1::JobSpec spec = wire.spec();
    AdmitSpec(spec);
    if (const auto fault = SpecFault(spec)) return Contradiction(*fault);
    state.SetSpec(spec);
  }
  state.spec_of_first_node = wire.spec_of_first_node();
  if (!state.spec && (wire.has_round() || wire.has_last_round())) return Contradiction("a round without --nnodes");
  Restore(state.budget, wire.budget(), now);
  // What agents claim is bounded by the first; the rounds of the job's own life come on top.
  if (wire.highest_epoch() > 2 * kMaxEpoch) return Contradiction(fmt::format("epoch {}", wire.highest_epoch()));
  state.highest_epoch = wire.highest_epoch();
  state.rounds_begun = wire.rounds_begun();
  if (wire.has_round()) {
    PHX_ASSIGN_OR_RETURN(state.round, RestoreRound(wire.round(), state.budget, now));
    if (state.round->epoch > state.highest_epoch) return Contradiction("the live round is later than the last");
  }
  if (wire.has_last_round()) {
    PHX_ASSIGN_OR_RETURN(state.last_round, RestoreRound(wire.last_round(), state.budget, now));
  }
  if (wire.has_highest_step()) state.highest_step = wire.highest_step();
  if (wire.has_last_step()) state.last_step = wire.last_step();
  if (state.highest_step.has_value() != state.last_step.has_value()) return Contradiction("half of the steps");
  state.reason = wire.reason();
  state.verdict = wire.verdict();
  PHX_RETURN_IF_ERROR(RestorePhase(state, wire));
  if (wire.incarnation() >= kMaxEpoch) return Contradiction(fmt::format("incarnation {}", wire.incarnation()));
  state.incarnation = std::max<uint64_t>(wire.incarnation(), 1);
  if (wire.term() > kMaxEpoch) return Contradiction(fmt::format("term {}", wire.term()));
  state.term = wire.term();
  if (wire.lost_places_size() > static_cast<int>(kMaxNodes)) {
    return Contradiction(fmt::format("{} lost places", wire.lost_places_size()));
  }
  for (const v1::Snapshot::LostPlace& lost : wire.lost_places()) {
    if (lost.rank() < 0) return Contradiction(fmt::format("the lost rank {}", lost.rank()));
    state.lost_places[lost.node_id()] = {lost.rank(), lost.epoch()};
  }
  const uint64_t live = state.round ? state.round->epoch : 0;
  auto checkpoints = RestoreCheckpoints(wire.checkpoints(), live, state.round ? state.round->slots.size() : 0);
  if (!checkpoints.ok()) return Contradiction(Message(checkpoints.status()));
  state.checkpoints = *std::move(checkpoints);
  auto shards = RestoreShards(wire.shards());
  if (!shards.ok()) return Contradiction(Message(shards.status()));
  state.shards = *std::move(shards);
  // Of a boot before this one at most what this one has lasted is counted, which is less than what has passed.
  const int64_t passed_ms = wire.written_ms() > 0 ? std::clamp<int64_t>(now - wire.written_ms(), 0, kMaxSpanMs) : 0;
  for (const v1::LeftOut& left_out : wire.left_out()) RestoreLeftOut(state.health, left_out, now - passed_ms);
  if (wire.has_last_check()) RestoreLastCheck(state.health, wire.last_check());
  PHX_RETURN_IF_ERROR(RestoreVoters(state, wire));
  if (wire.has_exit_code()) state.outcome = OutcomeOf(state, wire.exit_code(), wire.reason());
  // Somebody has been there, so that join_timeout counts.
  state.arrivals = state.spec ? 1 : 0;
  return state;
}

}  // namespace phalanx::master
