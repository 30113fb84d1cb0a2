// The newest state of a dead job, from the memory of its nodes to disk.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/memory/memory_reader.h"
#include "cli/ckpt.h"
#include "cli/job_view.h"

namespace phalanx::cli {

struct RescueOptions {
  std::string to;                              // a checkpoint directory
  std::optional<int64_t> step = std::nullopt;  // that one; else the newest committed, or, where none is, the newest
  bool without_lost = false;  // of DDP: the step counts without what ranks of lost nodes had of their own
  bool json = false;
  bool free = false;  // the memory, where the step counts
};

// Writes a step that all local ranks of the memory folders `paths` have sealed (of the one job below a path that is
// /dev/shm) to `<to>/<step>`, and its manifest where all ranks of its world are there: those of other nodes are, when
// `phalanx ckpt rescue` has run there before, to the same place. The step is the newest there. FailedPrecondition while
// an agent that owns the memory lives; exit code 1 where ranks are missing.
StatusOr<CkptAnswer> CkptRescue(const std::vector<std::string>& paths, const RescueOptions& options,
                                int64_t now_unix_ms);

// Of each directory the step that would be written, where agents of this job have left one and are dead. Pure.
std::vector<LeftStep> LeftSteps(const std::vector<checkpoint::MemoryFolder>& memories, const std::string& job_id);

}  // namespace phalanx::cli
