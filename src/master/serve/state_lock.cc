#include "master/serve/state_lock.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <string_view>

#include "base/process/process.h"

namespace phalanx::master {
namespace {

constexpr size_t kMaxHolderBytes = 512;
// A master that has closed its port still writes the last rows of its record.
constexpr int kEndingMs = 5'000;

// "process 4711 at 127.0.0.1:29400"; what its holder has not written yet, or could not write, is left out.
std::string ReadHolder(int fd) {
  std::string text(kMaxHolderBytes, '\0');
  const ssize_t n = pread(fd, text.data(), text.size(), 0);
  text.resize(static_cast<size_t>(std::max<ssize_t>(n, 0)));
  text.resize(std::min(text.find('\n'), text.size()));
  const bool printable = std::all_of(text.begin(), text.end(), [](char c) { return c >= 0x20 && c < 0x7f; });
  return text.empty() || !printable ? "a process that has only just begun" : text;
}

std::string HolderText(pid_t pid, const std::string& address) { return fmt::format("process {} at {}", pid, address); }

// Of a holder at `address`; 0: it is at another one.
pid_t HolderAt(const std::string& holder, const std::string& address) {
  constexpr std::string_view kBegin = "process ";
  pid_t pid = 0;
  if (holder.rfind(kBegin, 0) != 0) return 0;
  std::from_chars(holder.data() + kBegin.size(), holder.data() + holder.size(), pid);
  return pid > 0 && holder == HolderText(pid, address) ? pid : 0;
}

// The address is ours by now: who had it has closed it, and is about to end.
void AwaitEnd(pid_t pid) {
  const Fd process = PidfdOpen(pid);
  if (!process.valid()) return;
  pollfd ended{process.get(), POLLIN, 0};
  poll(&ended, 1, kEndingMs);
}

bool Lock(int fd) { return flock(fd, LOCK_EX | LOCK_NB) == 0; }

}  // namespace

StatusOr<StateLock> StateLock::Take(const std::string& state_dir, const std::string& job_id,
                                    const std::string& address) {
  const std::string path = fmt::format("{}/lock", state_dir);
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  bool locked = Lock(fd.get());
  if (!locked && errno == EWOULDBLOCK) {
    if (const pid_t before = HolderAt(ReadHolder(fd.get()), address); before != 0) AwaitEnd(before);
    locked = Lock(fd.get());
  }
  if (!locked) {
    if (errno != EWOULDBLOCK) return ErrnoStatus(errno, path);
    return absl::FailedPreconditionError(
        fmt::format("another master already serves job '{}' from {} ({}): give this job an id of its own (--rdzv-id), "
                    "or another --state-dir",
                    job_id, state_dir, ReadHolder(fd.get())));
  }
  // Only for the sentence above: what cannot be written there is left out of it.
  const std::string holder = HolderText(getpid(), address) + "\n";
  const bool told = ftruncate(fd.get(), 0) == 0 && pwrite(fd.get(), holder.data(), holder.size(), 0) >= 0;
  static_cast<void>(told);
  return StateLock(std::move(fd));
}

}  // namespace phalanx::master
