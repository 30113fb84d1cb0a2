// A job whose masters are lost: machines that lose power, start anew and are cut off from each other, agents and
// masters that are killed and come back. The production cores (src/agent/core/core.h, src/master/core/core.h) on a
// network of their own, in which each machine may reach some others only. World (world.h) knows one master at one
// place; here there may be several at a time, and the one question is whether more than one moves ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "simulation/event_queue.h"

namespace phalanx::simulation {

struct SuccessionResult {
  uint64_t seed = 0;
  uint64_t events = 0;
  uint64_t elections = 0;               // masters that were elected
  uint64_t held = 0;                    // 1: the job waits, as too few are left of those that trained last
  uint64_t worlds = 0;                  // rounds all of whose nodes ran ranks at the same time
  uint64_t digest = 0;                  // of when everything happened
  std::optional<std::string> violated;  // the first rule that was broken, and how
  std::vector<std::string> story;       // where it was asked for
};

// Rules: one-world (never do two rounds have all their nodes at once), it-trains (when nothing goes wrong any more, and
// all machines are there, one round has all nodes).
SuccessionResult RunSuccession(uint64_t seed, bool told);

}  // namespace phalanx::simulation
