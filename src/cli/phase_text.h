// How a job is, in one word or two, wherever it is told: "running", "finished", "failed (1)", "stopped (SIGINT)". Pure.
#pragma once

#include <string>

#include "phalanx/v1/admin.pb.h"

namespace phalanx::cli {

std::string PhaseText(const v1::StatusReply& status);

}  // namespace phalanx::cli
