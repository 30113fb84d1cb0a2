// Signals as events of the loop.
#pragma once

#include <functional>
#include <set>

#include "base/event_loop.h"
#include "base/fd.h"

namespace phalanx {

// Turns `signals` into callbacks from the loop. Blocks them in the calling thread, and so in each thread started later:
// construct it in main before any other thread, else a signal may be served by a thread that knows nothing of it. They
// stay blocked after its end (a late SIGTERM must not cut an orderly exit short); children of Spawn start with nothing
// blocked.
class SignalSource {
 public:
  SignalSource(EventLoop& loop, const std::set<int>& signals, std::function<void(int signal)> on_signal);
  SignalSource(const SignalSource&) = delete;
  SignalSource& operator=(const SignalSource&) = delete;
  ~SignalSource();

 private:
  void Read();

  EventLoop& loop_;
  std::function<void(int)> on_signal_;
  Fd fd_;
};

// Whether this process ignores `signal`: it was started so (nohup).
bool IsIgnored(int signal);

}  // namespace phalanx
