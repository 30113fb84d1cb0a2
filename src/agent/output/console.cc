#include "agent/output/console.h"

#include <fmt/format.h>
#include <poll.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "base/thread.h"

namespace phalanx::agent {
namespace {

constexpr size_t kBufferBytesMax = 1 << 20;
constexpr int kDrainAtEndMs = 1'000;

bool IsFull(int error) { return error == ENOSPC || error == EDQUOT; }

struct Written {
  size_t count = 0;
  int error = 0;  // why it is not all
};

Written WriteAll(int fd, const std::string& bytes) {
  size_t at = 0;
  while (at < bytes.size()) {
    const ssize_t n = write(fd, bytes.data() + at, bytes.size() - at);
    if (n > 0) {
      at += static_cast<size_t>(n);
    } else if (errno == EAGAIN) {  // somebody else made the shared description non-blocking
      pollfd room{fd, POLLOUT, 0};
      poll(&room, 1, -1);
    } else if (errno != EINTR) {
      return {at, errno};
    }
  }
  return {at, 0};
}

}  // namespace

struct Console::Shared {
  std::mutex mutex;  // guards all below
  std::condition_variable changed;
  std::string waiting;
  size_t being_written = 0;
  bool was_full = false;
  bool ended = false;
  Fd owned;
  EventLoop* loop = nullptr;  // null: nobody wants to hear of room
  std::function<void()> on_room;
  std::function<void(int)> on_loss;  // of a file of lines; null once it has been called

  // The serving thread's own.
  bool open = true;
  bool in_line = false;  // of a file: what it has does not end with a newline

  size_t Size() const { return waiting.size() + being_written; }

  // A descriptor that takes no more, ever, is left alone. What a full disk does not take is lost; there may be room
  // later.
  int WriteStream(int fd, const std::string& bytes) {
    if (!open) return 0;
    const int error = WriteAll(fd, bytes).error;
    open = error == 0 || IsFull(error);
    return error;
  }

  int WriteLines(const std::string& lines) {
    const std::string bytes = (in_line ? "\n" : "") + lines;
    const Written written = WriteAll(owned.get(), bytes);
    if (written.count > 0) in_line = bytes[written.count - 1] != '\n';
    return written.error;
  }

  void Serve(int fd) {
    std::unique_lock lock(mutex);
    while (true) {
      changed.wait(lock, [this] { return ended || !waiting.empty(); });
      if (waiting.empty()) return;
      const std::string bytes = std::exchange(waiting, {});
      being_written = bytes.size();
      lock.unlock();
      const int error = owned.valid() ? WriteLines(bytes) : WriteStream(fd, bytes);
      lock.lock();
      if (error != 0 && on_loss && loop != nullptr)
        loop->Post([tell = std::exchange(on_loss, {}), error] { tell(error); });
      being_written = 0;
      changed.notify_all();
      if (was_full && Size() < kBufferBytesMax / 2) {
        was_full = false;
        if (loop != nullptr && on_room) loop->Post(on_room);
      }
    }
  }
};

Console::Console(EventLoop& loop, int fd, std::function<void()> on_room)
    : fd_(fd), shared_(std::make_shared<Shared>()) {
  shared_->loop = &loop;
  shared_->on_room = std::move(on_room);
}

Console::Console(EventLoop& loop, Fd fd, std::function<void(int error)> on_loss)
    : fd_(fd.get()), shared_(std::make_shared<Shared>()) {
  shared_->loop = &loop;
  shared_->owned = std::move(fd);
  shared_->on_loss = std::move(on_loss);
}

Console::~Console() {
  Drain(kDrainAtEndMs);
  const std::lock_guard lock(shared_->mutex);
  shared_->loop = nullptr;
  shared_->ended = true;
  shared_->changed.notify_all();
}

void Console::Write(std::string_view bytes) {
  if (bytes.empty()) return;
  {
    const std::lock_guard lock(shared_->mutex);
    shared_->waiting.append(bytes);
    if (shared_->Size() >= kBufferBytesMax) shared_->was_full = true;
    shared_->changed.notify_all();
  }
  if (started_) return;
  // With all signals blocked: SIGPIPE stays pending and harmless. What is written waits for the next call where the
  // machine has no room for a thread.
  StatusOr<std::thread> thread = StartThread([shared = shared_, fd = fd_] { shared->Serve(fd); });
  if (!thread.ok()) return;
  started_ = true;
  thread->detach();
}

bool Console::HasRoom() const {
  const std::lock_guard lock(shared_->mutex);
  return !shared_->was_full;
}

void Console::Drain(int timeout_ms) {
  std::unique_lock lock(shared_->mutex);
  shared_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms), [this] { return shared_->Size() == 0; });
}

std::string LossNotice(const std::string& path, int error) {
  return fmt::format("log file {} cannot be written: {}; training goes on, lines are lost until there is room", path,
                     std::generic_category().message(error));
}

}  // namespace phalanx::agent
