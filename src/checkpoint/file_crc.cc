#include "checkpoint/file_crc.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "checkpoint/crc32.h"
#include "checkpoint/files.h"

namespace phalanx::checkpoint {

constexpr uint64_t kReadBytes = uint64_t{1} << 20;  // what a core's cache keeps between the two passes

StatusOr<uint32_t> FileCrc(int fd, const std::string& path, uint64_t bytes) {
  std::vector<char> block(std::min(bytes, kReadBytes));
  uint32_t crc = 0;
  uint64_t at = 0;
  while (at < bytes) {
    const ssize_t n = pread(fd, block.data(), std::min<uint64_t>(block.size(), bytes - at), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(path, "read", errno);
    if (n == 0) return absl::DataLossError(fmt::format("{} has {} bytes instead of {}", path, at, bytes));
    crc = Crc32(crc, block.data(), static_cast<uint64_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return crc;
}

}  // namespace phalanx::checkpoint
