// The processes of one agent's node, as src/agent/workers/supervisor.h promises them: zygote, spares, workers, their
// ends and the ends of their process groups. About spares the production core decides (src/agent/workers/spares.h).
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "agent/workers/spares.h"
#include "phalanx/v1/agent.pb.h"
#include "simulation/training.h"

namespace phalanx::simulation {

// The same as SupervisorEvents. Called from the queue, never from inside a call.
struct NodeWorkersEvents {
  std::function<void(int waiting)> on_spares_changed;
  std::function<void()> on_cold;
  std::function<void(const Process&)> on_started;
  std::function<void(const Process&, const std::string& why)> on_start_failed;
  std::function<void(const Process&)> on_first_step;
  std::function<void(const Process&)> on_safe_point;
  std::function<void(const Process&, const RankEnd&)> on_exited;
  std::function<void(const Process&)> on_group_gone;
};

// What faults have prepared for the next starts on a machine.
struct StartTroubles {
  Micros slower_by = 0;
  int64_t loops = 0;  // starts whose script ends at once with 1
  int64_t fails = 0;  // starts that do not come to a process
};

class NodeWorkers final : public RankOwner {
 public:
  struct Parts {
    EventQueue& queue;
    Story& story;
    Judge& judge;
    const Scenario& scenario;
    Training& training;
    Machine& machine;
    StartTroubles& troubles;
    SimKeeper& keeper;
    SimShards& shards;
  };
  NodeWorkers(const Parts& parts, NodeWorkersEvents events);
  NodeWorkers(const NodeWorkers&) = delete;
  NodeWorkers& operator=(const NodeWorkers&) = delete;

  void Start();
  void StartWorker(const v1::StartRound& round, int local_rank);
  void WantSpares(int count);
  void SignalGroup(int local_rank, int signal);
  bool GroupWithstands(int local_rank, int signal) const;
  bool HearsRescale(int local_rank) const;
  // Tells it to come to a safe point behind this step.
  void AnnounceRescale(int local_rank, int64_t at_step);

  // --- faults ---
  void ZygoteDies();
  // The live worker of a local rank; null where there is none.
  Process Find(int local_rank) const;
  void Strike(const Process& process, const RankEnd& end);  // it ends now
  void Hang(const Process& process, Micros lasts);
  // The guard: the agent is no more, its workers follow. Nobody is told.
  void KillAll();
  // The machine is no more.
  void Vanish(bool seen);

  void RankEnds(const Process& process, const RankEnd& end) override;
  void RankStepped(const Process& process) override;
  void RankSafe(const Process& process) override;
  SimKeeper& Keeper() override { return parts_.keeper; }
  SimShards& Shards() override { return parts_.shards; }

  const std::map<int, Process>& workers() const { return workers_; }

 private:
  // Something on this machine happens in a while; not if the machine has gone before.
  template <typename Callable>
  void Later(Micros delay, Callable task) {
    parts_.queue.After(delay, [this, task = std::move(task)]() mutable {
      parts_.machine.gate.Pass([this, task = std::move(task)]() mutable {
        if (!vanished_) task();
      });
    });
  }
  Instant Now() const { return parts_.queue.now() / kMs; }
  void Run();
  void NeedSpares();
  void Do(const agent::StartZygote& action);
  void Do(const agent::EndZygote& action);
  void Do(const agent::DropZygote& action);
  void Do(const agent::ForkSpare& action);
  void Do(const agent::DropFork&) {}
  void Do(const agent::DropSpare&) {}
  void Do(const agent::LookAtMemory&);
  void Do(const agent::KeepLearnt&) {}
  void Do(const agent::TellWaiting& action);
  void Do(const agent::TellSpare&);
  void Do(const agent::TellWithheld&);
  void Do(const agent::TellCold&);
  bool Serves(int zygote) const { return told_of_ && zygotes_.contains(zygote); }
  void EndOfZygote(int zygote, const std::string& how);
  void TellOfCold();
  void Launch(const Process& process, bool warm);
  void RunScript(const Process& process);
  void Die(const Process& process, const RankEnd& end, Micros delay);
  void Ended(const Process& process, const RankEnd& end);
  void Gone(const Process& process);
  bool Current(const Process& process) const;

  const Parts parts_;
  const NodeWorkersEvents events_;
  std::map<int, Process> workers_;
  std::deque<Process> pending_;
  agent::Spares spares_;
  bool running_ = false;
  std::set<int> zygotes_;  // that live, by the core's number
  bool told_of_ = true;    // false: the agent is no more
  bool vanished_ = false;  // so is the machine
};

}  // namespace phalanx::simulation
