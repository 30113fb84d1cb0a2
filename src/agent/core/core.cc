// More than 500 lines: dialling, the round, its workers and the exit are one state, and one event may touch them all.
#include "agent/core/core.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "base/host_port.h"
#include "base/signal_name.h"
#include "wire/limits.h"

namespace phalanx::agent {
namespace {

// When a master that says nothing is given up, where others may take its place; kNever: it is believed.
Instant SilentAt(const CoreState& s) {
  const bool watched = s.attached && !s.hung_up && !s.exited && s.search.successors.places_size() > 0 &&
                       s.search.successors.term() == s.search.term && s.lease_ms > 0;
  return watched ? s.heard_at + s.lease_ms : kNever;
}

// The decisions of one step; one object a call, so that helpers need no out-parameters.
class Stepper {
 public:
  Stepper(CoreState& state, Instant now) : s_(state), now_(now) {}

  std::vector<Decision> Take() { return std::move(decisions_); }

  void On(const Prepared& event) {
    s_.options.local_world_size = event.local_world_size;
    s_.options.spares = event.spares;
  }

  void On(const Begin& event) {
    s_.options.master_address = s_.search.endpoint = event.master_address;
    s_.seen_epoch = std::max(s_.seen_epoch, event.seen_epoch);
    s_.hosts_first_master = event.hosts_master;
    CountSilence();
    s_.next_notice = now_ + std::min(kFirstNoticeMs, s_.options.join_timeout_ms);
    WarmUp();
    DialNext("the node joins its job");
  }

  void On(const LinkUp& event) {
    s_.up = true;
    s_.hung_up = false;
    s_.master_ip = event.master_ip;
    s_.reconnect_ms = kReconnectFirstMs;
    s_.turned_away.clear();
    s_.told_warming = s_.warming;
    Do(SendHello{}, "the stream to the master is open");
  }

  void On(const LinkDown& event) {
    if (s_.attached) {
      const bool silent = std::exchange(s_.gave_up, false) || event.silent;
      CountSilence();
      // One that was silent answers a dial no sooner than the others.
      s_.search.next = silent && Places(s_.search).size() > 1 ? 1 : 0;
      s_.dials = 0;
      s_.broke_at = silent ? kNever : now_;
      s_.lost_why = silent ? "silent" : event.why;
      PlanTakeOver(silent);
    }
    s_.attached = s_.up = false;
    s_.next_beat = kNever;
    s_.link_why = s_.turned_away.empty() ? event.why : s_.turned_away;
    if (s_.leave_at != kNever) EndLeaving("the master, which would say when, is gone");
    if (s_.finish || s_.phase == Phase::kLeaving) return FinishIfGone();
    // While a master that was there is away, something else may have its port. Ranks train on, and it may come back.
    if (event.hopeless && !s_.was_attached) return Fail(event.why);
    if (!s_.master_gone.empty()) return;
    // All places are dialled in a row, and then again after a while.
    if (std::exchange(s_.dial_at_once, false) || s_.search.next != 0) {
      return DialNext("the master may be at another place");
    }
    s_.next_dial = now_ + s_.reconnect_ms;
    s_.reconnect_ms = std::min(s_.reconnect_ms * 2, s_.reconnect_max_ms);
  }

  void On(const FromMaster& event) {
    const v1::MasterMessage& m = event.message;
    if (s_.hung_up) return;  // what was on its way
    s_.heard_at = now_;
    switch (m.body_case()) {
      case v1::MasterMessage::kWelcome:
        return OnWelcome(m.welcome());
      case v1::MasterMessage::kRefused:
        return OnRefused(m.refused());
      case v1::MasterMessage::kStartRound:
        return OnStartRound(m.start_round());
      case v1::MasterMessage::kHoldRound:
        return OnHold(m.hold_round());
      case v1::MasterMessage::kFinish:
        return OnFinish(m.finish());
      case v1::MasterMessage::kAnnounceRescale:
        return OnAnnounce(m.announce_rescale());
      case v1::MasterMessage::kSuccessors:
        return OnSuccessors(m.successors());
      case v1::MasterMessage::kTellSteps:
        return Do(TellSteps{Epoch(), m.tell_steps().ranks(), StoreRefused()}, "somebody looks at the job");
      case v1::MasterMessage::kBeatHeard:
        return;  // a sign of life
      case v1::MasterMessage::kNotice:
        return Do(Say{m.notice().text()}, "the master says so");
      case v1::MasterMessage::kCheckpoint:  // of src/agent/checkpoint/checkpoints.h, beside this core
      case v1::MasterMessage::kCheck:       // of checking.h, as well
      case v1::MasterMessage::kShardReply:  // of src/agent/checkpoint/shards.h, as well
      case v1::MasterMessage::BODY_NOT_SET:
        return;  // a newer master's message that this agent may ignore
    }
  }

  void On(const Warm&) {
    if (std::exchange(s_.warming, false)) TellReady();
  }

  void On(const WorkerStarted& event) {
    WorkerState* worker = Live(event.local_rank, event.epoch);
    if (worker == nullptr) return;
    worker->pid = event.pid;
    if (worker->doomed) Do(KillGroup{event.local_rank}, "its round was over before it began");
  }

