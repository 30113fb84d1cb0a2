// `phalanx replay`: its flags, and what they call.
#pragma once

#include <CLI/CLI.hpp>
#include <string>

#include "cli/replay.h"

namespace phalanx::cli {

struct ReplayFlags {
  std::string file;
  ReplayView view;
};

void DeclareReplay(CLI::App& app, ReplayFlags& flags);

// The exit code: 1 where decisions differ, 2 where the log cannot be read to its end.
int AnswerReplay(const ReplayFlags& flags);

}  // namespace phalanx::cli
