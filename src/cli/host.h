// What the flags of phalanx-run need to know of this machine.
#pragma once

#include <string>

#include "agent/flags/flags.h"

namespace phalanx::cli {

// At most 256.
std::string RandomBytes(size_t count);

// As many random bytes, in hexadecimal.
std::string RandomHex(size_t bytes);

// Asked anew at each call: its job id and its token are fresh.
agent::HostFacts AskHost();

}  // namespace phalanx::cli
