// How many accelerators this machine has, for --nproc-per-node gpu, xpu and auto: asked of a short-lived Python, since
// nothing but torch itself knows what torch will see.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/config.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process.h"
#include "base/status.h"

namespace phalanx::agent {

// argv of that Python; `kind` is kGpu, kXpu or kAuto.
std::vector<std::string> DeviceCountCommand(NprocKind kind, const std::string& python);

// What it printed -> the number of workers. kAuto without an accelerator counts `cpu_count`, as in torchrun; kGpu and
// kXpu without one are an error that names the flag.
StatusOr<uint32_t> ParseDeviceCount(NprocKind kind, const std::string& output, uint32_t cpu_count);

// One question under way. Destroying it before the answer ends the Python.
class DeviceProbe {
 public:
  using Done = std::function<void(StatusOr<uint32_t>)>;

  // `done` is called once, from the loop.
  static StatusOr<std::unique_ptr<DeviceProbe>> Start(EventLoop& loop, Reaper& reaper, const LaunchConfig& config,
                                                      const std::map<std::string, std::string>& env, uint32_t cpu_count,
                                                      const Done& done);
  DeviceProbe(const DeviceProbe&) = delete;
  DeviceProbe& operator=(const DeviceProbe&) = delete;
  ~DeviceProbe();

 private:
  DeviceProbe(EventLoop& loop, Reaper& reaper) : loop_(loop), reaper_(reaper) {}
  void Read();

  EventLoop& loop_;
  Reaper& reaper_;
  Fd output_;
  std::string text_;
  pid_t pid_ = 0;  // 0: ended
};

}  // namespace phalanx::agent
