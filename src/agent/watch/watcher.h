// Watches this machine's hardware while a job trains: has what the kernel counts read from time to time, by a thread
// of its own (sysfs_thread.h), hears what the helper that asks NVML says, and knows what of it explains a worker's end.
// The loop's thread.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/watch/blame.h"
#include "agent/watch/differ.h"
#include "agent/watch/gpu_helper.h"
#include "agent/watch/sysfs.h"
#include "agent/watch/sysfs_thread.h"
#include "base/event_loop.h"
#include "base/process/process.h"

namespace phalanx::agent::watch {

// The driver pushes what ends a training at once, and a worker's end brings a reading of its own. What is read each so
// often else is for people alone, who look at minutes.
constexpr int64_t kEveryMs = 15'000;
// A reading because of a worker's end is waited for no longer; one that takes more time counts as far as it has come.
// It takes less than a millisecond; the rest is for a machine so busy that the reading thread waits for a core.
constexpr int64_t kEndReadingUs = 200'000;
// Others that end at the same time share one.
constexpr int64_t kSharedReadingMs = 50;
// So many readings late NVML is believed to hang, or a file of the kernel's, which is told once.
constexpr int64_t kSilentReadings = 10;

class Watcher {
 public:
  struct Options {
    SysfsPlace place;
    int64_t every_ms = kEveryMs;
    std::string python;                      // of the helper
    std::map<std::string, std::string> env;  // as well
  };
  struct Events {
    std::function<void(const Found&)> on_fact;               // one that is worth telling
    std::function<void(const std::string& text)> on_notice;  // something is not watched, and why
  };

  // Takes the base line, and goes on. What it refers to must outlive it.
  Watcher(EventLoop& loop, Reaper& reaper, Options options, Events events);
  Watcher(const Watcher&) = delete;
  Watcher& operator=(const Watcher&) = delete;
  ~Watcher();

  // What explains the end of a worker at `ended_at`, by all that is known by now and a reading of its own: as
  // Recent::Explain.
  std::string Explain(Instant ended_at);

  // Of the helper; 0: none runs.
  pid_t helper_pid() const { return gpus_ ? gpus_->pid() : 0; }

 private:
  void StartGpus();
  void OnTimer();
  void CheckGpus();
  void CheckSysfs();
  void OnSysfsRead();
  void TakeSysfs();
  void OnGpuLine(const GpuLine& line);
  void On(const GpusFound& line);
  void On(const GpuXid& line);
  void On(const GpuValue& line);
  void On(const GpusRead& line);
  void On(const GpusDeaf& line);
  void On(const GpusUnwatched& line);
  void OnGpusEnded(const std::string& why);
  void NoteGpus(const std::string& why);
  void Take(const std::vector<Found>& all);

  EventLoop& loop_;
  Reaper& reaper_;
  const Options options_;
  const Events events_;
  SysfsThread sysfs_;
  int64_t sysfs_silent_ = 0;  // readings since one was complete
  bool sysfs_told_ = false;
  Differ differ_;
  Recent recent_;
  std::unique_ptr<GpuHelper> gpus_;  // null: there is no NVIDIA driver, or no helper could be started
  Readings gpu_readings_;            // of the reading under way
  bool gpus_expected_ = false;       // to say something
  int64_t gpus_silent_ = 0;          // readings since it did last
  Instant read_for_end_at_ = 0;      // of the last one because of a worker's end
  EventLoop::TimerId timer_{};
};

}  // namespace phalanx::agent::watch
