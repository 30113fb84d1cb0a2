// Reads what the kernel counts on a thread of its own. A port's state may be a command to its firmware, and a device
// that dies may let a reader wait for seconds, or for ever: that stops these readings, and nothing else.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agent/watch/sysfs.h"
#include "base/clock.h"
#include "base/event_loop.h"
#include "base/task_thread.h"

namespace phalanx::agent::watch {

// Values of one moment.
struct Batch {
  Instant at = 0;
  Readings readings;
};

// Everything here belongs to the loop's thread.
class SysfsThread {
 public:
  // `on_read`: each time that a reading is complete; from the loop, and not after the destructor.
  SysfsThread(EventLoop& loop, SysfsPlace place, std::function<void()> on_read);
  SysfsThread(const SysfsThread&) = delete;
  SysfsThread& operator=(const SysfsThread&) = delete;
  // Waits for nobody: a file may hang.
  ~SysfsThread();

  // One reading more; with `scans` folders are looked through before, where that is due. False: one is under way and
  // another waits behind it, so none was added.
  bool Ask(bool scans);
  // Till all that was asked for is read, but no longer than that.
  void Wait(int64_t longest_us);
  // What has been read since it was taken last, in order; a reading under way as far as it has come.
  std::vector<Batch> Take();
  // What the thread reads now; empty: nothing.
  std::string UnderWay() const;

 private:
  struct Shared;
  static void ReadOnce(const std::shared_ptr<Shared>& shared, bool scans);

  const std::shared_ptr<Shared> shared_;
  int64_t asked_ = 0;
  TaskThread thread_{"phx-watch"};
};

}  // namespace phalanx::agent::watch
