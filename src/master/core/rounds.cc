#include "master/core/rounds.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "master/core/arrivals.h"
#include "master/core/away.h"
#include "master/core/checks.h"
#include "master/core/ending.h"
#include "master/core/failures.h"
#include "master/core/members.h"
#include "master/core/platform.h"
#include "master/core/progress.h"
#include "master/core/rescale.h"
#include "master/core/succession.h"
#include "master/core/texts.h"
#include "master/rules/placement.h"

namespace phalanx::master {
namespace {

constexpr size_t kMostAddressesNoted = 1'024;

// A save cannot be why a rank is killed.
LifeEnd EndOf(const Round& round) {
  if (round.stepped) return LifeEnd::kStepped;
  if (round.failed.empty() || round.failures.empty()) return LifeEnd::kOther;
  const Failure& cause = round.failures[FirstCause(round.failures)];
  return WasKilled(cause.told.exited()) ? LifeEnd::kOther : LifeEnd::kFailed;
}

// `first`: what comes before the next one; empty: nodes are waited for.
void HoldRound(Turn& turn, const std::string& cause, size_t left, const std::string& first = "") {
  JobState& job = turn.job;
  const std::string wait = SecondsText(job.spec->join_timeout_ms());
  const bool enough = (job.sizes || !MayDecide(job)) && job.census.candidates() >= job.spec->min_nodes();
  const std::string reason = !first.empty() ? fmt::format("{}: {}", cause, first)
                             : enough       ? fmt::format("{}: {}; giving up in {}", cause, WaitingText(job), wait)
                                            : fmt::format("{}: {} of at least {} nodes left, waiting up to {} for more",
                                                          cause, left, job.spec->min_nodes(), wait);
  for (const Slot& slot : job.round->slots) {
    if (slot.session != 0) turn.SendHold(slot.session, job.round->epoch, reason);
  }
  turn.Note("round-held", "", reason, -1, {{"because", turn.Because()}});
  EndRound(turn);
  WaitForNobody(turn);
  turn.remember = true;
  job.phase = Phase::kGathering;
  job.grow_at = job.grow_limit = kNever;
  job.reason = reason;
  if (!MayDecide(job)) AskAbsent(turn);
}

// The list that an administrator compares with the switches of the network.
void NoteAddresses(Turn& turn, const std::vector<uint64_t>& members) {
  std::vector<std::string> addresses;
  addresses.reserve(members.size());
  for (const uint64_t session : members) addresses.push_back(turn.job.nodes.at(session).hello.address());
  turn.Note("round-addresses", "", "nodes by rank: " + ListText(addresses, "more", kMostAddressesNoted));
}

void SendRound(Turn& turn, const std::vector<uint64_t>& members, const std::vector<Span>& spans,
               const std::string& because) {
  JobState& job = turn.job;
  const Round& round = *job.round;
  const Node& first = job.nodes.at(members.front());
  v1::MasterMessage message;
  v1::StartRound& start = *message.mutable_start_round();
  start.set_epoch(round.epoch);
  start.set_group_world_size(static_cast<uint32_t>(members.size()));
  start.set_world_size(round.world_size);
  start.set_store_address(first.hello.address());
  start.set_store_port(first.store_port);
  start.set_restart_count(round.restart_count);
  start.set_max_restarts(AllowedRestarts(job.budget));
  start.set_reason(round.reason);
  start.set_restarts_used(job.budget.used);
  start.set_lives_without_step(job.budget.lives_without_step);
  start.set_term(job.term);
  start.set_with_host(!job.host.node_id().empty() && job.round->SlotOfNode(job.host.node_id()) != nullptr);
  if (job.highest_step) start.set_highest_step(*job.highest_step);
  std::vector<std::string> names;
  // The node of group rank 0 goes first: it opens the store that the others will look for.
  for (size_t rank = 0; rank < members.size(); ++rank) {
    v1::MasterMessage each = message;
    v1::StartRound& part = *each.mutable_start_round();
    part.set_group_rank(static_cast<uint32_t>(rank));
    part.set_rank_base(spans[rank].rank_base);
    part.set_role_rank_base(spans[rank].role_rank_base);
    part.set_role_world_size(spans[rank].role_world_size);
    for (const std::string& address : rank == 0 ? MemberAddresses(job, members) : std::vector<std::string>()) {
      part.add_member_addresses(address);
    }
    turn.Send(members[rank], std::move(each), round.reason);
    names.push_back(round.slots[rank].node);
  }
  if (!job.platform.switches.empty()) NoteAddresses(turn, members);
  turn.Note("round-started", "", round.reason, -1,
            {{"because", because},
             {"world_size", int64_t{round.world_size}},
             {"nodes", static_cast<int64_t>(members.size())},
             {"members", ListText(names, "more", 16)},
             {"store", fmt::format("{} port {}", start.store_address(), start.store_port())},
             {"restart_count", int64_t{round.restart_count}},
             {"restarts_left", int64_t{RestartsLeft(job.budget, turn.now)}}});
}

// Members of the live round that the next has no place for: nodes that leave, those beyond the last whole
// --node-unit, and those beyond a valid world size, which hear more of it in a moment.
void Release(Turn& turn, const std::vector<uint64_t>& members, const std::string& reason) {
  JobState& job = turn.job;
  std::vector<uint64_t> stay = members;
  std::sort(stay.begin(), stay.end());
  for (const Slot& slot : job.round->slots) {
    if (slot.session == 0 || std::binary_search(stay.begin(), stay.end(), slot.session)) continue;
    Node& node = job.nodes.at(slot.session);
    job.ChangeNode(node, [](Node& n) { n.previous_rank = -1; });  // its rank may be another's when it comes back
    turn.SendHold(slot.session, job.round->epoch,
                  node.leaving || !node.left_out.empty() ? reason
                  : node.unchecked ? fmt::format("{}; this node is checked before it trains again", reason)
                  : job.sizes
                      ? fmt::format("{}; this node waits as a spare", reason)
                      : fmt::format("{}; this node waits as a spare: --node-unit={}", reason, job.spec->node_unit()));
  }
}

// Nodes that are here and have no place in the live round, but had one in the round before, or lent what they hold.
std::vector<uint64_t> LendersBeside(const JobState& job) {
  std::vector<uint64_t> lenders;
  if (!job.last_round || job.spec->rescale_grace_ms() == 0) return lenders;
  for (const auto& [session, node] : job.nodes) {
    const bool had_place = node.place.epoch == job.last_round->epoch || job.checkpoints.lenders.contains(session);
    if (node.group_rank < 0 && had_place) lenders.push_back(session);
  }
  return lenders;
}

void BeginRoundOfCheckpoints(Turn& turn) {
  const Round& live = *turn.job.round;
  CheckpointRound round;
  round.epoch = live.epoch;
  round.world_size = live.world_size;
  for (const Slot& slot : live.slots) {
    round.members.push_back({slot.session, slot.rank_base, slot.local_world_size});
  }
  round.lenders = LendersBeside(turn.job);
  round.lenders_by = turn.now + turn.job.spec->rescale_grace_ms();
  turn.Apply(BeginCheckpoints(turn.job.checkpoints, std::move(round), turn.now));
}

void BeginRound(Turn& turn, const std::vector<uint64_t>& members, const std::string& reason) {
  JobState& job = turn.job;
  const std::string because = turn.Because();
  if (job.round) Release(turn, members, reason);
  EndRound(turn);
  std::vector<Span> spans;
  for (const uint64_t session : members) {
    const v1::Hello& hello = job.nodes.at(session).hello;
    spans.push_back({hello.role(), hello.local_world_size(), 0, 0, 0});
  }
  Round round;
  round.world_size = LayOut(spans);
  round.term = job.term;
  round.epoch = ++job.highest_epoch;
  round.restart_count = job.rounds_begun++;
  round.reason = reason;
  round.begun_at = round.saving_noted_at = round.quiet_since = turn.now;
  round.stall.begun_at = turn.now;
  for (size_t rank = 0; rank < members.size(); ++rank) {
    Node& node = job.nodes.at(members[rank]);
    job.ChangeNode(node, [rank](Node& n) {
      n.group_rank = n.previous_rank = static_cast<int32_t>(rank);
      n.warming = n.came_back = n.unchecked = n.doubted = false;  // from now on it counts like any other
    });
    node.place_before = std::exchange(node.place, RoundPlace{round.epoch, rank});
    node.told_spare.clear();
    Slot& slot = round.slots.emplace_back();
    round.Occupy(slot, members[rank]);
    slot.node_id = node.hello.node_id();
    slot.node = NodeName(job, node.hello);
    slot.hostname = node.hello.hostname();
    slot.address = node.hello.address();
    slot.presence_port = node.hello.presence_port();
    slot.rank_base = spans[rank].rank_base;
    slot.local_world_size = spans[rank].local_world_size;
  }
  std::erase_if(job.lost_places, [&round](const auto& lost) { return lost.second.epoch + 1 < round.epoch; });
  job.round = std::move(round);
  CountBegun(job);
  job.phase = Phase::kRunning;
  job.reason = reason;
  job.gather_at = job.gather_limit = job.grow_at = job.grow_limit = kNever;
  job.join_deadline = job.next_notice = job.paused_deadline = kNever;
  job.outvoted_until = job.outvoted_told = kNever;
  job.checked = false;
  if (job.unchecked > 0)
    job.check_due = true;  // a node that is to blame may wait now: it is checked while others train
  WaitForNobody(turn);
  turn.remember = true;
  BeginRoundOfCheckpoints(turn);
  SendRound(turn, members, spans, because);
  TellSpares(turn);
}

void TellAll(Turn& turn, const std::string& text) {
  for (const auto& [session, node] : turn.job.nodes) {
    if (!node.leaving) turn.SendNotice(session, text);
  }
  turn.Note("waiting", "", text);
}

void TellWaiting(Turn& turn) {
  JobState& job = turn.job;
  job.next_notice = turn.now + kWaitingNoticeMs;
  TellAll(turn, fmt::format("{}; giving up in {}", WaitingText(job), SecondsText(job.join_deadline - turn.now)));
}

// Some are here, and would be no members. The others may hear of another master, and train on with it.
void WaitOutvoted(Turn& turn) {
  JobState& job = turn.job;
  const int64_t patience_ms = job.spec->join_timeout_ms();
  if (job.outvoted_until == kNever) {
    job.outvoted_until = turn.now + patience_ms;
    job.outvoted_told = turn.now;
  }
  const std::string text = OutvotedText(job, NextMembers(job)) + LeftOutText(job);
  if (turn.now >= job.outvoted_until && !job.platform.attached) {
    return FinishJob(turn, 1,
                     fmt::format("gave up after {} (--rdzv-conf join_timeout): {}", SecondsText(patience_ms), text));
  }
  if (turn.now >= job.outvoted_until) job.outvoted_until = turn.now + patience_ms;  // it makes nodes as it has room
  if (turn.now >= job.outvoted_told) {
    job.outvoted_told = turn.now + kWaitingNoticeMs;
    TellAll(turn, fmt::format("{}; giving up in {}", text, SecondsText(job.outvoted_until - turn.now)));
  }
  if (turn.now < job.gather_at) return;  // asked a moment ago: where all places are taken, each event comes here
  job.gather_at = job.gather_limit = turn.now + kAskAbsentMs;
  AskAbsent(turn);
}

// Sessions of the live round, or of the last one.
std::set<uint64_t> MembersBefore(const JobState& job) {
  std::set<uint64_t> before;
  for (const Slot& slot : (job.round ? job.round : job.last_round)->slots) before.insert(slot.session);
  return before;
}

bool AnyNewcomer(const Turn& turn, const std::vector<uint64_t>& members) {
  const std::set<uint64_t> before = MembersBefore(turn.job);
  return std::any_of(members.begin(), members.end(), [&before](uint64_t session) { return !before.contains(session); });
}

// Why the next round waits for a check: a node that is doubted, or else newcomers, or who was left out for a while.
std::string CheckFirstText(const JobState& job, const std::vector<uint64_t>& members) {
  for (const uint64_t session : members) {
    const Node& node = job.nodes.at(session);
    if (!node.doubted) continue;
    return fmt::format("node {}: its hardware explains a failure: it is checked first", NodeName(job, node.hello));
  }
  return "nodes that have not been checked are checked first";
}

bool AllRechecked(const JobState& job, const std::vector<uint64_t>& members) {
  return std::all_of(members.begin(), members.end(),
                     [&job](uint64_t session) { return job.nodes.at(session).rechecked; });
}

void BeginGathered(Turn& turn) {
  const std::vector<uint64_t> members = NextMembers(turn.job);
  const std::string there = ThereText(members.size(), *turn.job.spec);
  if (!turn.job.last_round) return BeginRound(turn, members, there);
  if (!AnyNewcomer(turn, members)) {
    return BeginRound(turn, members, AllRechecked(turn.job, members) ? "checked once more: " + there : there);
  }
  BeginRound(turn, members, fmt::format("{} joined: {}", NewcomersText(turn, members), there));
}

}  // namespace

void SettleRound(Turn& turn) {
  JobState& job = turn.job;
  ForgiveCollateral(turn);
  const Round& round = *job.round;
  if (!round.failed.empty()) return ReformRound(turn, std::string(round.failed), false);
  if (!round.broken.empty()) return ReformRound(turn, ListText(round.broken, "others"), true);
  // A node that goes would be in the next round as well. One that leaves by itself does not wait.
  if (AwaitsPlatform(job, turn.now) && round.leaving.empty()) return;
  if (round.rescale_by != kNever) {
    job.grow_at = job.grow_limit = kNever;  // who comes now is taken in as well
    return SettleRescale(turn);
  }
  const std::vector<std::string> left_out = MembersLeftOut(job);
  if (!left_out.empty() && round.ranks_done == 0) {
    const std::string why = ListText(left_out, "others");
    return job.spec->rescale_grace_ms() == 0 ? ReformRound(turn, why, true) : AnnounceRescale(turn, why);
  }
  if (job.grow_at == kNever) return;
  const World next = NextWorld(job);
  const bool all_there = next.nodes >= job.spec->max_nodes() && turn.now >= GrowthFrom(job);
  const bool larger = IsLarger(job, next) && round.ranks_done == 0;
  if (larger && !all_there && turn.now < std::min(job.grow_at, job.grow_limit)) return;
  job.grow_at = job.grow_limit = kNever;
  if (!larger) {
    job.left_over = LeftOverText(job);  // who was to make it larger has gone, others still wait
    return;
  }
  const std::string why = NewcomersText(turn, NextMembers(job)) + " joined";
  if (job.spec->rescale_grace_ms() == 0) return ReformRound(turn, why, true);
  AnnounceRescale(turn, why);
}

void ReformRound(Turn& turn, const std::string& cause, bool change) {
  JobState& job = turn.job;
  const std::vector<uint64_t> members = NextMembers(job);
  if (members.size() < job.spec->min_nodes() || !MayDecide(job, members))
    return HoldRound(turn, cause, job.sizes ? job.census.candidates() : members.size());
  if (AnyUnchecked(job, members)) return HoldRound(turn, cause, members.size(), CheckFirstText(job, members));
  if (!change) return BeginRound(turn, members, cause);
  const size_t before = job.round->slots.size();
  if (members.size() != before) {
    return BeginRound(turn, members, fmt::format("{}: {} -> {} nodes", cause, before, members.size()));
  }
  if (!AnyNewcomer(turn, members)) return BeginRound(turn, members, cause);
  BeginRound(turn, members, fmt::format("{}: {} takes over", cause, NewcomersText(turn, members)));
}

std::string NewcomersText(const Turn& turn, const std::vector<uint64_t>& members) {
  const JobState& job = turn.job;
  const std::set<uint64_t> before = MembersBefore(job);
  std::vector<std::string> names;
  for (const uint64_t session : members) {
    if (!before.contains(session)) names.push_back(NodeName(job, job.nodes.at(session).hello));
  }
  return fmt::format("node{} {}", names.size() > 1 ? "s" : "", ListText(names, "more"));
}

void EndRound(Turn& turn) {
  JobState& job = turn.job;
  if (!job.round) return;
  if (job.round->failed.empty()) job.budget.last_error.clear();  // two lives in a row
  // The next round does not read the memory of a node that is left out.
  const bool any_goes = AnyGoes(job);
  const CheckpointEnd end = any_goes                                                 ? CheckpointEnd::kForGood
                            : job.round->failed.empty() && job.round->broken.empty() ? CheckpointEnd::kPlanned
                                                                                     : CheckpointEnd::kBreakpoint;
  turn.Apply(EndCheckpoints(job.checkpoints, end, turn.now));
  turn.Apply(OnLifeEnds(job.checkpoints, EndOf(*job.round), job.spec->older_save_after_lives(), turn.now));
  StopRestoring(job.checkpoints);
  for (const Slot& slot : job.round->slots) {
    if (slot.session == 0) continue;
    Node& node = job.nodes.at(slot.session);
    node.group_rank = -1;
    node.rechecked = false;
  }
  NoteSaving(turn, *job.round);
  RememberStep(turn, *job.round);
  job.round->ended_at = turn.now;
  job.last_round = std::move(job.round);
  job.round.reset();
}

void SettleGathering(Turn& turn) {
  JobState& job = turn.job;
  if (!job.spec || (job.arrivals == 0)) return;
  const v1::JobSpec& spec = *job.spec;
  const bool decides = MayDecide(job);
  if (CanBegin(job) && decides) {
    job.probe_at = kNever;
    // Whoever fails its check again and again has not come: the deadline counts on where the check leaves too few.
    if (job.join_deadline != kNever) job.paused_deadline = job.join_deadline;
    if (job.unchecked == 0) job.paused_deadline = kNever;
    job.join_deadline = job.next_notice = kNever;
    if (job.health.run) return;  // its end looks on
    if (AwaitsPlatform(job, turn.now)) return;
    if (job.gather_at == kNever) job.gather_at = turn.now + spec.last_call_ms();
    const int64_t longest_ms =
        spec.last_call_fixed() ? spec.last_call_ms() : std::max(kGatherLimitMs, spec.last_call_ms());
    if (job.gather_limit == kNever) job.gather_limit = turn.now + longest_ms;
    const bool enough =
        job.census.candidates() >= spec.max_nodes() || turn.now >= std::min(job.gather_at, job.gather_limit);
    if (!enough) return;
    if (WaitsForCheck(turn)) {
      job.gather_at = job.gather_limit = kNever;
      return;
    }
    if (MayDecide(job, NextMembers(job))) return BeginGathered(turn);
    // With those that are here and were not checked with the others it may be enough.
    if (job.unchecked > 0 && std::exchange(job.checked, false)) return SettleGathering(turn);
    return WaitOutvoted(turn);
  }
  job.outvoted_until = job.outvoted_told = kNever;
  job.gather_at = job.gather_limit = kNever;
  if (decides) job.probe_at = kNever;
  if (!decides && (job.probe_at == kNever || turn.now >= job.probe_at)) AskAbsent(turn);
  if (job.join_deadline == kNever) {
    const Instant paused = std::exchange(job.paused_deadline, kNever);
    job.join_deadline = paused != kNever ? paused : turn.now + spec.join_timeout_ms();
    job.next_notice = turn.now + kWaitingNoticeMs;
  }
  // A platform makes nodes as it has room, and its users are used to wait.
  if (turn.now >= job.join_deadline && job.platform.attached) job.join_deadline = turn.now + spec.join_timeout_ms();
  if (turn.now >= job.join_deadline) {
    const std::string waited = SecondsText(spec.join_timeout_ms());
    if (job.census.candidates() >= spec.min_nodes()) {
      return FinishJob(turn, 1,
                       fmt::format("gave up after {} (--rdzv-conf join_timeout): {}", waited, WaitingText(job)));
    }
    return FinishJob(turn, 1,
                     fmt::format("{} of at least {} nodes came within {} (--rdzv-conf join_timeout){}",
                                 job.census.candidates(), spec.min_nodes(), waited, LeftOutText(job)));
  }
  if (turn.now >= job.next_notice) TellWaiting(turn);
}

}  // namespace phalanx::master
