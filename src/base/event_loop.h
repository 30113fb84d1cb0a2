// One epoll loop: the one sequence of a component. Everything but Post() belongs to the thread that calls Run().
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"

namespace phalanx {

class EventLoop {
 public:
  using FdCallback = std::function<void(uint32_t epoll_events)>;
  using Task = std::function<void()>;
  // Orders timers by time, then by age. {} names no timer.
  using TimerId = std::pair<Instant, uint64_t>;

  EventLoop();
  EventLoop(const EventLoop&) = delete;
  EventLoop& operator=(const EventLoop&) = delete;
  ~EventLoop();

  // Time at which the current round of callbacks began; cheap and constant within a callback.
  Instant Now() const { return now_; }

  // Calls back, level-triggered, whenever one of `epoll_events` (EPOLLIN, ...) holds; EPOLLHUP and EPOLLERR always.
  // The descriptor stays the caller's; Unwatch it before closing it. Watching it again replaces events and callback.
  // Safe to call from any callback, also for the descriptor being served.
  void Watch(int fd, uint32_t epoll_events, FdCallback callback);
  void Unwatch(int fd);

  // Runs `task` once, not before `when`. Cancelling a timer that has run, or {}, does nothing.
  TimerId At(Instant when, Task task);
  void Cancel(TimerId id);

  // Runs `task` on the loop's thread, in order of posting. Any thread; also before Run and after Stop (then not run).
  void Post(Task task);

  // Serves until Stop() is called (from the loop's thread; other threads Post it).
  void Run();
  void Stop() { stopped_ = true; }

 private:
  struct Watched {
    FdCallback callback;
  };

  void RunPosted();
  void RunTimers();
  int WaitMs() const;

  Fd epoll_;
  Fd wakeup_;
  Instant now_;
  bool stopped_ = false;
  uint64_t next_timer_ = 1;
  std::map<TimerId, Task> timers_;
  // shared_ptr: a callback may unwatch itself while it runs.
  std::map<int, std::shared_ptr<Watched>> watched_;

  std::mutex mutex_;  // guards posted_ only
  std::vector<Task> posted_;
};

}  // namespace phalanx