  void On(const WorkerStartFailed& event) {
    WorkerState* worker = Live(event.local_rank, event.epoch);
    if (worker == nullptr) return;
    const bool doomed = worker->doomed;
    s_.workers.erase(event.local_rank);
    if (!doomed) ReportUnstarted(event);
    AfterGone();
  }

  void On(const WorkerStepped& event) {
    WorkerState* worker = Live(event.local_rank, event.epoch);
    if (worker == nullptr || worker->doomed || worker->stepped) return;
    worker->stepped = true;
    s_.any_warm = s_.any_warm || event.warm;
    for (const auto& [rank, other] : s_.workers) {
      if (!other.stepped) return;
    }
    v1::FirstStep& first = s_.first_step.emplace();
    first.set_epoch(event.epoch);
    first.set_step(event.step);
    *first.mutable_progress() = event.progress;
    TellFirstStep("every local rank has finished its first step");
    SayTraining(event.step);
    s_.spares_at = kNever;
    Do(WantSpares{s_.options.spares}, "the round's first step is done");
  }

  void On(const WorkerEnded& event) {
    const v1::WorkerExited& exited = event.exited;
    WorkerState* worker = Live(static_cast<int>(exited.local_rank()), exited.epoch());
    if (worker == nullptr || worker->ended) return;
    worker->ended = true;
    worker->exit_code = exited.exit_code();
    worker->signal = exited.signal();
    if (worker->doomed) return;
    const bool failed = exited.exit_code() != 0 || exited.signal() != 0;
    if (failed && s_.failed.empty()) {
      s_.failed = fmt::format("local rank {} failed ({})", exited.local_rank(),
                              DescribeEnd(exited.exit_code(), exited.signal()));
    }
    if (failed && !s_.recovering) {
      s_.recovering = true;
      s_.trouble_since = now_;
    }
    s_.ended.push_back(exited);
    const bool was_asked = s_.awaited.erase(static_cast<int>(exited.local_rank())) > 0;
    s_.ended.back().set_for_rescale(was_asked && !failed && s_.step_told);
    TellEnd(s_.ended.back(), fmt::format("local rank {} ended by itself: {}", exited.local_rank(),
                                         DescribeEnd(exited.exit_code(), exited.signal())));
    if (was_asked && s_.awaited.empty()) TellSafePoint("every rank that was asked is at a safe point, or has ended");
    SettleWithoutMaster();
  }

  void On(const SafePointAsked& event) {
    if (!s_.round || s_.round->epoch() != event.epoch || s_.next) return;
    s_.awaited.clear();
    for (const int rank : event.local_ranks) {
      const WorkerState* worker = Live(rank, event.epoch);
      if (worker == nullptr || worker->ended || worker->doomed || s_.safe.contains(rank)) continue;
      s_.awaited.insert(rank);
    }
    if (!s_.safe_point) s_.safe_point.emplace().set_epoch(event.epoch);
    // Of a change that came to nothing some may have been asked before; by now others may hear, too.
    const auto asked = static_cast<uint32_t>(s_.awaited.size() + s_.safe.size());
    s_.safe_point->set_asked(std::max(s_.safe_point->asked(), asked));
    TellSafePoint(s_.awaited.empty() ? "no local rank hears of rescales" : "local ranks have been asked");
  }

  void On(const WorkerSafe& event) {
    if (Live(event.local_rank, event.epoch) == nullptr || s_.awaited.erase(event.local_rank) == 0) return;
    s_.safe.insert(event.local_rank);
    if (s_.awaited.empty()) TellSafePoint("every rank that was asked is at a safe point");
  }

  // Who handles the signal has the grace to end in. What else is there ends by it, but perhaps not at once: a stopped
  // process, say, does not see it before it goes on.
  void On(const GroupSignalled& event) {
    const WorkerState* worker = Live(event.local_rank, event.epoch);
    if (event.withstands || worker == nullptr || !worker->doomed) return;
    Do(KillGroup{event.local_rank}, "nothing in the group handles the signal that was to end it");
  }

  void On(const GroupGone& event) {
    if (Live(event.local_rank, event.epoch) == nullptr) return;
    s_.workers.erase(event.local_rank);
    AfterGone();
  }

  void On(const StopSignal& event) {
    const bool again = s_.stop_signal != 0;
    if (s_.finish) return KillAll("asked to stop while ending");
    s_.stop_signal = event.signal;
    if (again) return KillAll("asked to stop a second time");
    // Its ranks go on until all ranks of the job have come to a safe point: others need them for that.
    const bool waits =
        event.wants_safe_point && s_.attached && s_.phase == Phase::kRunning && s_.options.rescale_grace_ms > 0;
    s_.phase = Phase::kLeaving;
    s_.next.reset();
    Do(Say{fmt::format("{}: this node leaves the job", strsignal(event.signal))}, "asked to stop");
    v1::AgentMessage message;
    message.mutable_leaving()->set_signal(event.signal);
    message.mutable_leaving()->set_reason(fmt::format("phalanx-run received {}", DescribeEnd(0, event.signal)));
    message.mutable_leaving()->set_waits(waits);
    SendToMaster(std::move(message), "a node that goes says so");
    if (!waits) return EndLeaving("asked to stop");
    s_.leave_at = now_ + std::min(s_.options.rescale_grace_ms, s_.options.stop_timeout_ms);
  }

