#include "agent/watch/sysfs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "base/test_folder.h"

namespace phalanx::agent::watch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

Readings ReadAll(SysfsReader& reader) {
  Readings readings;
  reader.ScanWhereDue();
  reader.Read([](const std::string&) {}, [&readings](Sample sample) { readings.push_back(std::move(sample)); });
  return readings;
}

class SysfsTest : public testing::Test {
 protected:
  std::vector<std::string> Read(SysfsReader& reader) {
    std::vector<std::string> told;
    for (const Sample& sample : ReadAll(reader)) {
      told.push_back(std::string(sample.kind->name) + "|" + sample.device + "|" + std::to_string(sample.value));
    }
    return told;
  }
  SysfsReader Reader(const std::string& interface = "") {
    return SysfsReader({folder_ / "sys", folder_ / "proc", interface});
  }
  void AddPort() {
    const std::string port = "sys/class/infiniband/mlx5_0/ports/1/";
    folder_.Write(port + "state", "4: ACTIVE\n");
    folder_.Write(port + "counters/symbol_error", "3\n");
    folder_.Write(port + "counters/link_downed", "1\n");
    folder_.Write(port + "counters/port_xmit_data", "999\n");
    folder_.Write(port + "hw_counters/out_of_sequence", "8\n");
  }

  TestFolder folder_;
};

TEST_F(SysfsTest, AMachineWithoutAnyOfThatIsRead) {
  SysfsReader reader = Reader();
  EXPECT_THAT(Read(reader), IsEmpty());
}

TEST_F(SysfsTest, PortsWithWhatIsGraveFirst) {
  AddPort();
  SysfsReader reader = Reader();
  EXPECT_THAT(Read(reader), ElementsAre("state|mlx5_0 port 1|1", "link_downed|mlx5_0 port 1|1",
                                        "symbol_error|mlx5_0 port 1|3", "out_of_sequence|mlx5_0 port 1|8"));
}

TEST_F(SysfsTest, EachReadingSaysWhatTheFilesSayThen) {
  AddPort();
  SysfsReader reader = Reader();
  Read(reader);
  folder_.Write("sys/class/infiniband/mlx5_0/ports/1/state", "1: DOWN\n");
  folder_.Write("sys/class/infiniband/mlx5_0/ports/1/counters/link_downed", "22\n");
  folder_.Write("sys/class/infiniband/mlx5_0/ports/1/counters/symbol_error", "");
  EXPECT_THAT(Read(reader),
              ElementsAre("state|mlx5_0 port 1|0", "link_downed|mlx5_0 port 1|22", "out_of_sequence|mlx5_0 port 1|8"));
}

TEST_F(SysfsTest, InterfacesOfHardwareAndTheJobsOwn) {
  for (const char* name : {"eth0", "ib0", "lo", "veth7"}) {
    folder_.Write(std::string("sys/class/net/") + name + "/carrier_changes", "2\n");
  }
  folder_.Write("sys/class/net/eth0/device/vendor", "0x15b3\n");
  folder_.Write("sys/class/net/ib0/device/vendor", "0x15b3\n");
  SysfsReader reader = Reader("eth0");
  EXPECT_THAT(Read(reader), ElementsAre("carrier_changes|eth0|2", "other_carrier_changes|ib0|2"));
  SysfsReader of_container = Reader("veth7");
  EXPECT_THAT(Read(of_container),
              ElementsAre("carrier_changes|veth7|2", "other_carrier_changes|eth0|2", "other_carrier_changes|ib0|2"));
}

TEST_F(SysfsTest, DisksMemoryAndCpus) {
  folder_.Write("sys/class/nvme/nvme0/state", "live\n");
  folder_.Write("sys/block/sda/device/ioerr_cnt", "0x10\n");
  folder_.Write("sys/block/loop0/size", "0\n");
  folder_.Write("sys/devices/system/edac/mc/mc0/ce_count", "4\n");
  folder_.Write("sys/devices/system/edac/mc/mc0/ue_count", "0\n");
  folder_.Write("sys/devices/system/edac/mc/power/control", "auto\n");
  for (const char* cpu : {"cpu0", "cpu1", "cpu2"}) {
    const std::string folder = std::string("sys/devices/system/cpu/") + cpu;
    folder_.Write(folder + "/thermal_throttle/package_throttle_count", "6\n");
    folder_.Write(folder + "/topology/physical_package_id", cpu == std::string("cpu2") ? "1\n" : "0\n");
  }
  folder_.Write("proc/vmstat", "nr_free_pages 1\noom_kill 9\n");
  folder_.Write("proc/interrupts", " MCE:  0  1  Machine check exceptions\n");
  SysfsReader reader = Reader();
  EXPECT_THAT(Read(reader),
              ElementsAre("nvme_state|nvme0|1", "ue_count|memory controller 0|0", "mce||1", "ioerr_cnt|sda|16",
                          "ce_count|memory controller 0|4", "package_throttle_count|CPU package 0|6",
                          "package_throttle_count|CPU package 1|6", "oom_kill||9"));
}

TEST_F(SysfsTest, WithoutALookThroughTheFoldersNothingIsOpened) {
  AddPort();
  SysfsReader reader = Reader();
  reader.Read([](const std::string& path) { ADD_FAILURE() << path; }, [](const Sample&) { ADD_FAILURE(); });
}

TEST_F(SysfsTest, ThisMachineCanBeRead) {
  SysfsReader reader({});
  bool counts_kills = false;
  for (const Sample& sample : ReadAll(reader)) counts_kills = counts_kills || sample.kind->name == "oom_kill";
  EXPECT_TRUE(counts_kills) << "/proc/vmstat is everywhere";
}

TEST(InterfaceOfTest, LoopbackIsNone) {
  EXPECT_EQ(InterfaceOf("127.0.0.1"), "");
  EXPECT_EQ(InterfaceOf(""), "");
  EXPECT_EQ(InterfaceOf("192.0.2.77"), "");
}

}  // namespace
}  // namespace phalanx::agent::watch
