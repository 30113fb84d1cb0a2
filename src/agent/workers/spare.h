// A process that a zygote has forked and that waits for one message: `run`, or `check` (docs/formats/worker-socket.md).
#pragma once

#include <sys/types.h>

#include <memory>

#include "agent/workers/wire.h"

namespace phalanx::agent {

// Its end is awaited by the reaper; who takes it retargets that and the channel.
struct Spare {
  pid_t pid = 0;
  std::unique_ptr<Channel> channel;
};

}  // namespace phalanx::agent
