// Signals' names for people.
#pragma once

#include <string>

namespace phalanx {

// "SIGKILL", or "signal 77" where it has no name.
std::string SignalName(int signal);

}  // namespace phalanx