  void On(const StoreRefusedClient& event) {
    if (event.epoch != s_.seen_epoch || ++s_.store_refusals > kRefusalsTold) return;
    const bool last = s_.store_refusals == kRefusalsTold;
    v1::AgentMessage message;
    message.mutable_store_refused()->set_epoch(event.epoch);
    message.mutable_store_refused()->set_sentence(event.sentence + (last ? "; others are not told" : ""));
    Do(Say{message.store_refused().sentence()}, "a rank that cannot come to its store waits for ever");
    SendToMaster(std::move(message), "phalanx why must know what a rank waits for");
  }

  void On(const PassSignal& event) {
    for (const auto& [rank, worker] : s_.workers) {
      if (!worker.ended) Do(SignalWorker{rank, event.signal}, "signals of the user are passed on");
    }
  }

  void On(const MasterChildFailed& event) {
    if (s_.finish || s_.phase == Phase::kLeaving) return;
    Fail(event.why);
  }

  void On(const CandidateReady& event) {
    if (s_.finish || s_.phase == Phase::kLeaving || !s_.candidate) return;
    s_.search.own = event.address;
    if (s_.attached || s_.up) return;  // another master was there before it
    s_.next_dial = kNever;
    DialAt(event.address, "this node has the first voice for the master that it has started");
  }

  void On(const MasterChildDied& event) {
    if (s_.finish || s_.phase == Phase::kLeaving) return;
    if (s_.candidate) return OnNotElected(event.why);
    if (s_.moved_on) {
      // Who comes to the endpoint was sent on by it.
      if (s_.hosts_first_master) s_.master_start_at = now_ + kMasterTriedAgainMs;
      return;
    }
    const Instant welcomed_at = std::exchange(s_.master_welcomed_at, kNever);
    if (welcomed_at != kNever && now_ - welcomed_at >= kMasterGrownUpMs) s_.master_starts_in_vain = 0;
    if (s_.master_starts_in_vain++ < kMasterStartsInVain) {
      Do(Say{fmt::format("the job's master has ended ({}); it is started again{}", event.why,
                         s_.workers.empty() ? "" : ", and ranks train on")},
         "nobody else knows of the job");
      return Do(RestartMaster{s_.search.term}, "its journal and the agents know the job's state");
    }
    const std::string why = fmt::format("{}, {} times in a row", event.why, s_.master_starts_in_vain);
    const bool first_time = s_.master_starts_in_vain == kMasterStartsInVain + 1;
    if (first_time) {
      Do(Say{fmt::format("the job's master has ended ({}); this node trains on without it", why)},
         "it cannot be kept alive");
    }
    if (s_.options.max_nodes > 1) {
      s_.master_start_at = now_ + kMasterTriedAgainMs;  // other nodes wait for one, and what is broken may be mended
      return;
    }
    s_.master_gone = why;
    s_.next_dial = kNever;
    if (!s_.round) return Fail(fmt::format("the job's master has ended ({}) before the job began", why));
    Do(GiveUpAnswers{fmt::format("the job's master has ended ({})", why)}, "nobody would answer");
    SettleWithoutMaster();
  }

  void On(const Tick&) {
    if (now_ >= s_.next_beat) {
      s_.next_beat = now_ + s_.beat_interval_ms;
      if (s_.attached) Do(SendBeat{Epoch(), StoreRefused()}, "the lease is renewed");
    }
    if (now_ >= s_.master_start_at) {
      s_.master_start_at = kNever;
      Do(RestartMaster{s_.moved_on ? 0 : s_.search.term}, "what kept it from living may be mended");
    }
    if (now_ >= s_.next_dial) {
      s_.next_dial = kNever;
      DialNext("the master is dialled again");
    }
    if (now_ >= SilentAt(s_)) {
      s_.gave_up = s_.hung_up = true;
      Do(HangUp{}, fmt::format("the master has been silent for {} ms", now_ - s_.heard_at));
    }
    if (now_ >= s_.take_over_at) TakeMastersPlace();
    if (now_ >= s_.kill_at) KillAll("the grace period is over");
    if (now_ >= s_.leave_at) EndLeaving("the time for a safe point is over");
    if (now_ >= s_.give_up_at) GiveUpGroups();
    if (now_ >= s_.spares_at) {
      s_.spares_at = kNever;
      Do(WantSpares{s_.options.spares}, "no step has come for 10 s; the script may never step");
    }
    WatchForMaster();
  }

 private:
  uint64_t Epoch() const { return s_.round ? s_.round->epoch() : 0; }
  uint64_t StoreRefused() const { return s_.round && Epoch() == s_.seen_epoch ? s_.store_refusals : 0; }

  void CountSilence() {
    s_.lost_since = now_;
    s_.gave_up_answers = false;
    s_.next_notice = now_ + std::min(kWaitingNoticeMs, s_.options.join_timeout_ms);
  }

  void Do(Action action, std::string reason) { decisions_.push_back({std::move(action), std::move(reason)}); }

