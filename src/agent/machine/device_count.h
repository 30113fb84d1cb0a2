// How many accelerators this machine has, for --nproc-per-node gpu, xpu and auto, and where they lie, for
// --numa-binding: asked of a short-lived Python, since nothing but torch itself knows what torch will see, and in which
// order (CUDA_VISIBLE_DEVICES with numbers and UUIDs, CUDA_DEVICE_ORDER, parts of a device).
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"

namespace phalanx::agent {

// argv of that Python; `kind` is kGpu, kXpu or kAuto.
std::vector<std::string> DeviceCountCommand(NprocKind kind, const std::string& python);

// What it printed -> the number of workers. kAuto without an accelerator counts `cpu_count`, as in torchrun; kGpu and
// kXpu without one are an error that names the flag.
StatusOr<uint32_t> ParseDeviceCount(NprocKind kind, const std::string& output, uint32_t cpu_count);

// argv of a Python that tells the PCI addresses of the devices torch sees, in torch's order.
std::vector<std::string> DeviceAddressCommand(const std::string& python);

// What it printed -> the addresses as /sys writes them, "0000:dc:00.0"; none where torch sees no device.
StatusOr<std::vector<std::string>> ParseDeviceAddresses(const std::string& output);

// A Python that imports torch and asks its driver has answered by then, also from a slow file server.
constexpr int64_t kDeviceProbeMs = 300'000;

// One question under way. Destroying it before the answer ends the Python.
class DeviceProbe {
 public:
  using Done = std::function<void(const std::string& output)>;

  // `done` is called once, from the loop, with all that the command has printed. Where it takes longer than `limit_ms`
  // (a driver that hangs) it is ended, and its words end with that.
  static StatusOr<std::unique_ptr<DeviceProbe>> Start(EventLoop& loop, Reaper& reaper, std::vector<std::string> command,
                                                      const std::map<std::string, std::string>& env, const Done& done,
                                                      int64_t limit_ms = kDeviceProbeMs);
  DeviceProbe(const DeviceProbe&) = delete;
  DeviceProbe& operator=(const DeviceProbe&) = delete;
  ~DeviceProbe();

 private:
  DeviceProbe(EventLoop& loop, Reaper& reaper) : loop_(loop), reaper_(reaper) {}
  void Read();
  void GiveUp(int64_t limit_ms);

  EventLoop& loop_;
  Reaper& reaper_;
  Fd output_;
  std::string text_;
  std::string given_up_;  // why it was ended
  pid_t pid_ = 0;         // 0: ended
  EventLoop::TimerId limit_{};
};

}  // namespace phalanx::agent
