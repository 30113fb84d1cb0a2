// A job with virtual time for tests: brings events to the core, keeps what every agent was told.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "base/check.h"
#include "master/core/admit.h"
#include "master/core/core.h"
#include "master/core/test_hello.h"

namespace phalanx::master {

// What one agent knows.
struct ToldAgent {
  std::vector<v1::StartRound> rounds;
  std::string reason;  // of the last StartRound or Hold
  std::vector<uint64_t> holds;
  std::vector<std::string> notices;
  std::optional<v1::Finish> outcome;
  std::string refused;
  bool other_job = false;  // ... by another job's master
  bool welcome = false;
  bool dropped = false;
  v1::Successors successors;  // as told last
  int beats_heard = 0;
  std::vector<bool> asked_for_steps;  // and whether for those of each rank
};

// What one agent was told of a planned change, or of checkpoints.
struct ToldRescale {
  uint64_t session = 0;
  uint64_t epoch = 0;
  int64_t at_step = 0;
};
struct ToldOrder {
  uint64_t session = 0;
  v1::CheckpointOrder order;
};
struct ToldShards {
  uint64_t session = 0;
  v1::ShardReply reply;
};
struct ToldCheck {
  uint64_t session = 0;
  v1::CheckOrder order;
};

// A message of an agent with that body, of any kind that AgentMessage has.
template <typename Body>
v1::AgentMessage MessageWith(const Body& body) {
  v1::AgentMessage message;
  const google::protobuf::OneofDescriptor& kinds = *message.GetDescriptor()->FindOneofByName("body");
  int i = 0;
  while (i < kinds.field_count() && kinds.field(i)->message_type() != body.GetDescriptor()) ++i;
  PHX_CHECK(i < kinds.field_count(), "no agent says such a thing");
  message.GetReflection()->MutableMessage(&message, kinds.field(i))->CopyFrom(body);
  return message;
}

class JobFixture {
 public:
  JobFixture(uint32_t min_nodes, uint32_t max_nodes, std::optional<uint32_t> max_restarts = std::nullopt,
             uint32_t node_unit = 1) {
    spec.set_min_nodes(min_nodes);
    spec.set_node_unit(node_unit);
    spec.set_max_nodes(max_nodes);
    if (max_restarts) spec.set_max_restarts(*max_restarts);
    state = journal_state = JobState("job", spec);
  }

  // Of the job and all its nodes, before any has come.
  void UseElasticConfig(const std::string& block) {
    spec.set_elastic_config(block);
    state = journal_state = JobState("job", spec);
  }

  v1::Hello Info(const std::string& name, uint32_t workers = 2) const {
    v1::Hello info = TestHello(name, workers, spec);
    info.set_node_id("id-" + name);
    return info;
  }