  void SendToMaster(v1::AgentMessage message, std::string reason) {
    if (s_.attached) Do(Send{std::move(message)}, std::move(reason));
  }

  // The worker of the live round, or null for news of an older epoch.
  WorkerState* Live(int local_rank, uint64_t epoch) {
    if (!s_.round || s_.round->epoch() != epoch) return nullptr;
    auto it = s_.workers.find(local_rank);
    return it == s_.workers.end() ? nullptr : &it->second;
  }

  void DialNext(const std::string& reason) {
    const std::vector<std::string> places = Places(s_.search);
    if (places.empty()) return;  // a replay log may say that it dials before it has begun
    const std::string address = places[std::min(s_.search.next, places.size() - 1)];
    s_.search.next = (s_.search.next + 1) % places.size();
    DialAt(address, reason);
  }

  void DialAt(const std::string& address, const std::string& reason) {
    s_.search.dialled = address;
    ++s_.dials;
    const bool of_many = Places(s_.search).size() > 1;
    Do(Dial{address, of_many ? wire::kDialOneOfManyMs : wire::kDialTimeoutMs}, reason);
  }

  // The stream to a master that had welcomed this node is over.
  void PlanTakeOver(bool silent) {
    const std::optional<size_t> turn = TurnOf(s_.search, s_.options.node_id);
    if (!turn || !s_.options.succession || !s_.search.world || HostsMaster(s_, true)) return;
    s_.take_over_at = now_ + (silent ? 0 : kTakeOverMs) + static_cast<int64_t>(*turn) * kTakeOverTurnMs;
  }

  void TakeMastersPlace() {
    s_.take_over_at = kNever;
    const std::optional<size_t> turn = TurnOf(s_.search, s_.options.node_id);
    if (s_.attached || s_.candidate || !turn || s_.finish || s_.phase == Phase::kLeaving) return;
    // Another one may be elected, or be the first to try.
    if (s_.up || (*turn > 0 && s_.dials <= Places(s_.search).size())) {
      s_.take_over_at = now_ + kTakeOverTurnMs;
      return;
    }
    s_.candidate = true;
    s_.moved_on = false;
    s_.endpoint_start_at = std::exchange(s_.master_start_at, kNever);  // that would be in the place of this one
    // No two of them, and no two tries, are of one term.
    const uint64_t known = std::max(s_.search.term, s_.search.moved_term);
    const uint64_t term = known + s_.take_overs++ * kMostSuccessors + *turn + 1;
    Do(Say{fmt::format("the master at {} is lost ({}): this node would take its place", s_.search.address,
                       s_.lost_why)},
       "silence is worth a line");
    const bool broke = s_.broke_at != kNever && now_ - s_.broke_at <= kBrokeMs;
    Do(TakeOver{term, s_.search.master_id, broke}, "it is the first of those who may");
  }

  void OnNotElected(const std::string& why) {
    s_.candidate = false;
    s_.search.own.clear();
    s_.search.next = 0;
    s_.moved_on = true;
    s_.master_start_at = std::exchange(s_.endpoint_start_at, kNever);
    if (s_.attached) return;
    Do(Say{fmt::format("the master that this node had started has ended: {}", why)}, "it was not elected");
    // One after the other, so that they do not share the voices: a candidate gives up after some seconds.
    const size_t turn = TurnOf(s_.search, s_.options.node_id).value_or(0);
    s_.take_over_at = now_ + kTakeOverTurnMs + static_cast<int64_t>(turn) * kTakeOverAgainMs;
  }

  void OnSuccessors(const v1::Successors& successors) {
    MasterSearch& search = s_.search;
    search.successors = successors;
    search.term = std::max(search.term, successors.term());  // that master's own may have become a later one
    v1::World& confirmed = search.confirmed.emplace();
    confirmed.set_term(successors.term());
    confirmed.set_epoch(successors.epoch());
    confirmed.set_nodes(successors.nodes());
    confirmed.set_with_host(successors.with_host());
    const bool of_world = search.world && search.world->term() == successors.term();
    confirmed.set_member(of_world && search.world->epoch() == successors.epoch());
    TellOldPlaces();
  }

  // Of a job that has been taken up, by the node that hosts its master and by those that might.
  void TellOldPlaces() {
    const MasterSearch& search = s_.search;
    const bool mine = HostsMaster(s_, true) && search.dialled == search.own;
    std::vector<std::string> addresses;
    if (search.term > 0 && (mine || TurnOf(search, s_.options.node_id))) {
      for (const std::string& address : {search.endpoint, search.before}) {
        const bool known = std::find(addresses.begin(), addresses.end(), address) != addresses.end();
        if (!address.empty() && address != search.address && !known) addresses.push_back(address);
      }
    }
    if (std::exchange(s_.told_at, addresses) == addresses) return;
    if (addresses.empty()) return Do(StopHerald{}, "others tell where the job's master is");
    Do(Herald{std::move(addresses)}, "who comes late, or comes back, looks for the master there");
  }

