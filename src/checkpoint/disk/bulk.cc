#include "checkpoint/disk/bulk.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <liburing.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/files/crew.h"
#include "checkpoint/files/files.h"
#include "checkpoint/files/shared_parts.h"

namespace phalanx::checkpoint {
namespace {

uint64_t RoundUp(uint64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// What is written: a direct write ends with a block of the disk.
uint64_t WrittenBytes(const Bulk& bulk) { return bulk.direct ? RoundUp(bulk.bytes) : bulk.bytes; }

// Memory of our own for blocks, in large pages where there are any: a disk takes those sooner.
class Buffers {
 public:
  Buffers() = default;
  Buffers(const Buffers&) = delete;
  Buffers& operator=(const Buffers&) = delete;
  ~Buffers() {
    if (data_ != nullptr) munmap(data_, count_ * kBlockBytes);
  }

  Status Make(size_t count) {
    void* data = mmap(nullptr, count * kBlockBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data == MAP_FAILED) return ErrnoStatus(errno, fmt::format("memory for {} blocks to be written", count));
    madvise(data, count * kBlockBytes, MADV_HUGEPAGE);
    data_ = static_cast<char*>(data);
    count_ = count;
    return absl::OkStatus();
  }

  char* of(size_t i) const { return data_ + i * kBlockBytes; }

 private:
  char* data_ = nullptr;
  size_t count_ = 0;
};

uint64_t BlockBytes(const Bulk& bulk, uint64_t at) { return std::min(kBlockBytes, bulk.bytes - at); }

// The block of the source that begins at `at`, with zeros up to a block of the disk.
Status ReadBlock(const Bulk& bulk, uint64_t at, char* buffer) {
  const uint64_t bytes = BlockBytes(bulk, at);
  uint64_t got = 0;
  while (got < bytes) {
    const auto from = static_cast<off_t>(bulk.source_offset + at + got);
    const ssize_t n = pread(bulk.source_fd, buffer + got, bytes - got, from);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(bulk.source, "read", errno);
    if (n == 0) {
      return absl::DataLossError(fmt::format("{} has {} bytes instead of {}", bulk.source, at + got, bulk.bytes));
    }
    got += static_cast<uint64_t>(n);
  }
  std::memset(buffer + bytes, 0, RoundUp(bytes) - bytes);
  return absl::OkStatus();
}

class Ring {
 public:
  Ring() : usable_(io_uring_queue_init(kDepth, &ring_, 0) == 0) {}
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;
  ~Ring() {
    if (usable_) io_uring_queue_exit(&ring_);
  }

  bool usable() const { return usable_; }

  // A place is free whenever fewer than kDepth are under way.
  int Submit(const Bulk& bulk, Span& span, iovec& where, char* data) {
    where = {data, static_cast<size_t>(span.end - span.at)};
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    if (entry == nullptr) return EBUSY;
    io_uring_prep_writev(entry, bulk.fd, &where, 1, span.at);
    io_uring_sqe_set_data(entry, &span);
    int result = 0;
    do {
      result = io_uring_submit(&ring_);
    } while (result == -EINTR);
    return result < 0 ? -result : 0;
  }

  // Which one has ended, and with what. Null: the ring itself has failed, with -errno.
  Span* Wait(int64_t& result) {
    io_uring_cqe* entry = nullptr;
    int waited = 0;
    do {
      waited = io_uring_wait_cqe(&ring_, &entry);
    } while (waited == -EINTR);
    result = waited;
    if (waited != 0) return nullptr;
    auto* span = static_cast<Span*>(io_uring_cqe_get_data(entry));
    result = entry->res;
    io_uring_cqe_seen(&ring_, entry);
    return span;
  }

 private:
  io_uring ring_{};
  const bool usable_;
};

// The state of one WriteByRing.
class RingWriter {
 public:
  RingWriter(const Bulk& bulk, Ring& ring) : bulk_(bulk), ring_(ring), total_(WrittenBytes(bulk)) {
    for (size_t i = 0; i < kDepth; ++i) free_.push_back(i);
  }

  StatusOr<uint32_t> Run() {
    PHX_RETURN_IF_ERROR(buffers_.Make(kDepth));
    while (status_.ok() && (next_ < total_ || under_way_ > 0)) {
      if (next_ < total_ && !free_.empty()) {
        Begin();
      } else {
        Await();
      }
    }
    // The kernel reads our memory until the last is back.
    while (under_way_ > 0) Await();
    if (!status_.ok()) return status_;
    return crc_;
  }

 private:
  void Fail(int error_number) {
    if (status_.ok()) status_ = CallFailed(bulk_.path, "write", error_number);
  }

  void Begin() {
    const size_t slot = free_.back();
    status_ = ReadBlock(bulk_, next_, buffers_.of(slot));
    if (!status_.ok()) return;
    crc_ = Crc32(crc_, buffers_.of(slot), BlockBytes(bulk_, next_));
    free_.pop_back();
    begins_[slot] = next_;
    spans_[slot] = {.at = next_, .end = std::min(next_ + kBlockBytes, total_)};
    next_ = spans_[slot].end;
    Submit(slot);
  }

  void Submit(size_t slot) {
    char* data = buffers_.of(slot) + (spans_[slot].at - begins_[slot]);
    const int error = ring_.Submit(bulk_, spans_[slot], where_[slot], data);
    if (error == 0) {
      ++under_way_;
    } else {
      Fail(error);
    }
  }

  void Await() {
    int64_t result = 0;
    Span* span = ring_.Wait(result);
    if (span == nullptr) {
      Fail(static_cast<int>(-result));
      under_way_ = 0;  // their file is thrown away
      return;
    }
    --under_way_;
    const auto slot = static_cast<size_t>(span - spans_.data());
    const Verdict verdict = Advance(*span, result, bulk_.direct);
    if (verdict.error_number != 0) Fail(verdict.error_number);
    if (verdict.done) {
      free_.push_back(slot);
    } else if (status_.ok()) {
      Submit(slot);
    }
  }

  const Bulk& bulk_;
  Ring& ring_;
  const uint64_t total_;
  Status status_;
  uint64_t next_ = 0;
  uint32_t crc_ = 0;
  unsigned under_way_ = 0;
  Buffers buffers_;
  std::array<uint64_t, kDepth> begins_{};  // of the blocks in them
  std::array<Span, kDepth> spans_;
  std::array<iovec, kDepth> where_{};
  std::vector<size_t> free_;
};

Status WriteBlock(const Bulk& bulk, uint64_t begin, const char* data) {
  Span span{.at = begin, .end = std::min(begin + kBlockBytes, WrittenBytes(bulk))};
  Verdict verdict;
  while (!verdict.done && verdict.error_number == 0) {
    const ssize_t n = pwrite(bulk.fd, data + (span.at - begin), span.end - span.at, static_cast<off_t>(span.at));
    verdict = Advance(span, n < 0 ? -errno : n, bulk.direct);
  }
  if (verdict.error_number != 0) return CallFailed(bulk.path, "pwrite", verdict.error_number);
  // The disk begins now: left to fsync, all of it would wait in memory. What fails here fails there again.
  if (!bulk.direct) {
    sync_file_range(bulk.fd, static_cast<off_t>(begin), static_cast<off_t>(span.end - begin), SYNC_FILE_RANGE_WRITE);
  }
  return absl::OkStatus();
}

// The CRC of the block that begins at `at`, when it is written.
StatusOr<uint32_t> CopyBlock(const Bulk& bulk, uint64_t at, char* buffer) {
  PHX_RETURN_IF_ERROR(ReadBlock(bulk, at, buffer));
  const uint32_t crc = Crc32(0, buffer, BlockBytes(bulk, at));
  PHX_RETURN_IF_ERROR(WriteBlock(bulk, at, buffer));
  return crc;
}

StatusOr<uint32_t> WriteByThreads(const Bulk& bulk) {
  const auto others = static_cast<size_t>(std::min<uint64_t>(kDepth - 1, bulk.bytes / kBlockBytes));
  Buffers buffers;
  PHX_RETURN_IF_ERROR(buffers.Make(others + 1));
  SharedParts blocks(bulk.bytes, kBlockBytes);
  RunCrew(others + 1, [&](size_t index) {
    while (const std::optional<size_t> block = blocks.TakeNext()) {
      blocks.Done(*block, CopyBlock(bulk, blocks.BeginOf(*block), buffers.of(index)));
    }
  });
  return blocks.Crc();
}

bool SetDirect(int fd, bool direct) {
  const int flags = fcntl(fd, F_GETFL);
  return flags >= 0 && fcntl(fd, F_SETFL, direct ? flags | O_DIRECT : flags & ~O_DIRECT) == 0;
}

StatusOr<uint32_t> WriteOnce(const Bulk& bulk) {
  if (bulk.direct && bulk.ring) {
    Ring ring;
    if (ring.usable()) return RingWriter(bulk, ring).Run();
  }
  return WriteByThreads(bulk);
}

}  // namespace

Verdict Advance(Span& span, int64_t result, bool direct) {
  if (result == -EINTR) return {};
  if (result < 0) return {.error_number = static_cast<int>(-result)};
  const auto written = std::min(static_cast<uint64_t>(result), span.end - span.at);
  if (written == span.end - span.at) {
    span.at = span.end;
    return {.done = true};
  }
  const uint64_t kept = direct ? written / kAlignment * kAlignment : written;
  if (kept == 0 && span.stuck) return {.error_number = EIO};
  span.stuck = kept == 0;
  span.at += kept;
  return {};
}

StatusOr<uint32_t> WriteBulk(const Bulk& bulk) {
  Bulk attempt = bulk;
  attempt.direct = bulk.direct && SetDirect(bulk.fd, true);
  StatusOr<uint32_t> crc = WriteOnce(attempt);
  // There are file systems that take the flag and refuse the write.
  if (attempt.direct && absl::IsInvalidArgument(crc.status())) {
    attempt.direct = false;
    if (!SetDirect(bulk.fd, false)) return CallFailed(bulk.path, "fcntl", errno);
    crc = WriteOnce(attempt);
  }
  if (!crc.ok()) return crc;
  while (ftruncate(bulk.fd, static_cast<off_t>(bulk.bytes)) != 0) {
    if (errno != EINTR) return CallFailed(bulk.path, "ftruncate", errno);
  }
  return crc;
}

}  // namespace phalanx::checkpoint
