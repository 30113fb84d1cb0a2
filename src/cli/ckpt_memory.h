// What saves take of a node's memory, and what they would take.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/ckpt.h"

namespace phalanx::cli {

// Of a node's memory folder, or of all of them below `path`: of each checkpoint directory how many slots there are, of
// what size, what two and three of them take, and what lies there now. Of other users what lies there alone.
StatusOr<CkptAnswer> CkptMemory(const std::string& path, bool json);

}  // namespace phalanx::cli
