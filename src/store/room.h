// How many connections a store may hold, decided purely: as many as its process may have files open for, less those
// that the process needs for other things. No world is too large for it: whoever opens a store for a world raises the
// limit of open files, and a full store raises it further, both as far as the hard limit lets them.
#pragma once

#include <cstdint>
#include <string>

namespace phalanx::store {

// Bounds memory where the limit of open files bounds nothing: 100,000 ranks with ten connections each.
constexpr uint64_t kConnectionsMax = 1 << 20;
// Of the process that the store lives in: its own sockets, pipes and logs, and those of its workers.
constexpr uint64_t kFilesKeptBack = 512;

// In a process that may have `files_limit` files open. Of a small limit an eighth is kept back.
uint64_t ConnectionsFor(uint64_t files_limit);
// A limit of open files under which so many connections have room, kConnectionsMax at most.
uint64_t FilesFor(uint64_t connections);

// Why a store that holds `connections` takes no other one, under a limit that could not be raised any further.
std::string FullText(uint64_t connections, uint64_t files_limit);

}  // namespace phalanx::store
