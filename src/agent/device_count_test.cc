#include "agent/device_count.h"

#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

TEST(DeviceCount, TakesTheLineThatOurProgramWrote) {
  EXPECT_EQ(*ParseDeviceCount(NprocKind::kGpu, "some library says hello\ndevices 8\n", 2), 8u);
}

TEST(DeviceCount, AutoFallsBackToCpusAndGpuDoesNot) {
  EXPECT_EQ(*ParseDeviceCount(NprocKind::kAuto, "devices 0\n", 2), 2u);
  const auto gpu = ParseDeviceCount(NprocKind::kGpu, "devices 0\n", 2);
  ASSERT_FALSE(gpu.ok());
  EXPECT_NE(Message(gpu.status()).find("--nproc-per-node=gpu"), std::string::npos);
}

TEST(DeviceCount, SilenceAndGarbageAreErrors) {
  for (const char* text : {"", "devices", "devices -1", "devices 99999999"}) {
    EXPECT_FALSE(ParseDeviceCount(NprocKind::kAuto, text, 2).ok()) << text;
  }
}

TEST(DeviceCount, AsksARealProgram) {
  EventLoop loop;
  Reaper reaper(loop);
  LaunchConfig config;
  config.nproc_kind = NprocKind::kAuto;
  config.python = "/bin/echo";  // prints its arguments, which hold no count
  StatusOr<uint32_t> answer = 0u;
  auto probe = DeviceProbe::Start(loop, reaper, config, {}, 2, [&](StatusOr<uint32_t> count) {
    answer = std::move(count);
    loop.Stop();
  });
  ASSERT_TRUE(probe.ok());
  loop.Run();
  EXPECT_FALSE(answer.ok());
}

}  // namespace
}  // namespace phalanx::agent
