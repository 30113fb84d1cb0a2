// How much memory this process's group of processes may still take. One question, asked when it matters; nothing is
// watched.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

namespace phalanx {

// The least of what the machine has (MemAvailable) and what each memory cgroup above this process leaves (its limit
// less its use, but for file pages the kernel would drop). INT64_MAX where nothing can be read.
int64_t AvailableMemoryBytes();

// The same from given files: `read` brings a file's text, empty where there is none. Understands cgroup v1 and v2.
// Pure.
int64_t AvailableMemoryBytes(const std::function<std::string(const std::string& path)>& read);

}  // namespace phalanx
