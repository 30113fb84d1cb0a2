// `phalanx check`: the node checks of phalanx-run by themselves, without a script.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

namespace phalanx::cli {

CLI::App* DeclareCheck(CLI::App& app);

// `words`: flags of phalanx-run. Becomes phalanx-run; returns, with an exit code, only where it cannot.
int AnswerCheck(const std::vector<std::string>& words);

}  // namespace phalanx::cli
