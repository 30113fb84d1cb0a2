// Sets of CPUs: as the kernel writes them, and the affinity of processes.
#pragma once

#include <sys/types.h>

#include <set>
#include <string>
#include <string_view>

#include "base/status.h"

namespace phalanx {

using CpuSet = std::set<int>;

// Numbers above this are no CPUs (nor nodes): the kernel's own limit is 8192.
constexpr int kCpuNumberMax = 65'535;

// The kernel's list format, "0-3,8,10-11\n"; empty text is the empty set. An error names what is wrong.
StatusOr<CpuSet> ParseCpuList(std::string_view text);
// "0-3,8,10-11"; "" for the empty set.
std::string CpuListText(const CpuSet& cpus);

// CPUs that `pid` (0: the calling thread) may run on. Any number of CPUs.
StatusOr<CpuSet> AllowedCpus(pid_t pid = 0);
// Binds that thread, and by inheritance all that it starts from then on. An error where none of `cpus` can be had.
Status BindToCpus(pid_t pid, const CpuSet& cpus);

}  // namespace phalanx
