// An output descriptor, written by a thread of its own: a stopped terminal, a pipe whose reader sleeps, or a file
// server that is away must not stall the event loop. The same for a file of lines.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "base/event_loop.h"
#include "base/fd.h"

namespace phalanx::agent {

class Console {
 public:
  // `fd` stays the caller's and open. `on_room` is called from the loop when HasRoom() has become true again. The
  // thread starts with the first Write. One descriptor must not have two Consoles.
  Console(EventLoop& loop, int fd, std::function<void()> on_room);
  // A file of lines, closed when nobody writes it any more. What it refuses is dropped, and the next lines are tried
  // anew, apart from what a write has left cut off. `on_loss(errno)` is called once, from the loop.
  Console(EventLoop& loop, Fd fd, std::function<void(int error)> on_loss);
  Console(const Console&) = delete;
  Console& operator=(const Console&) = delete;
  // Drains for a bounded time; what a blocked reader has not taken by then is lost.
  ~Console();

  // Takes all of it, whole and in order; of a file's lines each with its end. Who can wait asks HasRoom() first. What a
  // closed descriptor or a full disk refuses is dropped.
  void Write(std::string_view bytes);
  bool HasRoom() const;

  // Waits until everything has been written, at most `timeout_ms`.
  void Drain(int timeout_ms);

 private:
  struct Shared;

  const int fd_;
  std::shared_ptr<Shared> shared_;  // also held by the thread, which may be stuck in write(2) when we end
  bool started_ = false;
};

// "log file <path> cannot be written: ...", for people. Pure.
std::string LossNotice(const std::string& path, int error);

}  // namespace phalanx::agent
