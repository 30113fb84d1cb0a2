#include "master/core/core.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "base/signal_name.h"
#include "master/core/door.h"
#include "master/core/members.h"
#include "master/core/texts.h"
#include "master/rules/lease.h"
#include "master/rules/placement.h"

namespace phalanx::master {
namespace {

// What is told of failures beside the first cause.
constexpr size_t kOthersTextBytes = 1'024;

// The decisions of one step; one object a call, so that helpers need no out-parameters.
class Stepper {
 public:
  Stepper(JobState& state, Instant now) : s_(state), now_(now) {}

  std::vector<Decision> Take() {
    if (remember_) decisions_.insert(decisions_.begin(), {Remember{}, "a master that is started anew must know"});
    return std::move(decisions_);
  }

  void On(const AgentAttached& e) {
    if (const std::optional<std::string> sentence = Refusal(s_, e.info, e.next_store_port)) {
      Note("node-refused", e.info.hostname.size() <= kMaxNameBytes ? e.info.hostname : "", *sentence);
      return Do(SendRefused{e.session}, *sentence);
    }
    if (!s_.spec) {
      s_.SetSpec(e.info.spec);
      s_.spec_of_first_node = true;
      remember_ = true;
    }
    const auto old = s_.session_of.find(e.info.node_id);
    if (old != s_.session_of.end()) {
      const uint64_t session = old->second;
      Do(Drop{session}, "the node has opened a new stream");
      Remove(session, "it came again on a new stream", RunsOn(session, e.info));
    }
    Welcome(e);
  }

  void On(const AgentDetached& e) { Remove(e.session, e.cause, s_.back_by != kNever && now_ < s_.back_by); }

  void On(const Heard&) {}

  void On(const Beat& e) {
    Node& node = s_.nodes.at(e.session);
    node.min_step = e.min_step;
    node.max_step = e.max_step;
    OnProgress(e.session, e.epoch, e.progress);
    if (!IsLive(e.epoch) || node.group_rank < 0 || e.max_step <= 0) return;
    MarkStepped();
    SeeStep(e.max_step, e.progress.step.has_value());
  }

  void On(const FirstStep& e) {
    Node& node = s_.nodes.at(e.session);
    OnProgress(e.session, e.epoch, e.progress);
    if (!IsLive(e.epoch) || node.group_rank < 0) return;
    Slot& slot = s_.round->slots[static_cast<size_t>(node.group_rank)];
    if (std::exchange(slot.stepped, true)) return;
    MarkStepped();
    SeeStep(e.progress.step.value_or(e.step), e.progress.step.has_value());
    const int64_t took_ms = now_ - s_.round->begun_at;
    Note("first-step", slot.node, fmt::format("all ranks of node {} have made their first step", slot.node), -1,
         {{"step", e.step}, {"since_round_ms", took_ms}});
    if (++s_.round->slots_stepped < s_.round->slots.size()) return;
    Note("round-stepping", "",
         fmt::format("world {} trains: first step on all nodes {} ms after the round began", s_.round->world_size,
                     took_ms),
         -1, {{"step", e.step}, {"since_round_ms", took_ms}, {"saving_ms", s_.round->saving_ms}});
  }

  void On(const WorkerExited& e) {
    Node& node = s_.nodes.at(e.session);
    OnProgress(e.session, e.epoch, e.progress);
    if (IsCurrent(e.epoch) && node.group_rank >= 0) {
      Slot& slot = s_.round->slots[static_cast<size_t>(node.group_rank)];
      return Yields(e) ? OnYield(slot, e.exit) : OnExit(*s_.round, slot, e.exit);
    }
    if (s_.last_round && s_.last_round->epoch == e.epoch) {
      for (Slot& slot : s_.last_round->slots) {
        if (slot.session == e.session) return OnExit(*s_.last_round, slot, e.exit);
      }
    }
    Note("stale-report", NodeName(s_, node.info),
         fmt::format("a worker's end in epoch {} changes nothing: that round is over", e.epoch));
  }

  void On(const Leaving& e) {
    Node& node = s_.nodes.at(e.session);
    if (std::exchange(node.leaving, true)) return;
    --s_.candidates;
    FreeWantedPlace(node.info, e.session);
    const std::string why = e.signal != 0 ? SignalName(e.signal) : e.why.empty() ? "on purpose" : e.why;
    const std::string what = fmt::format("node {} left ({})", NodeName(s_, node.info), why);
    const bool live = s_.phase == Phase::kRunning && node.group_rank >= 0;
    if (live) Apply(EndCheckpoints(s_.checkpoints, true, now_));  // while its memory is here
    if (e.waits && live && s_.candidates > 0 && s_.spec->rescale_grace_ms > 0) {
      Note("node-leaving", NodeName(s_, node.info),
           fmt::format("node {} is about to leave ({})", NodeName(s_, node.info), why));
      s_.round->leaving.push_back(what);
      return AnnounceRescale(what);
    }
    if (GiveUpPlace(node, e.session, "node-left", what)) lost_ = true;
    if (s_.candidates > 0 || s_.phase == Phase::kFinished) return;
    if (s_.phase == Phase::kBlaming) return Conclude();
    Finish(e.signal != 0 ? 128 + e.signal : 1, fmt::format("job stopped: all nodes left ({})", why));
  }

  void On(const SafePoint& e) {
    const Node& node = s_.nodes.at(e.session);
    if (!IsLive(e.epoch) || node.group_rank < 0 || s_.phase != Phase::kRunning) return;
    Slot& slot = s_.round->slots[static_cast<size_t>(node.group_rank)];
    slot.safe = e.reached;
    slot.answered = true;
    if (e.asked > 0) s_.round->any_asked = true;
    if (s_.round->rescale_by == kNever) AnnounceRescale("a change that an earlier master had announced");
    if (e.asked > 0 && e.reached) {
      Note("safe-point", slot.node, fmt::format("node {} is at a safe point", slot.node), -1,
           {{"ranks", int64_t{e.asked}}});
    }
  }

  void On(const Ready& e) {
    Node& node = s_.nodes.at(e.session);
    if (!std::exchange(node.info.warming, false) || node.leaving || node.group_rank >= 0) return;
    Note("node-ready", NodeName(s_, node.info), fmt::format("node {} is ready to start", NodeName(s_, node.info)));
    if (s_.phase == Phase::kRunning) PlanGrowth();
  }

  void On(const CheckpointTold& e) { Apply(OnCheckpointReport(s_.checkpoints, e.session, e.report, now_)); }

  void On(const Tick&) {
    Apply(OnCheckpointTick(s_.checkpoints, now_));
    if (s_.lease_check != kNever && now_ >= s_.lease_check) ExpireLeases();
  }

  // Before any event: a master that looks at its leases much too late was itself stopped.
  void ForgiveStandstill() {
    if (s_.lease_check == kNever || now_ - s_.lease_check < kMasterStallMs) return;
    const int64_t late_ms = now_ - s_.lease_check;
    for (auto& [session, node] : s_.nodes) node.last_heard = now_;
    s_.lease_check = now_ + LeaseMs(static_cast<int64_t>(s_.nodes.size()));
    if (s_.back_by == kNever) s_.back_by = s_.lease_check;  // agents may have given up streams that nobody served
    Note("master-stalled", "", fmt::format("this master itself stood still for {} ms: all leases begin anew", late_ms));
  }

