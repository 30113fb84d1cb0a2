#include "base/process/memory.h"

#include <algorithm>
#include <charconv>
#include <optional>
#include <utility>

#include "base/process/process.h"

namespace phalanx {
namespace {

using ReadFile = std::function<std::string(const std::string&)>;

constexpr size_t kFileBytesMax = 64 << 10;

struct CgroupFiles {
  std::string_view limit;
  std::string_view use;
  std::string_view droppable;  // label in memory.stat
};
constexpr CgroupFiles kV1{"memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file "};
constexpr CgroupFiles kV2{"memory.max", "memory.current", "inactive_file "};

int64_t LeftIn(const std::string& dir, const CgroupFiles& files, const ReadFile& read) {
  const std::optional<int64_t> limit = NumberBehind(read(dir + "/" + std::string(files.limit)), "");
  const std::optional<int64_t> use = NumberBehind(read(dir + "/" + std::string(files.use)), "");
  if (!limit || !use) return INT64_MAX;  // "max", or no such group
  const int64_t droppable = NumberBehind(read(dir + "/memory.stat"), files.droppable).value_or(0);
  return std::max<int64_t>(0, *limit - std::max<int64_t>(0, *use - droppable));
}

}  // namespace

int64_t ResidentBytes(pid_t pid) {
  const std::string pages = ReadFilePrefix("/proc/" + std::to_string(pid) + "/statm", kFileBytesMax);
  const size_t second = pages.find(' ');  // behind the size of its address space
  if (second == std::string::npos) return 0;
  return NumberBehind(std::string_view(pages).substr(second + 1), "").value_or(0) * sysconf(_SC_PAGESIZE);
}

std::vector<MemoryHierarchy> MemoryHierarchies(std::string_view proc_self_cgroup) {
  std::vector<MemoryHierarchy> found;
  // Lines "number:controllers:/path"; the unified hierarchy has no controllers.
  for (std::string_view rest = proc_self_cgroup; !rest.empty();) {
    const std::string_view line = rest.substr(0, rest.find('\n'));
    rest.remove_prefix(std::min(line.size() + 1, rest.size()));
    const size_t first = line.find(':');
    const size_t second = line.find(':', first + 1);
    if (first == std::string_view::npos || second == std::string_view::npos) continue;
    const std::string_view controllers = line.substr(first + 1, second - first - 1);
    std::string path(line.substr(second + 1));
    if (path.empty() || path[0] != '/') continue;
    if (path == "/") path.clear();
    if (!controllers.empty() && controllers != "memory") continue;
    MemoryHierarchy hierarchy{!controllers.empty(), {}};
    const std::string root = hierarchy.v1 ? "/sys/fs/cgroup/memory" : "/sys/fs/cgroup";
    for (; !path.empty(); path.resize(path.rfind('/'))) hierarchy.folders.push_back(root + path);
    hierarchy.folders.push_back(root);
    found.push_back(std::move(hierarchy));
  }
  return found;
}

std::optional<int64_t> NumberBehind(std::string_view text, std::string_view label) {
  size_t at = 0;
  while (text.substr(at, label.size()) != label) {
    at = text.find('\n', at);
    if (at == std::string_view::npos) return std::nullopt;
    ++at;
  }
  std::string_view rest = text.substr(at + label.size());
  rest.remove_prefix(std::min(rest.find_first_not_of(' '), rest.size()));
  int64_t number = 0;
  const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), number);
  if (code != std::errc() || number < 0) return std::nullopt;
  return number;
}

int64_t AvailableMemoryBytes(const ReadFile& read) {
  int64_t left = INT64_MAX;
  if (const auto kib = NumberBehind(read("/proc/meminfo"), "MemAvailable:")) left = *kib * 1024;
  for (const MemoryHierarchy& hierarchy : MemoryHierarchies(read("/proc/self/cgroup"))) {
    for (const std::string& folder : hierarchy.folders)
      left = std::min(left, LeftIn(folder, hierarchy.v1 ? kV1 : kV2, read));
  }
  return left;
}

int64_t AvailableMemoryBytes() {
  return AvailableMemoryBytes([](const std::string& path) { return ReadFilePrefix(path, kFileBytesMax); });
}

}  // namespace phalanx
