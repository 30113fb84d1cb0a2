// One life of phalanx-run on a machine: the production core (src/agent/core/core.h), and a shell that does with each
// event and decision what src/agent/node/shell.cc and src/wire/agent_link.cc do.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "agent/core/core.h"
#include "simulation/machine.h"
#include "simulation/network.h"
#include "simulation/node_workers.h"
#include "simulation/scenario.h"
#include "simulation/sim_keeper.h"
#include "simulation/sim_master.h"

namespace phalanx::simulation {

class SimAgent final : public AgentEnd {
 public:
  struct Parts {
    EventQueue& queue;
    Network& network;
    Story& story;
    Judge& judge;
    const Scenario& scenario;
    Training& training;
    Machine& machine;
    StartTroubles& troubles;
    SimStorage& storage;
    std::function<SimMaster*()> master;    // that holds the endpoint now; null: nobody
    std::function<void()> restart_master;  // this agent's embedded one, with --resume
  };

  SimAgent(const Parts& parts, int life);
  SimAgent(const SimAgent&) = delete;
  SimAgent& operator=(const SimAgent&) = delete;

  void Start();
  void Signal(int signal);
  // Its embedded master has ended, and was not asked to.
  void MasterChildDied(const std::string& why);
  // kill -9 of the agent alone: the guard kills its workers.
  void Kill(bool lose_words);
  // The machine is gone. `seen`: its connections break at once; else nobody hears of it.
  void Vanish(bool seen);
  // The stream breaks on both sides.
  void BreakStream(bool lose_words);

  bool alive() const { return alive_; }
  bool exited() const { return exit_code_.has_value(); }
  int exit_code() const { return exit_code_.value_or(-1); }
  const std::string& node_id() const { return node_id_; }
  const agent::CoreState& core() const { return core_; }
  NodeWorkers& workers() { return workers_; }
  const SimKeeper& keeper() const { return keeper_; }
  // It has exited, but for a step that is on its way to storage.
  bool awaits_storage() const { return leave_by_ != kNever; }
  bool up() const { return stream_.has_value(); }
  bool dialling() const { return dialling_; }
  Instant Now() const { return parts_.machine.clock.Read(parts_.queue.now()); }

  void OnMessage(StreamId stream, const std::shared_ptr<const v1::MasterMessage>& message) override;
  void OnDown(StreamId stream, const std::string& why) override;
  int machine() const override { return parts_.machine.index; }

 private:
  NodeWorkersEvents WorkersEvents();
  SimKeeper::Parts KeeperParts();
  void Feed(agent::Event event);
  void Hear(const v1::MasterMessage& message);
  void ArmTimer();
  void SendToMaster(v1::AgentMessage message);
  v1::Progress ReadProgress() const;
  uint32_t ReservedPort();
  void LinkFailed(uint64_t dial, const std::string& why);
  void Connected(uint64_t dial, SimMaster* master);
  void OnExited(const Process& process, const RankEnd& end);
  void CloseStream();
  // gRPC's keepalive: a master that says nothing is asked, and given up where it does not answer.
  void PingLater(StreamId stream, Micros after);
  void Ping(StreamId stream);
  // As src/agent/node/leaving.cc.
  void AwaitStorage();
  void BeatWhileWaiting();
  void Leave();
  void End();

  void Do(const agent::Dial&);
  void Do(const agent::SendHello&);
  void Do(const agent::SendBeat&);
  void Do(const agent::Send&);
  void Do(const agent::OpenStore&);
  void Do(const agent::CloseStore&);
  void Do(const agent::OpenBoard&);
  void Do(const agent::StartWorker&);
  void Do(const agent::EndGroup&);
  void Do(const agent::KillGroup&);
  void Do(const agent::SignalWorker&);
  void Do(const agent::AskForSafePoint&);
  void Do(const agent::WantSpares&);
  void Do(const agent::KillStrays&);
  void Do(const agent::RestartMaster&);
  void Do(const agent::Say&);
  void Do(const agent::ReportFailure&);
  void Do(const agent::Exit&);

  const Parts parts_;
  const std::string node_id_;
  agent::CoreState core_;
  SimKeeper keeper_;
  NodeWorkers workers_;
  bool alive_ = false;
  std::optional<int> exit_code_;
  Instant leave_by_ = kNever;  // storage is waited for before the node goes
  bool left_ = false;
  std::deque<agent::Event> queued_;
  bool stepping_ = false;
  Instant ticked_at_ = kNever;  // the last event came
  int idle_ticks_ = 0;
  Instant timer_at_ = kNever;
  uint64_t timer_ = 0;

  // The link.
  std::optional<StreamId> stream_;
  SimMaster* master_ = nullptr;  // its other end
  bool dialling_ = false;
  bool closing_ = false;
  uint64_t dial_ = 0;
  uint64_t next_sequence_ = 1;
  Micros heard_at_ = 0;  // from the master, on the open stream

  std::optional<v1::StartRound> last_round_;  // that workers were started for

  // The board.
  uint64_t board_epoch_ = 0;
  std::vector<Process> board_;  // who has written to it, by local rank
  uint32_t reserved_port_ = 0;
};

}  // namespace phalanx::simulation