  // Takes up what an earlier master has left.
  void OnResume() {
    const bool finished = s_.phase == Phase::kFinished;
    size_t members = 1;
    if (s_.round) {
      members = s_.round->slots.size();
      for (Slot& slot : s_.round->slots) {
        slot.session = 0;
        slot.away = finished || !slot.AllDone();
        if (slot.away) ++s_.round->away;
      }
    }
    s_.resumed = true;
    s_.back_by = now_ + LeaseMs(static_cast<int64_t>(members));
    if (s_.blame_deadline != kNever) s_.blame_deadline = s_.back_by;
    Note("master-resumed", "",
         s_.round ? fmt::format("the job is taken up from the journal: {} node{} of epoch {} may come back within {}",
                                s_.round->away, s_.round->away == 1 ? "" : "s", s_.round->epoch,
                                SecondsText(s_.back_by - now_))
                  : "the job is taken up from the journal: no round was live");
  }

  // What holds after every event, and what time has brought about.
  void Settle() {
    SettleAway();
    if (s_.round && s_.round->away > 0) return;
    if (s_.phase == Phase::kFinished) SettleEnd();
    if (s_.phase == Phase::kBlaming) SettleBlame();
    if (s_.phase == Phase::kRunning) SettleRound();
    if (s_.phase == Phase::kGathering) SettleGathering();
  }

 private:
  // --- small things ---

  void Do(Action action, const std::string& reason) { decisions_.push_back({std::move(action), reason}); }

  void Note(const std::string& kind, const std::string& node, const std::string& reason, int64_t rank = -1,
            std::vector<std::pair<std::string, Record::Value>> detail = {}) {
    const uint64_t epoch = s_.round ? s_.round->epoch : s_.last_round ? s_.last_round->epoch : 0;
    Do(Record{kind, epoch, node, rank, std::move(detail)}, reason);
  }

  // About a worker of `round`, which may be over.
  void NoteRank(const Round& round, const std::string& kind, const std::string& node, const std::string& reason,
                int64_t rank, std::vector<std::pair<std::string, Record::Value>> detail = {}) {
    Do(Record{kind, round.epoch, node, rank, std::move(detail)}, reason);
  }

  void Apply(CheckpointOrders orders) {
    for (auto& [session, order] : orders.orders) {
      const std::string reason = order.reason();
      Do(SendCheckpoint{session, std::move(order)}, reason);
    }
    for (CheckpointOrders::Note& note : orders.notes) Note(note.kind, "", note.text, -1, std::move(note.detail));
  }

  // What the event that is being served makes rounds begin and end for.
  std::string Because() const {
    if (s_.round && !s_.round->failed.empty()) return "failure";
    return s_.round || s_.last_round ? "nodes" : "start";
  }

  // The last round of a finished job still takes reports.
  bool IsCurrent(uint64_t epoch) const { return s_.round && s_.round->epoch == epoch; }
  bool IsLive(uint64_t epoch) const { return IsCurrent(epoch) && s_.phase != Phase::kFinished; }

  void MarkStepped() {
    if (std::exchange(s_.round->stepped, true)) return;
    NoteStep(s_.budget, now_);
    remember_ = true;
  }

  // --- what the ledger is made from ---

  // Also the last words of a round that is over: what was lost is measured by them.
  void OnProgress(uint64_t session, uint64_t epoch, const Progress& told) {
    const bool live = IsCurrent(epoch) && s_.nodes.at(session).group_rank >= 0;
    if (!live && !WasMember(session, epoch)) return;
    Round& round = live ? *s_.round : *s_.last_round;
    round.saving_ms = std::max(round.saving_ms, told.saving_ms);
    if (!IsLive(epoch) || now_ - round.saving_noted_at >= kSavingNoticeMs) NoteSaving(round);
    if (!told.step) return;
    round.step = std::max(round.step.value_or(0), *told.step);
    if (!live) RememberStep(round);
    if (live && !round.from_step && told.from_step) NoteFromStep(round, *told.from_step);
    if (round.redo_until && *told.step >= *round.redo_until && !std::exchange(round.caught_up, true)) {
      NoteRank(round, "caught-up", "",
               fmt::format("training has come as far as it was before: step {}", *round.redo_until), -1,
               {{"ms_ago", told.caught_up_ms_ago.value_or(0)}, {"saving_ms", round.saving_ms}});
    }
  }

  // Of the round before the live one, also where the next had no place for it.
  bool WasMember(uint64_t session, uint64_t epoch) const {
    if (!s_.last_round || s_.last_round->epoch != epoch) return false;
    const std::vector<Slot>& slots = s_.last_round->slots;
    return s_.nodes.at(session).previous_rank >= 0 ||
           std::any_of(slots.begin(), slots.end(), [&](const Slot& slot) { return slot.session == session; });
  }

  void RememberStep(const Round& round) {
    if (!round.step) return;
    s_.last_step = round.step;
    s_.highest_step = std::max(s_.highest_step.value_or(0), *round.step);
  }

  void NoteFromStep(Round& round, int64_t from_step) {
    round.from_step = from_step;
    std::vector<std::pair<std::string, Record::Value>> detail = {{"from_step", from_step}};
    std::string again;
    if (s_.highest_step) {
      detail.insert(detail.end(), {{"last_step", *s_.last_step}, {"highest_step", *s_.highest_step}});
      if (from_step < *s_.highest_step) {
        round.redo_until = s_.highest_step;
        again = fmt::format("; it had come to step {}, so {} are done again", *s_.highest_step,
                            *s_.highest_step - from_step);
      }
    }
    NoteRank(round, "steps-told", "", fmt::format("training begins behind step {}{}", from_step, again), -1,
             std::move(detail));
  }

  void NoteSaving(Round& round) {
    if (round.saving_ms <= round.saving_noted_ms) return;
    round.saving_noted_ms = round.saving_ms;
    round.saving_noted_at = now_;
    NoteRank(
        round, "saving", "",
        fmt::format("in epoch {} training has waited {} for checkpoints", round.epoch, SecondsText(round.saving_ms)),
        -1, {{"saving_ms", round.saving_ms}});
  }

  void FreeWantedPlace(const NodeInfo& info, uint64_t session) {
    const auto wanting = s_.session_wanting.find(info.wanted_rank);
    if (wanting != s_.session_wanting.end() && wanting->second == session) s_.session_wanting.erase(wanting);
  }

  // --- nodes come and go ---

