// What this node shows to its job's master, and believes of one.
#pragma once

#include "agent/flags/config.h"
#include "base/status.h"
#include "wire/credentials.h"

namespace phalanx::agent {

// Nothing where the job is open. The error names the file.
StatusOr<wire::Credentials> CredentialsOf(const LaunchConfig& config);

}  // namespace phalanx::agent
