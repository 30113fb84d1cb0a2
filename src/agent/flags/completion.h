// Completion scripts of phalanx-run for shells, made from the table of flags. Pure.
#pragma once

#include <string>
#include <string_view>

#include "base/status.h"

namespace phalanx::agent {

// `shell`: bash, zsh, fish or tcsh. The error names them.
[[nodiscard]] StatusOr<std::string> CompletionScript(std::string_view shell);

}  // namespace phalanx::agent
