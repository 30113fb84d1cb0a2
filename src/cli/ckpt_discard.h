// Gives back the memory that a dead job's saves take.
#pragma once

#include <string>

#include "base/status.h"
#include "cli/ckpt.h"

namespace phalanx::cli {

// Removes a node's memory folder or, where `path` is /dev/shm, all of this user's whose agents are dead: their saves
// are gone then. FailedPrecondition where the one that is named has an agent that lives; NotFound where there is none.
// Exit code 1: of several, some could not be removed, and the text says why.
StatusOr<CkptAnswer> CkptDiscard(const std::string& path, bool json);

// Removes a node's memory folder, whose lock the caller holds until then, so that no agent takes it up.
Status RemoveMemory(const std::string& path);

}  // namespace phalanx::cli