  // This master is the one that counts from now on. What was known of the one before is given up.
  void Follow(const v1::Welcome& welcome) {
    MasterSearch& search = s_.search;
    const bool another = s_.was_attached && search.term != welcome.term();
    const std::string before = search.address;
    const bool own = !search.own.empty() && search.dialled == search.own;
    if (another) {
      search.before = before;
      if (!own) {
        // The endpoint's, which sends callers on, is started all the same.
        if (!s_.moved_on) s_.master_start_at = kNever;
        if (!s_.candidate) s_.moved_on = true;
        if (!s_.candidate) search.own.clear();
      }
      Do(Say{fmt::format("the job's master is at {} now; the one at {} was lost", search.dialled, before)},
         "its place was worth a line");
    } else if (s_.hosts_first_master && !own && !s_.candidate && search.dialled != search.endpoint) {
      s_.moved_on = true;  // the master that this node has started has sent it on
    }
    if (!own && s_.candidate) Do(LetGo{}, "the job has a master");
    if (own) s_.candidate = false;
    search.term = welcome.term();
    search.master_id = welcome.master_id();
    search.address = search.dialled;
    search.ip = s_.master_ip;
    s_.options.master_address = search.address;
    if (search.moved_term <= search.term) {
      search.moved_to.clear();
      search.moved_term = 0;
    }
    search.next = 0;
    s_.take_over_at = kNever;
    s_.take_overs = 0;
    TellOldPlaces();
  }

  void LeaveOldMaster() {
    s_.turned_away = fmt::format("what answers at {} was the job's master once", s_.search.dialled);
    s_.hung_up = true;
    Do(HangUp{}, "the job has a later master");
  }

  void OnWelcome(const v1::Welcome& welcome) {
    if (welcome.term() < s_.search.term) return LeaveOldMaster();
    Follow(welcome);
    s_.attached = true;
    s_.master_welcomed_at = std::min(s_.master_welcomed_at, now_);
    s_.next_notice = kNever;
    if (std::exchange(s_.was_attached, true)) {
      Do(Say{fmt::format("the master answers again, after {} ms", now_ - s_.lost_since)}, "silence was worth a line");
    }
    if (welcome.lease_ms() > 0) {
      s_.reconnect_max_ms = std::clamp(welcome.lease_ms() / kReconnectsPerLease, kReconnectLeastMaxMs, kReconnectMaxMs);
    }
    s_.lease_ms = welcome.lease_ms();
    s_.beat_interval_ms = std::clamp<int64_t>(welcome.beat_interval_ms(), 50, 3'600'000);
    s_.next_beat = now_ + s_.beat_interval_ms;
    if (s_.phase == Phase::kConnecting) s_.phase = Phase::kWaiting;
    if (s_.told_warming && !s_.warming) TellReady();  // it has become so between Hello and this answer
    if (!s_.next && LiveRound(s_) != nullptr) TellAgain();
  }

  // Another job's master may have the port of one that is away, as any program may. It is dialled no more often for
  // answering at once.
  void OnRefused(const v1::Refused& refused) {
    const std::string why = fmt::format("the master refused this node: {}", refused.sentence());
    if (refused.has_moved_to() || refused.not_elected()) return OnSentOn(refused);
    if (!refused.other_job() || !s_.was_attached) return Fail(why);
    s_.turned_away = why;
    s_.reconnect_ms = s_.reconnect_max_ms;
  }

  void OnSentOn(const v1::Refused& refused) {
    s_.turned_away = refused.sentence();
    s_.hung_up = true;
    Do(HangUp{}, "the stream is over when both sides have said so");
    // The endpoint may know more.
    if (refused.not_elected() && s_.search.dialled != s_.search.endpoint) {
      s_.search.next = Places(s_.search).size() - 1;
    }
    if (!refused.has_moved_to() || refused.term() <= std::max(s_.search.term, s_.search.moved_term)) return;
    const auto port = static_cast<uint16_t>(refused.moved_to().port());
    s_.search.moved_to = JoinHostPort(refused.moved_to().address(), port);
    s_.search.moved_term = refused.term();
    s_.search.next = 0;
    s_.dial_at_once = true;
  }

  // A master that was started anew, or has missed the end of the last stream, must know.
  void TellAgain() {
    if (s_.first_step) TellFirstStep("the master may not know of it");
    for (const v1::WorkerExited& exited : s_.ended) TellEnd(exited, "the master may not know of it");
    if (s_.safe_point) TellSafePoint("the master may not know that a rescale was announced");
  }

  void TellReady() {
    v1::AgentMessage message;
    message.mutable_ready();
    SendToMaster(std::move(message), "workers can start here at once");
  }

  void TellFirstStep(const std::string& reason) {
    v1::AgentMessage message;
    *message.mutable_first_step() = *s_.first_step;
    SendToMaster(std::move(message), reason);
  }

  void TellEnd(const v1::WorkerExited& exited, const std::string& reason) {
    v1::AgentMessage message;
    *message.mutable_worker_exited() = exited;
    SendToMaster(std::move(message), reason);
  }

