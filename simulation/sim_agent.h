// One life of phalanx-run on a machine: the production cores (src/agent/core/core.h, joining.h, leaving.h, checking.h),
// and a shell that does with each event and decision what src/agent/node/ and src/wire/agent_link.cc do. Its steps into
// the job are in sim_agent_join.cc, those out of it in sim_agent_end.cc, all between in sim_agent.cc.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <variant>

#include "agent/core/checking.h"
#include "agent/core/core.h"
#include "agent/core/joining.h"
#include "agent/core/leaving.h"
#include "simulation/machine.h"
#include "simulation/network.h"
#include "simulation/node_workers.h"
#include "simulation/scenario.h"
#include "simulation/sim_keeper.h"
#include "simulation/sim_master.h"
#include "simulation/sim_shards.h"

namespace phalanx::simulation {

constexpr uint16_t kMasterPort = 29'400;

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
    const std::vector<std::unique_ptr<Machine>>& machines;
    StartTroubles& troubles;
    SimStorage& storage;
    SimStorage& archive;
    std::function<SimMaster*()> master;  // that holds the endpoint now; null: nobody
    // Starts one as this agent's child, `resume`: that takes up its job. OnMasterReady or OnMasterInUse follows.
    std::function<void(SimAgent& agent, bool resume)> start_master;
    std::function<void(const SimAgent& agent)> on_end;  // of its own accord
  };

  SimAgent(const Parts& parts, int life);
  SimAgent(const SimAgent&) = delete;
  SimAgent& operator=(const SimAgent&) = delete;

  void Start();
  void Signal(int signal);
  // Of the master that it has started: src/agent/node/embedded_master.h.
  void OnMasterReady();
  void OnMasterInUse();  // another one serves at the endpoint; the child is gone
  void OnMasterEnded(bool killed);
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
  const agent::joining::State& joining() const { return joining_; }
  const agent::leaving::State& leaving() const { return leaving_; }
  NodeWorkers& workers() { return workers_; }
  const SimKeeper& keeper() const { return keeper_; }
  // It has exited, but for a step that is on its way to storage.
  bool awaits_storage() const { return leaving_.phase == agent::leaving::Phase::kStoring; }
  // The master's place is known to it.
  bool joined() const { return joined_; }
  bool up() const { return stream_.has_value(); }
  bool dialling() const { return dialling_; }
  Instant Now() const { return parts_.machine.clock.Read(parts_.queue.now()); }

  void OnMessage(StreamId stream, const std::shared_ptr<const v1::MasterMessage>& message) override;
  void OnDown(StreamId stream, const std::string& why) override;
  int machine() const override { return parts_.machine.index; }

 private:
  // An event of whichever core.
  using Event = std::variant<agent::Event, agent::joining::Event, agent::leaving::Event, agent::checking::Event>;

  const Arrival& arrival() const { return parts_.scenario.machines[static_cast<size_t>(parts_.machine.index)]; }
  NodeWorkersEvents WorkersEvents();
  SimKeeper::Parts KeeperParts();
  void Feed(Event event);
  template <typename State, typename OneEvent>
  void StepOn(State& state, const OneEvent& event);
  static bool IsTick(const Event& event);
  void CountIdleTicks(const Event& event);
  void Hear(const v1::MasterMessage& message);
  Instant NextDeadline() const;
  void ArmTimer();
  void OnTimer();
  // On this machine in a while, where the agent is still there.
  template <typename Callable>
  void Later(Micros delay, Callable task) {
    parts_.queue.After(delay, [this, task = std::move(task)]() mutable {
      parts_.machine.gate.Pass([this, task = std::move(task)]() mutable {
        if (alive_) task();
      });
    });
  }
  void SendToMaster(v1::AgentMessage message);
  v1::Progress ReadProgress() const;
  void FillPaces(v1::Beat& beat) const;
  uint32_t ReservedPort();
  void LinkFailed(uint64_t dial, const std::string& why);
  void Connected(uint64_t dial, SimMaster* master);
  void OnExited(const Process& process, const RankEnd& end);
  int64_t StepOf(const WorkerProcess& process) const;
  void CloseStream();
  // gRPC's keepalive: a master that says nothing is asked, and given up where it does not answer.
  void PingLater(StreamId stream, Micros after);
  void Ping(StreamId stream);
  void StartMaster(bool resume);

  void Do(const agent::Dial&);
  void Do(const agent::HangUp&);
  void Do(const agent::SendHello&);
  void Do(const agent::SendBeat&);
  void Do(const agent::TellSteps&);
  v1::AgentMessage BeatOf(uint64_t epoch) const;
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
  void Do(const agent::TakeOver&);
  void Do(const agent::LetGo&);
  void Do(const agent::Herald&);
  void Do(const agent::StopHerald&);
  void Do(const agent::GiveUpAnswers&);
  void Do(const agent::Say&);
  void Do(const agent::ReportFailure&);
  void Do(const agent::Exit&);

  void Do(const agent::joining::Resolve&);
  void Do(const agent::joining::StartMaster&);
  void Do(const agent::joining::Join&);
  void Do(const agent::joining::Say&) {}  // the story tells of it
  void Do(const agent::joining::Fail&);
  void Do(const agent::joining::TellMasterDied&);

  void Do(const agent::leaving::SettleStorage&);
  void Do(const agent::leaving::Say&) {}
  void Do(const agent::leaving::Warn&) {}
  void Do(const agent::leaving::Beat&);
  void Do(const agent::leaving::Depart&);
  void Do(const agent::leaving::CloseStream&);
  void Do(const agent::leaving::AwaitMaster&);
  void Do(const agent::leaving::StartMaster&);
  void Do(const agent::leaving::EndProgram&);

  // Its checks (sim_agent_check.cc).
  void StepOnCheck(const agent::checking::Event& event);
  bool Finds(const v1::CheckOrder& order) const;
  void Do(const agent::checking::StartHelper&);
  void Do(const agent::checking::HurryHelper&) {}  // no machine here is so slow
  void Do(const agent::checking::EndHelper&);
  void Do(const agent::checking::OpenStore&);
  void Do(const agent::checking::CloseStore&) {}
  void Do(const agent::checking::Give&);
  void Do(const agent::checking::Report&);

  const Parts parts_;
  const std::string node_id_;
  agent::CoreState core_;
  agent::joining::State joining_;
  agent::leaving::State leaving_;
  agent::checking::State checking_;
  int helpers_ = 0;  // so many have been started; the last one may live
  SimKeeper keeper_;
  SimShards shards_;
  NodeWorkers workers_;
  bool alive_ = false;
  bool joined_ = false;
  std::optional<int> exit_code_;
  std::deque<Event> queued_;
  bool stepping_ = false;
  Instant ticked_at_ = kNever;  // the last event came
  int idle_ticks_ = 0;
  Instant timer_at_ = kNever;
  uint64_t timer_ = 0;

  // The master as its child.
  bool has_master_ = false;  // one was started
  bool master_runs_ = false;
  bool master_was_killed_ = false;
  bool awaits_master_ = false;  // its end

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
