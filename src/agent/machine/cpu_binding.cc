#include "agent/machine/cpu_binding.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>

namespace phalanx::agent {
namespace {

using CpuGroups = std::map<int, CpuSet>;

CpuGroups GroupBy(const Topology& topology, const CpuSet& cpus, int CpuPlace::*place) {
  CpuGroups groups;
  for (const int cpu : cpus) groups[topology.at(cpu).*place].insert(cpu);
  return groups;
}

class Binder {
 public:
  Binder(NumaBinding binding, const Topology& topology) : binding_(binding), topology_(topology) {
    for (const auto& [cpu, place] : topology) by_node_[place.node].insert(cpu);
  }

  bool HasCpus(int node) const { return by_node_.count(node) > 0; }

  // The node of each worker where there is nothing to be near.
  std::vector<int> Spread(int worker_count) const {
    std::vector<int> candidates;
    CpuSet sockets;
    for (const auto& [node, cpus] : by_node_) {
      if (binding_ != NumaBinding::kSocket || sockets.insert(SocketOf(node)).second) candidates.push_back(node);
    }
    std::vector<int> nodes;
    for (int rank = 0; rank < worker_count; ++rank) {
      const size_t at = static_cast<size_t>(rank) * candidates.size() / static_cast<size_t>(worker_count);
      nodes.push_back(candidates[at]);
    }
    return nodes;
  }

  // The CPUs of the one at `index`, where `nodes` are those of all that share this machine; `what`: "devices".
  StatusOr<CpuSet> CpusOf(const std::vector<int>& nodes, size_t index, const char* what) const {
    const int node = nodes[index];
    const CpuSet& cpus = by_node_.at(node);
    if (binding_ == NumaBinding::kNode) return cpus;
    if (binding_ == NumaBinding::kSocket) return OfSocket(SocketOf(node));
    const auto sharers = static_cast<size_t>(std::count(nodes.begin(), nodes.end(), node));
    const auto place =
        static_cast<size_t>(std::count(nodes.begin(), nodes.begin() + static_cast<int64_t>(index), node));
    if (binding_ == NumaBinding::kCoreComplex) return OneCoreComplex(cpus, place);
    const CpuGroups cores = GroupBy(topology_, cpus, &CpuPlace::core);
    if (cores.size() >= sharers) return OwnCores(cores, place, sharers);
    return absl::FailedPreconditionError(
        fmt::format("exclusive gives each worker cores of its own, and NUMA node {} has {} {} for {} usable core{}: "
                    "use --numa-binding=node, fewer workers, or more CPUs",
                    node, sharers, what, cores.size(), cores.size() == 1 ? "" : "s"));
  }

 private:
  // A node that reaches over sockets counts to that of its first CPU.
  int SocketOf(int node) const { return topology_.at(*by_node_.at(node).begin()).socket; }

  CpuSet OfSocket(int socket) const {
    CpuSet cpus;
    for (const auto& [node, members] : by_node_) {
      if (SocketOf(node) == socket) cpus.insert(members.begin(), members.end());
    }
    return cpus;
  }

  // Those with most CPUs first, then by number; each sharer has another one, as long as there are any.
  CpuSet OneCoreComplex(const CpuSet& cpus, size_t place) const {
    std::vector<CpuSet> complexes;
    for (auto& [first, members] : GroupBy(topology_, cpus, &CpuPlace::cache)) complexes.push_back(members);
    std::stable_sort(complexes.begin(), complexes.end(),
                     [](const CpuSet& a, const CpuSet& b) { return a.size() > b.size(); });
    return complexes[place % complexes.size()];
  }

  // Whole cores in their order; the first sharers have one more where they do not divide evenly.
  static CpuSet OwnCores(const CpuGroups& cores, size_t place, size_t sharers) {
    const size_t each = cores.size() / sharers;
    const size_t left_over = cores.size() % sharers;
    const size_t first = place * each + std::min(place, left_over);
    const size_t count = each + (place < left_over ? 1 : 0);
    CpuSet cpus;
    auto core = std::next(cores.begin(), static_cast<int64_t>(first));
    for (size_t i = 0; i < count; ++i, ++core) cpus.insert(core->second.begin(), core->second.end());
    return cpus;
  }

  const NumaBinding binding_;
  const Topology& topology_;
  CpuGroups by_node_;
};

std::string Named(const std::vector<DevicePlace>& devices, size_t index) {
  return fmt::format("device {} ({})", index, devices[index].pci_address);
}

// The node near each device; -1 where it is not known. With one node there is no question.
std::vector<int> NodesNear(const std::vector<DevicePlace>& devices, const Topology& topology) {
  CpuSet nodes;
  for (const auto& [cpu, place] : topology) nodes.insert(place.node);
  std::vector<int> near;
  near.reserve(devices.size());
  for (const DevicePlace& device : devices) {
    near.push_back(device.node < 0 && nodes.size() == 1 ? *nodes.begin() : device.node);
  }
  return near;
}

const char* Wide(NumaBinding binding) { return binding == NumaBinding::kSocket ? "the socket of " : ""; }

}  // namespace

StatusOr<CpuBinding> BindWorkers(NumaBinding binding, const Topology& topology, const std::vector<DevicePlace>& devices,
                                 int worker_count) {
  const auto workers = static_cast<size_t>(worker_count);
  if (!devices.empty() && devices.size() < workers) {
    return absl::FailedPreconditionError(
        fmt::format("each worker is bound near its own device, and {} workers see {}", workers, devices.size()));
  }
  const Binder binder(binding, topology);
  CpuBinding bound;
  std::vector<int> nodes = NodesNear(devices, topology);
  const auto unknown = std::find_if(nodes.begin(), nodes.end(), [](int node) { return node < 0; });
  if (unknown != nodes.end()) {
    bound.notice = fmt::format("the kernel does not say which NUMA node {} is near to: workers are spread evenly",
                               Named(devices, static_cast<size_t>(unknown - nodes.begin())));
  }
  const bool near_devices = !devices.empty() && unknown == nodes.end();
  if (!near_devices) nodes = binder.Spread(worker_count);
  for (size_t rank = 0; rank < workers; ++rank) {
    if (!binder.HasCpus(nodes[rank])) {
      return absl::FailedPreconditionError(fmt::format(
          "{} is near to NUMA node {}, none of whose CPUs phalanx-run may use", Named(devices, rank), nodes[rank]));
    }
    WorkerCpus worker;
    PHX_ASSIGN_OR_RETURN(worker.cpus, binder.CpusOf(nodes, rank, near_devices ? "devices" : "workers"));
    worker.why = fmt::format("{}NUMA node {}, {}", Wide(binding), nodes[rank],
                             near_devices ? fmt::format("near {}", Named(devices, rank)) : "workers are spread evenly");
    bound.workers.push_back(std::move(worker));
  }
  return bound;
}

}  // namespace phalanx::agent
