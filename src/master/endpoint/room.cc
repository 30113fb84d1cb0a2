#include "master/endpoint/room.h"

#include <fmt/format.h>

#include <algorithm>

namespace phalanx::master {
namespace {

// The master's own: its record, journal and logs, gRPC's queues, and commands that ask for the status.
constexpr uint64_t kOwnFiles = 512;
// An agent dials anew before its old connection is given up.
constexpr uint64_t kConnectionsOfNode = 2;
// A rank whose script names the endpoint has some clients of the store, and each is carried on by a connection more.
constexpr uint64_t kFilesOfRank = 2 * 10;

}  // namespace

EndpointRoom RoomFor(uint64_t files_limit, const EndpointWorld& world) {
  const uint64_t may_be_open = files_limit - std::min(kOwnFiles, files_limit / 8);
  const uint64_t needed = kOwnFiles + world.nodes * kConnectionsOfNode + world.ranks * kFilesOfRank;
  if (world.nodes == 0 || needed >= may_be_open) {
    return {may_be_open, fmt::format("{} files are open, all that a limit of {} leaves room for (ulimit -Hn)",
                                     may_be_open, files_limit)};
  }
  return {needed,
          fmt::format("{} files are open, more than {} nodes and {} ranks need", needed, world.nodes, world.ranks)};
}

}  // namespace phalanx::master
