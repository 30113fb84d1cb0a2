#include "master/core/arrivals.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "master/core/away.h"
#include "master/core/checks.h"
#include "master/core/departures.h"
#include "master/core/door.h"
#include "master/core/ending.h"
#include "master/core/members.h"
#include "master/core/messages.h"
#include "master/core/platform.h"
#include "master/core/succession.h"
#include "master/core/texts.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

constexpr int kRefusalsNoted = 8;
constexpr int64_t kRefusalsWithinMs = 60'000;

// The node waits as a spare and hears why, where that is news for it.
void TellSpare(Turn& turn, uint64_t session, Node& node) {
  const std::string& why = turn.job.left_over;
  if (node.leaving || node.group_rank >= 0 || std::exchange(node.told_spare, why) == why || why.empty()) return;
  const std::string name = NodeName(turn.job, node.hello);
  turn.SendNotice(session, "this node waits as a spare: " + why);
  turn.Note("node-spare", name, fmt::format("node {} waits as a spare: {}", name, why));
}

void NoteArrival(Turn& turn, uint64_t session) {
  JobState& job = turn.job;
  job.gather_at = kNever;  // the window begins anew
  if (job.phase == Phase::kGathering && !CanBegin(job)) return turn.SendNotice(session, WaitingText(job));
  if (job.phase != Phase::kRunning) return;
  if (job.round->slots.size() >= job.spec->max_nodes()) {
    return turn.SendNotice(session, fmt::format("all {} places of job '{}' are taken: this node waits as a spare",
                                                job.spec->max_nodes(), job.job_id));
  }
  Node& node = job.nodes.at(session);
  job.left_over = LeftOverText(job);
  if (!job.left_over.empty()) return TellSpare(turn, session, node);
  if (!node.left_out.empty()) return;  // it was told
  if (node.unchecked) return turn.SendNotice(session, "the job trains; this node is taken in when it has been checked");
  if (node.warming) {
    return turn.SendNotice(session, "the job trains; this node is taken in when its Python has imported");
  }
  PlanGrowth(turn);
  if (job.grow_at <= turn.now + kGrowQuietMs) return;
  turn.SendNotice(session, fmt::format("the job trains; this node is taken in when the round has run for {}, in {}: "
                                       "min_time of the elastic config",
                                       SecondsText(job.sizes->round_ms_min), SecondsText(job.grow_at - turn.now)));
}

// While no round is live: the rank that the node had in the last one, and would get again.
int32_t RankBefore(const Turn& turn, const std::string& node_id) {
  if (turn.job.phase != Phase::kGathering || !turn.job.last_round) return -1;
  const Slot* slot = turn.job.last_round->SlotOfNode(node_id);
  return slot == nullptr ? -1 : static_cast<int32_t>(turn.job.last_round->slots.IndexOf(*slot));
}

void Welcome(Turn& turn, const AgentAttached& e) {
  JobState& job = turn.job;
  const v1::Hello& hello = e.hello();
  Node node;
  node.hello = hello;
  node.hello.mutable_spec()->clear_elastic_config();  // the job's, which may be long
  node.hello.clear_live_round();
  node.hello.clear_last_round();
  node.peer_address = e.peer_address;
  node.warming = hello.warming();
  node.attached_at = node.last_heard = node.heard_at = turn.now;
  const size_t nodes = std::max<size_t>(job.nodes.size() + 1, job.spec->min_nodes());
  node.lease_ms = job.LeaseMsOf(nodes);
  node.beat_interval_ms = BeatIntervalMs(static_cast<int64_t>(nodes), node.lease_ms);
  node.store_port = e.message.next_store_port();
  node.arrival = ++job.arrivals;
  job.lease_check = std::min(job.lease_check, NextLook(node, turn.now));
  job.highest_epoch = std::max({job.highest_epoch, hello.seen_epoch(), hello.live_round().epoch()});
  node.previous_rank = RankBefore(turn, hello.node_id());
  job.session_of[hello.node_id()] = e.session;
  if (const auto lost = job.lost_places.extract(hello.node_id())) {
    node.previous_rank = lost.mapped().rank;
    node.came_back = true;
  }
  if (hello.node_rank_wanted() >= 0) job.session_wanting[hello.node_rank_wanted()] = e.session;
  Host& host = job.hosts[hello.hostname()];
  ++host.nodes;
  host.addresses.insert(hello.address());
  job.CountNode(node);
  turn.Send(e.session, WelcomeTo(job, node), "the node may take part");
  job.nodes[e.session] = std::move(node);
  AdmitToCheck(turn, e.session, hello);
  AdmitDeparting(turn, e.session, job.nodes.at(e.session));
  CountVoter(turn, e.session);
  TellSuccessorsTo(turn, e.session);

  const std::string name = NodeName(job, hello);
  turn.Note(
      "node-joined", name,
      fmt::format("node {} joined ({} rank{})", name, hello.local_world_size(),
                  hello.local_world_size() == 1 ? "" : "s"),
      -1,
      {{"address", hello.address()}, {"hostname", hello.hostname()}, {"workers", int64_t{hello.local_world_size()}}});
  if (job.phase == Phase::kFinished) return TellOfEnd(turn, e);
  if (job.spec_of_first_node) {  // a master with flags of its own counts for all, whatever its nodes were given
    const std::string differs = SpecDifferenceText(*job.spec, hello.spec());
    if (!differs.empty()) turn.SendNotice(e.session, differs);
  }
  if (hello.live_round().epoch() > 0 && GoesOn(turn, e.session, hello.live_round())) return;
  if (hello.last_round().epoch() > 0) RecallHeld(turn, hello.last_round());
  NoteArrival(turn, e.session);
}

