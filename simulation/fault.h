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
  // network
  kStreamReset,
  kCutUp,
  kCutDown,
  kCutBoth,
  kSlowLink,
  // the master
  kMasterFrozen,
  kMasterKilled,
};

struct Fault {
  FaultKind kind = FaultKind::kWorkerCrash;
  // When: at this time; or, with `round` > 0, so long after the `round`th StartRound was decided.
  Micros at = 0;
  uint32_t round = 0;
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

// Until when it lasts, at the latest; `latest_round`: when a round that it waits for may begin.
Micros EndOf(const Fault& fault, Micros latest_round);

struct FaultLimits {
  uint32_t machines = 1;
  uint32_t workers = 1;  // on each machine, at most
  Micros until = 0;
};
std::vector<Fault> DrawFaults(Random& random, const FaultLimits& limits);

}  // namespace phalanx::simulation
