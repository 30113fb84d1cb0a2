// Who reads our console: a pipe's or a socket's other end, or a terminal. Where that goes away, the kernel ends or
// fails whoever writes next, and workers write there themselves. So we are told of it, and take the place of a pipe's
// reader for as long as we live: what is written there then is read, and dropped.
#pragma once

#include <functional>

#include "base/event_loop.h"
#include "base/fd.h"

namespace phalanx::agent {

class ConsoleReader {
 public:
  // `fd` stays the caller's and open. `on_gone` is called once, from the loop. A file has no reader that could go.
  ConsoleReader(EventLoop& loop, int fd, std::function<void()> on_gone);
  ConsoleReader(const ConsoleReader&) = delete;
  ConsoleReader& operator=(const ConsoleReader&) = delete;
  ~ConsoleReader();

  bool gone() const { return gone_; }

 private:
  void OnGone();
  void Drop();

  EventLoop& loop_;
  const int fd_;
  const std::function<void()> on_gone_;
  bool watched_ = false;
  bool gone_ = false;
  Fd instead_;  // ours, in the place of the one that has gone
};

}  // namespace phalanx::agent
