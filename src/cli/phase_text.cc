#include "cli/phase_text.h"

#include <fmt/format.h>

#include "base/signal_name.h"

namespace phalanx::cli {
namespace {

// As the master says it of a job whose nodes all left (src/master/core/departures.cc).
constexpr const char* kStoppedText = "job stopped: ";

}  // namespace

std::string PhaseText(const v1::StatusReply& s) {
  if (s.phase() != "finished" || s.exit_code() == 0) return s.phase();
  if (!s.reason().starts_with(kStoppedText)) return fmt::format("failed ({})", s.exit_code());
  return s.exit_code() > 128 ? fmt::format("stopped ({})", SignalName(s.exit_code() - 128)) : "stopped";
}

}  // namespace phalanx::cli
