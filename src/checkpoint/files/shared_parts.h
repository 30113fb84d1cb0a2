// Many bytes in parts of one size, which threads take one after the other, and the CRC of all of them.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

#include "base/crc/crc32.h"
#include "base/status.h"

namespace phalanx::checkpoint {

// TakeNext and Done are for any thread, Crc for when all have ended.
class SharedParts {
 public:
  SharedParts(uint64_t bytes, uint64_t part_bytes)
      : bytes_(bytes), part_bytes_(part_bytes), crcs_((bytes + part_bytes - 1) / part_bytes) {}

  size_t count() const { return crcs_.size(); }
  uint64_t BeginOf(size_t part) const { return part * part_bytes_; }
  uint64_t BytesOf(size_t part) const { return std::min(part_bytes_, bytes_ - BeginOf(part)); }

  // None when all are taken, or one has failed.
  std::optional<size_t> TakeNext() {
    if (failed_) return std::nullopt;
    const size_t part = next_++;
    return part < count() ? std::optional(part) : std::nullopt;
  }

  // By the thread that took it.
  void Done(size_t part, StatusOr<uint32_t> crc) {
    if (crc.ok()) {
      crcs_[part] = *crc;
    } else {
      Fail(std::move(crc).status());
    }
  }

  // Of all the bytes, or the first error.
  StatusOr<uint32_t> Crc() const {
    if (!status_.ok()) return status_;
    uint32_t crc = 0;
    Crc32Joiner joiner;
    for (size_t part = 0; part < count(); ++part) crc = joiner.Join(crc, crcs_[part], BytesOf(part));
    return crc;
  }

 private:
  void Fail(Status status) {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (status_.ok()) status_ = std::move(status);
    failed_ = true;
  }

  const uint64_t bytes_;
  const uint64_t part_bytes_;
  std::atomic<size_t> next_{0};
  std::vector<uint32_t> crcs_;  // each is the thread's that took the part
  std::atomic<bool> failed_{false};
  std::mutex mutex_;
  Status status_;  // guarded by `mutex_` until all have ended
};

}  // namespace phalanx::checkpoint