  void OnStartRound(const v1::StartRound& round) {
    if (round.term() < s_.search.term) return LeaveOldMaster();
    if (round.epoch() <= s_.seen_epoch || s_.finish) return;
    // The round that its ranks were to be safe in is over; the master had not heard yet that this node leaves.
    if (s_.leave_at != kNever) return EndLeaving(round.reason());
    if (s_.phase == Phase::kLeaving) return;
    // Others have trained without this node, which was left out or waited: that is no time of its restart.
    if (round.epoch() > s_.seen_epoch + 1) s_.recovering = false;
    s_.seen_epoch = round.epoch();
    s_.search.term = std::max(s_.search.term, round.term());
    v1::World& world = s_.search.world.emplace();
    world.set_term(round.term());
    world.set_epoch(round.epoch());
    world.set_nodes(round.group_world_size());
    world.set_with_host(round.with_host());
    world.set_member(true);
    if (s_.round && !s_.recovering) {
      s_.recovering = true;
      s_.trouble_since = now_;
    }
    s_.next = round;
    s_.next_announced.reset();
    s_.store_refusals = 0;
    // Before the old workers are ended: other nodes' workers may knock at once.
    OpenOrCloseStore(round);
    Do(SendBeat{Epoch()}, "the master must know how far the old round came, and the next store's port");
    Do(OpenBoard{round.epoch(), round.has_highest_step() ? round.highest_step() : -1}, round.reason());
    EndAll(SIGTERM, s_.options.restart_grace_ms, round.reason());
    AfterGone();
  }

  void OpenOrCloseStore(const v1::StartRound& round) {
    if (round.group_rank() != 0) return Do(CloseStore{}, "another node holds the store of this round");
    OpenStore open{round.epoch(), round.store_port(), {}, round.world_size()};
    open.member_addresses.assign(round.member_addresses().begin(), round.member_addresses().end());
    Do(std::move(open), "this node has group rank 0");
  }

  void EndLeaving(const std::string& reason) {
    s_.leave_at = kNever;
    EndAll(s_.stop_signal, s_.options.stop_timeout_ms, reason);
    FinishIfGone();
  }

  void OnAnnounce(const v1::AnnounceRescale& announce) {
    if (s_.finish) return;
    if (s_.next && s_.next->epoch() == announce.epoch()) s_.next_announced = announce;  // its workers do not live yet
    if (!s_.round || s_.round->epoch() != announce.epoch() || s_.next) return;
    if (announce.at_step() > 0) s_.step_told = true;
    if (announce.at_step() <= 0) Do(SendBeat{Epoch()}, "the master chooses a step that no rank has come to");
    Do(AskForSafePoint{announce.epoch(), announce.at_step(), announce.node_leaves()}, announce.reason());
  }

  void TellSafePoint(const std::string& reason) {
    s_.safe_point->set_reached(s_.awaited.empty());
    v1::AgentMessage message;
    *message.mutable_safe_point() = *s_.safe_point;
    SendToMaster(std::move(message), reason);
  }

  void WarmUp() {
    if (!s_.warming) return;
    Do(WantSpares{s_.options.local_world_size}, "a node that joins a job that trains must not stop it for long");
  }

  void OnHold(const v1::HoldRound& hold) {
    if (s_.leave_at != kNever) return EndLeaving(hold.reason());
    if (s_.finish || s_.phase == Phase::kLeaving) return;
    s_.seen_epoch = std::max(s_.seen_epoch, hold.epoch());
    s_.next.reset();
    if (s_.round && !s_.recovering) {
      s_.recovering = true;
      s_.trouble_since = now_;
    }
    Do(Say{fmt::format("waiting: {}", hold.reason())}, "the master holds the round");
    Do(SendBeat{Epoch()}, "the master must know how far the round came");
    Do(CloseStore{}, hold.reason());
    EndAll(SIGTERM, s_.options.restart_grace_ms, hold.reason());
    if (s_.workers.empty() && s_.phase == Phase::kRunning) s_.phase = Phase::kEnding;  // they had ended by themselves
    WarmUp();  // ranks that have ended before they began had the first claim on its spares
    AfterGone();
  }

  void OnFinish(const v1::Finish& finish) {
    if (s_.finish) return;
    s_.finish = finish;
    s_.next.reset();
    if (finish.exit_code() != 0 && s_.phase != Phase::kLeaving) Do(ReportFailure{finish}, finish.reason());
    if (s_.phase != Phase::kLeaving) s_.phase = Phase::kFinished;
    // After success the workers have ended by themselves; what they left behind is theirs to keep. Those that still run
    // are of an older round, which this node was cut off in.
    if (s_.leave_at != kNever) return EndLeaving(finish.reason());
    if (finish.exit_code() != 0 || !AllEnded()) EndAll(SIGTERM, s_.options.restart_grace_ms, finish.reason());
    FinishIfGone();
  }

  // Asks every live group to end, SIGKILL to follow after `grace_ms`.
  void EndAll(int signal, int64_t grace_ms, const std::string& reason) {
    s_.spares_at = kNever;
    bool any = false;
    for (auto& [rank, worker] : s_.workers) {
      any = true;
      if (worker.doomed) continue;
      worker.doomed = true;
      // One that still waits for its process never starts. What an ended worker has left may be the one that saves.
      Do(EndGroup{rank, s_.round->epoch(), signal},
         worker.ended ? "children of an ended worker go with their round" : reason);
    }
    if (!any) return;
    if (s_.phase == Phase::kRunning || s_.phase == Phase::kWaiting) s_.phase = Phase::kEnding;
    s_.kill_at = std::min(s_.kill_at, now_ + grace_ms);
  }

