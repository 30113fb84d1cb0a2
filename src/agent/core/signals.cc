#include "agent/core/signals.h"

#include <signal.h>

namespace phalanx::agent {

SignalMeaning MeaningOf(int signal, bool listed) {
  if (listed) return SignalMeaning::kStop;
  if (signal == SIGTSTP) return SignalMeaning::kStandStill;
  const bool users = signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGWINCH;
  return users ? SignalMeaning::kPassOn : SignalMeaning::kStop;
}

const char* EndState(const CoreState& state, int local_rank, int exit_code, int signal) {
  const auto worker = state.workers.find(local_rank);
  if (worker != state.workers.end() && worker->second.doomed) return "TERMINATED";
  return exit_code == 0 && signal == 0 ? "SUCCEEDED" : "FAILED";
}

}  // namespace phalanx::agent
