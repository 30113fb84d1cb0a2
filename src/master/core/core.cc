#include "master/core/core.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "master/core/arrivals.h"
#include "master/core/away.h"
#include "master/core/checks.h"
#include "master/core/departures.h"
#include "master/core/election.h"
#include "master/core/ending.h"
#include "master/core/failures.h"
#include "master/core/invariants.h"
#include "master/core/look.h"
#include "master/core/members.h"
#include "master/core/platform.h"
#include "master/core/progress.h"
#include "master/core/rescale.h"
#include "master/core/rounds.h"
#include "master/core/shards.h"
#include "master/core/stalls.h"
#include "master/core/succession.h"
#include "master/core/turn.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

// Every message of an agent renews its lease and may name the port of its next store. False: its node was dropped
// before, and its stream is ending.
bool Hear(Turn& turn, const Event& event) {
  const auto* said = std::get_if<AgentSaid>(&event);
  if (said == nullptr) return true;
  const auto node = turn.job.nodes.find(said->session);
  if (node == turn.job.nodes.end()) return false;
  node->second.last_heard = turn.now;
  node->second.heard_at = turn.now;
  if (said->message.next_store_port() != 0) node->second.store_port = said->message.next_store_port();
  return true;
}

// Only who holds the store can know.
void On(Turn& turn, uint64_t session, const v1::StoreRefused& refused) {
  const Node& node = turn.job.nodes.at(session);
  if (!turn.IsCurrent(refused.epoch()) || node.group_rank != 0) return;
  turn.job.last_store_refused = refused.sentence();
  turn.Note("store-refused", NodeName(turn.job, node.hello), refused.sentence());
}

// A node has two streams, each of which is lost once.
void On(Turn& turn, uint64_t session, const v1::ConsoleLost& lost) {
  Node& node = turn.job.nodes.at(session);
  if (++node.consoles_lost <= 2) turn.Note("console-lost", NodeName(turn.job, node.hello), lost.sentence());
}

void On(Turn& turn, uint64_t session, const v1::CheckpointReport& report) {
  turn.Apply(OnCheckpointReport(turn.job.checkpoints, session, report, turn.now));
}

// Which subject hears what. A message that this master does not know, or that the door made empty, says only that its
// agent lives; so does a second Hello.
void On(Turn& turn, const AgentSaid& e) {
  const v1::AgentMessage& message = e.message;
  switch (message.body_case()) {
    case v1::AgentMessage::kBeat:
      return On(turn, e.session, message.beat());
    case v1::AgentMessage::kWorkerExited:
      ReturnShards(turn, e.session, message.worker_exited());
      return On(turn, e.session, message.worker_exited());
    case v1::AgentMessage::kFirstStep:
      return On(turn, e.session, message.first_step());
    case v1::AgentMessage::kLeaving:
      return On(turn, e.session, message.leaving());
    case v1::AgentMessage::kReady:
      return On(turn, e.session, message.ready());
    case v1::AgentMessage::kSafePoint:
      return On(turn, e.session, message.safe_point());
    case v1::AgentMessage::kCheckpoint:
      return On(turn, e.session, message.checkpoint());
    case v1::AgentMessage::kStoreRefused:
      return On(turn, e.session, message.store_refused());
    case v1::AgentMessage::kCheck:
      return On(turn, e.session, message.check());
    case v1::AgentMessage::kNodeFact:
      return On(turn, e.session, message.node_fact());
    case v1::AgentMessage::kConsoleLost:
      return On(turn, e.session, message.console_lost());
    case v1::AgentMessage::kShardRequest:
      return On(turn, e.session, message.shard_request());
    case v1::AgentMessage::kHello:
    case v1::AgentMessage::BODY_NOT_SET:
      return;
  }
}

void On(Turn& turn, const Tick& /*e*/) {
  turn.Apply(OnCheckpointTick(turn.job.checkpoints, turn.now));
  if (turn.now >= turn.job.remember_at) turn.remember = true;
  ForgetVoters(turn);
  EndDoubt(turn);
  Resign(turn);
  if (turn.job.lease_check != kNever && turn.now >= turn.job.lease_check) ExpireLeases(turn);
}

Census::Entry EntryOf(const Node& node) {
  Census::Entry entry;
  entry.ranks = node.hello.local_world_size();
  entry.candidate = !node.leaving && node.left_out.empty();
  entry.ready = !node.warming && !node.unchecked;
  entry.member = node.previous_rank >= 0;
  return entry;
}

// When a round begins or changes.
Instant RoundDue(const JobState& s) {
  const bool live = s.round && s.phase == Phase::kRunning;
  // What the platform has to say is waited for first, and the end of that wait is a deadline of its own.
  if (s.platform.await_until != kNever && !(live && !s.round->leaving.empty())) return kNever;
  const Instant rescale_by = live ? std::min(s.round->rescale_by, s.round->ask_again) : kNever;
  return std::min({s.gather_at, s.gather_limit, s.grow_at, s.grow_limit, rescale_by});
}

// What holds after every event, and what time has brought about.
void Settle(Turn& turn) {
  const JobState& job = turn.job;
  ExpireLook(turn);
  SettleShards(turn);
  SettleAway(turn);
  if (job.phase == Phase::kFinished) {  // whoever is away then
    SettleChecks(turn);
    return SettleEnd(turn);
  }
  if (job.round && job.round->away > 0) return;
  SettleLastLeft(turn);
  if (job.phase == Phase::kBlaming) SettleBlame(turn);
  SettleHang(turn);
  SettleDepartures(turn);
  SettleChecks(turn);
  if (job.phase == Phase::kRunning) SettleRound(turn);
  SettleStall(turn);
  if (job.phase == Phase::kGathering) SettleGathering(turn);
}

