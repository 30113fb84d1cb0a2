#include "checkpoint/file_crc.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <mutex>
#include <utility>
#include <vector>

#include "base/crc32.h"
#include "checkpoint/crew.h"
#include "checkpoint/files.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kReadBytes = uint64_t{1} << 20;   // what a core's cache keeps between the two passes
constexpr uint64_t kPartBytes = uint64_t{32} << 20;  // takes far longer than to start a thread for it

// A file in parts, which threads take one after the other.
class Parts {
 public:
  Parts(int fd, const std::string& path, uint64_t bytes)
      : fd_(fd), path_(path), bytes_(bytes), crcs_((bytes + kPartBytes - 1) / kPartBytes) {}

  size_t count() const { return crcs_.size(); }

  // For each thread.
  void Work() {
    std::vector<char> block(std::min(bytes_, kReadBytes));
    for (size_t part = next_++; part < crcs_.size() && !failed_; part = next_++) {
      StatusOr<uint32_t> crc = Read(part * kPartBytes, BytesOf(part), block);
      if (crc.ok()) {
        crcs_[part] = *crc;
      } else {
        Fail(crc.status());
      }
    }
  }

  // When all have ended.
  StatusOr<uint32_t> Take() const {
    if (!status_.ok()) return status_;
    uint32_t crc = 0;
    Crc32Joiner joiner;
    for (size_t part = 0; part < crcs_.size(); ++part) crc = joiner.Join(crc, crcs_[part], BytesOf(part));
    return crc;
  }

 private:
  uint64_t BytesOf(size_t part) const { return std::min(kPartBytes, bytes_ - part * kPartBytes); }

  StatusOr<uint32_t> Read(uint64_t at, uint64_t bytes, std::vector<char>& block) const {
    const uint64_t end = at + bytes;
    uint32_t crc = 0;
    while (at < end) {
      const ssize_t n = pread(fd_, block.data(), std::min<uint64_t>(block.size(), end - at), static_cast<off_t>(at));
      if (n < 0 && errno == EINTR) continue;
      if (n < 0) return CallFailed(path_, "read", errno);
      if (n == 0) return TooShort();
      crc = Crc32(crc, block.data(), static_cast<uint64_t>(n));
      at += static_cast<uint64_t>(n);
    }
    return crc;
  }

  Status TooShort() const {
    struct stat info {};
    if (fstat(fd_, &info) != 0) return CallFailed(path_, "fstat", errno);
    return absl::DataLossError(fmt::format("{} has {} bytes instead of {}", path_, info.st_size, bytes_));
  }

  void Fail(const Status& status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = status;
    failed_ = true;
  }

  const int fd_;
  const std::string& path_;
  const uint64_t bytes_;
  std::atomic<size_t> next_{0};
  std::vector<uint32_t> crcs_;  // of parts; each is the thread's that took it
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status status_;  // the first error
};

}  // namespace

StatusOr<uint32_t> FileCrc(int fd, const std::string& path, uint64_t bytes, size_t threads) {
  Parts parts(fd, path, bytes);
  RunCrew(std::clamp<size_t>(threads, 1, std::max<size_t>(parts.count(), 1)), [&parts](size_t) { parts.Work(); });
  return parts.Take();
}

}  // namespace phalanx::checkpoint
