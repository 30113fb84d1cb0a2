// What must hold whatever goes wrong, checked after each event. It looks at what the production cores decide and at
// what the simulated world really does, and believes neither alone. The first violation ends the world.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "agent/core/core.h"
#include "master/core/core.h"
#include "simulation/event_queue.h"
#include "simulation/judge_saves.h"
#include "simulation/judge_shards.h"
#include "simulation/largest_world.h"
#include "simulation/scenario.h"
#include "simulation/sim_journal.h"

namespace phalanx::simulation {

class NodeWorkers;
class SimAgent;
class SimMaster;
class Story;
struct RankEnd;
struct WorkerProcess;

struct Violation {
  std::string rule;
  std::string text;
};

// A world of fewer nodes is looked at in full each time; of more, every so many events for each so many nodes.
constexpr size_t kNodesPerLook = 64;

// A node's part of a round, as it is told of it.
struct ToldPart {
  uint64_t session = 0;
  const v1::StartRound* round = nullptr;
};

// What a step of the master is compared with.
struct MasterBefore {
  master::Phase phase = master::Phase::kGathering;
  uint32_t budget_used = 0;
  uint64_t epoch = 0;
};

class Judge {
 public:
  Judge(const EventQueue& queue, Story& story, const Scenario& scenario,
        const std::vector<std::unique_ptr<Machine>>& machines, const SimStorage& storage, const SimStorage& archive)
      : queue_(queue),
        story_(story),
        scenario_(scenario),
        machines_(machines),
        granted_(GrantedBy(scenario.spec)),
        saves_({queue, *this, scenario, machines, storage, archive}),
        shards_(*this) {}
  Judge(const Judge&) = delete;
  Judge& operator=(const Judge&) = delete;

  void Violated(const std::string& rule, const std::string& text);
  const std::optional<Violation>& violation() const { return violation_; }
  // Something that docs/simulation.md, "What does not hold", lists: the story tells of it.
  void Known(const std::string& text);

  // --- the master ---
  static MasterBefore BeforeMasterStep(const master::JobState& state);
  void OnMasterStep(const SimMaster& master, const MasterBefore& before, const master::Event& event,
                    const std::vector<master::Decision>& decisions, Instant now);
  void OnToldTooLate(uint64_t session, const v1::MasterMessage& message);
  // It stood still until now: silence before says nothing.
  void OnMasterThawed(Instant now);
  void OnMasterKilled(JournalDamage damage);
  // `state`: what it begins with.
  void OnNewMaster(const master::JobState& state);
  void OnMasterTicks(int idle_ticks);

  // --- agents ---
  void OnAgentDecided(const SimAgent& agent, const std::string& reason);
  // Its decisions are carried out. `idle_ticks`: Ticks in a row, up to this event, between which no time has passed.
  void OnAgentSettled(const SimAgent& agent, int idle_ticks);
  void OnAgentTold(const SimAgent& agent, const v1::MasterMessage& message);
  void OnAgentExit(const SimAgent& agent);
  bool IsToldEnd(const std::string& node_id) const { return told_end_.contains(node_id); }
  void OnWorkerStart(const Machine& machine, const NodeWorkers& workers, uint64_t epoch);
  void OnSignalled() { signalled_ = true; }

  // --- ranks ---
  void OnRankUp(const WorkerProcess& process);
  void OnTrainingStep(uint64_t epoch, int64_t step, const std::vector<int>& machines);
  void OnCheckpoint(int64_t before, int64_t step, const std::vector<int>& machines);
  void OnRankEnded(const WorkerProcess& process, const RankEnd& end);
  // Something that may cost a restart, other than the loss of a node, has befallen this epoch.
  void OnOwnFailure(uint64_t epoch) { own_failures_.insert(epoch); }

  // --- checkpoints ---
  SaveJudge& saves() { return saves_; }
  ShardJudge& shards() { return shards_; }
  // No master has begun without all that the one before knew.
  bool remembered() const { return remembered_; }

  // --- the end ---
  void AtTheEnd();

