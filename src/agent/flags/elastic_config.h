// --elastic-config: which world sizes a job may have, in DeepSpeed's words. Pure, but for the reading of the file.
#pragma once

#include <string>

#include "agent/flags/config.h"
#include "base/env.h"
#include "base/status.h"

namespace phalanx::agent {

// By it a rank's DeepSpeed hears what its world size was chosen by, and compares.
constexpr const char* kSchedulersBlock = "DEEPSPEED_ELASTICITY_CONFIG";

// The whole of a file that a person has named. The error names no path: "cannot be read: <reason>".
StatusOr<std::string> ReadConfigFile(const std::string& path);

// The elasticity block of a DeepSpeed config, as one line of JSON.
StatusOr<std::string> ElasticBlock(const std::string& config_text);

// Whether at least one of the numbers of nodes that `config` allows makes a world size that its block grants.
// `config.nproc_per_node` must be the resolved number of local workers. OK where there is no block.
Status CheckElasticSizes(const LaunchConfig& config);

// A user's own DEEPSPEED_ELASTICITY_CONFIG stays, and must agree with the block: ranks would refuse another one.
Status CheckSchedulersBlock(const std::string& block, const Environment& env);

}  // namespace phalanx::agent
