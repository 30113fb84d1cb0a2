#include "agent/output/reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <system_error>
#include <utility>

namespace phalanx::agent {
namespace {

constexpr size_t kChunk = 64 << 10;

bool CanBeLeft(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 && (S_ISFIFO(info.st_mode) || S_ISSOCK(info.st_mode) || isatty(fd) == 1);
}

// The reading end of a pipe that nobody else can find. One with a name in a file system may get a new reader, from whom
// nothing is to be taken away.
Fd ReadingEnd(int fd) {
  const std::string own = fmt::format("/proc/self/fd/{}", fd);
  std::error_code error;
  if (!std::filesystem::read_symlink(own, error).string().starts_with("pipe:[")) return Fd();
  return Fd(open(own.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
}

}  // namespace

ConsoleReader::ConsoleReader(EventLoop& loop, int fd, std::function<void()> on_gone)
    : loop_(loop), fd_(fd), on_gone_(std::move(on_gone)), watched_(CanBeLeft(fd)) {
  // The kernel tells of errors and of a hang-up without being asked.
  if (watched_) loop_.Watch(fd_, 0, [this](uint32_t) { OnGone(); });
}

ConsoleReader::~ConsoleReader() {
  if (watched_) loop_.Unwatch(fd_);
  if (instead_.valid()) loop_.Unwatch(instead_.get());
}

void ConsoleReader::OnGone() {
  loop_.Unwatch(fd_);
  watched_ = false;
  gone_ = true;
  instead_ = ReadingEnd(fd_);
  if (instead_.valid()) loop_.Watch(instead_.get(), EPOLLIN, [this](uint32_t) { Drop(); });
  on_gone_();
}

void ConsoleReader::Drop() {
  std::array<char, kChunk> dropped;
  const ssize_t n = read(instead_.get(), dropped.data(), dropped.size());
  if (n > 0 || (n < 0 && (errno == EAGAIN || errno == EINTR))) return;
  loop_.Unwatch(instead_.get());  // nobody writes there any more: also we have closed it
  instead_.Reset();
}

}  // namespace phalanx::agent
