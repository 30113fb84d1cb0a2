#include "agent/machine/device_count.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

namespace phalanx::agent {
namespace {

TEST(DeviceCount, ReadsTheCountBehindWhateverImportsPrint) {
  EXPECT_EQ(*ParseDeviceCount(NprocKind::kGpu, "warning: phalanx-devices=9 \n\nphalanx-devices=4\n", 16), 4u);
  EXPECT_EQ(*ParseDeviceCount(NprocKind::kAuto, "\nphalanx-devices=0\n", 16), 16u);
  EXPECT_EQ(*ParseDeviceCount(NprocKind::kAuto, "\nphalanx-devices=2\n", 16), 2u);
}

TEST(DeviceCount, NamesTheFlag) {
  EXPECT_EQ(Message(ParseDeviceCount(NprocKind::kGpu, "\nphalanx-devices=0\n", 16).status()),
            "--nproc-per-node=gpu: torch sees no such device on this machine; give a number, or 'auto'");
  EXPECT_NE(
      Message(ParseDeviceCount(NprocKind::kXpu, "ModuleNotFoundError: torch", 1).status()).find("ModuleNotFoundError"),
      std::string::npos);
  for (const char* garbage : {"", "phalanx-devices=", "phalanx-devices=-1", "phalanx-devices=99999999999"}) {
    EXPECT_FALSE(ParseDeviceCount(NprocKind::kAuto, garbage, 1).ok()) << garbage;
  }
}

TEST(DeviceAddresses, AreReadBehindWhateverImportsPrint) {
  EXPECT_EQ(*ParseDeviceAddresses("noise\nphalanx-addresses=0000:3b:00.0 10000:dc:1f.0;\n"),
            (std::vector<std::string>{"0000:3b:00.0", "10000:dc:1f.0"}));
  EXPECT_TRUE(ParseDeviceAddresses("phalanx-addresses=;")->empty());
}

TEST(DeviceAddresses, AreRefusedWhereTheyAreNone) {
  for (const char* garbage : {"", "phalanx-addresses=", "phalanx-addresses=0000:3b:00.0", "phalanx-addresses=x;",
                              "phalanx-addresses=../../../../etc;", "phalanx-addresses=0000/3b/00.0;"}) {
    EXPECT_FALSE(ParseDeviceAddresses(garbage).ok()) << garbage;
  }
  EXPECT_EQ(Message(ParseDeviceAddresses("ModuleNotFoundError: No module named 'torch'\n").status()),
            "Python could not say where the devices lie: ModuleNotFoundError: No module named 'torch'");
}

class DeviceProbeTest : public testing::Test {
 protected:
  DeviceProbeTest() : dir_(std::filesystem::temp_directory_path() / fmt::format("phalanx-devices-{}", getpid())) {
    std::filesystem::create_directories(dir_);
  }
  ~DeviceProbeTest() override { std::filesystem::remove_all(dir_); }

  // What the command prints where torch is a file of ours: the real one takes seconds to import and sees no device
  // here.
  std::string Ask(const std::vector<std::string>& command, const std::string& torch,
                  int64_t limit_ms = kDeviceProbeMs) {
    std::ofstream(dir_ / "torch.py") << torch;
    EventLoop loop;
    Reaper reaper(loop);
    std::string seen;
    auto probe = DeviceProbe::Start(
        loop, reaper, command, {{"PATH", "/usr/bin:/bin"}, {"PYTHONPATH", dir_.string()}},
        [&](const std::string& output) {
          seen = output;
          loop.Stop();
        },
        limit_ms);
    EXPECT_TRUE(probe.ok()) << probe.status();
    if (probe.ok()) loop.Run();
    return seen;
  }

  const std::filesystem::path dir_;
};

TEST_F(DeviceProbeTest, CountsByAPythonOfItsOwn) {
  const std::string output = Ask(DeviceCountCommand(NprocKind::kGpu, "python3"),
                                 "print('noise')\nclass cuda:\n    is_available = lambda: True\n"
                                 "    device_count = lambda: 3\n");
  EXPECT_EQ(ParseDeviceCount(NprocKind::kGpu, output, 1).value_or(0), 3u) << output;
}

TEST_F(DeviceProbeTest, EndsAPythonThatDoesNotAnswer) {
  const std::string output = Ask(DeviceCountCommand(NprocKind::kGpu, "python3"),
                                 "import signal\nprint('hangs', flush=True)\nsignal.pause()\n", 1'000);
  const std::string words = Message(ParseDeviceCount(NprocKind::kGpu, output, 1).status());
  EXPECT_TRUE(words.ends_with("it has not answered within 1 s, and was ended")) << words;
}

constexpr const char* kTorchWithDevices =
    "print('noise')\n"
    "class Properties:\n"
    "    pci_domain_id, pci_device_id = 1, 31\n"
    "    def __init__(self, bus): self.pci_bus_id = bus\n"
    "class kind:\n"
    "    is_available = lambda: True\n"
    "    device_count = lambda: 2\n"
    "    get_device_properties = lambda i: Properties((0x3b, 0xdc)[i])\n"
    "class none:\n"
    "    is_available = lambda: False\n";

TEST_F(DeviceProbeTest, TellsTheAddressesInTheOrderOfTheirNumbers) {
  for (const char* module : {"cuda, xpu = kind, none", "cuda, xpu = none, kind", "cuda, xpu = kind, kind"}) {
    const std::string output = Ask(DeviceAddressCommand("python3"), std::string(kTorchWithDevices) + module + "\n");
    EXPECT_EQ(ParseDeviceAddresses(output).value_or(std::vector<std::string>{}),
              (std::vector<std::string>{"0001:3b:1f.0", "0001:dc:1f.0"}))
        << output;
  }
}

TEST_F(DeviceProbeTest, TellsNoAddressWithoutADevice) {
  const std::string output =
      Ask(DeviceAddressCommand("python3"), std::string(kTorchWithDevices) + "cuda, xpu = none, none\n");
  ASSERT_TRUE(ParseDeviceAddresses(output).ok()) << output;
  EXPECT_TRUE(ParseDeviceAddresses(output)->empty());
}

}  // namespace
}  // namespace phalanx::agent