// The first few of a minute.
void NoteRefusal(Turn& turn, const AgentAttached& e, const std::string& why) {
  const v1::Hello& hello = e.hello();
  JobState& job = turn.job;
  if (job.refusals_since == kNever || turn.now - job.refusals_since >= kRefusalsWithinMs) {
    job.refusals_since = turn.now;
    job.refusals = 0;
  }
  if (++job.refusals > kRefusalsNoted) return;
  const std::string node = hello.hostname().size() <= kMaxNameBytes ? hello.hostname() : "";
  const bool last = job.refusals == kRefusalsNoted;
  turn.Note("node-refused", node, last ? why + "; further ones within this minute are not told" : why, -1,
            {{"address", e.peer_address}});
}

}  // namespace

void On(Turn& turn, const AgentAttached& e) {
  JobState& job = turn.job;
  if (StepsAside(turn, e)) return;
  if (IsHerald(job, e.hello())) return HearHerald(turn, e.hello());
  if (const std::optional<v1::Refused> refused = Refusal(job, e, turn.now)) {
    const std::string& why = refused->sentence();
    NoteRefusal(turn, e, why);
    return turn.Send(e.session, MessageOf(*refused), why);
  }
  if (KnowsBetter(turn, e)) return;
  if (!job.spec) {
    v1::JobSpec spec = e.hello().spec();
    spec.clear_asked_min_nodes();
    spec.clear_asked_max_nodes();
    job.SetSpec(spec);
    job.spec_of_first_node = true;
    turn.remember = true;
    TakeWantedNodes(turn);
  } else if (job.spec->sized_by_platform() && !e.hello().spec().sized_by_platform()) {
    KeepAskedNodes(turn);
  }
  const auto old = job.session_of.find(e.hello().node_id());
  if (old != job.session_of.end()) {
    const uint64_t session = old->second;
    turn.Do(Drop{session}, "the node has opened a new stream");
    RemoveNode(turn, session, "it came again on a new stream", RunsOn(turn, session, e.hello()));
  }
  Welcome(turn, e);
}

void On(Turn& turn, uint64_t session, const v1::Ready& /*ready*/) {
  JobState& job = turn.job;
  Node& node = job.nodes.at(session);
  if (!node.warming) return;
  job.ChangeNode(node, [](Node& n) { n.warming = false; });
  if (node.leaving || node.group_rank >= 0) return;
  if (node.unchecked) job.check_due = true;
  turn.Note("node-ready", NodeName(job, node.hello),
            fmt::format("node {} is ready to start", NodeName(job, node.hello)));
  if (job.phase == Phase::kRunning && !node.unchecked) PlanGrowth(turn);
}

void TellSpares(Turn& turn) {
  JobState& job = turn.job;
  if (!job.sizes) return;
  job.left_over = LeftOverText(job);
  for (auto& [session, node] : job.nodes) TellSpare(turn, session, node);
}

void PlanGrowth(Turn& turn) {
  JobState& job = turn.job;
  if (job.round->slots.size() >= job.spec->max_nodes()) return;
  job.grow_at = std::max(turn.now + kGrowQuietMs, GrowthFrom(job));
  if (job.grow_limit == kNever) job.grow_limit = std::max(turn.now + kGrowLimitMs, GrowthFrom(job));
}

}  // namespace phalanx::master
