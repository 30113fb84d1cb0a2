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

// How far the rank says that it is; its optimizer's steps where it says nothing.
int64_t StepOf(const BoardSlot& slot);

// What a beat tells of the local ranks: the smallest and the largest step, of those who tell theirs where any does, and
// the rest. Nothing where there are none.
void FillBeat(const std::vector<RankProgress>& ranks, int64_t now_ns, v1::Beat& beat);

// What that rank does, as its board says; its number and its process's memory are left to the caller.
v1::RankStatus RankStatusOf(const RankProgress& rank, int64_t now_ns);

// The split of their steps, of those that know it.
void FillPaces(const std::vector<RankProgress>& ranks, v1::Beat& beat);

v1::Progress ProgressOf(const std::vector<RankProgress>& ranks, int64_t now_ns);

}  // namespace phalanx::agent
