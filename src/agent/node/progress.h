// What the rank board tells the master beside the plain counters. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "agent/workers/board.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// A local rank as its board shows it.
struct RankProgress {
  BoardSlot slot;
  int64_t ended_ns = 0;  // when its process was gone; 0: it lives. A save that was under way then is over
};

v1::Progress ProgressOf(const std::vector<RankProgress>& ranks, int64_t now_ns);

}  // namespace phalanx::agent
