// What can go wrong. One table (fault.cc) says for each kind its name, its parameters and how often it is drawn; the
// world (world.cc) carries it out. To add a kind: a row there, and a case in World::Strike.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "simulation/event_queue.h"
#include "simulation/random.h"

namespace phalanx::simulation {

enum class FaultKind {
  // workers; `which` is a local rank
  kWorkerCrash,
  kWorkerExit,
  kWorkerExitsEarly,
  kWorkerHang,
  kWorkerUnkillable,
  kSlowStart,
  kCrashLoop,
  kStartFails,
  kZygoteDies,
  // nodes
  kAgentKilled,
  kNodeReset,
  kNodePowerLoss,
  kNodeFrozen,
  kNodePaused,
  kAgentTerm,
  kNodeTaken,
  // network
  kStreamReset,
  kCutUp,
  kCutDown,
  kCutBoth,
  kSlowLink,
  // the master
  kMasterFrozen,
  kMasterKilled,
  kLook,
  // storage
  kStorageFails,
  kStorageHangs,
  kStorageSlow,
};

// What a fault waits for: a time, the begin of a round, a point in the life of a save, or the job's end.
enum class Moment {
  kTime,
  kRound,
  kCopy,       // the first rank begins to copy
  kSealed,     // the first image is sealed
  kCommitted,  // the master says so
  kFolder,     // its folder on storage is made
  kShard,      // the first shard is there
  kCounts,     // the manifest is
  kRestore,    // it is decided what is restored
  kEnd,        // the master has decided what the job came to
};
constexpr size_t kMoments = 10;

struct Fault {
  FaultKind kind = FaultKind::kWorkerCrash;
  // When: at this time; or so long after the `nth` moment of this kind, from 1.
  Moment moment = Moment::kTime;
  uint32_t nth = 0;
  Micros at = 0;
  uint32_t machine = 0;
  uint32_t which = 0;
  Micros lasts = 0;
  int64_t amount = 0;
};

// What a kind's parameters mean; "" for those it has no use for. "?...": so it is where `amount` is 1.
struct FaultRow {
  FaultKind kind;
  const char* name;
  const char* lasts;
  const char* amount;
  uint32_t weight;  // how often it is drawn
};
const std::vector<FaultRow>& FaultTable();
const FaultRow& RowOf(FaultKind kind);

// "worker-crash on node1 at 3.200 s: local rank 0, signal 9".
std::string Describe(const Fault& fault);

// Until when it lasts, at the latest; `latest_moment`: when what it waits for may come.
Micros EndOf(const Fault& fault, Micros latest_moment);

struct FaultLimits {
  uint32_t machines = 1;
  uint32_t workers = 1;  // on each machine, at most
  Micros until = 0;
  bool saves = false;  // there are moments of saves
};
std::vector<Fault> DrawFaults(Random& random, const FaultLimits& limits);

}  // namespace phalanx::simulation
