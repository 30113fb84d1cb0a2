#include "base/read_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"

namespace phalanx {

Status CallFailed(const std::string& path, const char* call, int error_number) {
  const Status failed = ErrnoStatus(error_number, fmt::format("{}: {}", path, call));
  const bool is_gone = absl::IsNotFound(failed) && error_number != ENOENT;
  return is_gone ? absl::UnavailableError(Message(failed)) : failed;
}

StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  std::string text;
  char buffer[64 << 10];
  while (true) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(path, "read", errno);
    if (n == 0) return text;
    text.append(buffer, static_cast<size_t>(n));
    if (text.size() > max_bytes) {
      return absl::OutOfRangeError(fmt::format("{}: more than {} bytes", path, max_bytes));
    }
  }
}

}  // namespace phalanx
