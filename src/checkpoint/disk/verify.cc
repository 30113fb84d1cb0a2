#include "checkpoint/disk/verify.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>

#include <cerrno>

#include "base/fd.h"
#include "checkpoint/files/file_crc.h"
#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {

constexpr size_t kReaders = 4;  // what one reader gets of a disk, or of a server, is not all that it gives

Status CheckShardFile(const std::string& folder, const Shard& shard) {
  const std::string path = folder + "/" + shard.file;
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!file.valid()) return CallFailed(path, "open", errno);
  struct stat info {};
  if (fstat(file.get(), &info) != 0) return CallFailed(path, "fstat", errno);
  if (!S_ISREG(info.st_mode)) return absl::DataLossError(fmt::format("{} is not a regular file", path));
  if (static_cast<uint64_t>(info.st_size) != shard.bytes) {
    return absl::DataLossError(
        fmt::format("{} has {} bytes, and its manifest says {}", path, info.st_size, shard.bytes));
  }
  posix_fadvise(file.get(), 0, 0, POSIX_FADV_SEQUENTIAL);
  PHX_ASSIGN_OR_RETURN(const uint32_t crc, FileCrc(file.get(), path, shard.bytes, kReaders));
  if (crc != shard.crc32) {
    return absl::DataLossError(fmt::format("{} has CRC {:08x}, and its manifest says {:08x}", path, crc, shard.crc32));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint
