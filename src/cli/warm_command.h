// `phalanx warm`: which modules a launch of a script would import ahead of time, and why not the others.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "base/env.h"

namespace phalanx::cli {

struct WarmFlags {
  bool anew = false;
  bool json = false;
};

CLI::App* DeclareWarm(CLI::App& app, WarmFlags& flags);

// `words`: all that is not a flag of this command: flags of phalanx-run, the script and its arguments. Becomes the
// Python that answers (python/phalanx/_bootstrap/explain.py), where there is one to ask; else the exit code.
int AnswerWarm(WarmFlags flags, std::vector<std::string> words, const Environment& environment);

}  // namespace phalanx::cli
