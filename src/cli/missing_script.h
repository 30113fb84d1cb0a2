// Whether what phalanx-run is to run is there, asked before anything is started.
#pragma once

#include <string>

#include "agent/flags/config.h"
#include "base/env.h"

namespace phalanx::cli {

// Why no rank can come to its first line: there is no such file or module. Empty: there is, or only Python can tell,
// and tells. A module that lies neither in the current folder nor in one of PYTHONPATH's is asked of the interpreter,
// which takes some 20 ms.
std::string MissingScript(const agent::LaunchConfig& config, const Environment& env);

}  // namespace phalanx::cli
