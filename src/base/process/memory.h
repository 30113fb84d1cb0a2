// How much memory this process's group of processes may still take, and how much a process has. Questions, asked when
// it matters; nothing is watched.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx {

// The least of what the machine has (MemAvailable) and what each memory cgroup above this process leaves (its limit
// less its use, but for file pages the kernel would drop). INT64_MAX where nothing can be read.
int64_t AvailableMemoryBytes();

// The same from given files: `read` brings a file's text, empty where there is none. Understands cgroup v1 and v2.
// Pure.
int64_t AvailableMemoryBytes(const std::function<std::string(const std::string& path)>& read);

// Resident memory of a process; 0 where it is gone, or that cannot be read.
int64_t ResidentBytes(pid_t pid);

// Where a process's memory is accounted: the folder of its group in one hierarchy of cgroups, and of each above it up
// to the root of what is visible. A folder need not exist: in a container the path may be the host's.
struct MemoryHierarchy {
  bool v1 = false;
  std::vector<std::string> folders;  // its own first
};

// Of this process, from the text of /proc/self/cgroup. Pure.
std::vector<MemoryHierarchy> MemoryHierarchies(std::string_view proc_self_cgroup);

// The number behind `label` at the start of a line ("": at the start of the text); nothing where it is none, or below
// 0. Pure.
std::optional<int64_t> NumberBehind(std::string_view text, std::string_view label);

}  // namespace phalanx
