#include "data/out_file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "data/in_file.h"

namespace phalanx::data {
namespace {

constexpr uint64_t kBeginBytes = uint64_t{8} << 20;

Result<Done> SyncFd(int fd, const std::string& path) {
  while (fsync(fd) != 0) {
    if (errno != EINTR) return CallFailed(path, "fsync", errno);
  }
  return Done{};
}

// By the system call: the C library's functions would bind us to a newer one. What cannot be told stays 0.
struct statx NodeOf(int folder, const char* path, int flags) {
  struct statx node {};
  syscall(SYS_statx, folder, path, flags, STATX_INO, &node);
  return node;
}

// Whether `fd` is still what lies at `path`: the writer before may have moved it away before it let go of the lock.
bool StillThere(int fd, const std::string& path) {
  const struct statx ours = NodeOf(fd, "", AT_EMPTY_PATH);
  const struct statx there = NodeOf(AT_FDCWD, path.c_str(), 0);
  return ours.stx_ino == there.stx_ino && ours.stx_dev_major == there.stx_dev_major &&
         ours.stx_dev_minor == there.stx_dev_minor;
}

}  // namespace

Result<OutFile> OutFile::Create(const std::string& path) {
  const std::string draft = path + ".writing";
  Fd fd(open(draft.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return CallFailed(draft, "open", errno);
  // File systems without locks are taken as they are.
  const bool locked = flock(fd.get(), LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK;
  if (!locked || !StillThere(fd.get(), draft)) return Error{draft + ": another process writes this dataset just now"};
  OutFile file(path, std::move(fd));
  if (ftruncate(file.fd_.get(), 0) != 0) return CallFailed(draft, "ftruncate", errno);
  return file;
}

OutFile::OutFile(OutFile&& other) noexcept
    : path_(std::exchange(other.path_, {})),
      fd_(std::move(other.fd_)),
      bytes_(other.bytes_),
      begun_bytes_(other.begun_bytes_),
      crc32_(other.crc32_),
      joiner_(other.joiner_) {}

OutFile::~OutFile() {
  if (!path_.empty()) unlink(draft().c_str());
}

Result<Done> OutFile::Reserve(uint64_t bytes) {
  if (bytes == 0) return Done{};
  while (fallocate(fd_.get(), FALLOC_FL_KEEP_SIZE, 0, static_cast<off_t>(bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS) return Done{};
    if (errno != EINTR) {
      return Error{CallFailed(draft(), "fallocate", errno).message + "; " + std::to_string(bytes) +
                   " bytes are needed"};
    }
  }
  return Done{};
}

Result<Done> OutFile::Write(const void* data, uint64_t bytes, uint32_t crc32) {
  crc32_ = joiner_.Join(crc32_, crc32, bytes);
  bytes_ += bytes;
  PHX_TRY_DONE(WriteAll(data, bytes));
  if (bytes_ - begun_bytes_ < kBeginBytes) return Done{};
  // Best effort: what fails here fails in fsync as well.
  sync_file_range(fd_.get(), static_cast<off_t>(begun_bytes_), static_cast<off_t>(bytes_ - begun_bytes_),
                  SYNC_FILE_RANGE_WRITE);
  begun_bytes_ = bytes_;
  return Done{};
}

Result<Done> OutFile::WriteAll(const void* data, uint64_t bytes) {
  const auto* from = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t n = write(fd_.get(), from, bytes);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(draft(), "write", errno);
    from += n;
    bytes -= static_cast<uint64_t>(n);
  }
  return Done{};
}

Result<Done> OutFile::Sync() { return SyncFd(fd_.get(), draft()); }

Result<Done> OutFile::Place() {
  if (rename(draft().c_str(), path_.c_str()) != 0) return CallFailed(path_, "rename", errno);
  path_.clear();
  fd_.Reset();
  return Done{};
}

Result<Done> SyncFolderOf(const std::string& path) {
  const size_t slash = path.rfind('/');
  const std::string folder = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const Fd fd(open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return CallFailed(folder, "open", errno);
  while (fsync(fd.get()) != 0) {
    if (errno == EINVAL) return Done{};
    if (errno != EINTR) return CallFailed(folder, "fsync", errno);
  }
  return Done{};
}

}  // namespace phalanx::data
