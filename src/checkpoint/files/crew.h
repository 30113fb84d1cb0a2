// A few threads for work that they share out among themselves.
#pragma once

#include <cstddef>
#include <functional>

namespace phalanx::checkpoint {

// Calls body(0) .. body(count - 1), the last of them on the caller's thread and the others on threads of their own,
// which handle no signal; returns when all have. Where the system gives fewer threads some are not called: each must go
// on until all of the work is done.
void RunCrew(size_t count, const std::function<void(size_t)>& body);

// How many threads this process can run at once: those of the processors that it may use, within reason for memory.
size_t CrewSize();

}  // namespace phalanx::checkpoint
