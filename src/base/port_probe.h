// Whether somebody listens at a port of another machine, and serves.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "base/event_loop.h"
#include "base/reach.h"

namespace phalanx {

// Connects to `address` (textual IP), says `hello` (at most what a socket's buffer holds; may be empty), and waits for
// a first bytes or the end: the kernel alone would take connections for a program that stands still. `done` runs once,
// on the loop's thread, within `timeout_ms`. Refused is what the kernel there says of a port that nobody listens on;
// all else that is no answer (no route, no file descriptor left) is silence.
void ProbePort(EventLoop& loop, const std::string& address, uint16_t port, const std::string& hello, int64_t timeout_ms,
               std::function<void(Reach, const std::string& first_bytes)> done);

}  // namespace phalanx
