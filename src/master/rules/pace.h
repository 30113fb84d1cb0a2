// Which ranks of a round hold the others up: who works much longer by itself in each step than the others do, for a
// minute. Pure.
//
// What a rank works by itself is what its steps take beyond the wait for others (RankPace in
// proto/phalanx/v1/agent.proto): where all wait for each other all steps take the same time, and the slow one is who
// waits least. Time is cut into windows; what a rank works in a step is its mean of a window.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace phalanx::master {

constexpr int64_t kPaceWindowMs = 20'000;
// Of each rank that is heard in a window, which lasts until there are so many; but not for ever. Who has made fewer
// then, or says nothing any more, is not counted.
constexpr uint64_t kPaceSteps = 3;
constexpr int64_t kPaceLongestMs = 200'000;
// In so many windows in a row it is slow, or is not any more, before that is told.
constexpr int kPaceWindows = 3;
// Below this nobody is slow, whatever the others do.
constexpr int64_t kPaceFloorUs = 5'000;

// Sums of one rank's life.
struct RankSplit {
  uint64_t steps = 0;
  int64_t own_us = 0;
  int64_t waited_us = 0;
};

// Half as long again as the median, and six times the median deviation beyond it, of what ranks work in a step.
struct Laggard {
  size_t rank = 0;
  int64_t own_us = 0;    // in a step of the last window
  int64_t usual_us = 0;  // the median of all
  bool over = false;     // it is slow no more
  bool again = false;    // it was told before, and is slow still
};

struct PaceWatch {
  struct Rank {
    RankSplit before;  // as the window began
    RankSplit latest;  // steps 0: nothing is known of it
    int slow = 0;      // windows in a row
    int quick = 0;     // ... that it was not, since it was told
    bool is_told = false;
    bool is_heard = false;  // in this window
  };
  std::vector<Rank> ranks;  // of the world
  size_t too_few = 0;       // ranks that were heard in this window, and have not made enough steps in it
  Instant began_at = kNever;
};

// What a rank of a world of `world_size` has told last. Sums that go back are of another process: its window begins
// anew.
void SawSplit(PaceWatch& watch, size_t world_size, size_t rank, const RankSplit& split, Instant now);

// Where a window is over: who is to be told of, and the next window begins. Else nobody.
std::vector<Laggard> CloseWindow(PaceWatch& watch, Instant now);

}  // namespace phalanx::master