  uint64_t Attach(const v1::Hello& hello) {
    const uint64_t session = ++sessions_;
    node_ids[session] = hello.node_id();
    v1::AgentMessage message = FirstMessage(hello, static_cast<uint32_t>(20'000 + session));
    Send(AttachedOf(session, std::move(message), /*peer_address=*/""));
    return session;
  }
  uint64_t Attach(const std::string& name, uint32_t workers = 2) { return Attach(Info(name, workers)); }

  void Detach(uint64_t session) { Send(AgentDetached{session, "its stream broke"}); }

  void Leave(uint64_t session, int32_t signal = 15) {
    v1::Leaving leaving;
    leaving.set_signal(signal);
    Say(session, leaving);
  }

  void Exit(uint64_t session, v1::WorkerExited exit, uint64_t epoch = 0) {
    exit.set_epoch(epoch != 0 ? epoch : Epoch());
    Say(session, exit);
  }
  void Kill(uint64_t session, uint32_t local_rank, uint64_t epoch = 0) {
    v1::WorkerExited exit = Ended(local_rank, 0);
    exit.set_signal(9);
    Exit(session, exit, epoch);
  }
  static v1::WorkerExited Ended(uint32_t local_rank, int32_t exit_code) {
    v1::WorkerExited exit;
    exit.set_local_rank(local_rank);
    exit.set_exit_code(exit_code);
    exit.set_script_started(true);
    return exit;
  }
  static v1::WorkerExited Collateral(uint32_t local_rank) {
    v1::WorkerExited exit = Ended(local_rank, 1);
    exit.set_last_words("RuntimeError: [gloo/transport/tcp/pair.cc:534] Connection closed by peer [10.0.0.2]:4711");
    return exit;
  }

  void AllStep() {
    const Round round = *state.round;
    for (const Slot& slot : round.slots) {
      v1::FirstStep first;
      first.set_epoch(round.epoch);
      first.set_step(1);
      Say(slot.session, first);
    }
  }

  // Lets `ms` pass, with every Tick that falls due and, every second, a beat of each agent but those in `silent`.
  void Pass(int64_t ms, const std::set<uint64_t>& silent = {}) {
    silent_ = silent;
    const Instant end = now + ms;
    Instant beat_at = now + 1'000;
    for (int ticks = 0;; ++ticks) {
      PHX_CHECK(ticks < 1'000'000, "a deadline that a Tick does not consume");
      const Instant next = std::min({NextDeadline(state), beat_at, end});
      now = std::max(now, next);
      if (NextDeadline(state) <= now) Send(Tick{});
      if (now >= beat_at) {
        beat_at = now + 1'000;
        Beats(silent);
      }
      if (now >= end) return;
    }
  }

  void Beats(const std::set<uint64_t>& silent = {}) {
    std::vector<uint64_t> speaking;
    for (const auto& [session, node] : state.nodes) {
      if (!silent.contains(session)) speaking.push_back(session);
    }
    for (const uint64_t session : speaking) Say(session, v1::Beat());
  }

  // What the node on that stream says, as the door admits it.
  template <typename Body>
  void Say(uint64_t session, const Body& body) {
    Send(EventOf(session, MessageWith(body)));
  }

  void Send(const Event& event) {
    gathering_ms_ = GatheringMs();
    stepping_ms_ = SteppingMs();
    sent_at_ = now;
    last = Step(state, event, now);
    for (const Decision& decision : last) {
      std::visit([&](const auto& action) { Note(action, decision.reason); }, decision.action);
    }
    if (wants_safe_point) return;
    for (const ToldRescale& announce : std::exchange(announced, {})) {
      if (!silent_.contains(announce.session)) SafePoint(announce, 0, true);
    }
  }

  // The answer of a node, `asked` of whose ranks hear of a rescale.
  void SafePoint(const ToldRescale& announce, uint32_t asked, bool reached) {
    v1::SafePoint point;
    point.set_epoch(announce.epoch);
    point.set_asked(asked);
    point.set_reached(reached);
    Say(announce.session, point);
  }

  // How long the job has been gathering, and running with all nodes having made their first step.
  int64_t GatheringMs() const { return gathering_ms_ + (state.phase == Phase::kGathering ? now - sent_at_ : 0); }
  int64_t SteppingMs() const {
    const bool running = state.phase == Phase::kRunning && state.round;
    const bool stepping =
        running && state.round->slots_stepped == state.round->slots.size() && !state.round->AnyYielded();
    return stepping_ms_ + (stepping ? now - sent_at_ : 0);
  }

  // What the nodes of the live round tell of `step`, in order: it is sealed, and goes to storage; its folder is made; a
  // node has written its part; the manifest is written.
  void SealForStorage(int64_t step) {
    for (const uint64_t session : Ranks()) {
      TellOfSave(session, [step, epoch = Epoch()](v1::CheckpointReport& report) {
        Fill(report.mutable_sealed()->mutable_save(), epoch, step);
        report.mutable_sealed()->set_store(true);
      });
    }
  }
  void PrepareStore(uint64_t session, uint64_t epoch, int64_t step) {
    TellOfSave(session, [&](v1::CheckpointReport& report) {
      Fill(report.mutable_store_prepared()->mutable_save(), epoch, step);
      report.mutable_store_prepared()->set_name("some");
    });
  }
  void WriteShards(uint64_t session, uint64_t epoch, int64_t step) {
    TellOfSave(session, [&](v1::CheckpointReport& report) {
      Fill(report.mutable_shards_written()->mutable_save(), epoch, step);
      report.mutable_shards_written()->add_shards()->set_file("rank_0.pt");
    });
  }
  void WriteManifest(uint64_t session, uint64_t epoch, int64_t step) {
    TellOfSave(session, [&](v1::CheckpointReport& report) {
      Fill(report.mutable_manifest_written()->mutable_save(), epoch, step);
    });
  }

  uint64_t Epoch() const { return state.round ? state.round->epoch : 0; }
  // Sessions by group rank.
  std::vector<uint64_t> Ranks() const {
    std::vector<uint64_t> sessions;
    if (!state.round) return sessions;
    for (const Slot& slot : state.round->slots) sessions.push_back(slot.session);
    return sessions;
  }
  std::vector<std::string> Records(const std::string& kind) const {
    std::vector<std::string> reasons;
    for (const auto& [record, reason] : records) {
      if (record.kind == kind) reasons.push_back(reason);
    }
    return reasons;
  }

  v1::JobSpec spec = DefaultSpec();
  JobState state;
  Instant now = 1'000'000;
  std::map<uint64_t, ToldAgent> told;
  std::map<uint64_t, std::string> node_ids;  // by session, also those that are over
  std::vector<std::pair<Record, std::string>> records;
  std::vector<Instant> record_times;   // of those
  std::vector<Decision> last;          // of the last event
  JobState journal_state;              // what the journal holds
  bool wants_safe_point = false;       // else all nodes answer at once that their ranks hear of nothing
  std::vector<ToldRescale> announced;  // not answered yet
  std::vector<ToldOrder> orders;       // about checkpoints
  std::vector<ToldCheck> checks;       // not answered yet
  std::vector<ToldShards> shard_replies;
  std::vector<Probe> probes;  // all so far

 private:
  static void Fill(v1::SaveId* save, uint64_t epoch, int64_t step) {
    save->set_epoch(epoch);
    save->set_step(step);
  }
  template <typename Tell>
  void TellOfSave(uint64_t session, Tell tell) {
    v1::CheckpointReport report;
    report.set_epoch(Epoch());
    report.set_dir("/data/run");
    tell(report);
    Say(session, report);
  }

  void Note(const master::Send& a, const std::string& reason) {
    ToldAgent& agent = told[a.session];
    const v1::MasterMessage& message = *a.message;
    switch (message.body_case()) {
      case v1::MasterMessage::kWelcome:
        agent.welcome = true;
        return;
      case v1::MasterMessage::kRefused:
        agent.refused = message.refused().sentence();
        agent.other_job = message.refused().other_job();
        return;
      case v1::MasterMessage::kStartRound:
        agent.rounds.push_back(message.start_round());
        agent.reason = reason;
        return;
      case v1::MasterMessage::kHoldRound:
        agent.holds.push_back(message.hold_round().epoch());
        agent.reason = reason;
        return;
      case v1::MasterMessage::kFinish:
        agent.outcome = message.finish();
        return;
      case v1::MasterMessage::kNotice:
        agent.notices.push_back(message.notice().text());
        return;
      case v1::MasterMessage::kAnnounceRescale: {
        const v1::AnnounceRescale& announce = message.announce_rescale();
        announced.push_back({a.session, announce.epoch(), announce.at_step()});
        return;
      }
      case v1::MasterMessage::kSuccessors:
        agent.successors = message.successors();
        return;
      case v1::MasterMessage::kBeatHeard:
        ++agent.beats_heard;
        return;
      case v1::MasterMessage::kTellSteps:
        agent.asked_for_steps.push_back(message.tell_steps().ranks());
        return;
      case v1::MasterMessage::kCheck:
        checks.push_back({a.session, message.check()});
        return;
      case v1::MasterMessage::kCheckpoint:
        orders.push_back({a.session, message.checkpoint()});
        return;
      case v1::MasterMessage::kShardReply:
        shard_replies.push_back({a.session, message.shard_reply()});
        return;
      case v1::MasterMessage::BODY_NOT_SET:
        PHX_CHECK(false, "an empty message");
    }
  }
  void Note(const Remember&, const std::string&) { journal_state = state; }
  void Note(const Probe& a, const std::string&) { probes.push_back(a); }
  void Note(const Drop& a, const std::string&) { told[a.session].dropped = true; }
  void Note(const Record& a, const std::string& reason) {
    records.push_back({a, reason});
    record_times.push_back(now);
  }

  Instant sent_at_ = now;
  int64_t gathering_ms_ = 0;  // up to then
  int64_t stepping_ms_ = 0;
  uint64_t sessions_ = 0;
  std::set<uint64_t> silent_;
};

}  // namespace phalanx::master
