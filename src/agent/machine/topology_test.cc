// The reader of /sys on trees like the kernel's, written by the tests.
#include "agent/machine/topology.h"

#include <fmt/format.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;
constexpr auto kAllBindings = {NumaBinding::kNode, NumaBinding::kSocket, NumaBinding::kExclusive,
                               NumaBinding::kCoreComplex};

class TopologyTest : public testing::Test {
 protected:
  TopologyTest() : root_(fs::temp_directory_path() / fmt::format("phalanx-sysfs-{}", getpid())) {
    fs::remove_all(root_);
  }
  ~TopologyTest() override { fs::remove_all(root_); }

  void File(const std::string& path, const std::string& text) const {
    const fs::path file = root_ / path;
    fs::create_directories(file.parent_path());
    std::ofstream(file) << text << "\n";
  }

  void Cache(int cpu, int index, int level, const char* type, const std::string& shared) const {
    const std::string dir = fmt::format("devices/system/cpu/cpu{}/cache/index{}/", cpu, index);
    File(dir + "level", fmt::format("{}", level));
    File(dir + "type", type);
    File(dir + "shared_cpu_list", shared);
  }

  void Cpu(int cpu, int socket, const std::string& siblings, const std::string& l3) const {
    const std::string dir = fmt::format("devices/system/cpu/cpu{}/topology/", cpu);
    File(dir + "physical_package_id", fmt::format("{}", socket));
    File(dir + "thread_siblings_list", siblings);
    Cache(cpu, 0, 1, "Data", siblings);
    Cache(cpu, 1, 1, "Instruction", siblings);
    Cache(cpu, 2, 2, "Unified", siblings);
    if (!l3.empty()) Cache(cpu, 3, 3, "Unified", l3);
  }

  void Node(int node, const std::string& cpus) const {
    File(fmt::format("devices/system/node/node{}/cpulist", node), cpus);
  }
  void Nodes(const std::string& online) const { File("devices/system/node/online", online); }

  // 4 cores of 2 CPUs each (0-3 and 4-7), 2 sockets of one node, an L3 for each socket.
  void TwoSockets() const {
    Nodes("0-1");
    Node(0, "0-1,4-5");
    Node(1, "2-3,6-7");
    for (int cpu = 0; cpu < 8; ++cpu) {
      const int core = cpu % 4;
      Cpu(cpu, core / 2, fmt::format("{},{}", core, core + 4), core < 2 ? "0-1,4-5" : "2-3,6-7");
    }
  }

  StatusOr<Topology> Read(NumaBinding binding, const std::string& allowed) const {
    return ReadTopology(root_.string(), binding, *ParseCpuList(allowed));
  }
  // {cpu: place} of one kind.
  std::map<int, int> Places(NumaBinding binding, int CpuPlace::*place, const std::string& allowed = "0-63") const {
    const StatusOr<Topology> topology = Read(binding, allowed);
    EXPECT_TRUE(topology.ok()) << topology.status();
    std::map<int, int> places;
    if (!topology.ok()) return places;
    for (const auto& [cpu, found] : *topology) places[cpu] = found.*place;
    return places;
  }
  std::string Error(NumaBinding binding, const std::string& allowed = "0-63") const {
    std::string text = Message(Read(binding, allowed).status());
    for (size_t at = text.find(root_.string()); at != std::string::npos; at = text.find(root_.string())) {
      text.replace(at, root_.string().size(), "SYS");
    }
    return text;
  }

  const fs::path root_;
};

TEST_F(TopologyTest, ReadsNodesSocketsCoresAndCaches) {
  TwoSockets();
  using Map = std::map<int, int>;
  EXPECT_EQ(Places(NumaBinding::kNode, &CpuPlace::node),
            (Map{{0, 0}, {1, 0}, {2, 1}, {3, 1}, {4, 0}, {5, 0}, {6, 1}, {7, 1}}));
  EXPECT_EQ(Places(NumaBinding::kSocket, &CpuPlace::socket),
            (Map{{0, 0}, {1, 0}, {2, 1}, {3, 1}, {4, 0}, {5, 0}, {6, 1}, {7, 1}}));
  EXPECT_EQ(Places(NumaBinding::kExclusive, &CpuPlace::core),
            (Map{{0, 0}, {1, 1}, {2, 2}, {3, 3}, {4, 0}, {5, 1}, {6, 2}, {7, 3}}));
  EXPECT_EQ(Places(NumaBinding::kCoreComplex, &CpuPlace::cache),
            (Map{{0, 0}, {1, 0}, {2, 2}, {3, 2}, {4, 0}, {5, 0}, {6, 2}, {7, 2}}));
}

TEST_F(TopologyTest, KnowsOnlyTheCpusThatMayBeUsed) {
  TwoSockets();
  // A core is named by its first CPU, also where only the second may be used.
  EXPECT_EQ(Places(NumaBinding::kExclusive, &CpuPlace::core, "4-7"),
            (std::map<int, int>{{4, 0}, {5, 1}, {6, 2}, {7, 3}}));
  EXPECT_EQ(Error(NumaBinding::kNode, "64-65"),
            "SYS/devices/system/node: no NUMA node has one of the CPUs that phalanx-run may use (64-65)");
}

