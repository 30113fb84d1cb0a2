#include "master/serve/state_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

namespace phalanx::master {
namespace {

constexpr size_t kMaxHolderBytes = 512;

// "process 4711 at 127.0.0.1:29400"; what its holder has not written yet, or could not write, is left out.
std::string ReadHolder(int fd) {
  std::string text(kMaxHolderBytes, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  text.resize(std::min(text.find('\n'), text.size()));
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  return text.empty() || !printable ? "a process that has only just begun" : text;
}

}  // namespace

StatusOr<StateLock> StateLock::Take(const std::string& state_dir, const std::string& job_id,
                                    const std::string& address) {
  const std::string path = fmt::format("{}/lock", state_dir);
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, path);
    return absl::FailedPreconditionError(
        fmt::format("another master already serves job '{}' from {} ({}): give this job an id of its own (--rdzv-id), "
                    "or another --state-dir",
                    job_id, state_dir, ReadHolder(fd.get())));
  }
  // Only for the sentence above: what cannot be written there is left out of it.
  const std::string holder = fmt::format("process {} at {}\n", getpid(), address);
  const bool told = ftruncate(fd.get(), 0) == 0 && pwrite(fd.get(), holder.data(), holder.size(), 0) >= 0;
  static_cast<void>(told);
  return StateLock(std::move(fd));
}

}  // namespace phalanx::master
