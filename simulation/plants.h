// Bugs on purpose, to prove that the simulator finds them. phalanx-sim knows none; phalanx-sim-planted is linked from
// copies of the cores in which planted/plants.cmake has put some, each behind a choice made at run time.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace phalanx::simulation {

struct Plant {
  std::string name;
  std::string what;
  uint64_t seeds = 0;       // within so many, from seed 1, it is found
  uint64_t first = 1;       // the one that found it when this was written down: to look there first
  bool succession = false;  // by RunSuccession (succession_world.h), not by a campaign
};

const std::vector<Plant>& Plants();
// From now on the plant of this name is in, "" takes it out; false: there is none. Not while a world runs.
bool ChoosePlant(const std::string& name);

// Index of the chosen plant, for the copies of the cores; -1: none.
extern int chosen_plant;

}  // namespace phalanx::simulation