  void KillAll(const std::string& reason) {
    s_.kill_at = kNever;
    for (auto& [rank, worker] : s_.workers) {
      worker.doomed = true;
      if (worker.pid != 0) Do(KillGroup{rank}, reason);
    }
    if (s_.give_up_at == kNever && !s_.workers.empty()) s_.give_up_at = now_ + kUnkillableMs;
    FinishIfGone();
  }

  void GiveUpGroups() {
    s_.give_up_at = kNever;
    std::string names;
    for (const auto& [rank, worker] : s_.workers) {
      names += fmt::format("{}local rank {} (pid {})", names.empty() ? "" : ", ", rank, worker.pid);
    }
    const std::string why = fmt::format("{} cannot be killed: uninterruptible sleep for {} s; this node needs care",
                                        names, kUnkillableMs / 1000);
    v1::AgentMessage message;
    message.mutable_leaving()->set_reason(why);
    SendToMaster(std::move(message), why);
    Do(Say{why}, why);
    ExitWith(1, why);
  }

  // A group is gone: begin what waited for it.
  void AfterGone() {
    if (!s_.workers.empty()) return;
    if (s_.next) {
      s_.kill_at = s_.give_up_at = kNever;
      return BeginRound();
    }
    if (s_.phase == Phase::kEnding) {
      s_.kill_at = s_.give_up_at = kNever;
      s_.phase = Phase::kWaiting;
      s_.round.reset();
    }
    FinishIfGone();
  }

  void BeginRound() {
    if (s_.round) Do(KillStrays{}, "a new life begins with nothing of the old one");
    s_.round = std::move(s_.next);
    s_.next.reset();
    s_.phase = Phase::kRunning;
    s_.any_warm = false;
    s_.failed.clear();
    s_.ended.clear();
    s_.first_step.reset();
    s_.safe_point.reset();
    s_.awaited.clear();
    s_.safe.clear();
    s_.step_told = false;
    s_.spares_at = now_ + kSparesWithoutStepMs;
    if (s_.attached) Do(SendBeat{Epoch()}, "the master must know that no older rank lives here");
    for (int rank = 0; rank < s_.options.local_world_size; ++rank) {
      s_.workers[rank] = WorkerState{};
      Do(StartWorker{*s_.round, rank}, s_.round->reason());
    }
    if (const auto announced = std::exchange(s_.next_announced, std::nullopt)) OnAnnounce(*announced);
  }

  void ReportUnstarted(const WorkerStartFailed& event) {
    v1::WorkerExited& exited = s_.ended.emplace_back();
    exited.set_epoch(event.epoch);
    exited.set_local_rank(static_cast<uint32_t>(event.local_rank));
    exited.set_exit_code(127);
    exited.set_unix_ms(event.unix_ms);
    exited.set_last_words(event.why);
    Do(Say{event.why}, "a worker could not be started");
    TellEnd(exited, event.why);
  }

  void SayTraining(int64_t step) {
    std::string how = "training";
    if (s_.recovering) {
      how = fmt::format("{} in {} ms", s_.any_warm ? "restarted from a warm spare" : "restarted",
                        now_ - s_.trouble_since);
    }
    s_.recovering = false;
    Do(Say{fmt::format("{}: {}, world {}, step {}", s_.round->reason(), how, s_.round->world_size(), step)},
       "training goes on");
  }

  // A job of one node whose master has died trains to its end; a failure ends it, as nobody could restart it.
  void SettleWithoutMaster() {
    if (s_.master_gone.empty() || s_.finish || s_.phase == Phase::kLeaving) return;
    if (!s_.failed.empty()) {
      return Fail(
          fmt::format("{}, and the job's master, which would restart it, has ended ({})", s_.failed, s_.master_gone));
    }
    for (const auto& [rank, worker] : s_.workers) {
      if (!worker.ended) return;
    }
    v1::Finish finish;
    finish.set_reason("all ranks ended well");
    OnFinish(finish);
  }

  // Without a master a node that trains goes on training; one that waits gives up in the end, and so does a rank that
  // waits for what only the master can tell.
  void WatchForMaster() {
    // A node that ends waits for nobody; a deadline left here would be due for ever.
    if (!s_.master_gone.empty() || s_.phase == Phase::kLeaving || s_.finish) s_.next_notice = kNever;
    if (s_.attached || now_ < s_.next_notice) return;
    const int64_t waited_ms = now_ - s_.lost_since;
    const std::string silence =
        fmt::format("no answer from the master at {} for {} s ({})", s_.options.master_address, waited_ms / 1000,
                    s_.link_why.empty() ? "nothing has come back yet" : s_.link_why);
    // What an ended worker has left in its group trains nothing, and ranks at a safe point wait for the master.
    const bool wait = s_.safe_point && s_.safe_point->asked() > 0 && s_.awaited.empty();
    const bool trains = !wait && !AllEnded();
    if (!trains && waited_ms >= s_.options.join_timeout_ms) {
      s_.next_notice = kNever;
      return Fail(silence + "; --rdzv-conf join_timeout is over");
    }
    const Instant over_at = s_.lost_since + s_.options.join_timeout_ms;
    s_.next_notice = now_ < over_at ? std::min(now_ + kWaitingNoticeMs, over_at) : now_ + kWaitingNoticeMs;
    if (trains && now_ >= over_at && !std::exchange(s_.gave_up_answers, true)) {
      Do(GiveUpAnswers{silence + "; --rdzv-conf join_timeout is over"}, "a rank must not wait without end");
    }
    const std::string until =
        s_.was_attached || trains ? "" : fmt::format(", for up to {} s", s_.options.join_timeout_ms / 1000);
    Do(Say{fmt::format("{}; dialling on{}", silence, until)}, "silence is worth a line");
  }