TEST_F(TopologyTest, LeavesOutCpusThatAreOffline) {
  // The kernel takes them from the nodes' lists, and they have no topology.
  Nodes("0");
  Node(0, "0,2");
  Cpu(0, 0, "0", "0,2");
  Cpu(2, 0, "2", "0,2");
  File("devices/system/cpu/cpu1/online", "0");
  for (const NumaBinding binding : kAllBindings) {
    EXPECT_EQ(Places(binding, &CpuPlace::node, "0-2"), (std::map<int, int>{{0, 0}, {2, 0}}));
  }
}

TEST_F(TopologyTest, LeavesOutNodesWithoutCpus) {
  Nodes("0,8-9");
  Node(0, "0");
  Node(8, "");
  Node(9, "");
  Cpu(0, 0, "0", "0");
  for (const NumaBinding binding : kAllBindings) {
    EXPECT_EQ(Places(binding, &CpuPlace::node), (std::map<int, int>{{0, 0}}));
  }
}

TEST_F(TopologyTest, TakesTheLastLevelOfCacheThereIs) {
  // The big cores of a laptop share an L3, the small ones an L2.
  Nodes("0");
  Node(0, "0-3");
  Cpu(0, 0, "0-1", "0-1");
  Cpu(1, 0, "0-1", "0-1");
  Cpu(2, 0, "2", "");
  Cpu(3, 0, "3", "");
  Cache(2, 2, 2, "Unified", "2-3");
  Cache(3, 2, 2, "Unified", "2-3");
  Cache(3, 10, 4, "Instruction", "0-3");
  EXPECT_EQ(Places(NumaBinding::kCoreComplex, &CpuPlace::cache), (std::map<int, int>{{0, 0}, {1, 0}, {2, 2}, {3, 2}}));
}

TEST_F(TopologyTest, NamesTheFileThatCannotBeRead) {
  EXPECT_EQ(Error(NumaBinding::kNode), "SYS/devices/system/node/online cannot be read");
  Nodes("0");
  EXPECT_EQ(Error(NumaBinding::kNode), "SYS/devices/system/node/node0/cpulist cannot be read");
  Node(0, "0-1");
  EXPECT_EQ(Error(NumaBinding::kNode), "");  // it asks for nothing more
  EXPECT_EQ(Error(NumaBinding::kSocket), "SYS/devices/system/cpu/cpu0/topology/physical_package_id cannot be read");
  EXPECT_EQ(Error(NumaBinding::kExclusive), "SYS/devices/system/cpu/cpu0/topology/thread_siblings_list cannot be read");
  EXPECT_EQ(Error(NumaBinding::kCoreComplex), "SYS/devices/system/cpu/cpu0/cache does not tell of a cache");
  Cache(0, 0, 1, "Data", "0");
  fs::remove(root_ / "devices/system/cpu/cpu0/cache/index0/level");
  EXPECT_EQ(Error(NumaBinding::kCoreComplex), "SYS/devices/system/cpu/cpu0/cache/index0/level cannot be read");
}

TEST_F(TopologyTest, NamesTheFileThatMakesNoSense) {
  Nodes("0");
  Node(0, "0-x");
  EXPECT_EQ(Error(NumaBinding::kNode), "SYS/devices/system/node/node0/cpulist: '0-x' is no list of CPUs like 0-3,8");
  Node(0, "0");
  File("devices/system/cpu/cpu0/topology/physical_package_id", "first");
  EXPECT_EQ(Error(NumaBinding::kSocket),
            "SYS/devices/system/cpu/cpu0/topology/physical_package_id: 'first' is no number");
  File("devices/system/cpu/cpu0/topology/thread_siblings_list", "");
  EXPECT_EQ(Error(NumaBinding::kExclusive), "SYS/devices/system/cpu/cpu0/topology/thread_siblings_list names no CPU");
}

TEST_F(TopologyTest, ReadsWhereDevicesLie) {
  File("bus/pci/devices/0000:3b:00.0/numa_node", "1");
  File("bus/pci/devices/0000:dc:00.0/numa_node", "-1");
  const auto places = ReadDevicePlaces(root_.string(), {"0000:dc:00.0", "0000:3b:00.0"});
  ASSERT_TRUE(places.ok()) << places.status();
  ASSERT_EQ(places->size(), 2u);
  EXPECT_EQ((*places)[0].pci_address, "0000:dc:00.0");
  EXPECT_EQ((*places)[0].node, -1);
  EXPECT_EQ((*places)[1].node, 1);
  EXPECT_NE(Message(ReadDevicePlaces(root_.string(), {"0000:01:00.0"}).status()).find("0000:01:00.0/numa_node cannot"),
            std::string::npos);
}

TEST(TopologyOfThisMachine, NamesEveryCpuThatMayBeUsed) {
  const CpuSet allowed = *AllowedCpus();
  for (const NumaBinding binding : kAllBindings) {
    const StatusOr<Topology> topology = ReadTopology("/sys", binding, allowed);
    if (!topology.ok()) {  // a container may hide some of it; then it is said which file
      EXPECT_NE(Message(topology.status()).find("/sys/devices/system/"), std::string::npos);
      continue;
    }
    CpuSet named;
    for (const auto& [cpu, place] : *topology) named.insert(cpu);
    EXPECT_EQ(named, allowed);
  }
}

}  // namespace
}  // namespace phalanx::agent
