#include "agent/node/named_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace phalanx::agent {
namespace {

Status NotRegular() { return absl::InvalidArgumentError("is not a regular file"); }

}  // namespace

StatusOr<Fd> OpenNamed(const NamedFile& file) {
  const int how = (file.append ? O_APPEND : O_TRUNC) | (file.follow_links ? 0 : O_NOFOLLOW);
  Fd opened(open(file.path.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NOCTTY | O_NONBLOCK | how, file.mode));
  if (!opened.valid() && errno == ENXIO && file.regular_only) return NotRegular();  // a pipe without a reader, a socket
  if (!opened.valid()) return ErrnoStatus(errno, "cannot be opened");
  struct stat info {};
  if (fstat(opened.get(), &info) != 0) return ErrnoStatus(errno, "cannot be opened");
  if (file.regular_only && !S_ISREG(info.st_mode)) return NotRegular();
  return opened;
}

Status WriteNamed(const NamedFile& file, const std::string& text) {
  PHX_ASSIGN_OR_RETURN(const Fd opened, OpenNamed(file));
  for (size_t at = 0; at < text.size();) {
    const ssize_t n = write(opened.get(), text.data() + at, text.size() - at);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) {
      Status status = ErrnoStatus(errno, "cannot be written");
      // Where that fails too it is no file that could be emptied.
      if (!file.append) static_cast<void>(ftruncate(opened.get(), 0) == 0);
      return status;
    }
    at += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

}  // namespace phalanx::agent
