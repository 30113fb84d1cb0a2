// A checkpoint host as a process: a child of the rank whose Checkpointer it serves.
#pragma once

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx::checkpoint {

struct HostSockets {
  Fd memory;   // requests of MemoryHost, SOCK_SEQPACKET
  Fd storage;  // of StorageHost, on a thread of its own
};

// Serves until the rank has closed its end of `memory`, or `owner`, the rank's process, is gone: its forked children
// may hold that end longer. Then the memory below `root` is removed, and what storage is at stays unfinished: it never
// counts. Ends the process; returns only where nothing could be served, with the reason, which each request was
// answered with.
Status ServeHost(HostSockets sockets, const std::string& root, int64_t owner);

}  // namespace phalanx::checkpoint
