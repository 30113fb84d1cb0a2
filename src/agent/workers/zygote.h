// One zygote process: a Python that has imported what the script will want and forks spares.
// docs/formats/worker-socket.md.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "agent/workers/guard.h"
#include "agent/workers/wire.h"
#include "agent/workers/zygote_end.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"

namespace phalanx::agent {

class Zygote {
 public:
  struct Events {
    std::function<void()> on_ready;
    std::function<void(uint64_t id, const std::string& reason)> on_fork_failed;
    // Last; the zygote may be destroyed from within.
    std::function<void(const ZygoteEnd&)> on_ended;
  };

  // `command` is completed with its descriptors. `guard` may be null.
  static StatusOr<std::unique_ptr<Zygote>> Start(EventLoop& loop, Reaper& reaper, Guard* guard, SpawnSpec command,
                                                 const std::string& preload, Events events);
  Zygote(const Zygote&) = delete;
  Zygote& operator=(const Zygote&) = delete;
  // Ends the process.
  ~Zygote();

  bool ready() const { return ready_; }
  pid_t pid() const { return pid_; }

  // Asks for one spare; it will speak on the other end of `spare_end`. `ahead`: no worker waits for it. Only when
  // ready().
  void Fork(uint64_t id, bool ahead, Fd spare_end);

  // It does not answer: end it. on_ended follows, with this reason.
  void GiveUp(const std::string& reason);

 private:
  Zygote(EventLoop& loop, Reaper& reaper, Guard* guard, Events events)
      : loop_(loop), reaper_(reaper), guard_(guard), events_(std::move(events)) {}
  void OnMessage(const PeerMessage& message);
  void OnProcessEnd(const ProcessEnd& end);
  void ReadWords();

  EventLoop& loop_;
  Reaper& reaper_;
  Guard* guard_;
  Events events_;
  pid_t pid_ = 0;  // 0: reaped
  std::unique_ptr<Channel> channel_;
  Fd words_;  // its stdout and stderr
  std::string last_words_;
  bool ready_ = false;
  bool said_why_ = false;  // end_ is what the zygote itself, or GiveUp, said
  ZygoteEnd end_;
  EventLoop::TimerId timer_{};
};

}  // namespace phalanx::agent
