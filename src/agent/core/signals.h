// What a signal to phalanx-run means, and what the end of a worker is called in torchrun's events. Pure.
#pragma once

#include "agent/core/core.h"

namespace phalanx::agent {

enum class SignalMeaning {
  kStandStill,  // Ctrl-Z: the node stands still with its ranks
  kPassOn,      // it is the user's, for the ranks
  kStop,        // it ends the node, as in torchrun
};

// `listed`: one of --signals-to-handle.
SignalMeaning MeaningOf(int signal, bool listed);

// "TERMINATED": it was told to end; else "SUCCEEDED" or "FAILED".
const char* EndState(const CoreState& state, int local_rank, int exit_code, int signal);

}  // namespace phalanx::agent
