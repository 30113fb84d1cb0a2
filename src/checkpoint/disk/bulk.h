// Many bytes from a file in memory to one on a disk as fast as that takes them, with their CRC.
#pragma once

#include <cstdint>
#include <string>

#include "base/status.h"

namespace phalanx::checkpoint {

constexpr uint64_t kBlockBytes = uint64_t{4} << 20;  // of one write; of larger ones disks gain nothing
constexpr unsigned kDepth = 8;                       // writes under way
constexpr uint64_t kAlignment = 4096;                // of memory, offset and length for direct writes

// One write that may take several calls: from `at` until `end`.
struct Span {
  uint64_t at = 0;
  uint64_t end = 0;
  bool stuck = false;  // the last call has brought nothing
};

// What is to be done when a call for it has come back with `result`: bytes written, or an errno below 0. Pure. Where a
// direct write stops between two blocks of the disk, it goes on from the block's beginning. A second call in a row that
// brings nothing is EIO.
struct Verdict {
  bool done = false;
  int error_number = 0;
};
Verdict Advance(Span& span, int64_t result, bool direct);

struct Bulk {
  int fd = -1;
  std::string path;  // for errors
  int source_fd = -1;
  std::string source;  // for errors
  uint64_t source_offset = 0;
  uint64_t bytes = 0;  // of the source, from there on
  // Past the page cache, as far as the file system can; the file is then longer by what rounds it up.
  bool direct = true;
  // By io_uring where the kernel lets us (direct writes only), else by threads of our own.
  bool ring = true;
};

// Blocks for as long as the disk does. Returns the CRC of the bytes, read once: into kDepth blocks of our own, as to
// map the source and unmap it again would cost more than that and the CRC together. The file ends with them. DataLoss
// where the source is shorter.
StatusOr<uint32_t> WriteBulk(const Bulk& bulk);

}  // namespace phalanx::checkpoint