  void Welcome(const AgentAttached& e) {
    Node node;
    node.info = e.info;
    node.attached_at = node.last_heard = now_;
    node.lease_ms = LeaseMs(static_cast<int64_t>(std::max<size_t>(s_.nodes.size() + 1, s_.spec->min_nodes)));
    node.store_port = e.next_store_port;
    node.arrival = ++s_.arrivals;
    s_.lease_check = std::min(s_.lease_check, now_ + node.lease_ms);
    s_.highest_epoch = std::max({s_.highest_epoch, e.info.seen_epoch, e.info.live.epoch});
    node.previous_rank = RankBefore(e.info.node_id);
    s_.session_of[e.info.node_id] = e.session;
    if (const auto lost = s_.lost_places.extract(e.info.node_id)) {
      node.previous_rank = lost.mapped().rank;
      node.came_back = true;
    }
    if (e.info.wanted_rank >= 0) s_.session_wanting[e.info.wanted_rank] = e.session;
    s_.addresses_of_host[e.info.hostname].insert(e.info.address);
    ++s_.candidates;
    Do(SendWelcome{e.session, node.lease_ms, BeatIntervalMs(node.lease_ms)}, "the node may take part");
    s_.nodes[e.session] = std::move(node);

    const std::string name = NodeName(s_, e.info);
    Note("node-joined", name,
         fmt::format("node {} joined ({} rank{})", name, e.info.local_world_size,
                     e.info.local_world_size == 1 ? "" : "s"),
         -1,
         {{"address", e.info.address}, {"hostname", e.info.hostname}, {"workers", int64_t{e.info.local_world_size}}});
    if (s_.phase == Phase::kFinished) return TellOfEnd(e);
    if (s_.spec_of_first_node) {  // a master with flags of its own counts for all, whatever its nodes were given
      const std::string differs = SpecDifferenceText(*s_.spec, e.info.spec);
      if (!differs.empty()) Do(SendNotice{e.session}, differs);
    }
    if (e.info.live.epoch > 0 && GoesOn(e.session)) return;
    if (e.info.last.epoch > 0) RecallHeld(e.info.last);
    NoteArrival(e.session);
  }

  void TellOfEnd(const AgentAttached& e) {
    if (s_.tell_end_by != kNever) return;
    Do(SendFinish{e.session, s_.outcome}, s_.outcome->reason);
    if (!s_.round || s_.round->away == 0) return;
    for (Slot& slot : s_.round->slots) {
      if (slot.away && slot.node_id == e.info.node_id) IsHere(slot, e.session);
    }
  }

  void NoteArrival(uint64_t session) {
    s_.gather_at = kNever;  // the window begins anew
    if (s_.phase == Phase::kGathering && !CanBegin(s_)) return Do(SendNotice{session}, WaitingText(s_));
    if (s_.phase != Phase::kRunning) return;
    if (s_.round->slots.size() >= s_.spec->max_nodes) {
      return Do(SendNotice{session}, fmt::format("all {} places of job '{}' are taken: this node waits as a spare",
                                                 s_.spec->max_nodes, s_.job_id));
    }
    TellSpares();
    if (!s_.nodes.at(session).told_spare.empty()) return;
    if (s_.nodes.at(session).info.warming) {
      return Do(SendNotice{session}, "the job trains; this node is taken in when its Python has imported");
    }
    PlanGrowth();
    if (s_.grow_at <= now_ + kGrowQuietMs) return;
    Do(SendNotice{session}, fmt::format("the job trains; this node is taken in when the round has run for {}, in {}: "
                                        "min_time of the elastic config",
                                        SecondsText(s_.sizes->round_ms_min), SecondsText(s_.grow_at - now_)));
  }

  // Nodes that wait although the job has places left hear why, once.
  void TellSpares() {
    if (!s_.sizes) return;
    const std::string why = LeftOverText(s_);
    for (auto& [session, node] : s_.nodes) {
      if (node.leaving || node.group_rank >= 0 || std::exchange(node.told_spare, why) == why || why.empty()) continue;
      const std::string name = NodeName(s_, node.info);
      Do(SendNotice{session}, "this node waits as a spare: " + why);
      Note("node-spare", name, fmt::format("node {} waits as a spare: {}", name, why));
    }
  }

  void PlanGrowth() {
    if (s_.round->slots.size() >= s_.spec->max_nodes) return;
    s_.grow_at = std::max(now_ + kGrowQuietMs, GrowthFrom(s_));
    if (s_.grow_limit == kNever) s_.grow_limit = std::max(now_ + kGrowLimitMs, GrowthFrom(s_));
  }

  // --- members that are away ---

  bool HasLiveRound() const { return s_.round && s_.phase != Phase::kFinished; }

  // Whether the node of `session` is a member, and `info` says so, too.
  bool RunsOn(uint64_t session, const NodeInfo& info) const {
    if (!HasLiveRound() || info.live.epoch != s_.round->epoch) return false;
    const Node& node = s_.nodes.at(session);
    return node.group_rank == static_cast<int64_t>(info.live.group_rank) &&
           node.info.local_world_size == info.local_world_size;
  }

  // While no round is live: the rank that the node had in the last one, and would get again.
  int32_t RankBefore(const std::string& node_id) const {
    if (s_.phase != Phase::kGathering || !s_.last_round) return -1;
    const std::vector<Slot>& slots = s_.last_round->slots;
    const auto slot = std::find_if(slots.begin(), slots.end(), [&](const Slot& l) { return l.node_id == node_id; });
    return slot == slots.end() ? -1 : static_cast<int32_t>(slot - slots.begin());
  }

  // A node that runs a round has come: true where that round is live and goes on there.
  bool GoesOn(uint64_t session) {
    Node& node = s_.nodes.at(session);
    const LiveRound& live = node.info.live;
    if (IsNews(live)) Recall(live);
    if (Slot* slot = SlotOf(node.info)) {
      node.group_rank = node.previous_rank = static_cast<int32_t>(live.group_rank);
      node.info.warming = false;
      slot->node_id = node.info.node_id;
      slot->node = NodeName(s_, node.info);
      slot->hostname = node.info.hostname;
      slot->address = node.info.address;
      slot->rank_base = live.rank_base;
      slot->local_world_size = node.info.local_world_size;
      IsHere(*slot, session);
      TakeUpCheckpoints(live.group_rank);
      Note("node-back", slot->node, fmt::format("node {} is back: its ranks have gone on", slot->node));
      return true;
    }
    MakeStale(node);
    Do(SendHold{session, live.epoch}, "the node lost its place while it was away; its old workers end");
    return false;
  }

  // The member tells again what its memory held when the round began.
  void TakeUpCheckpoints(uint32_t group_rank) {
    const Round& round = *s_.round;
    if (s_.checkpoints.epoch != round.epoch) {
      const std::vector<CheckpointMember> nobody(round.slots.size());
      Apply(BeginCheckpoints(s_.checkpoints, round.epoch, round.world_size, nobody, now_));
    }
    const Slot& slot = round.slots[group_rank];
    OnCheckpointSessionBack(s_.checkpoints, group_rank, {slot.session, slot.rank_base, slot.local_world_size});
  }

  // Whether the round was begun by an earlier master and this one does not know of it, or only of one before.
  bool IsNews(const LiveRound& live) const {
    const bool knows_nothing = s_.phase == Phase::kGathering && !s_.last_round;
    if (!knows_nothing && !s_.resumed) return false;
    const uint64_t known = s_.round ? s_.round->epoch : s_.last_round ? s_.last_round->epoch : 0;
    return live.epoch > known && live.group_world_size <= s_.spec->max_nodes && live.group_rank < live.group_world_size;
  }

