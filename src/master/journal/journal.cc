#include "master/journal/journal.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/fd.h"
#include "base/fnv.h"
#include "base/thread.h"

namespace phalanx::master {
namespace {

constexpr std::string_view kMagic = "PHLXJRNL";
constexpr uint32_t kVersion = 1;
constexpr size_t kHeaderBytes = 24;
constexpr size_t kMaxPayloadBytes = size_t{256} << 20;

uint64_t Checksum(std::string_view bytes) { return Fnv1a().Add(bytes).value(); }

void AppendNumber(std::string& text, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) text.push_back(static_cast<char>(value >> (8 * i)));
}

uint64_t NumberAt(std::string_view text, size_t offset, size_t bytes) {
  uint64_t value = 0;
  for (size_t i = 0; i < bytes; ++i) value |= uint64_t{static_cast<unsigned char>(text[offset + i])} << (8 * i);
  return value;
}

Status WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t n = write(fd, bytes.data(), bytes.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, "write");
    bytes.remove_prefix(static_cast<size_t>(n));
  }
  return absl::OkStatus();
}

// The folder's entry, which a rename has changed.
Status SyncFolderOf(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  const Fd fd(open(folder.empty() ? "." : folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, folder);
  return fsync(fd.get()) == 0 ? absl::OkStatus() : ErrnoStatus(errno, folder);
}

Status ReplaceFile(const std::string& path, std::string_view bytes, bool sync) {
  const std::string fresh = path + ".new";
  {
    const Fd fd(open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd.valid()) return ErrnoStatus(errno, fresh);
    PHX_RETURN_IF_ERROR(WithContext(WriteAll(fd.get(), bytes), fresh));
    if (sync && fdatasync(fd.get()) != 0) return ErrnoStatus(errno, fresh);
  }
  if (rename(fresh.c_str(), path.c_str()) != 0) return ErrnoStatus(errno, path);
  return sync ? SyncFolderOf(path) : absl::OkStatus();
}

}  // namespace

std::string WrapJournal(std::string_view payload) {
  std::string file(kMagic);
  AppendNumber(file, kVersion, 4);
  AppendNumber(file, payload.size(), 4);
  AppendNumber(file, Checksum(payload), 8);
  return file.append(payload);
}

StatusOr<std::string> UnwrapJournal(std::string_view file) {
  if (file.size() < kHeaderBytes || file.substr(0, kMagic.size()) != kMagic) {
    return absl::DataLossError("not a journal of Phalanx");
  }
  const uint64_t version = NumberAt(file, 8, 4);
  if (version > kVersion) {
    return absl::FailedPreconditionError(
        fmt::format("written by a newer Phalanx (layout {}, this one knows {})", version, kVersion));
  }
  const std::string_view payload = file.substr(kHeaderBytes);
  if (payload.size() > kMaxPayloadBytes)
    return absl::DataLossError(fmt::format("more than {} bytes", kMaxPayloadBytes));
  if (version != kVersion || NumberAt(file, 12, 4) != payload.size() || NumberAt(file, 16, 8) != Checksum(payload)) {
    return absl::DataLossError(fmt::format("damaged: {} bytes whose length or checksum is wrong", file.size()));
  }
  return std::string(payload);
}

StatusOr<std::string> ReadJournal(const std::string& path) {
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) return ErrnoStatus(errno, path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(fmt::format("{}: belongs to another user", path));
  }
  std::string file;
  char buffer[64 << 10];
  while (file.size() <= kHeaderBytes + kMaxPayloadBytes) {
    const ssize_t n = read(fd.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return ErrnoStatus(errno, path);
    if (n == 0) break;
    file.append(buffer, static_cast<size_t>(n));
  }
  StatusOr<std::string> payload = UnwrapJournal(file);
  if (!payload.ok()) return WithContext(payload.status(), path);
  return payload;
}

struct JournalWriter::Shared {
  std::string path;
  std::function<void(const std::string&)> warn;

  std::mutex mutex;  // guards what follows
  std::condition_variable changed;
  std::optional<std::string> waiting;
  bool sync = false;  // what is waiting
  bool writing = false;
  bool closing = false;
  bool over = false;  // nobody writes
};

JournalWriter::JournalWriter(const std::string& path, std::function<void(const std::string&)> warn)
    : shared_(std::make_shared<Shared>()) {
  shared_->path = path;
  shared_->warn = std::move(warn);
  // Detached: a disk that hangs for ever must not keep the master from ending.
  StatusOr<std::thread> thread = StartThread([shared = shared_] { Write(shared); });
  if (thread.ok()) {
    thread->detach();
    return;
  }
  shared_->over = true;
  shared_->warn(fmt::format("the journal cannot be written, so a new master would rely on the agents alone: {}",
                            Message(thread.status())));
}

JournalWriter::~JournalWriter() {
  Flush(kFlushMs);
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  shared_->closing = true;
  shared_->changed.notify_all();
}

void JournalWriter::Put(std::string payload, bool sync) {
  const std::lock_guard<std::mutex> lock(shared_->mutex);
  if (shared_->over) return;
  shared_->waiting = std::move(payload);
  shared_->sync = shared_->sync || sync;
  shared_->changed.notify_all();
}

bool JournalWriter::Flush(int64_t timeout_ms) {
  std::unique_lock<std::mutex> lock(shared_->mutex);
  return shared_->changed.wait_for(lock, std::chrono::milliseconds(timeout_ms),
                                   [this] { return !shared_->waiting && !shared_->writing; });
}

void JournalWriter::Write(const std::shared_ptr<Shared>& shared) {
  bool told = false;
  std::unique_lock<std::mutex> lock(shared->mutex);
  while (true) {
    shared->changed.wait(lock, [&shared] { return shared->waiting || shared->closing; });
    if (!shared->waiting) return;
    const std::string file = WrapJournal(*std::exchange(shared->waiting, std::nullopt));
    const bool sync = std::exchange(shared->sync, false);
    shared->writing = true;
    lock.unlock();
    const Status written = ReplaceFile(shared->path, file, sync);
    if (!written.ok() && !std::exchange(told, true)) {
      shared->warn(fmt::format("the journal cannot be written, so a new master would rely on the agents alone: {}",
                               Message(written)));
    }
    if (written.ok()) told = false;
    lock.lock();
    shared->writing = false;
    shared->changed.notify_all();
  }
}

}  // namespace phalanx::master
