#include "agent/machine/cpu_binding.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "agent/flags/flag_values.h"

namespace phalanx::agent {
namespace {

using Texts = std::vector<std::string>;
constexpr auto kAllBindings = {NumaBinding::kNode, NumaBinding::kSocket, NumaBinding::kExclusive,
                               NumaBinding::kCoreComplex};

// A machine as the large ones are: cores are numbered through, then their second CPUs come in the same order.
struct Machine {
  int sockets = 1;
  int nodes_per_socket = 1;
  int caches_per_node = 1;
  int cores_per_cache = 1;
  bool two_cpus_a_core = false;

  Topology Describe(const std::string& allowed = "0-9999") const {
    const CpuSet usable = *ParseCpuList(allowed);
    const int cores_per_node = caches_per_node * cores_per_cache;
    const int cores = sockets * nodes_per_socket * cores_per_node;
    Topology topology;
    for (int cpu = 0; cpu < cores * (two_cpus_a_core ? 2 : 1); ++cpu) {
      if (usable.count(cpu) == 0) continue;
      const int core = cpu % cores;
      const int node = core / cores_per_node;
      topology[cpu] = {node, node / nodes_per_socket, core, core / cores_per_cache * cores_per_cache};
    }
    return topology;
  }
};

// 2 sockets, 4 nodes each, 2 core complexes of 4 cores in each node, 2 CPUs a core: 64 cores, 128 CPUs.
constexpr Machine kNps4{2, 4, 2, 4, true};
// 2 sockets, 16 cores each, 2 CPUs a core.
constexpr Machine kTwoSockets{2, 1, 1, 16, true};
constexpr Machine kLaptop{1, 1, 1, 4, false};

std::vector<DevicePlace> Devices(const std::vector<int>& nodes) {
  std::vector<DevicePlace> devices;
  for (const int node : nodes) devices.push_back({fmt::format("0000:{:02x}:00.0", devices.size()), node});
  return devices;
}

Texts Bound(NumaBinding binding, const Topology& topology, const std::vector<int>& devices, int workers) {
  const StatusOr<CpuBinding> bound = BindWorkers(binding, topology, Devices(devices), workers);
  if (!bound.ok()) return {Message(bound.status())};
  Texts texts;
  for (const WorkerCpus& worker : bound->workers) texts.push_back(CpuListText(worker.cpus));
  return texts;
}

TEST(CpuBinding, BindsToTheNodeOfTheDevice) {
  EXPECT_EQ(Bound(NumaBinding::kNode, kTwoSockets.Describe(), {1, 1, 0, 0}, 4),
            (Texts{"16-31,48-63", "16-31,48-63", "0-15,32-47", "0-15,32-47"}));
  EXPECT_EQ(Bound(NumaBinding::kNode, kNps4.Describe(), {3, 1, 7, 5}, 2), (Texts{"24-31,88-95", "8-15,72-79"}));
  EXPECT_EQ(Bound(NumaBinding::kNode, kLaptop.Describe(), {0}, 1), Texts{"0-3"});
}

TEST(CpuBinding, BindsToAllNodesOfTheDevicesSocket) {
  EXPECT_EQ(Bound(NumaBinding::kSocket, kNps4.Describe(), {3, 5}, 2), (Texts{"0-31,64-95", "32-63,96-127"}));
  EXPECT_EQ(Bound(NumaBinding::kSocket, kTwoSockets.Describe(), {1, 0}, 2), (Texts{"16-31,48-63", "0-15,32-47"}));
  // Of one node on the socket nothing may be used.
  EXPECT_EQ(Bound(NumaBinding::kSocket, kNps4.Describe("8-63"), {3}, 1), Texts{"8-31"});
}

TEST(CpuBinding, DividesTheCoresOfANodeAmongItsDevices) {
  EXPECT_EQ(Bound(NumaBinding::kExclusive, kTwoSockets.Describe(), {1, 0, 1, 0}, 4),
            (Texts{"16-23,48-55", "0-7,32-39", "24-31,56-63", "8-15,40-47"}));
  // Those that no worker of ours uses have their share, too.
  EXPECT_EQ(Bound(NumaBinding::kExclusive, kTwoSockets.Describe(), {0, 0, 0, 0, 1, 1, 1, 1}, 2),
            (Texts{"0-3,32-35", "4-7,36-39"}));
  // The first ones get what is left over.
  const Machine ten_cores{1, 1, 1, 10, false};
  EXPECT_EQ(Bound(NumaBinding::kExclusive, ten_cores.Describe(), {0, 0, 0, 0}, 4), (Texts{"0-2", "3-5", "6-7", "8-9"}));
}

TEST(CpuBinding, NeverDividesACore) {
  // Of core 0 only the second CPU may be used, of core 3 only the first.
  const Machine four_cores{1, 1, 1, 4, true};
  EXPECT_EQ(Bound(NumaBinding::kExclusive, four_cores.Describe("1-6"), {0, 0}, 2), (Texts{"1,4-5", "2-3,6"}));
  EXPECT_EQ(Bound(NumaBinding::kExclusive, four_cores.Describe("0-1,4-5"), {0, 0, 0}, 3),
            Texts{"exclusive gives each worker cores of its own, and NUMA node 0 has 3 devices for 2 usable cores: use "
                  "--numa-binding=node, fewer workers, or more CPUs"});
}

TEST(CpuBinding, GivesEachDeviceACoreComplex) {
  EXPECT_EQ(Bound(NumaBinding::kCoreComplex, kNps4.Describe(), {3, 3, 0}, 3),
            (Texts{"24-27,88-91", "28-31,92-95", "0-3,64-67"}));
  // A third one of the node shares.
  EXPECT_EQ(Bound(NumaBinding::kCoreComplex, kNps4.Describe(), {0, 0, 0}, 3),
            (Texts{"0-3,64-67", "4-7,68-71", "0-3,64-67"}));
  // Those with most CPUs come first.
  EXPECT_EQ(Bound(NumaBinding::kCoreComplex, kNps4.Describe("1-7"), {0, 0}, 2), (Texts{"4-7", "1-3"}));
}

TEST(CpuBinding, SpreadsWorkersEvenlyWithoutDevices) {
  EXPECT_EQ(Bound(NumaBinding::kNode, kTwoSockets.Describe(), {}, 3),
            (Texts{"0-15,32-47", "0-15,32-47", "16-31,48-63"}));
  EXPECT_EQ(Bound(NumaBinding::kNode, kNps4.Describe(), {}, 2), (Texts{"0-7,64-71", "32-39,96-103"}));
  EXPECT_EQ(Bound(NumaBinding::kSocket, kNps4.Describe(), {}, 2), (Texts{"0-31,64-95", "32-63,96-127"}));
  // Sockets count, not nodes: one node of the second socket is left.
  EXPECT_EQ(Bound(NumaBinding::kSocket, kNps4.Describe("0-39"), {}, 2), (Texts{"0-31", "32-39"}));
  EXPECT_EQ(Bound(NumaBinding::kExclusive, kTwoSockets.Describe(), {}, 4),
            (Texts{"0-7,32-39", "8-15,40-47", "16-23,48-55", "24-31,56-63"}));
  EXPECT_EQ(Bound(NumaBinding::kCoreComplex, kNps4.Describe(), {}, 3),
            (Texts{"0-3,64-67", "16-19,80-83", "40-43,104-107"}));
  EXPECT_EQ(Bound(NumaBinding::kExclusive, kLaptop.Describe(), {}, 5).front(),
            "exclusive gives each worker cores of its own, and NUMA node 0 has 5 workers for 4 usable cores: use "
            "--numa-binding=node, fewer workers, or more CPUs");
}

TEST(CpuBinding, ServesManyWorkers) {
  const Texts bound = Bound(NumaBinding::kExclusive, kNps4.Describe(), {}, 64);
  ASSERT_EQ(bound.size(), 64u);
  for (int rank = 0; rank < 64; ++rank) {
    EXPECT_EQ(bound[static_cast<size_t>(rank)], fmt::format("{},{}", rank, rank + 64));
  }
}

TEST(CpuBinding, UsesOnlyCpusThatMayBeUsed) {
  for (const NumaBinding binding : kAllBindings) {
    const CpuSet allowed = *ParseCpuList("0-15,64-79");  // half of a socket's
    const Topology topology = kNps4.Describe("0-15,64-79");
    const StatusOr<CpuBinding> bound = BindWorkers(binding, topology, {}, 6);
    ASSERT_TRUE(bound.ok()) << bound.status();
    CpuSet all;
    for (const WorkerCpus& worker : bound->workers) {
      EXPECT_FALSE(worker.cpus.empty());
      all.insert(worker.cpus.begin(), worker.cpus.end());
    }
    EXPECT_EQ(all, allowed) << Name(binding);
  }
}

TEST(CpuBinding, WithOneNodeItDoesNotMatterWhatTheKernelKnows) {
  const StatusOr<CpuBinding> bound = BindWorkers(NumaBinding::kExclusive, kLaptop.Describe(), Devices({-1, -1}), 2);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(CpuListText(bound->workers[1].cpus), "2-3");
  EXPECT_EQ(bound->workers[1].why, "NUMA node 0, near device 1 (0000:01:00.0)");
  EXPECT_EQ(bound->notice, "");
}

TEST(CpuBinding, SpreadsAndSaysSoWhereTheKernelDoesNotKnow) {
  const StatusOr<CpuBinding> bound = BindWorkers(NumaBinding::kSocket, kTwoSockets.Describe(), Devices({0, -1}), 2);
  ASSERT_TRUE(bound.ok()) << bound.status();
  EXPECT_EQ(CpuListText(bound->workers[1].cpus), "16-31,48-63");
  EXPECT_EQ(bound->workers[1].why, "the socket of NUMA node 1, workers are spread evenly");
  EXPECT_EQ(bound->notice,
            "the kernel does not say which NUMA node device 1 (0000:01:00.0) is near to: workers are spread evenly");
}

TEST(CpuBinding, RefusesMoreWorkersThanDevices) {
  EXPECT_EQ(Bound(NumaBinding::kNode, kLaptop.Describe(), {0}, 2),
            Texts{"each worker is bound near its own device, and 2 workers see 1"});
}

TEST(CpuBinding, RefusesADeviceWithoutUsableCpus) {
  for (const NumaBinding binding : kAllBindings) {
    EXPECT_EQ(Bound(binding, kTwoSockets.Describe("0-15"), {0, 1}, 2),
              Texts{"device 1 (0000:01:00.0) is near to NUMA node 1, none of whose CPUs phalanx-run may use"});
    EXPECT_EQ(Bound(binding, kTwoSockets.Describe("0-15"), {0, 1}, 1).size(), 1u);  // nobody uses that one
  }
}

}  // namespace
}  // namespace phalanx::agent
