#include "base/signal_name.h"

#include <fmt/format.h>
#include <string.h>

namespace phalanx {

std::string SignalName(int signal) {
  const char* name = sigabbrev_np(signal);
  return name != nullptr ? fmt::format("SIG{}", name) : fmt::format("signal {}", signal);
}

}  // namespace phalanx
