#include "simulation/sim_agent.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <utility>

#include "simulation/judge.h"
#include "simulation/story.h"
#include "simulation/telling.h"
#include "wire/limits.h"
#include "wire/protocol.h"

namespace phalanx::simulation {
namespace {

constexpr Micros kPingAfter = wire::kPingMs * kMs;
constexpr Micros kPingTimeout = wire::kPingMs * kMs;
constexpr Micros kHandshakeTimeout = wire::kHandshakeTimeoutMs * kMs;

// A master that is a program of its own is named to all.
agent::joining::Options JoiningOptionsOf(const Scenario& scenario) {
  agent::joining::Options options;
  options.has_own_master = !scenario.embedded;
  options.endpoint_host = "master";
  options.endpoint_port = kMasterPort;
  options.join_timeout_ms = scenario.spec.join_timeout_ms();
  return options;
}

agent::CoreOptions OptionsOf(const Scenario& scenario) {
  agent::CoreOptions options;
  options.stop_timeout_ms = scenario.stop_timeout_ms;
  options.restart_grace_ms = scenario.restart_grace_ms;
  options.rescale_grace_ms = scenario.spec.rescale_grace_ms();
  options.max_nodes = scenario.spec.max_nodes();
  options.join_timeout_ms = scenario.spec.join_timeout_ms();
  return options;
}

}  // namespace

SimAgent::SimAgent(const Parts& parts, int life)
    : parts_(parts),
      node_id_(fmt::format("{}-life{}", parts.machine.name, life)),
      keeper_(KeeperParts()),
      shards_(parts.judge,
              [this](v1::ShardRequest request) {
                if (!alive_ || !core_.attached) return;  // it is asked again on the next stream
                v1::AgentMessage message;
                *message.mutable_shard_request() = std::move(request);
                SendToMaster(std::move(message));
              }),
      workers_({parts.queue, parts.story, parts.judge, parts.scenario, parts.training, parts.machine, parts.troubles,
                keeper_, shards_},
               WorkersEvents()) {
  core_.options = OptionsOf(parts.scenario);
  joining_.options = JoiningOptionsOf(parts.scenario);
  leaving_.options = {parts.scenario.stop_timeout_ms, parts.scenario.spec.max_nodes(),
                      parts.scenario.spec.rescale_grace_ms()};
}

SimKeeper::Parts SimAgent::KeeperParts() {
  static const Saving kNone;
  const std::optional<Saving>& saving = parts_.scenario.script.saving;
  return {parts_.queue,
          parts_.story,
          parts_.judge,
          saving ? *saving : kNone,
          parts_.storage,
          parts_.archive,
          parts_.machine,
          parts_.machines,
          static_cast<int>(arrival().local_world_size),
          [this](v1::CheckpointReport report) {
            if (!core_.attached) return;  // it is told again on the next stream
            v1::AgentMessage message;
            *message.mutable_checkpoint() = std::move(report);
            SendToMaster(std::move(message));
          }};
}

NodeWorkersEvents SimAgent::WorkersEvents() {
  NodeWorkersEvents events;
  events.on_spares_changed = [this](int waiting) {
    if (waiting >= core_.options.local_world_size) Feed(agent::Warm{});
  };
  events.on_cold = [this] { Feed(agent::Warm{}); };
  events.on_started = [this](const Process& p) { Feed(agent::WorkerStarted{p->local_rank, p->epoch, p->pid}); };
  events.on_start_failed = [this](const Process& p, const std::string& why) {
    Feed(agent::WorkerStartFailed{p->local_rank, p->epoch, why, parts_.queue.now() / kMs});
  };
  events.on_first_step = [this](const Process& p) {
    const int64_t step = parts_.scenario.script.tells_step ? p->from_step + p->steps : p->steps;
    Feed(agent::WorkerStepped{p->local_rank, p->epoch, step, p->warm, ReadProgress()});
  };
  events.on_safe_point = [this](const Process& p) { Feed(agent::WorkerSafe{p->local_rank, p->epoch}); };
  events.on_exited = [this](const Process& p, const RankEnd& end) { OnExited(p, end); };
  events.on_group_gone = [this](const Process& p) { Feed(agent::GroupGone{p->local_rank, p->epoch}); };
  return events;
}

// As the board says it: nothing before the first of this life.
int64_t SimAgent::StepOf(const WorkerProcess& process) const {
  if (process.steps == 0 || !parts_.scenario.script.tells_step) return process.steps;
  return process.from_step + process.steps;
}

void SimAgent::OnExited(const Process& process, const RankEnd& end) {
  keeper_.OnRankEnded(process);
  shards_.OnRankEnded(process);
  agent::WorkerEnded event;
  v1::WorkerExited& exited = event.exited;
  exited.set_epoch(process->epoch);
  exited.set_local_rank(static_cast<uint32_t>(process->local_rank));
  exited.set_pid(process->pid);
  exited.set_exit_code(end.exit_code);
  exited.set_signal(end.signal);
  exited.set_script_started(process->script_started);
  exited.set_unix_ms(parts_.queue.now() / kMs);
  exited.set_last_words(end.last_words);
  if (process->epoch == board_epoch_) {
    exited.set_steps(StepOf(*process));
    *exited.mutable_progress() = ReadProgress();
  }
  Feed(event);
}

// --- the cores ----------------------------------------------------------------------------------------------------

void SimAgent::Feed(Event event) {
  if (!alive_) return;
  queued_.push_back(std::move(event));
  if (stepping_) return;
  stepping_ = true;
  CountIdleTicks(queued_.front());
  while (!queued_.empty() && alive_) {
    const Event next = std::move(queued_.front());
    queued_.pop_front();
    if (const auto* const of_core = std::get_if<agent::Event>(&next)) StepOn(core_, *of_core);
    if (const auto* const of_joining = std::get_if<agent::joining::Event>(&next)) StepOn(joining_, *of_joining);
    if (const auto* const of_leaving = std::get_if<agent::leaving::Event>(&next)) StepOn(leaving_, *of_leaving);
    if (const auto* const of_checking = std::get_if<agent::checking::Event>(&next)) StepOnCheck(*of_checking);
  }
  stepping_ = false;
  if (alive_) parts_.judge.OnAgentSettled(*this, idle_ticks_);
  ArmTimer();
}

template <typename State, typename OneEvent>
void SimAgent::StepOn(State& state, const OneEvent& event) {
  const auto decisions = Step(state, event, Now());
  TellAgentStep(parts_.story, parts_.queue.now(), parts_.machine.name, event, decisions);
  for (const auto& decision : decisions) {
    parts_.judge.OnAgentDecided(*this, decision.reason);
    std::visit([this](const auto& action) { this->Do(action); }, decision.action);
  }
}

bool SimAgent::IsTick(const Event& event) {
  const auto* const of_core = std::get_if<agent::Event>(&event);
  if (of_core != nullptr) return std::holds_alternative<agent::Tick>(*of_core);
  const auto* const of_joining = std::get_if<agent::joining::Event>(&event);
  if (of_joining != nullptr) return std::holds_alternative<agent::joining::Tick>(*of_joining);
  const auto* const of_checking = std::get_if<agent::checking::Event>(&event);
  if (of_checking != nullptr) return std::holds_alternative<agent::checking::Tick>(*of_checking);
  return std::holds_alternative<agent::leaving::Tick>(std::get<agent::leaving::Event>(event));
}

void SimAgent::CountIdleTicks(const Event& event) {
  const Instant now = Now();
  idle_ticks_ = IsTick(event) && ticked_at_ == now ? idle_ticks_ + 1 : 0;
  ticked_at_ = now;
}

Instant SimAgent::NextDeadline() const {
  return std::min({agent::NextDeadline(core_), agent::joining::NextDeadline(joining_),
                   agent::leaving::NextDeadline(leaving_), agent::checking::NextDeadline(checking_)});
}

void SimAgent::ArmTimer() {
  const Instant next = NextDeadline();
  if (!alive_ || next == kNever || (timer_at_ != kNever && timer_at_ <= next)) return;
  timer_at_ = next;
  const uint64_t timer = ++timer_;
  parts_.queue.At(parts_.machine.clock.WhenReads(next), [this, timer] {
    parts_.machine.gate.Pass([this, timer] {
      if (!alive_ || timer != timer_) return;
      timer_at_ = kNever;
      OnTimer();
    });
  });
}

void SimAgent::OnTimer() {
  const Instant due = NextDeadline();
  if (due > Now()) return ArmTimer();
  // Before any of them steps: a step may move another's deadline.
  const bool core = agent::NextDeadline(core_) <= due;
  const bool join = agent::joining::NextDeadline(joining_) <= due;
  const bool leave = agent::leaving::NextDeadline(leaving_) <= due;
  const bool check = agent::checking::NextDeadline(checking_) <= due;
  if (core) Feed(agent::Tick{});
  if (join) Feed(agent::joining::Tick{});
  if (leave) Feed(agent::leaving::Tick{keeper_.StoringText()});
  if (check) Feed(agent::checking::Tick{});
}

void SimAgent::Signal(int signal) {
  if (!alive_) return;
  Feed(agent::leaving::AskedAgain{});
  bool hears = false;
  for (const auto& [local_rank, worker] : core_.workers) {
    hears = hears || (!worker.ended && workers_.HearsRescale(local_rank));
  }
  Feed(agent::StopSignal{signal, hears});
}

// --- the link -----------------------------------------------------------------------------------------------------

void SimAgent::Do(const agent::Dial&) {
  dialling_ = true;
  const uint64_t dial = ++dial_;
  const int index = parts_.machine.index;
  const auto fail = [this, dial](Micros after, const char* why) {
    parts_.queue.After(after,
                       [this, dial, why] { parts_.machine.gate.Pass([this, dial, why] { LinkFailed(dial, why); }); });
  };
  if (!parts_.network.Carries(index, Way::kUp) || !parts_.network.Carries(index, Way::kDown)) {
    return fail(kHandshakeTimeout, "connection timed out");
  }
  const Micros there = parts_.network.Delay(index);
  parts_.queue.After(there, [this, dial, index, fail] {
    SimMaster* const master = parts_.master();
    const bool carries = parts_.network.Carries(index, Way::kDown);
    if (!carries || (master != nullptr && master->gate().stopped()))
      return fail(kHandshakeTimeout, "handshake timed out");
    const Micros back = parts_.network.Delay(index);
    if (master == nullptr || !master->listening()) return fail(back, "Connection refused");
    parts_.queue.After(
        back, [this, dial, master] { parts_.machine.gate.Pass([this, dial, master] { Connected(dial, master); }); });
  });
}

void SimAgent::LinkFailed(uint64_t dial, const std::string& why) {
  if (!alive_ || dial != dial_ || !dialling_) return;
  dialling_ = false;
  Feed(agent::LinkDown{why, false});
  Feed(agent::leaving::StreamBroken{keeper_.StoringText()});
}

void SimAgent::Connected(uint64_t dial, SimMaster* master) {
  if (!alive_ || dial != dial_ || !dialling_) return;
  dialling_ = false;
  next_sequence_ = 1;
  const StreamId stream = parts_.network.Open(parts_.machine.index);
  stream_ = stream;
  parts_.network.Send(stream, Way::kUp, [this, stream, master] {
    if (!master->listening()) {
      parts_.network.Send(stream, Way::kDown, [this, stream] { OnDown(stream, "Connection reset by peer"); });
      return parts_.network.Close(stream, Way::kDown);
    }
    master->gate().Pass([this, stream, master] {
      if (master->listening()) master->OnAccepted(stream, this);
    });
  });
  master_ = master;
  heard_at_ = parts_.queue.now();
  PingLater(stream, kPingAfter);
  Feed(agent::LinkUp{});
}

void SimAgent::PingLater(StreamId stream, Micros after) {
  parts_.queue.After(after, [this, stream] {
    parts_.machine.gate.Pass([this, stream] {
      if (alive_ && stream_ == stream) Ping(stream);
    });
  });
}

void SimAgent::Ping(StreamId stream) {
  const Micros silent = parts_.queue.now() - heard_at_;
  if (silent < kPingAfter) return PingLater(stream, kPingAfter - silent);
  const auto pong = [this, stream] {
    parts_.machine.gate.Pass([this, stream] {
      if (stream_ == stream) heard_at_ = parts_.queue.now();
    });
  };
  parts_.network.Send(stream, Way::kUp, [master = master_, stream, pong] {
    master->gate().Pass([master, stream, pong] { master->OnPing(stream, pong); });
  });
  parts_.queue.After(kPingTimeout, [this, stream, pinged_at = parts_.queue.now()] {
    parts_.machine.gate.Pass([this, stream, pinged_at] {
      if (!alive_ || stream_ != stream) return;
      if (heard_at_ >= pinged_at) return Ping(stream);
      CloseStream();
      OnDown(stream, "keepalive watchdog timeout");
    });
  });
}

void SimAgent::SendToMaster(v1::AgentMessage message) {
  message.set_next_store_port(ReservedPort());
  if (!stream_ || closing_) return;
  message.set_sequence(next_sequence_++);
  auto told = std::make_unique<v1::AgentMessage>(std::move(message));
  parts_.network.Send(*stream_, Way::kUp, [master = master_, stream = *stream_, told = std::move(told)]() mutable {
    master->gate().Pass([master, stream, told = std::move(told)] { master->OnMessage(stream, std::move(*told)); });
  });
}

void SimAgent::OnMessage(StreamId stream, const std::shared_ptr<const v1::MasterMessage>& message) {
  parts_.machine.gate.Pass([this, stream, message] {
    if (stream_ == stream) heard_at_ = parts_.queue.now();
    if (!alive_ || stream_ != stream || closing_) return;
    Hear(*message);
  });
}

void SimAgent::Hear(const v1::MasterMessage& message) {
  if (message.has_checkpoint()) {
    TellOrder(parts_.story, parts_.queue.now(), parts_.machine.name, message.checkpoint());
    return keeper_.OnOrder(message.checkpoint());
  }
  if (message.has_shard_reply()) return shards_.OnReply(message.shard_reply());
  parts_.judge.OnAgentTold(*this, message);
  if (message.has_check()) return Feed(agent::checking::Ordered{message.check()});
  if (message.has_start_round()) Feed(agent::checking::Over{});
  if (message.has_welcome()) Feed(agent::checking::Unasked{});
  if (message.has_finish()) keeper_.OnJobEnded();
  Feed(agent::FromMaster{message});
  if (message.has_welcome()) keeper_.OnAttached();
  if (message.has_welcome()) shards_.OnAttached();
}

void SimAgent::OnDown(StreamId stream, const std::string& why) {
  parts_.machine.gate.Pass([this, stream, why] {
    if (!alive_ || stream_ != stream) return;
    stream_.reset();
    if (closing_) return Feed(agent::leaving::StreamClosed{});
    Feed(agent::LinkDown{why, false});
    Feed(agent::leaving::StreamBroken{keeper_.StoringText()});
  });
}

void SimAgent::BreakStream(bool lose_words) {
  if (!stream_) return;
  const StreamId stream = *stream_;
  if (lose_words) {
    parts_.network.Lose(stream, Way::kUp);
    parts_.network.Lose(stream, Way::kDown);
  }
  CloseStream();
  parts_.network.Break(stream, Way::kDown, [this, stream] { OnDown(stream, "Connection reset by peer"); });
}

// The master reads what was sent, and then the end.
void SimAgent::CloseStream() {
  parts_.network.Break(*stream_, Way::kUp, [master = master_, stream = *stream_] {
    master->gate().Pass([master, stream] { master->OnReadEnd(stream); });
  });
}

// --- what is told -------------------------------------------------------------------------------------------------

void SimAgent::Do(const agent::SendHello&) {
  v1::AgentMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol_version(wire::kProtocolVersion);
  hello.set_software_version(PHALANX_VERSION);
  hello.set_job_id("job");
  hello.set_node_id(node_id_);
  hello.set_hostname(parts_.machine.name);
  hello.set_address(parts_.machine.address);
  hello.add_interface_addresses(parts_.machine.address);
  hello.set_node_rank_wanted(arrival().wanted_rank);
  hello.set_local_world_size(arrival().local_world_size);
  hello.set_role("default");
  *hello.mutable_spec() = parts_.scenario.spec;
  hello.set_warming(core_.warming);
  hello.set_seen_epoch(core_.seen_epoch);
  if (const v1::StartRound* const live = agent::LiveRound(core_)) {
    *hello.mutable_live_round() = *live;
    hello.mutable_live_round()->clear_member_addresses();
  } else if (last_round_) {
    *hello.mutable_last_round() = *last_round_;
    hello.mutable_last_round()->clear_member_addresses();
  }
  SendToMaster(std::move(message));
}

void SimAgent::Do(const agent::SendBeat& action) { SendToMaster(BeatOf(action.epoch)); }

void SimAgent::Do(const agent::TellSteps& action) {
  v1::AgentMessage message = BeatOf(action.epoch);
  v1::Beat& beat = *message.mutable_beat();
  beat.set_asked_for(true);
  for (size_t rank = 0; action.ranks && rank < board_.size(); ++rank) {
    beat.add_ranks()->set_local_rank(static_cast<uint32_t>(rank));
  }
  SendToMaster(std::move(message));
}

v1::AgentMessage SimAgent::BeatOf(uint64_t epoch) const {
  v1::AgentMessage message;
  v1::Beat& beat = *message.mutable_beat();
  beat.set_epoch(epoch);
  int64_t least = INT64_MAX;
  int64_t most = 0;
  for (const Process& p : board_) {
    const int64_t step = p == nullptr ? 0 : StepOf(*p);
    least = std::min(least, step);
    most = std::max(most, step);
  }
  if (!board_.empty()) {
    beat.set_min_step(least);
    beat.set_max_step(most);
    *beat.mutable_progress() = ReadProgress();
  }
  if (parts_.scenario.watches_ranks) FillPaces(beat);
  return message;
}

// Half of a step is a rank's own work; where its machine is slow all of it is, and the others wait.
void SimAgent::FillPaces(v1::Beat& beat) const {
  const Arrival& there = parts_.scenario.machines[static_cast<size_t>(parts_.machine.index)];
  const Micros step = parts_.scenario.script.step;
  for (const Process& p : board_) {
    if (p == nullptr || p->steps == 0) continue;
    p->own_us +=
        (p->steps - std::exchange(p->split_steps, p->steps)) * (parts_.queue.now() < there.slow_from ? step / 2 : step);
    v1::RankPace& pace = *beat.add_paces();
    pace.set_local_rank(static_cast<uint32_t>(p->local_rank));
    pace.set_steps(static_cast<uint64_t>(p->steps));
    pace.set_own_us(p->own_us);
    pace.set_waited_us(p->steps * step - p->own_us);
  }
}

v1::Progress SimAgent::ReadProgress() const {
  v1::Progress progress;
  if (!parts_.scenario.script.tells_step) return progress;
  for (const Process& p : board_) {
    if (p == nullptr || p->steps == 0) continue;
    progress.set_from_step(p->from_step);
    progress.set_step(std::max(progress.step(), p->from_step + p->steps));
  }
  return progress;
}

uint32_t SimAgent::ReservedPort() {
  if (reserved_port_ == 0) reserved_port_ = parts_.machine.next_port++;
  return reserved_port_;
}

void SimAgent::Do(const agent::Send& action) { SendToMaster(action.message); }

// --- store, board, workers ----------------------------------------------------------------------------------------

void SimAgent::Do(const agent::OpenStore& action) {
  parts_.machine.store = Store{action.epoch, action.port};
  reserved_port_ = 0;
  parts_.training.Kick();
}

void SimAgent::Do(const agent::CloseStore&) {
  parts_.machine.store.reset();
  parts_.training.Kick();
}

void SimAgent::Do(const agent::OpenBoard& action) {
  board_epoch_ = action.epoch;
  board_.assign(static_cast<size_t>(core_.options.local_world_size), nullptr);
}

void SimAgent::Do(const agent::StartWorker& action) {
  parts_.judge.OnWorkerStart(parts_.machine, workers_, action.round.epoch());
  if (action.local_rank == 0) keeper_.OnRound(action.round);
  if (action.local_rank == 0) shards_.OnRound(action.round.epoch());
  workers_.StartWorker(action.round, action.local_rank);
  last_round_ = action.round;
  const auto started = workers_.workers().find(action.local_rank);
  keeper_.NewRank(started->second);
  board_[static_cast<size_t>(action.local_rank)] = started->second;
}

void SimAgent::Do(const agent::EndGroup& action) {
  const bool withstands = workers_.GroupWithstands(action.local_rank, action.signal);
  workers_.SignalGroup(action.local_rank, action.signal);
  Feed(agent::GroupSignalled{action.local_rank, action.epoch, withstands});
}

void SimAgent::Do(const agent::KillGroup& action) { workers_.SignalGroup(action.local_rank, SIGKILL); }

void SimAgent::Do(const agent::SignalWorker&) {}  // scripts here do nothing with the user's signals

void SimAgent::Do(const agent::AskForSafePoint& action) {
  agent::SafePointAsked asked{action.epoch, {}};
  for (const auto& [local_rank, worker] : core_.workers) {
    if (worker.ended || !workers_.HearsRescale(local_rank)) continue;
    asked.local_ranks.insert(local_rank);
    if (action.at_step > 0) workers_.AnnounceRescale(local_rank, action.at_step);
  }
  Feed(asked);
}

void SimAgent::Do(const agent::WantSpares& action) { workers_.WantSpares(action.count); }

void SimAgent::Do(const agent::KillStrays&) {}  // nothing here leaves its group

void SimAgent::Do(const agent::RestartMaster&) { StartMaster(true); }
void SimAgent::Do(const agent::HangUp&) {}
void SimAgent::Do(const agent::TakeOver&) {}
void SimAgent::Do(const agent::LetGo&) {}
void SimAgent::Do(const agent::Herald&) {}
void SimAgent::Do(const agent::StopHerald&) {}
void SimAgent::Do(const agent::GiveUpAnswers& action) {
  keeper_.OnMasterSilent(action.why);
  shards_.OnMasterSilent(action.why);
}

void SimAgent::Do(const agent::Say&) {}  // the story tells of it

void SimAgent::Do(const agent::ReportFailure&) {}

}  // namespace phalanx::simulation