// This master is elected: those that have come are heard, those that trained last first.
void TakeOver(Turn& turn) {
  JobState& job = turn.job;
  const Candidacy candidacy = *std::exchange(job.candidacy, std::nullopt);
  std::vector<AgentAttached> early;
  for (const auto& [session, came] : candidacy.early) {
    early.push_back({session, came.message, came.peer_address});
    early.back().message.set_next_store_port(came.store_port);
  }
  const auto rank = [](const AgentAttached& e) {
    return std::pair(e.hello().live_round().term(), e.hello().live_round().epoch());
  };
  std::stable_sort(early.begin(), early.end(),
                   [&rank](const AgentAttached& a, const AgentAttached& b) { return rank(a) > rank(b); });
  turn.Note("master-elected", "",
            fmt::format("{} of the {} nodes that trained last have elected this master: the one before is lost",
                        job.voters.confirmed.here(), job.voters.confirmed.nodes()),
            -1, {{"term", static_cast<int64_t>(job.term)}});
  for (const AgentAttached& e : early) On(turn, e);
  if (job.back_by != kNever) {
    const size_t away = job.round ? job.round->away : 0;
    const bool all_gone = candidacy.agent_is_gone && away <= 1;
    // Where the master fell silent, some notice it later than others.
    const int64_t wait_ms =
        candidacy.before_is_gone || away <= 1 ? candidacy.lease_ms / kElectedAwayPerLease : candidacy.lease_ms / 2;
    job.back_by = all_gone ? turn.now : std::min(job.back_by, turn.now + wait_ms);
  }
  turn.remember = true;
  Settle(turn);
  CheckInvariants(job);
}

}  // namespace

v1::JobSpec DefaultSpec() {
  v1::JobSpec spec;
  spec.set_min_nodes(1);
  spec.set_max_nodes(1);
  spec.set_restart_window_ms(kDefaultRestartWindowMs);
  spec.set_join_timeout_ms(kDefaultJoinTimeoutMs);
  spec.set_last_call_ms(kDefaultLastCallMs);
  spec.set_node_unit(1);
  spec.set_rescale_grace_ms(kDefaultRescaleGraceMs);
  spec.set_older_save_after_lives(kDefaultOlderSaveAfterLives);
  return spec;
}

size_t UsableNodes(const v1::JobSpec& spec, size_t there) {
  return std::min<size_t>(there, spec.max_nodes()) / spec.node_unit() * spec.node_unit();
}

void JobState::SetSpec(const v1::JobSpec& job_spec) {
  spec = job_spec;
  budget.given.reset();
  if (job_spec.has_max_restarts()) budget.given = job_spec.max_restarts();
  budget.window_ms = job_spec.restart_window_ms();
  sizes.reset();
  if (job_spec.elastic_config().empty()) return;
  auto granted = SizesOf(job_spec);
  sizes = granted.ok() ? *std::move(granted) : elasticity::JobSizes();  // SpecFault lets none in that is not
}

int64_t JobState::LeaseMsOf(size_t of_nodes) const {
  return LeaseMs(static_cast<int64_t>(of_nodes), spec ? spec->lease_ms() : 0);
}

Slot* SlotHeldBy(Round& round, const Node& node, uint64_t session) {
  for (const RoundPlace& place : {node.place, node.place_before}) {
    if (place.epoch != round.epoch || place.rank >= round.slots.size()) continue;
    Slot& slot = round.slots[place.rank];
    return slot.session == session ? &slot : nullptr;
  }
  return nullptr;
}

void JobState::CountNode(const Node& node) {
  census.Add(EntryOf(node));
  unchecked += node.unchecked && !node.leaving ? 1 : 0;
}

void JobState::UncountNode(const Node& node) {
  census.Remove(EntryOf(node));
  unchecked -= node.unchecked && !node.leaving ? 1 : 0;
}

uint64_t JobState::Visits() const {
  uint64_t visits = nodes.visits() + checkpoints.Visits();
  if (round) visits += round->slots.visits();
  if (last_round) visits += last_round->slots.visits();
  return visits;
}

std::vector<Decision> Step(JobState& state, const Event& event, Instant now) {
  Turn turn(state, now);
  if (state.moved_to) {
    SendOn(turn, event);
    return turn.Take();
  }
  if (state.candidacy) {
    if (Stands(turn, event)) TakeOver(turn);
    return turn.Take();
  }
  ForgiveStandstill(turn);
  if (!Hear(turn, event)) return turn.Take();
  std::visit([&turn](const auto& e) { On(turn, e); }, event);
  if (!state.candidacy) Settle(turn);
  CheckInvariants(state);
  return turn.Take();
}

std::vector<Decision> Resume(JobState& state, Instant now) {
  Turn turn(state, now);
  TakeUpJob(turn);
  return turn.Take();
}

Instant NextDeadline(const JobState& s) {
  if (s.moved_to) return kNever;
  if (s.candidacy) return std::min({s.candidacy->until, s.candidacy->probe_at});
  // While members of a live round are away Settle decides nothing else.
  if (s.phase != Phase::kFinished && s.round && s.round->away > 0)
    return std::min({s.lease_check, s.back_by, s.remember_at, s.look.until, ShardsDue(s)});
  return std::min({s.lease_check, s.join_deadline, s.next_notice, s.blame_deadline, s.back_by, s.remember_at,
                   RoundDue(s), s.tell_end_by, s.tell_wait_at, s.look.until, s.beware_until, s.doubted_until,
                   s.phase == Phase::kGathering ? s.probe_at : kNever, StallDue(s), HangDue(s), ChecksDue(s),
                   DeparturesDue(s), ShardsDue(s), NextCheckpointDeadline(s.checkpoints)});
}

}  // namespace phalanx::master
