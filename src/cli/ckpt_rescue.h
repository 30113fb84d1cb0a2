// The newest state of a dead job, from the memory of its nodes to disk.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"
#include "cli/ckpt.h"

namespace phalanx::cli {

// Writes the newest step that all local ranks of the memory folder `path` have sealed (of the one job below it, where
// it is /dev/shm) to `<to>/<step>`, and its manifest where all ranks of its world are there: those of other nodes are,
// when `phalanx ckpt rescue` has run there before, to the same place. FailedPrecondition while an agent that owns the
// memory lives; exit code 1 where ranks are missing.
StatusOr<CkptAnswer> CkptRescue(const std::string& path, const std::string& to, bool json, int64_t now_unix_ms);

}  // namespace phalanx::cli
