#include "checkpoint/files/files.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <memory>
#include <utility>

namespace phalanx::checkpoint {
namespace {

constexpr size_t kTailBytes = 1 + 16;  // ".<16 hex digits>"

std::string DraftFolder(const std::string& dir) { return dir + "/.writing"; }

bool IsDraftOf(std::string_view name, std::string_view file) {
  const size_t dash = name.find('-');  // names of steps have none
  if (dash == std::string_view::npos || name.size() != dash + 1 + file.size() + kTailBytes) return false;
  return name.substr(dash + 1, file.size()) == file && name[name.size() - kTailBytes] == '.';
}

// False where somebody else has it. File systems without locks are taken as they are: rename() from a name that is only
// ours keeps writers apart even so.
bool Lock(int fd) { return flock(fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK; }

// Best effort: a leftover does no harm but for the room it takes.
void RemoveLeftovers(const std::string& folder, const std::string& file) {
  const StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) return;
  for (const std::string& name : *names) {
    if (!IsDraftOf(name, file)) continue;
    const std::string path = fmt::format("{}/{}", folder, name);
    const Fd fd(open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
    // Here a file system without locks counts as locked.
    if (fd.valid() && flock(fd.get(), LOCK_EX | LOCK_NB) == 0) unlink(path.c_str());
  }
}

Status SyncFd(int fd, const std::string& path) {
  while (fsync(fd) != 0) {
    if (errno != EINTR) return CallFailed(path, "fsync", errno);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::vector<std::string>> ListFolder(const std::string& path) {
  const std::unique_ptr<DIR, int (*)(DIR*)> folder(opendir(path.c_str()), closedir);
  if (!folder) return CallFailed(path, "opendir", errno);
  std::vector<std::string> names;
  while (true) {
    errno = 0;
    const dirent* entry = readdir(folder.get());
    if (entry == nullptr && errno != 0) return CallFailed(path, "readdir", errno);
    if (entry == nullptr) break;
    const std::string_view name = entry->d_name;
    if (name != "." && name != "..") names.emplace_back(name);
  }
  std::sort(names.begin(), names.end());
  return names;
}

Status MakeFolder(const std::string& path) {
  return mkdir(path.c_str(), 0777) == 0 || errno == EEXIST ? absl::OkStatus() : CallFailed(path, "mkdir", errno);
}

Status SyncFolder(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  while (fsync(fd.get()) != 0) {
    if (errno == EINVAL) return absl::OkStatus();
    if (errno != EINTR) return CallFailed(path, "fsync", errno);
  }
  return absl::OkStatus();
}

StatusOr<MappedFile> MappedFile::Open(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return CallFailed(path, "fstat", errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(fmt::format("{} is not a regular file", path));
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (bytes == 0) return MappedFile(nullptr, 0);
  void* data = mmap(nullptr, bytes, PROT_READ, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) return CallFailed(path, "mmap", errno);
  return MappedFile(static_cast<const char*>(data), bytes);
}

MappedFile::MappedFile(MappedFile&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

MappedFile::~MappedFile() {
  if (data_ != nullptr) munmap(const_cast<char*>(data_), bytes_);
}

Status WriteFully(int fd, const std::string& path, std::string_view text) {
  while (!text.empty()) {
    const ssize_t n = write(fd, text.data(), text.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(path, "write", errno);
    text.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

StatusOr<Draft> Draft::Make(const std::string& dir, const std::string& step_name, const std::string& file) {
  const std::string folder = DraftFolder(dir);
  PHX_RETURN_IF_ERROR(MakeFolder(folder));
  RemoveLeftovers(folder, file);
  uint64_t random = 0;
  [[maybe_unused]] const ssize_t n = getrandom(&random, sizeof random, 0);  // so few bytes always come whole
  std::string path = fmt::format("{}/{}-{}.{:016x}", folder, step_name, file, random);
  Fd fd(open(path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  Draft draft(std::move(path), std::move(fd));
  PHX_RETURN_IF_ERROR(draft.LockOwn());
  return draft;
}

Status Draft::LockOwn() {
  struct stat info {};
  if (Lock(fd_.get()) && fstat(fd_.get(), &info) == 0 && info.st_nlink > 0) return absl::OkStatus();
  return absl::AbortedError(fmt::format("{}: another writer of this file removes it", path_));
}

Draft::Draft(Draft&& other) noexcept : path_(std::exchange(other.path_, {})), fd_(std::move(other.fd_)) {}

Draft::~Draft() {
  if (!path_.empty()) unlink(path_.c_str());
}

Status Draft::TakeOver(const std::string& from) {
  if (rename(from.c_str(), path_.c_str()) != 0) return CallFailed(from, "rename", errno);
  fd_.Reset(open(path_.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd_.valid()) return CallFailed(path_, "open", errno);
  return LockOwn();
}

Status Draft::Place(const std::string& folder, const std::string& file) {
  PHX_RETURN_IF_ERROR(SyncFd(fd_.get(), path_));
  const std::string place = folder + "/" + file;
  if (rename(path_.c_str(), place.c_str()) != 0) return CallFailed(place, "rename", errno);
  path_.clear();
  fd_.Reset();
  return SyncFolder(folder);
}

Status ReplaceFile(const std::string& dir, const std::string& step_name, const std::string& folder,
                   const std::string& file, std::string_view text) {
  PHX_ASSIGN_OR_RETURN(Draft draft, Draft::Make(dir, step_name, file));
  PHX_RETURN_IF_ERROR(WriteFully(draft.fd(), draft.path(), text));
  return draft.Place(folder, file);
}

}  // namespace phalanx::checkpoint
