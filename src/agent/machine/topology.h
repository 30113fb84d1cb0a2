// Where this machine's CPUs and PCI devices lie, as the kernel tells it below /sys. Reads files; decides nothing.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "base/cpus.h"
#include "base/status.h"

namespace phalanx::agent {

struct CpuPlace {
  int node = 0;    // NUMA node
  int socket = 0;  // physical package
  int core = 0;    // the first CPU of its physical core
  int cache = 0;   // the first CPU of those it shares its last level of cache with
};

// By CPU number.
using Topology = std::map<int, CpuPlace>;

// The places of those of `allowed` that are online and belong to a NUMA node. Beside the node only what `binding` asks
// for is read, the rest stays 0: a machine need not tell everything. An error names the file that cannot be read.
// `sysfs_root`: /sys, or a tree like it.
StatusOr<Topology> ReadTopology(const std::string& sysfs_root, NumaBinding binding, const CpuSet& allowed);

struct DevicePlace {
  std::string pci_address;  // "0000:dc:00.0"
  int node = -1;            // the NUMA node it is near to; -1: the kernel does not know
};
StatusOr<std::vector<DevicePlace>> ReadDevicePlaces(const std::string& sysfs_root,
                                                    const std::vector<std::string>& pci_addresses);

}  // namespace phalanx::agent
