// The program that asks NVML about this machine's GPUs, as a process: `python -m phalanx.node_watch`. A driver that
// hangs hangs there; and this program is statically linked, and loads no libraries of a machine's. The loop's thread.
#pragma once

#include <sys/types.h>

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "agent/watch/texts.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"

namespace phalanx::agent::watch {

class GpuHelper {
 public:
  struct Events {
    std::function<void(const GpuLine&)> on_line;
    // It has ended, or said what it never says, and is heard no more. In words.
    std::function<void(const std::string& why)> on_end;
  };

  // It reads each `every_ms`. The helper must not be destroyed from within its events.
  static StatusOr<std::unique_ptr<GpuHelper>> Start(EventLoop& loop, Reaper& reaper, const std::string& python,
                                                    const std::map<std::string, std::string>& env, int64_t every_ms,
                                                    Events events);
  GpuHelper(const GpuHelper&) = delete;
  GpuHelper& operator=(const GpuHelper&) = delete;
  // Kills it, and waits for nothing: it may hang in a driver.
  ~GpuHelper();

  pid_t pid() const { return pid_; }
  // Takes what it has said by now, before the loop does.
  void ReadNow();

 private:
  GpuHelper(EventLoop& loop, Reaper& reaper, Events events)
      : loop_(loop), reaper_(reaper), events_(std::move(events)) {}
  void TakeLines();
  void Close();

  EventLoop& loop_;
  Reaper& reaper_;
  Events events_;
  pid_t pid_ = 0;  // 0: ended
  Fd alive_;       // its stdin, which is never written to
  Fd lines_;       // its stdout and stderr
  std::string text_;
  std::string last_line_;  // that was none: its last words
};

}  // namespace phalanx::agent::watch