  // The round of which a member tells: the other members may come as well.
  void Recall(const LiveRound& live) {
    if (s_.round) {
      for (const Slot& slot : s_.round->slots) {
        if (slot.session == 0) continue;
        MakeStale(s_.nodes.at(slot.session));
        Do(SendHold{slot.session, s_.round->epoch}, "a later round had begun when the master ended");
      }
      EndRound();
    }
    Round round;
    round.epoch = live.epoch;
    round.restart_count = live.restart_count;
    round.world_size = live.world_size;
    round.reason = live.reason;
    round.begun_at = round.saving_noted_at = now_;
    round.slots.resize(live.group_world_size);
    for (Slot& slot : round.slots) slot.away = true;
    round.away = round.slots.size();
    s_.round = std::move(round);
    s_.phase = Phase::kRunning;
    s_.reason = live.reason;
    RecallPast(live);
    s_.gather_at = s_.gather_limit = s_.join_deadline = s_.next_notice = s_.blame_deadline = kNever;
    s_.resumed = true;
    s_.back_by = now_ + LeaseMs(static_cast<int64_t>(live.group_world_size));
    PlanGrowth();  // nodes that came before this one may be more than the round has
    remember_ = true;
    Note("master-resumed", "",
         fmt::format("the job is taken up from what its nodes tell: {} node{} of epoch {} may come back within {}",
                     live.group_world_size, live.group_world_size == 1 ? "" : "s", live.epoch,
                     SecondsText(s_.back_by - now_)));
  }

  // The job's history up to a round that an earlier master began.
  void RecallPast(const LiveRound& round) {
    s_.rounds_begun = round.restart_count + 1;
    s_.budget.used = std::min(round.restarts_used, AllowedRestarts(s_.budget));
    s_.budget.lives_without_step = round.lives_without_step;
    if (round.highest_step) s_.highest_step = std::max(s_.highest_step.value_or(0), *round.highest_step);
    if (round.highest_step && !s_.last_step) s_.last_step = s_.highest_step;
  }

  // A node that waits has come to a master that knows less: the job's lives are counted on, not anew.
  void RecallHeld(const LiveRound& last) {
    if (s_.phase != Phase::kGathering || s_.last_round || last.restart_count < s_.rounds_begun) return;
    RecallPast(last);
    remember_ = true;
  }

  // The place that waits for this node; null: none does.
  Slot* SlotOf(const NodeInfo& info) {
    const LiveRound& live = info.live;
    if (!HasLiveRound() || live.epoch != s_.round->epoch || live.group_rank >= s_.round->slots.size()) return nullptr;
    Slot& slot = s_.round->slots[live.group_rank];
    // One whose ranks had all ended well is waited for by nobody, and has its place all the same.
    if (!slot.away && (slot.session != 0 || !slot.AllDone())) return nullptr;
    const bool known = slot.local_world_size > 0;
    if (known && (slot.node_id != info.node_id || slot.local_world_size != info.local_world_size)) return nullptr;
    return &slot;
  }

  void IsHere(Slot& slot, uint64_t session) {
    slot.session = session;
    if (std::exchange(slot.away, false)) --s_.round->away;
  }

  void MakeStale(Node& node) {
    node.group_rank = -1;
    if (!std::exchange(node.stale_round, true)) ++s_.stale_rounds;
  }

  // Members that are away come back, or are given up: when their time is over, or when nodes enough to be them are here
  // with another round.
  void SettleAway() {
    if (s_.back_by == kNever) return;
    const size_t away = s_.round ? s_.round->away : 0;
    if (now_ < s_.back_by) {
      const bool over = s_.phase == Phase::kFinished;
      if (away > s_.stale_rounds || (!s_.resumed && !over) || s_.phase == Phase::kGathering) return;
    }
    if (away > 0) {
      GiveUpAway();
    } else if (s_.resumed && HasLiveRound()) {
      Note("job-resumed", "", fmt::format("all nodes of epoch {} are back: no rank was restarted", s_.round->epoch));
    }
    WaitForNobody();
  }

  void WaitForNobody() {
    s_.back_by = kNever;
    s_.resumed = false;
    if (std::exchange(s_.stale_rounds, 0) == 0) return;
    for (auto& [session, node] : s_.nodes) node.stale_round = false;
  }

  void GiveUpAway() {
    Round& round = *s_.round;
    for (Slot& slot : round.slots) {
      if (!std::exchange(slot.away, false) || s_.phase == Phase::kFinished) continue;
      const std::string name =
          slot.node.empty() ? fmt::format("of group rank {}", &slot - round.slots.data()) : slot.node;
      const std::string what = fmt::format("node {} was lost ({})", name,
                                           s_.resumed ? "it did not come back to the master that was started anew"
                                                      : "its stream broke while the master stood still");
      Note("node-lost", slot.node, what, -1, {{"broke_round", int64_t{1}}});
      round.broken.push_back(what);
      lost_ = true;
    }
    round.away = 0;
    if (lost_ && !round.failed.empty() && round.budget_before && AllCollateral(round.failures)) {
      GiveBackCharge(round);
      round.failed.clear();
    }
  }

  // The session is over, by its stream, its lease or a newer one. `may_return`: where it is a member it is away, not
  // lost.
  void Remove(uint64_t session, const std::string& cause, bool may_return,
              std::optional<int64_t> silent_ms = std::nullopt) {
    auto held = s_.nodes.extract(session);
    if (held.empty()) return;
    Apply(OnCheckpointSessionLost(s_.checkpoints, session, now_));
    Node& node = held.mapped();
    if (node.stale_round) --s_.stale_rounds;
    const auto known = s_.session_of.find(node.info.node_id);
    if (known != s_.session_of.end() && known->second == session) s_.session_of.erase(known);
    const std::string name = NodeName(s_, node.info);
    if (node.leaving || s_.phase == Phase::kFinished) {
      if (!node.leaving) --s_.candidates;
      FreeWantedPlace(node.info, session);
      if (node.group_rank >= 0 && s_.phase != Phase::kFinished) {  // it went before the others were ready for it
        if (GiveUpPlace(node, session, "node-left", fmt::format("node {} left", name))) lost_ = true;
      }
      return Note("node-gone", name, fmt::format("the agent of node {} has ended its stream", name));
    }
    --s_.candidates;
    FreeWantedPlace(node.info, session);
    if (may_return && node.group_rank >= 0) {
      Slot& slot = s_.round->slots[static_cast<size_t>(node.group_rank)];
      slot.session = 0;
      slot.away = !slot.AllDone();
      if (slot.away) ++s_.round->away;
      return Note("node-away", name, fmt::format("node {} is away ({})", name, cause));
    }
    if (node.previous_rank >= 0) s_.lost_places[node.info.node_id] = {node.previous_rank, s_.highest_epoch};
    const std::string what = fmt::format("node {} was lost ({})", name, cause);
    if (GiveUpPlace(node, session, "node-lost", what, silent_ms)) lost_ = true;
  }

