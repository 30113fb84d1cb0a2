// `phalanx elasticity`: its flags, and what they call.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>

#include "base/env.h"

namespace phalanx::cli {

struct ElasticityFlags {
  std::string config;
  int64_t world_size = 0;
  std::string deepspeed_version = "0.16.5";
  std::string target_version;  // empty: deepspeed_version
  bool rows = false;
  bool json = false;
};

void DeclareElasticity(CLI::App& app, ElasticityFlags& flags);

// The exit code. `command` is "plan" or "explain".
int AnswerElasticity(const std::string& command, const ElasticityFlags& flags, const Environment& environment);

}  // namespace phalanx::cli
