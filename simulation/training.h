// What the user's job does: ranks of one epoch find each other through its store, form a process group when all are
// there, step together, fail or hang when a peer dies, and end together. One group an epoch; it knows nothing of agents
// and master.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "simulation/machine.h"
#include "simulation/scenario.h"

namespace phalanx::simulation {

class Judge;
class RankSaves;
class SimKeeper;
class SimShards;
class SimStorage;
class Story;
struct Restored;

struct WorkerProcess {
  Machine* machine = nullptr;
  int local_rank = 0;
  uint64_t epoch = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  std::string store_address;
  uint32_t store_port = 0;
  int64_t pid = 0;
  bool warm = false;
  bool script_started = false;
  bool runs = false;    // the process is there
  bool dying = false;   // it makes no step any more
  bool hung = false;    // it makes none for now
  bool saving = false;  // SIGTERM was caught
  bool ended = false;
  bool child_left = false;  // in its group
  bool in_group = false;    // it has formed
  bool safe = false;        // it has come to a safe point, and does no more
  int64_t safe_step = -1;   // behind which it shall; -1: nobody has asked
  int64_t steps = 0;        // of this life
  int64_t from_step = 0;    // behind which it began
  int64_t split_steps = 0;  // of those, what is in ...
  int64_t own_us = 0;       // ... its own work in them
  // What its Checkpointer has mapped, and the last save that it has asked storage to take; -1: none.
  std::shared_ptr<SharedPage> own_page;
  std::shared_ptr<SharedPage> main_page;
  int64_t store_step = -1;
};
using Process = std::shared_ptr<WorkerProcess>;

struct RankEnd {
  int exit_code = 0;
  int signal = 0;
  std::string last_words;
};

// Who looks after the processes of a machine.
class RankOwner {
 public:
  virtual ~RankOwner() = default;
  // The process ends by itself.
  virtual void RankEnds(const Process& process, const RankEnd& end) = 0;
  // Its first step is done.
  virtual void RankStepped(const Process& process) = 0;
  // It has done what it wanted before the round ends.
  virtual void RankSafe(const Process& process) = 0;
  // The other end of its ranks' checkpoint sockets.
  virtual SimKeeper& Keeper() = 0;
  virtual SimShards& Shards() = 0;
};

class Training {
 public:
  struct Parts {
    EventQueue& queue;
    Story& story;
    Judge& judge;
    const Script& script;
    std::vector<std::unique_ptr<Machine>>& machines;
    SimStorage& storage;
    uint64_t seed;
  };
  explicit Training(const Parts& parts);
  Training(const Training&) = delete;
  Training& operator=(const Training&) = delete;
  ~Training();

  // The script has come to init_process_group.
  void Join(const Process& process, RankOwner* owner);
  // The process is no more. `seen`: its connections broke; else its peers only hear nothing more.
  void OnEnded(const Process& process, const RankEnd& end, bool seen);
  // Something that ranks wait for may be there now: a store, a machine, a path.
  void Kick();
  // The script comes to its end with its next step.
  void EndSoon();

  // A live group that has made a step since `since`, or serves; 0: none.
  uint64_t EpochAtWork(Micros since) const;
  int64_t highest_step() const { return highest_step_; }

 private:
  struct Member {
    Process process;
    RankOwner* owner = nullptr;
    bool joined = false;     // the store has let it in
    uint64_t misled_by = 0;  // the older epoch whose store, on the same port, has let it in
  };
  // Epochs are told apart by their stores, too: a master that has forgotten all may use a number twice.
  struct Key {
    uint64_t epoch = 0;
    uint32_t store_port = 0;
    std::string store_address;
    auto operator<=>(const Key&) const = default;
  };
  static Key KeyOf(const WorkerProcess& process) { return {process.epoch, process.store_port, process.store_address}; }
  struct Group {
    Key key;
    uint64_t epoch = 0;
    uint32_t world_size = 0;
    std::vector<Member> members;
    std::vector<int> machines;  // of the members, in their order
    uint32_t joined = 0;
    bool formed = false;
    bool broken = false;
    bool finishing = false;
    bool stalled = false;
    uint64_t stalls = 0;
    std::unique_ptr<Restored> from;  // what its ranks have restored; null: none has yet
    uint32_t restored = 0;           // ranks that have
    int64_t step = 0;
    Micros worked_at = 0;
  };

  void TryJoin(Group& group);
  // The store that a rank reaches where it was told to look; null: none.
  const Store* StoreAt(const WorkerProcess& process) const;
  bool Able(const Group& group, const Member& member) const;
  void Form(Group& group);
  void OnRestored(const Key& key, const Restored& restored);
  void Begin(Group& group, int64_t step);
  void Advance(Group& group);
  void Stall(Group& group);
  void Step(Group& group);
  // Returns how long the next step has to wait for copies.
  Micros Save(Group& group);
  void Finish(Group& group);
  void ComeToSafePoint(Group& group);
  void Break(Group& group, const Process& by, bool seen);
  void EndLater(const Member& member, Micros delay, RankEnd end, bool own);
  bool Together(const Group& group) const;

  const Parts parts_;
  Random random_;
  std::unique_ptr<RankSaves> saves_;  // null: the script keeps its own
  std::map<Key, Group> groups_;
  int64_t total_steps_;
  bool ending_ = false;
  int64_t checkpoint_ = 0;  // its own
  int64_t highest_step_ = 0;
};

}  // namespace phalanx::simulation