  // Takes the node out of the live round; true where that breaks the round.
  bool GiveUpPlace(Node& node, uint64_t session, const std::string& kind, const std::string& what,
                   std::optional<int64_t> silent_ms = std::nullopt) {
    const int32_t group_rank = std::exchange(node.group_rank, -1);
    ReturnCharge(session);
    std::vector<std::pair<std::string, Record::Value>> detail;
    if (silent_ms) detail.push_back({"silent_ms", *silent_ms});
    if (group_rank < 0 || s_.phase == Phase::kFinished) {
      Note(kind, NodeName(s_, node.info), what, -1, std::move(detail));
      return false;
    }
    Slot& slot = s_.round->slots[static_cast<size_t>(group_rank)];
    slot.session = 0;
    slot.left = node.leaving;
    const bool done = slot.AllDone();
    if (!done) detail.push_back({"broke_round", int64_t{1}});
    Note(kind, slot.node, done ? what + "; all its workers had ended well" : what, -1, std::move(detail));
    if (done) {
      remember_ = true;  // nobody else will ever say it
    } else {
      s_.round->broken.push_back(what);
    }
    return !done;
  }

  // A round that failed only in ranks that lost a peer, right before that peer's node is found lost: the node was the
  // cause, and a membership change costs no restart.
  void ReturnCharge(uint64_t session) {
    if (!s_.last_round || !s_.last_round->budget_before) return;
    Round& last = *s_.last_round;
    const bool member = std::any_of(last.slots.begin(), last.slots.end(),
                                    [session](const Slot& slot) { return slot.session == session && !slot.AllDone(); });
    if (!member || !AllCollateral(last.failures) ||
        now_ - last.ended_at > LeaseMs(static_cast<int64_t>(s_.nodes.size())))
      return;
    GiveBackCharge(last);
  }

  // Of a round that was charged.
  void GiveBackCharge(Round& round) {
    s_.budget = *std::exchange(round.budget_before, std::nullopt);
    remember_ = true;
    Note("restart-returned", "", "the failure before was this node's loss: it costs no restart");
  }

  void ExpireLeases() {
    std::vector<uint64_t> silent;
    s_.lease_check = kNever;
    // The one node of its job, with nobody to step in, is not given up while its stream stands: it may have been
    // stopped by a person (Ctrl-Z, a debugger) and goes on later.
    const bool alone = s_.nodes.size() == 1 && s_.spec->max_nodes == 1;
    for (auto& [session, node] : s_.nodes) {
      if (alone) node.last_heard = now_;
      const Instant end = node.last_heard + node.lease_ms;
      if (now_ >= end) {
        silent.push_back(session);
      } else {
        s_.lease_check = std::min(s_.lease_check, end);
      }
    }
    for (const uint64_t session : silent) {
      const int64_t silent_ms = now_ - s_.nodes.at(session).last_heard;
      const std::string cause = fmt::format("silent for {}", SecondsText(silent_ms));
      Do(Drop{session}, cause);
      Remove(session, cause, false, silent_ms);
    }
  }

  // --- planned changes ---

  // `told`: the script counts its steps itself. It may begin to behind its first one, or on some ranks alone: numbers
  // of two kinds give no pace.
  void SeeStep(int64_t step, bool told) {
    Round& round = *s_.round;
    if (round.seen_told && !told) return;
    if (round.first_seen_at == kNever || round.seen_told != told) {
      round.seen_told = told;
      round.first_seen_at = now_;
      round.first_seen_step = round.last_seen_step = step;
    }
    round.last_seen_at = now_;
    round.last_seen_step = std::max(round.last_seen_step, step);
  }

  int64_t SafePointAheadMs() const { return std::min(kSafePointAheadMs, s_.spec->rescale_grace_ms / 4); }

  // A step that no rank will have come to before all have heard of it. The pace is that of one step more than was seen:
  // the next one may be almost done.
  int64_t SafeStep() const {
    const Round& round = *s_.round;
    if (round.last_seen_at == kNever) return 1;
    const int64_t steps = 1 + std::max<int64_t>(0, round.last_seen_step - round.first_seen_step);
    const int64_t took_ms = std::max<int64_t>(1, round.last_seen_at - round.first_seen_at);
    const int64_t ahead_ms = now_ - round.last_seen_at + SafePointAheadMs();
    return round.last_seen_step + 1 + (steps * ahead_ms + took_ms - 1) / took_ms;
  }

  // Every rank that wants to may save first; those that want nothing cost a moment.
  void AnnounceRescale(const std::string& why) {
    Round& round = *s_.round;
    if (round.rescale_by != kNever) return;
    round.rescale_by = now_ + s_.spec->rescale_grace_ms;
    round.rescale_why = why;
    round.safe_step = 0;
    AskHowFar();
    Note("rescale-announced", "", fmt::format("{}: the ranks may come to a safe point first", why));
  }

  void SendAnnouncement() {
    for (const Slot& slot : s_.round->slots) {
      if (slot.session == 0) continue;
      Do(SendAnnounceRescale{slot.session, s_.round->epoch, s_.round->safe_step}, s_.round->rescale_why);
    }
  }

  void AskHowFar() {
    s_.round->ask_again = kNever;
    for (Slot& slot : s_.round->slots) slot.answered = false;
    SendAnnouncement();
  }

  // When all nodes have told how far their ranks are. Beats alone are too old: ranks that have passed the step stop
  // behind another one each, in the middle of each other's collectives.
  void ChooseSafeStep() {
    Round& round = *s_.round;
    if (now_ >= round.ask_again) return AskHowFar();
    const bool all = std::all_of(round.slots.begin(), round.slots.end(),
                                 [](const Slot& slot) { return slot.answered || slot.session == 0; });
    if (!all || round.ask_again != kNever) return;
    if (round.last_seen_at != kNever && now_ - round.first_seen_at < SafePointAheadMs()) {
      round.ask_again = round.first_seen_at + SafePointAheadMs();
      return;
    }
    round.safe_step = SafeStep();
    SendAnnouncement();
    Note("safe-step", "", fmt::format("the ranks come to a safe point behind step {}", round.safe_step), -1,
         {{"at_step", round.safe_step}});
  }

  bool AllSafe() const {
    const std::vector<Slot>& slots = s_.round->slots;
    return std::all_of(slots.begin(), slots.end(), [](const Slot& slot) { return slot.safe || slot.session == 0; });
  }

  void SettleRescale() {
    Round& round = *s_.round;
    if (now_ < round.rescale_by && !AllSafe()) {
      if (round.safe_step == 0) ChooseSafeStep();
      return;
    }
    if (!AllSafe()) Note("rescale-grace-over", "", "some ranks have not come to a safe point in time");
    if (!round.leaving.empty()) return Reform(ListText(round.leaving, "others"), true);
    const std::vector<uint64_t> members = NextMembers(s_);
    if (IsLarger(s_, members)) return Reform(NewcomersText(members) + " joined", true);
    if (round.any_asked) return Reform("the nodes that were to join have gone, and ranks had stopped for them", false);
    round.rescale_by = round.ask_again = kNever;
    for (Slot& slot : round.slots) slot.safe = false;
  }

