// How many callers the job's endpoint holds, of whatever kind, decided purely: as many as the job's world may need, and
// never so many that the master has no file left for its own work.
//
// It is counted in open files of the process, so nobody has to know which of its connections gRPC still has. The kernel
// gives the lowest number that is free: a caller's descriptor says how many files are open at least.
#pragma once

#include <cstdint>
#include <string>

namespace phalanx::master {

struct EndpointWorld {
  uint64_t nodes = 0;  // that may be there, spares included; 0: not known yet
  uint64_t ranks = 0;  // of the live round
  bool operator==(const EndpointWorld&) const = default;
};

struct EndpointRoom {
  uint64_t files = 0;    // a caller whose descriptor is not below this is closed
  std::string why_full;  // in a sentence
};

// In a process that may have `files_limit` files open. Of a small limit an eighth is kept back.
EndpointRoom RoomFor(uint64_t files_limit, const EndpointWorld& world);

}  // namespace phalanx::master
