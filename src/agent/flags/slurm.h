// What Slurm tells a process that srun started: which nodes the step has and which of them this is. Pure.
// Source: the environment variables in the manual pages srun(1) and sbatch(1).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "base/env.h"
#include "base/status.h"

namespace phalanx::agent {

struct SlurmStep {
  std::string name;  // "123.0": job and step
  uint32_t node_count = 1;
  int node_index = 0;      // of this node, from 0
  std::string first_node;  // the host name of node 0
  uint16_t port = 0;       // for the job's master, the same on all nodes, another for each step
  uint32_t gpu_count = 0;  // of this node, as far as this process may see them; 0: none, or not told
};

// None where this process belongs to no step of srun (a batch script itself, or no Slurm at all). An error names the
// variable that makes no sense, or says that phalanx-run is to be started once a node.
[[nodiscard]] StatusOr<std::optional<SlurmStep>> ReadSlurmStep(const Environment& env);

// The first host of a list such as "tux[3-5,08],gpu1": "tux3".
[[nodiscard]] StatusOr<std::string> FirstHost(std::string_view list);

}  // namespace phalanx::agent