  // Not the end of the rank's work: it makes room for the next round. So do those that lose such a peer, whose own
  // report may be on its way.
  bool Yields(const WorkerExited& e) const {
    if (e.for_rescale) return true;
    return IsCollateral(e.exit) && (s_.round->AnyYielded() || s_.round->rescale_by != kNever);
  }

  void OnYield(Slot& slot, const WorkerExit& exit) {
    if (exit.local_rank >= slot.local_world_size || !slot.yielded.insert(exit.local_rank).second) return;
    const int64_t rank = slot.rank_base + exit.local_rank;
    NoteRank(*s_.round, "worker-exited", slot.node,
             fmt::format("rank {} ended on node {} to make room for the next round", rank, slot.node), rank,
             ExitDetail(exit, false));
    s_.round->any_asked = true;
    if (s_.phase == Phase::kRunning) AnnounceRescale("a change that an earlier master had announced");
  }

  // --- workers end ---

  void OnExit(Round& round, Slot& slot, const WorkerExit& exit) {
    if (exit.local_rank >= slot.local_world_size) return;
    if (slot.done.contains(exit.local_rank) || slot.failed.contains(exit.local_rank)) return;
    ++round.ranks_ended;
    const int64_t rank = slot.rank_base + exit.local_rank;
    if (exit.exit_code == 0 && exit.signal == 0) {
      slot.done.insert(exit.local_rank);
      ++round.ranks_done;
      NoteRank(round, "worker-exited", slot.node, fmt::format("rank {} ended well on node {}", rank, slot.node), rank,
               ExitDetail(exit, false));
      if (IsLive(round.epoch) && round.ranks_done == round.world_size) {
        Finish(0, fmt::format("all {} ranks ended well", round.world_size));
      }
      return;
    }
    slot.failed.insert(exit.local_rank);
    OnFailure(round, MakeFailure(round, slot, exit));
  }

  static Failure MakeFailure(const Round& round, const Slot& slot, const WorkerExit& exit) {
    Failure failure;
    failure.rank = slot.rank_base + exit.local_rank;
    failure.group_rank = static_cast<uint32_t>(&slot - round.slots.data());
    failure.node = slot.node;
    failure.hostname = slot.hostname;
    failure.address = slot.address;
    failure.exit = exit;
    failure.collateral = IsCollateral(exit);
    return failure;
  }

  void OnFailure(Round& round, const Failure& failure) {
    const std::string told = Describe(failure) + (failure.collateral ? ", as a peer was gone" : "");
    NoteRank(round, "worker-exited", failure.node, told, failure.rank, ExitDetail(failure.exit, failure.collateral));
    const bool first = round.failures.empty();
    const uint32_t blamed = first ? failure.rank : round.failures[FirstCause(round.failures)].rank;
    AddFailure(round.failures, failure);
    const Failure& cause = round.failures[FirstCause(round.failures)];
    if (cause.rank != blamed) {
      NoteRank(round, "cause-refined", cause.node,
               fmt::format("the first cause of the end of epoch {}: {}", round.epoch, Describe(cause)), cause.rank);
    }
    // Once: the next life may have to wait for members that are away, and others fail meanwhile.
    if (IsLive(round.epoch) && s_.phase == Phase::kRunning && round.failed.empty()) Judge(failure);
    if (s_.phase == Phase::kFinished && IsCurrent(round.epoch))
      s_.outcome = OutcomeOf(s_, s_.outcome->exit_code, s_.outcome->reason);
  }

  // The first failure of the live round: another life, or the end.
  void Judge(const Failure& failure) {
    Round& round = *s_.round;
    const WorkerExit& exit = failure.exit;
    if (round.restart_count == 0 && !exit.script_started && exit.signal == 0) {
      return Finish(1, fmt::format("the script could not be started: {}", Describe(failure)));
    }
    if (exit.steps > 0) MarkStepped();
    round.budget_before = s_.budget;
    const Charge charge = ChargeFailure(s_.budget, round.stepped, now_);
    if (charge == Charge::kRestart) {
      round.failed = fmt::format("{}, restart {} of {}", Describe(failure), s_.budget.used, AllowedRestarts(s_.budget));
      return;
    }
    remember_ = true;
    s_.verdict = VerdictText(charge, s_.budget);
    s_.phase = Phase::kBlaming;
    s_.grow_at = s_.grow_limit = kNever;
    s_.blame_deadline = now_ + kBlameMs;
  }

  // --- rounds ---

  void SettleBlame() {
    Round& round = *s_.round;
    const bool collateral = AllCollateral(round.failures);
    if (lost_ && collateral) {
      s_.blame_deadline = kNever;
      s_.phase = Phase::kRunning;
      return GiveBackCharge(round);
    }
    if (!collateral || round.ranks_ended >= round.world_size || now_ >= s_.blame_deadline) Conclude();
  }

  void Conclude() {
    const Failure& cause = s_.round->failures[FirstCause(s_.round->failures)];
    Finish(1, fmt::format("{}; {}", Describe(cause), s_.verdict));
  }

  void SettleRound() {
    const Round& round = *s_.round;
    if (!round.failed.empty()) return Reform(std::string(round.failed), false);
    if (!round.broken.empty()) return Reform(ListText(round.broken, "others"), true);
    if (round.rescale_by != kNever) {
      s_.grow_at = s_.grow_limit = kNever;  // who comes now is taken in as well
      return SettleRescale();
    }
    if (s_.grow_at == kNever) return;
    const std::vector<uint64_t> members = NextMembers(s_);
    const bool all_there = members.size() >= s_.spec->max_nodes && now_ >= GrowthFrom(s_);
    if (!IsLarger(s_, members) || round.ranks_done > 0) {
      s_.grow_at = s_.grow_limit = kNever;
    } else if (all_there || now_ >= std::min(s_.grow_at, s_.grow_limit)) {
      s_.grow_at = s_.grow_limit = kNever;
      const std::string why = NewcomersText(members) + " joined";
      if (s_.spec->rescale_grace_ms == 0) return Reform(why, true);
      AnnounceRescale(why);
    }
  }

  // Ends the live round and begins the next with those who are there. `change`: tell how the number of nodes changes.
  void Reform(const std::string& cause, bool change) {
    const std::vector<uint64_t> members = NextMembers(s_);
    if (members.size() < s_.spec->min_nodes) return Hold(cause, s_.sizes ? s_.candidates : members.size());
    if (!change) return Begin(members, cause);
    const size_t before = s_.round->slots.size();
    if (members.size() != before) {
      return Begin(members, fmt::format("{}: {} -> {} nodes", cause, before, members.size()));
    }
    Begin(members, fmt::format("{}: {} takes over", cause, NewcomersText(members)));
  }

