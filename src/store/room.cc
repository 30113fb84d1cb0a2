#include "store/room.h"

#include <fmt/format.h>

#include <algorithm>

namespace phalanx::store {

uint64_t ConnectionsFor(uint64_t files_limit) {
  return std::min(files_limit - std::min(kFilesKeptBack, files_limit / 8), kConnectionsMax);
}

uint64_t FilesFor(uint64_t connections) { return std::min(connections, kConnectionsMax) + kFilesKeptBack; }

std::string FullText(uint64_t connections, uint64_t files_limit) {
  if (connections >= kConnectionsMax)
    return fmt::format("{} connections are open, more than any world needs", connections);
  return fmt::format("{} connections are open, all that a limit of {} open files leaves room for (ulimit -Hn)",
                     connections, files_limit);
}

}  // namespace phalanx::store
