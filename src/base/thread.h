// Threads that may not be had: a full pid table, or a container's limit, is no reason to end the program.
#pragma once

#include <functional>
#include <thread>

#include "base/status.h"

namespace phalanx {

// Runs `body` on a thread with all signals blocked. The error says that the system has no room for one; `body` is not
// run then.
[[nodiscard]] StatusOr<std::thread> StartThread(std::function<void()> body);

}  // namespace phalanx
