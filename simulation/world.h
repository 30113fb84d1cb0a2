// One simulated job from its first node to its end, or to the first violation: machines, network, agents, master,
// ranks, and the faults of its scenario. Same scenario, same story.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "simulation/event_queue.h"
#include "simulation/judge.h"
#include "simulation/machine.h"
#include "simulation/network.h"
#include "simulation/scenario.h"
#include "simulation/sim_agent.h"
#include "simulation/sim_journal.h"
#include "simulation/sim_master.h"
#include "simulation/sim_storage.h"
#include "simulation/story.h"
#include "simulation/training.h"

namespace phalanx::simulation {

// When the faults are over, the job trains again with all the nodes it may have, or has ended, within this.
constexpr Micros kSettles = 150 * kSecond;
// ... and when its script comes to its end, so does all else, within this and the join timeout.
constexpr Micros kEnds = 150 * kSecond;

struct RunResult {
  uint64_t seed = 0;
  uint64_t events = 0;
  Micros lasted = 0;
  uint64_t digest = 0;  // of when everything happened and how it ended
  std::optional<int32_t> exit_code;
  std::optional<Violation> violation;
  std::vector<std::string> story;
  std::array<uint64_t, kMoments> moments{};  // how often each came
};

// `told`: with its story.
RunResult RunScenario(const Scenario& scenario, bool told);

class World {
 public:
  World(const Scenario& scenario, bool told);
  World(const World&) = delete;
  World& operator=(const World&) = delete;

  RunResult Run();

 private:
  void MakeMachines();
  void Arrive(size_t machine);
  // `resume`: goes on with the job of the one before.
  void StartMaster(bool resume);
  // kill -9. Whoever started it starts another one.
  void KillMaster(const Fault& fault);
  // As the child of this agent.
  void StartEmbedded(SimAgent& agent, bool resume);
  void OnEmbeddedReady(SimAgent& agent, bool resume);
  void OnMasterEnd();
  // The embedded master's, that would start it again while the job goes on ...
  bool HasParent() const;
  // ... or only to let the other nodes know of its end.
  bool HasParentAtTheEnd() const;
  void OnAgentEnd(const SimAgent& agent);
  bool MasterListens() const { return master() != nullptr && master()->listening(); }
  SimMaster* master() const { return masters_.empty() ? nullptr : masters_.back().get(); }
  bool HoldsMaster(const Machine& machine) const { return scenario_.embedded && machine.index == 0; }
  SimAgent* AgentOf(size_t machine) const;
  bool JobOver() const;
  bool Over() const;
  bool WaitsForEver() const;

  void PlanFaults();
  void SeeMoments();
  void OnMoment(Moment moment, uint64_t nth);
  void StrikeStorage(const Fault& fault);
  void TakeNode(const Fault& fault);
  void TellPlatform();
  void Strike(const Fault& fault);
  void StrikeWorker(const Fault& fault, SimAgent& agent);
  void StrikeNode(const Fault& fault, Machine& machine);
  void StrikeNetwork(const Fault& fault, Machine& machine);
  void LoseMachine(const Fault& fault, Machine& machine, bool seen);
  void KillAgent(const Fault& fault, Machine& machine);
  void Freeze(const Fault& fault, Machine& machine, bool with_clock);
  void FreezeMaster(Micros lasts);
  void Term(const Fault& fault, Machine& machine);
  void Stall(const Fault& fault, Machine& machine, bool up, bool down);
  void SlowDown(const Fault& fault, Machine& machine);
  void Return(size_t machine, Micros after);

  void CheckLiveness();
  void CheckEnded();
  std::string WhyNotLive() const;

  const Scenario scenario_;
  EventQueue queue_;
  Story story_;
  SimStorage storage_;
  SimStorage archive_;
  Judge judge_;
  Network network_;
  std::vector<std::unique_ptr<Machine>> machines_;
  std::vector<StartTroubles> troubles_;
  Training training_;
  MachineClock master_clock_;  // of a standalone one's machine
  SimJournal journal_;
  std::vector<std::unique_ptr<SimMaster>> masters_;             // the last one holds the endpoint
  SimAgent* master_parent_ = nullptr;                           // whose child it is; null: none has been so far
  bool master_starts_ = false;                                  // as a child
  JournalDamage damage_ = JournalDamage::kNone;                 // what the next master finds
  Micros master_pause_ = 0;                                     // and how long it takes to start
  std::vector<std::vector<std::unique_ptr<SimAgent>>> agents_;  // lives by machine
  Random random_;
  size_t arriving_ = 0;
  std::array<uint64_t, kMoments> moments_seen_{};
  uint64_t all_moments_seen_ = 0;
  std::map<uint32_t, int> taken_;  // machines that the platform takes away, and how often it has said so
  uint64_t platform_generation_ = 0;
  bool ended_late_ = false;
  bool given_up_ = false;
};

}  // namespace phalanx::simulation