  // "node c", "nodes c, d and 2 more": the members that are not in the live round, or have come since it was held.
  std::string NewcomersText(const std::vector<uint64_t>& members) const {
    std::set<uint64_t> before;
    for (const Slot& slot : (s_.round ? s_.round : s_.last_round)->slots) before.insert(slot.session);
    std::vector<std::string> names;
    for (const uint64_t session : members) {
      if (!before.contains(session)) names.push_back(NodeName(s_, s_.nodes.at(session).info));
    }
    return fmt::format("node{} {}", names.size() > 1 ? "s" : "", ListText(names, "more"));
  }

  void Hold(const std::string& cause, size_t left) {
    const std::string wait = SecondsText(s_.spec->join_timeout_ms);
    const bool enough = s_.sizes && s_.candidates >= s_.spec->min_nodes;
    const std::string reason = enough ? fmt::format("{}: {}; giving up in {}", cause, WaitingText(s_), wait)
                                      : fmt::format("{}: {} of at least {} nodes left, waiting up to {} for more",
                                                    cause, left, s_.spec->min_nodes, wait);
    for (const Slot& slot : s_.round->slots) {
      if (slot.session != 0) Do(SendHold{slot.session, s_.round->epoch}, reason);
    }
    Note("round-held", "", reason, -1, {{"because", Because()}});
    EndRound();
    WaitForNobody();
    remember_ = true;
    s_.phase = Phase::kGathering;
    s_.grow_at = s_.grow_limit = kNever;
    s_.reason = reason;
  }

  void EndRound() {
    if (!s_.round) return;
    Apply(EndCheckpoints(s_.checkpoints, !s_.round->failed.empty() || !s_.round->broken.empty(), now_));
    for (const Slot& slot : s_.round->slots) {
      if (slot.session != 0) s_.nodes.at(slot.session).group_rank = -1;
    }
    NoteSaving(*s_.round);
    RememberStep(*s_.round);
    s_.round->ended_at = now_;
    s_.last_round = std::move(s_.round);
    s_.round.reset();
  }

  void Begin(const std::vector<uint64_t>& members, const std::string& reason) {
    const std::string because = Because();
    if (s_.round) Release(members, reason);
    EndRound();
    std::vector<Span> spans;
    for (const uint64_t session : members) {
      const NodeInfo& info = s_.nodes.at(session).info;
      spans.push_back({info.role, info.local_world_size, 0, 0, 0});
    }
    Round round;
    round.world_size = LayOut(spans);
    round.epoch = ++s_.highest_epoch;
    round.restart_count = s_.rounds_begun++;
    round.reason = reason;
    round.begun_at = round.saving_noted_at = now_;
    for (size_t rank = 0; rank < members.size(); ++rank) {
      Node& node = s_.nodes.at(members[rank]);
      node.group_rank = node.previous_rank = static_cast<int32_t>(rank);
      node.info.warming = node.came_back = false;  // from now on it counts like any other
      node.told_spare.clear();
      Slot& slot = round.slots.emplace_back();
      slot.session = members[rank];
      slot.node_id = node.info.node_id;
      slot.node = NodeName(s_, node.info);
      slot.hostname = node.info.hostname;
      slot.address = node.info.address;
      slot.rank_base = spans[rank].rank_base;
      slot.local_world_size = spans[rank].local_world_size;
    }
    std::erase_if(s_.lost_places, [&round](const auto& lost) { return lost.second.epoch + 1 < round.epoch; });
    s_.round = std::move(round);
    s_.phase = Phase::kRunning;
    s_.reason = reason;
    s_.gather_at = s_.gather_limit = s_.grow_at = s_.grow_limit = kNever;
    s_.join_deadline = s_.next_notice = kNever;
    WaitForNobody();
    remember_ = true;
    std::vector<CheckpointMember> holders;
    for (const Slot& slot : s_.round->slots) holders.push_back({slot.session, slot.rank_base, slot.local_world_size});
    Apply(BeginCheckpoints(s_.checkpoints, s_.round->epoch, s_.round->world_size, std::move(holders), now_));
    SendRound(members, spans, because);
    TellSpares();
  }

  void SendRound(const std::vector<uint64_t>& members, const std::vector<Span>& spans, const std::string& because) {
    const Round& round = *s_.round;
    const Node& first = s_.nodes.at(members.front());
    SendStartRound start;
    start.epoch = round.epoch;
    start.group_world_size = static_cast<uint32_t>(members.size());
    start.world_size = round.world_size;
    start.store_address = first.info.address;
    start.store_port = first.store_port;
    start.restart_count = round.restart_count;
    start.max_restarts = AllowedRestarts(s_.budget);
    start.restarts_used = s_.budget.used;
    start.lives_without_step = s_.budget.lives_without_step;
    start.highest_step = s_.highest_step;
    std::vector<std::string> names;
    // The node of group rank 0 goes first: it opens the store that the others will look for.
    for (size_t rank = 0; rank < members.size(); ++rank) {
      SendStartRound part = start;
      part.session = members[rank];
      part.group_rank = static_cast<uint32_t>(rank);
      part.rank_base = spans[rank].rank_base;
      part.role_rank_base = spans[rank].role_rank_base;
      part.role_world_size = spans[rank].role_world_size;
      if (rank == 0) part.member_addresses = MemberAddresses(members);
      Do(std::move(part), round.reason);
      names.push_back(round.slots[rank].node);
    }
    Note("round-started", "", round.reason, -1,
         {{"because", because},
          {"world_size", int64_t{round.world_size}},
          {"nodes", static_cast<int64_t>(members.size())},
          {"members", ListText(names, "more", 16)},
          {"store", fmt::format("{} port {}", start.store_address, start.store_port)},
          {"restart_count", int64_t{round.restart_count}},
          {"restarts_left", int64_t{RestartsLeft(s_.budget, now_)}}});
  }

  // Every address that a member's workers may come from.
  std::vector<std::string> MemberAddresses(const std::vector<uint64_t>& members) const {
    std::set<std::string> addresses;
    for (const uint64_t session : members) {
      const NodeInfo& info = s_.nodes.at(session).info;
      addresses.insert(info.address);
      if (!info.peer_address.empty()) addresses.insert(info.peer_address);
      addresses.insert(info.interface_addresses.begin(), info.interface_addresses.end());
    }
    return {addresses.begin(), addresses.end()};
  }

  // --- gathering ---

  void SettleGathering() {
    if (!s_.spec || (s_.arrivals == 0)) return;
    const JobSpec& spec = *s_.spec;
    if (CanBegin(s_)) {
      s_.join_deadline = s_.next_notice = kNever;
      if (s_.gather_at == kNever) s_.gather_at = now_ + spec.last_call_ms;
      const int64_t longest_ms = spec.last_call_fixed ? spec.last_call_ms : std::max(kGatherLimitMs, spec.last_call_ms);
      if (s_.gather_limit == kNever) s_.gather_limit = now_ + longest_ms;
      const bool enough = s_.candidates >= spec.max_nodes || now_ >= std::min(s_.gather_at, s_.gather_limit);
      if (enough) BeginGathered();
      return;
    }
    s_.gather_at = s_.gather_limit = kNever;
    if (s_.join_deadline == kNever) {
      s_.join_deadline = now_ + spec.join_timeout_ms;
      s_.next_notice = now_ + kWaitingNoticeMs;
    }
    if (now_ >= s_.join_deadline) {
      const std::string waited = SecondsText(spec.join_timeout_ms);
      if (s_.candidates >= spec.min_nodes) {
        return Finish(1, fmt::format("gave up after {} (--rdzv-conf join_timeout): {}", waited, WaitingText(s_)));
      }
      return Finish(1, fmt::format("{} of at least {} nodes came within {} (--rdzv-conf join_timeout)", s_.candidates,
                                   spec.min_nodes, waited));
    }
    if (now_ >= s_.next_notice) TellWaiting();
  }

