#include "base/event_loop.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>

#include <algorithm>
#include <array>
#include <cerrno>

#include "base/check.h"

namespace phalanx {
namespace {

// Without these two descriptors no component can work, and there is nobody to report to yet.
Fd CheckedFd(int fd, const char* what) {
  PHX_CHECK(fd >= 0, what);
  return Fd(fd);
}

}  // namespace

EventLoop::EventLoop()
    : epoll_(CheckedFd(epoll_create1(EPOLL_CLOEXEC), "epoll_create1 failed")),
      wakeup_(CheckedFd(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK), "eventfd failed")),
      now_(MonotonicMs()) {
  Watch(wakeup_.get(), EPOLLIN, [this](uint32_t) {
    uint64_t count = 0;
    [[maybe_unused]] ssize_t n = read(wakeup_.get(), &count, sizeof count);
    RunPosted();
  });
}

EventLoop::~EventLoop() = default;

void EventLoop::Watch(int fd, uint32_t epoll_events, FdCallback callback) {
  auto [it, added] = watched_.insert_or_assign(fd, std::make_shared<Watched>(Watched{std::move(callback)}));
  epoll_event event{};
  event.events = epoll_events;
  event.data.fd = fd;
  const int rc = epoll_ctl(epoll_.get(), added ? EPOLL_CTL_ADD : EPOLL_CTL_MOD, fd, &event);
  PHX_CHECK(rc == 0, "epoll_ctl: the descriptor is closed, or was closed without Unwatch");
}

void EventLoop::Unwatch(int fd) {
  if (watched_.erase(fd) > 0) epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
}

EventLoop::TimerId EventLoop::At(Instant when, Task task) {
  const TimerId id{when, next_timer_++};
  timers_.emplace(id, std::move(task));
  return id;
}

void EventLoop::Cancel(TimerId id) { timers_.erase(id); }

void EventLoop::Post(Task task) {
  {
    std::lock_guard lock(mutex_);
    posted_.push_back(std::move(task));
  }
  const uint64_t one = 1;
  [[maybe_unused]] ssize_t n = write(wakeup_.get(), &one, sizeof one);  // a full counter is readable already
}

void EventLoop::RunPosted() {
  std::vector<Task> tasks;
  {
    std::lock_guard lock(mutex_);
    tasks.swap(posted_);
  }
  for (Task& task : tasks) task();
}

void EventLoop::RunTimers() {
  while (!stopped_ && !timers_.empty() && timers_.begin()->first.first <= now_) {
    Task task = std::move(timers_.begin()->second);
    timers_.erase(timers_.begin());
    task();
  }
}

int EventLoop::WaitMs() const {
  if (timers_.empty()) return -1;
  const Instant wait_ms = timers_.begin()->first.first - MonotonicMs();
  return static_cast<int>(std::clamp<Instant>(wait_ms, 0, 3'600'000));
}

void EventLoop::Run() {
  stopped_ = false;
  std::array<epoll_event, 64> events;
  while (!stopped_) {
    const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), WaitMs());
    PHX_CHECK(count >= 0 || errno == EINTR, "epoll_wait failed");
    now_ = MonotonicMs();
    for (int i = 0; i < count && !stopped_; ++i) {
      auto it = watched_.find(events[i].data.fd);
      if (it == watched_.end()) continue;  // unwatched by an earlier callback of this round
      const std::shared_ptr<Watched> watched = it->second;
      watched->callback(events[i].events);
    }
    RunTimers();
  }
}

}  // namespace phalanx
