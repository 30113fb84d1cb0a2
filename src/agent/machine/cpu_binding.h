// Which CPUs each worker of this node is bound to: --numa-binding, with the meaning torchrun gives its modes. Pure.
//
// A worker belongs to the accelerator whose number is its local rank, and is bound near that. Where there is none,
// workers are spread evenly over the NUMA nodes (socket: over the sockets) in the order of their ranks.
#pragma once

#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "agent/machine/topology.h"
#include "base/cpus.h"
#include "base/status.h"

namespace phalanx::agent {

struct WorkerCpus {
  CpuSet cpus;
  std::string why;  // "NUMA node 1, near device 3 (0000:dc:00.0)"
};

struct CpuBinding {
  std::vector<WorkerCpus> workers;  // by local rank
  std::string notice;               // what the user should know; empty: nothing
};

// `topology` is not empty and was read for `binding`, which is not kNone. `devices`: all that the workers see, in the
// order of their numbers. The error tells what is missing: a device for each worker, or enough cores.
StatusOr<CpuBinding> BindWorkers(NumaBinding binding, const Topology& topology, const std::vector<DevicePlace>& devices,
                                 int worker_count);

}  // namespace phalanx::agent
