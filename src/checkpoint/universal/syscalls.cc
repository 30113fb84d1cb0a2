#include "checkpoint/universal/syscalls.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace phalanx::universal {

Error CallFailed(const std::string& path, const char* call, int error_number) {
  return {path + ": " + call + ": " + std::strerror(error_number)};
}

Result<Fd> OpenFolder(const std::string& path) {
  Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  return fd;
}

Result<Done> WriteFully(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(path, "write", errno);
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return Done{};
}

Result<Done> Sync(int fd, const std::string& path) {
  while (fsync(fd) != 0) {
    if (errno == EINVAL) return Done{};
    if (errno != EINTR) return CallFailed(path, "fsync", errno);
  }
  return Done{};
}

}  // namespace phalanx::universal
