#include "checkpoint/files/file_crc.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <vector>

#include "base/crc/crc32.h"
#include "checkpoint/files/crew.h"
#include "checkpoint/files/files.h"
#include "checkpoint/files/shared_parts.h"

namespace phalanx::checkpoint {
namespace {

constexpr uint64_t kReadBytes = uint64_t{1} << 20;   // what a core's cache keeps between the two passes
constexpr uint64_t kPartBytes = uint64_t{32} << 20;  // takes far longer than to start a thread for it

struct File {
  int fd = -1;
  const std::string& path;
  uint64_t bytes = 0;  // that it should have
};

Status TooShort(const File& file) {
  struct stat info {};
  if (fstat(file.fd, &info) != 0) return CallFailed(file.path, "fstat", errno);
  return absl::DataLossError(fmt::format("{} has {} bytes instead of {}", file.path, info.st_size, file.bytes));
}

StatusOr<uint32_t> PartCrc(const File& file, uint64_t at, uint64_t bytes, std::vector<char>& block) {
  const uint64_t end = at + bytes;
  uint32_t crc = 0;
  while (at < end) {
    const ssize_t n = pread(file.fd, block.data(), std::min<uint64_t>(block.size(), end - at), static_cast<off_t>(at));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(file.path, "read", errno);
    if (n == 0) return TooShort(file);
    crc = Crc32(crc, block.data(), static_cast<uint64_t>(n));
    at += static_cast<uint64_t>(n);
  }
  return crc;
}

}  // namespace

StatusOr<uint32_t> FileCrc(int fd, const std::string& path, uint64_t bytes, size_t threads) {
  const File file{fd, path, bytes};
  SharedParts parts(bytes, kPartBytes);
  RunCrew(std::clamp<size_t>(threads, 1, std::max<size_t>(parts.count(), 1)), [&](size_t) {
    std::vector<char> block(std::min(bytes, kReadBytes));
    while (const std::optional<size_t> part = parts.TakeNext()) {
      parts.Done(*part, PartCrc(file, parts.BeginOf(*part), parts.BytesOf(*part), block));
    }
  });
  return parts.Crc();
}

}  // namespace phalanx::checkpoint