  // The node cannot go on; workers, if any, are ended first.
  void Fail(const std::string& why) {
    if (s_.finish) return;
    v1::Finish finish;
    finish.set_exit_code(1);
    finish.set_reason(why);
    OnFinish(finish);
  }

  bool AllEnded() const {
    return std::all_of(s_.workers.begin(), s_.workers.end(), [](const auto& worker) { return worker.second.ended; });
  }

  // Some rank of the round has ended because it was asked to save.
  bool HasMadeRoom() const {
    return std::any_of(s_.ended.begin(), s_.ended.end(), [](const auto& exited) { return exited.for_rescale(); });
  }

  void FinishIfGone() {
    const bool leaving = s_.phase == Phase::kLeaving;
    if (s_.exited || (!leaving && !s_.finish)) return;
    // Ranks of others may save still, and are cut off where this node's stream ends before them.
    if (leaving && s_.leave_at != kNever && HasMadeRoom()) return;
    if (leaving && s_.workers.empty()) return ExitWith(128 + s_.stop_signal, "stopped by a signal");
    if (!s_.finish || leaving) return;
    if (s_.workers.empty() || (s_.finish->exit_code() == 0 && AllEnded())) {
      ExitWith(s_.finish->exit_code(), s_.finish->reason());
    }
  }

  void ExitWith(int code, const std::string& reason) {
    s_.exited = true;
    s_.kill_at = s_.give_up_at = s_.leave_at = s_.next_beat = s_.next_dial = s_.next_notice = s_.spares_at = kNever;
    s_.master_start_at = s_.take_over_at = kNever;
    Do(CloseStore{}, reason);
    Do(Exit{code}, reason);
  }

  CoreState& s_;
  const Instant now_;
  std::vector<Decision> decisions_;
};

}  // namespace

std::vector<Decision> Step(CoreState& state, const Event& event, Instant now) {
  if (state.exited) return {};
  Stepper stepper(state, now);
  std::visit([&stepper](const auto& e) { stepper.On(e); }, event);
  return stepper.Take();
}

Instant NextDeadline(const CoreState& s) {
  return std::min({SilentAt(s), s.next_beat, s.next_dial, s.master_start_at, s.take_over_at, s.next_notice, s.kill_at,
                   s.give_up_at, s.leave_at, s.spares_at});
}

const v1::StartRound* LiveRound(const CoreState& s) {
  if (s.next) return &*s.next;
  return s.phase == Phase::kRunning && s.round ? &*s.round : nullptr;
}

void FillSuccession(const CoreState& s, v1::Hello& hello) {
  const MasterSearch& search = s.search;
  if (search.world) *hello.mutable_world() = *search.world;
  if (search.confirmed) *hello.mutable_confirmed() = *search.confirmed;
  if (search.successors.has_host()) *hello.mutable_successors() = search.successors;
  hello.set_term(search.term);
  if (search.moved_term > search.term) {  // a later one, that has not welcomed this node
    const StatusOr<HostPort> moved = SplitHostPort(search.moved_to);
    if (!moved.ok()) return;
    hello.mutable_master()->set_address(moved->host);
    hello.mutable_master()->set_port(moved->port);
    return;
  }
  const StatusOr<HostPort> at = SplitHostPort(search.address);
  if (search.master_id.empty() || search.ip.empty() || !at.ok()) return;
  v1::MasterPlace& master = *hello.mutable_master();
  master.set_port(at->port);
  master.set_address(search.ip);
  // Until a round of that master is confirmed nobody says on which node it is.
  const v1::MasterPlace& host = search.successors.host();
  if (search.successors.term() != search.term || host.node_id().empty()) return;
  master.set_node_id(host.node_id());
  if (IsLoopback(search.ip)) master.set_address(host.address());  // it is this node's own
  // Its agent is known to listen at one address only.
  if (host.address() == master.address()) master.set_presence_port(host.presence_port());
}

bool HostsMaster(const CoreState& s, bool child_runs) {
  if (!child_runs || s.moved_on) return false;
  const MasterSearch& search = s.search;
  return search.own.empty() ? s.hosts_first_master && search.dialled == search.endpoint : search.dialled == search.own;
}

std::string DescribeEnd(int exit_code, int signal) {
  return signal == 0 ? fmt::format("exit code {}", exit_code) : SignalName(signal);
}

}  // namespace phalanx::agent
