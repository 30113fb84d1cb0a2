// What the flags of phalanx-run need to know of this machine.
#pragma once

#include <string>

#include "agent/flags/flags.h"

namespace phalanx::cli {

// As many random bytes, at most 256, in hexadecimal.
std::string RandomHex(size_t bytes);

// Asked anew at each call: its job id and its token are fresh.
agent::HostFacts AskHost();

}  // namespace phalanx::cli
