// Where a node is in the network. Pure.
#pragma once

#include <cstdint>

namespace phalanx::master {

// Under which switches, by numbers that whoever runs the nodes has given them; 0: nobody knows.
struct Switches {
  uint32_t pod = 0;
  uint32_t access = 0;
};

}  // namespace phalanx::master
