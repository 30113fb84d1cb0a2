#include "agent/device_count.h"

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

TEST(DeviceCount, AsksAPythonOfItsOwn) {
  // A torch that is a file of ours: the real one takes seconds to import and sees no device here.
  const std::filesystem::path dir =
      std::filesystem::temp_directory_path() / fmt::format("phalanx-devices-{}", getpid());
  std::filesystem::create_directories(dir);
  std::ofstream(dir / "torch.py") << "print('noise')\nclass cuda:\n    is_available = lambda: True\n"
                                     "    device_count = lambda: 3\n";
  EventLoop loop;
  Reaper reaper(loop);
  LaunchConfig config;
  config.python = "python3";
  config.nproc_kind = NprocKind::kGpu;
  uint32_t seen = 0;
  auto probe = DeviceProbe::Start(loop, reaper, config, {{"PATH", "/usr/bin:/bin"}, {"PYTHONPATH", dir.string()}}, 1,
                                  [&](const StatusOr<uint32_t>& count) {
                                    EXPECT_TRUE(count.ok()) << count.status();
                                    seen = count.value_or(0);
                                    loop.Stop();
                                  });
  ASSERT_TRUE(probe.ok()) << probe.status();
  loop.Run();
  EXPECT_EQ(seen, 3u);
  std::filesystem::remove_all(dir);
}

}  // namespace
}  // namespace phalanx::agent
