#include "agent/machine/topology.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <system_error>

#include "base/process/process.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

constexpr size_t kFileBytesMax = 64 << 10;

// A file of the kernel's holds a newline at least.
StatusOr<std::string> ReadText(const std::string& path) {
  std::string text = ReadFilePrefix(path, kFileBytesMax);
  if (text.empty()) return absl::NotFoundError(fmt::format("{} cannot be read", path));
  while (!text.empty() && (text.back() == '\n' || text.back() == ' ')) text.pop_back();
  return text;
}

StatusOr<int> ReadNumber(const std::string& path) {
  PHX_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  int number = 0;
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code == std::errc() && end == text.data() + text.size()) return number;
  return absl::InvalidArgumentError(fmt::format("{}: '{}' is no number", path, text.substr(0, 100)));
}

StatusOr<CpuSet> ReadCpus(const std::string& path) {
  PHX_ASSIGN_OR_RETURN(const std::string text, ReadText(path));
  StatusOr<CpuSet> cpus = ParseCpuList(text);
  if (!cpus.ok()) return WithContext(cpus.status(), path);
  return cpus;
}

StatusOr<int> ReadFirstCpu(const std::string& path) {
  PHX_ASSIGN_OR_RETURN(const CpuSet cpus, ReadCpus(path));
  if (cpus.empty()) return absl::InvalidArgumentError(fmt::format("{} names no CPU", path));
  return *cpus.begin();
}

// The highest level of cache that holds data, which is the one that a core complex shares.
StatusOr<int> ReadLastCache(const std::string& cpu_dir) {
  const std::string dir = cpu_dir + "/cache";
  int highest = 0;
  std::string found;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    if (!it->path().filename().string().starts_with("index")) continue;
    const std::string cache = it->path().string();
    PHX_ASSIGN_OR_RETURN(const std::string type, ReadText(cache + "/type"));
    PHX_ASSIGN_OR_RETURN(const int level, ReadNumber(cache + "/level"));
    if (type == "Instruction" || level <= highest) continue;
    highest = level;
    found = cache;
  }
  if (found.empty()) return absl::NotFoundError(fmt::format("{} does not tell of a cache", dir));
  return ReadFirstCpu(found + "/shared_cpu_list");
}

StatusOr<CpuPlace> ReadCpuPlace(const std::string& dir, NumaBinding binding, int node) {
  CpuPlace place;
  place.node = node;
  if (binding == NumaBinding::kSocket) {
    PHX_ASSIGN_OR_RETURN(place.socket, ReadNumber(dir + "/topology/physical_package_id"));
  } else if (binding == NumaBinding::kExclusive) {
    PHX_ASSIGN_OR_RETURN(place.core, ReadFirstCpu(dir + "/topology/thread_siblings_list"));
  } else if (binding == NumaBinding::kCoreComplex) {
    PHX_ASSIGN_OR_RETURN(place.cache, ReadLastCache(dir));
  }
  return place;
}

}  // namespace

StatusOr<Topology> ReadTopology(const std::string& sysfs_root, NumaBinding binding, const CpuSet& allowed) {
  const std::string system = sysfs_root + "/devices/system";
  PHX_ASSIGN_OR_RETURN(const CpuSet nodes, ReadCpus(system + "/node/online"));
  Topology topology;
  for (const int node : nodes) {
    PHX_ASSIGN_OR_RETURN(const CpuSet cpus, ReadCpus(fmt::format("{}/node/node{}/cpulist", system, node)));
    for (const int cpu : cpus) {  // none, where it has memory alone
      if (allowed.count(cpu) == 0) continue;
      PHX_ASSIGN_OR_RETURN(topology[cpu], ReadCpuPlace(fmt::format("{}/cpu/cpu{}", system, cpu), binding, node));
    }
  }
  if (!topology.empty()) return topology;
  return absl::FailedPreconditionError(fmt::format(
      "{}/node: no NUMA node has one of the CPUs that phalanx-run may use ({})", system, CpuListText(allowed)));
}

StatusOr<std::vector<DevicePlace>> ReadDevicePlaces(const std::string& sysfs_root,
                                                    const std::vector<std::string>& pci_addresses) {
  std::vector<DevicePlace> places;
  for (const std::string& address : pci_addresses) {
    PHX_ASSIGN_OR_RETURN(const int node,
                         ReadNumber(fmt::format("{}/bus/pci/devices/{}/numa_node", sysfs_root, address)));
    places.push_back({address, node});
  }
  return places;
}

}  // namespace phalanx::agent