  void TellWaiting() {
    s_.next_notice = now_ + kWaitingNoticeMs;
    const std::string text = fmt::format("{}; giving up in {}", WaitingText(s_), SecondsText(s_.join_deadline - now_));
    for (const auto& [session, node] : s_.nodes) {
      if (!node.leaving) Do(SendNotice{session}, text);
    }
    Note("waiting", "", text);
  }

  // Members of the live round that the next has no place for: nodes that leave, those beyond the last whole
  // --node-unit, and those beyond a valid world size, which hear more of it in a moment.
  void Release(const std::vector<uint64_t>& members, const std::string& reason) {
    for (const Slot& slot : s_.round->slots) {
      if (slot.session == 0 || std::find(members.begin(), members.end(), slot.session) != members.end()) continue;
      Node& node = s_.nodes.at(slot.session);
      node.previous_rank = -1;  // its rank may be another's when it comes back
      Do(SendHold{slot.session, s_.round->epoch},
         node.leaving ? reason
         : s_.sizes   ? fmt::format("{}; this node waits as a spare", reason)
                      : fmt::format("{}; this node waits as a spare: --node-unit={}", reason, s_.spec->node_unit));
    }
  }

  void BeginGathered() {
    const std::vector<uint64_t> members = NextMembers(s_);
    const std::string there = ThereText(members.size(), *s_.spec);
    if (!s_.last_round) return Begin(members, there);
    Begin(members, fmt::format("{} joined: {}", NewcomersText(members), there));
  }

  // --- the end ---

  void Finish(int32_t exit_code, const std::string& reason) {
    s_.phase = Phase::kFinished;
    s_.reason = reason;
    s_.outcome = OutcomeOf(s_, exit_code, reason);
    s_.gather_at = s_.gather_limit = s_.grow_at = s_.grow_limit = kNever;
    s_.join_deadline = s_.next_notice = s_.blame_deadline = kNever;
    WaitForNobody();
    remember_ = true;
    if (exit_code != 0) Apply(EndCheckpoints(s_.checkpoints, true, now_));
    s_.tell_end_by = now_ + kStoreAtEndMs;
    if (exit_code != 0 && IsStoring(s_.checkpoints)) HoldAll(reason);  // what still runs is of no more use
    SettleEnd();
    if (s_.round) NoteSaving(*s_.round);
    Note("job-finished", "", reason, -1, {{"exit_code", int64_t{exit_code}}});
  }

  void HoldAll(const std::string& reason) {
    for (const auto& [session, node] : s_.nodes) {
      if (!node.leaving && node.group_rank >= 0) Do(SendHold{session, s_.round->epoch}, reason);
    }
  }

  // Agents hear of the end when what is on its way to storage is there: they carry it.
  void SettleEnd() {
    if (s_.tell_end_by == kNever || (IsStoring(s_.checkpoints) && now_ < s_.tell_end_by)) return;
    s_.tell_end_by = kNever;
    for (const auto& [session, node] : s_.nodes) {
      if (!node.leaving) Do(SendFinish{session, s_.outcome}, s_.outcome->reason);
    }
    AwaitUntold();
  }

  // Nodes whose ranks had all ended well when their stream broke: they dial, and must hear of the end.
  void AwaitUntold() {
    if (!s_.round) return;
    for (Slot& slot : s_.round->slots) {
      if (slot.session != 0 || slot.left || !slot.AllDone()) continue;
      slot.away = true;
      ++s_.round->away;
    }
    if (s_.round->away > 0) s_.back_by = now_ + LeaseMs(static_cast<int64_t>(s_.round->slots.size()));
  }

  JobState& s_;
  const Instant now_;
  std::vector<Decision> decisions_;
  bool lost_ = false;      // this event has taken a member out of the live round
  bool remember_ = false;  // what it has changed is worth a line in the journal
};

// The session an event speaks for, 0 where it is known not to.
const FromAgent* Speaker(const Event& event) {
  return std::visit(
      [](const auto& e) -> const FromAgent* {
        if constexpr (std::is_base_of_v<FromAgent, std::decay_t<decltype(e)>>) return &e;
        return nullptr;
      },
      event);
}

}  // namespace

void JobState::SetSpec(const JobSpec& job_spec) {
  spec = job_spec;
  budget.given = job_spec.max_restarts;
  budget.window_ms = job_spec.restart_window_ms;
  sizes.reset();
  if (job_spec.elastic_config.empty()) return;
  auto granted = SizesOf(job_spec);
  sizes = granted.ok() ? *std::move(granted) : elasticity::JobSizes();  // SpecFault lets none in that is not
}

std::vector<Decision> Step(JobState& state, const Event& event, Instant now) {
  Stepper stepper(state, now);
  stepper.ForgiveStandstill();
  const FromAgent* speaker = Speaker(event);
  if (speaker != nullptr && !std::holds_alternative<AgentAttached>(event)) {
    const auto node = state.nodes.find(speaker->session);
    if (node == state.nodes.end()) return stepper.Take();  // dropped before; its stream is ending
    node->second.last_heard = now;
    if (speaker->next_store_port != 0) node->second.store_port = speaker->next_store_port;
  }
  std::visit([&stepper](const auto& e) { stepper.On(e); }, event);
  stepper.Settle();
  return stepper.Take();
}

std::vector<Decision> Resume(JobState& state, Instant now) {
  Stepper stepper(state, now);
  stepper.OnResume();
  return stepper.Take();
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
    WorkerExit& exit = outcome->failures[i].exit;
    // A shortened JSON text is none.
    if (exit.error_json.size() > kOthersTextBytes) exit.error_json.clear();
    if (exit.last_words.size() > kOthersTextBytes) exit.last_words.erase(0, exit.last_words.size() - kOthersTextBytes);
  }
  return outcome;
}

Instant NextDeadline(const JobState& s) {
  if (s.round && s.round->away > 0) return std::min(s.lease_check, s.back_by);  // Settle decides nothing else
  const bool live = s.round && s.phase == Phase::kRunning;
  const Instant rescale_by = live ? std::min(s.round->rescale_by, s.round->ask_again) : kNever;
  return std::min({s.lease_check, s.gather_at, s.gather_limit, s.grow_at, s.grow_limit, s.join_deadline, s.next_notice,
                   s.blame_deadline, s.back_by, rescale_by, s.tell_end_by, NextCheckpointDeadline(s.checkpoints)});
}

}  // namespace phalanx::master