  // How often that has come.
  uint64_t Count(Moment moment) const {
    if (moment == Moment::kEnd) return job_exit_code_ ? 1 : 0;
    return moment == Moment::kRound ? rounds_begun_ : saves_.Count(moment);
  }
  // All of them: where it stands still, no moment has come.
  uint64_t CountAll() const { return rounds_begun_ + saves_.CountAll() + Count(Moment::kEnd); }
  const std::optional<int32_t>& job_exit_code() const { return job_exit_code_; }
  // When that round was begun; 0: it was not.
  Micros BegunAt(uint64_t epoch) const;
  const std::optional<elasticity::JobSizes>& granted() const { return granted_; }

 private:
  const Arrival* ArrivalAt(const std::string& address) const;
  void CheckHealth(const master::JobState& state, const std::vector<ToldPart>& parts);
  void CheckVerdicts(const master::JobState& state);
  bool IsSlow(const master::Round& round, int64_t rank) const;
  void CheckPaces(const master::JobState& state, const std::vector<master::Decision>& decisions);
  void CheckReasons(const std::vector<master::Decision>& decisions);
  void CheckRound(const master::JobState& state, const MasterBefore& before,
                  const std::vector<master::Decision>& decisions);
  void CheckGranted(const master::JobState& state, const MasterBefore& before, uint32_t world_size);
  void CheckWorld(const std::vector<ToldPart>& parts);
  void CheckMembers(const master::JobState& state);
  bool LooksAtAll(const master::JobState& state, const master::Event& event,
                  const std::vector<master::Decision>& decisions);
  void CheckDrops(const SimMaster& master, const master::Event& event, const std::vector<master::Decision>& decisions,
                  Instant now);
  void CheckLeases(const SimMaster& master, Instant now);
  void CheckBudget(const master::JobState& state, const MasterBefore& before);
  void CheckFinish(const SimMaster& master, const MasterBefore& before, const std::vector<master::Decision>& decisions,
                   bool due);
  void CheckAllTold(const master::JobState& state);
  void CheckJustified(const SimMaster& master);
  void ForgiveCharges();
  bool LossMayBeHidden() const;
  bool WasOvertaken(uint64_t epoch) const;

  const EventQueue& queue_;
  Story& story_;
  const Scenario& scenario_;
  const std::vector<std::unique_ptr<Machine>>& machines_;
  uint64_t checked_run_ = 0;                           // the last one that was looked at
  uint64_t slow_named_in_ = 0;                         // epoch
  const std::optional<elasticity::JobSizes> granted_;  // world sizes
  std::optional<Violation> violation_;
  SaveJudge saves_;
  ShardJudge shards_;

  size_t not_looked_at_ = 0;  // events since a walk over all nodes
  uint64_t highest_epoch_ = 0;
  uint64_t rounds_begun_ = 0;
  std::map<std::string, uint64_t> told_epoch_;  // by node id
  std::set<uint64_t> told_finish_;              // sessions
  Instant thawed_at_ = INT64_MIN;
  Instant alone_at_ = INT64_MIN;  // when the one node that may train was last the only one
  bool remembered_ = true;        // false: a master has begun without all that the one before knew
  std::set<uint64_t> charged_;    // epochs whose failure cost a restart
  std::set<uint64_t> own_failures_;
  bool signalled_ = false;
  std::optional<int32_t> job_exit_code_;

  std::map<uint64_t, Micros> begun_at_;  // by epoch
  Micros finished_at_ = INT64_MAX;
  uint64_t stepped_epoch_ = 0;
  std::vector<int> stepped_on_;                        // its machines
  std::vector<int> saved_on_;                          // those of the last checkpoint
  bool split_ = false;                                 // a round that knew of none has gone on beside its successor
  std::map<uint64_t, uint32_t> world_of_;              // by epoch
  std::map<uint64_t, std::set<uint32_t>> ended_well_;  // ranks by epoch
  std::set<std::string> told_end_;                     // node ids
};

}  // namespace phalanx::simulation
