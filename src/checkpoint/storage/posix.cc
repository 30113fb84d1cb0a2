#include "checkpoint/storage/posix.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "base/fd.h"
#include "checkpoint/disk/persist.h"
#include "checkpoint/disk/recycled.h"
#include "checkpoint/disk/tracker.h"
#include "checkpoint/disk/verify.h"
#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {

Status PosixStorage::Make() { return MakeFolder(location()); }

StatusOr<std::string> PosixStorage::Begin(int64_t step, uint64_t epoch) { return ClaimStep(location(), step, epoch); }

StatusOr<Shard> PosixStorage::Put(const std::string& step, const FileToPut& file) {
  return WriteShard({.source = file.source,
                     .dir = location(),
                     .step_name = step,
                     .file = file.name,
                     .rank = file.rank,
                     .bytes = file.bytes,
                     .crc32 = file.crc32,
                     .needed_by = file.needed_by,
                     .offset = file.offset});
}

Status PosixStorage::Publish(const std::string& step, const Manifest& manifest) {
  return WriteManifest(location(), step, manifest);
}

Status PosixStorage::PointTo(const std::string& step, int64_t number, const std::vector<std::string>& trackers) {
  return WriteTrackers(location(), step, number, trackers);
}

StatusOr<std::vector<FoundStep>> PosixStorage::List() { return FindSteps(location()); }

FoundStep PosixStorage::LookAt(const std::string& step) {
  if (std::optional<FoundStep> found = FindStep(location(), step)) return *std::move(found);
  FoundStep none;
  none.name = step;
  none.why = "no manifest: not committed";
  return none;
}

Status PosixStorage::Read(const std::string& step, const std::string& file, uint64_t offset, std::span<uint8_t> to) {
  PHX_RETURN_IF_ERROR(CheckStepName(step));
  if (!IsFileName(file)) return absl::InvalidArgumentError(fmt::format("'{}' is not the name of a file", file));
  const std::string path = PathOf(step, file);
  const Fd fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  for (size_t done = 0; done < to.size();) {
    const ssize_t n = pread(fd.get(), to.data() + done, to.size() - done, static_cast<off_t>(offset + done));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return CallFailed(path, "read", errno);
    if (n == 0) {
      return absl::DataLossError(
          fmt::format("{} ends at {}, and {} bytes are wanted from {} on", path, offset + done, to.size(), offset));
    }
    done += static_cast<size_t>(n);
  }
  return absl::OkStatus();
}

Status PosixStorage::Check(const std::string& step, const Shard& file) {
  PHX_RETURN_IF_ERROR(CheckStepName(step));
  return CheckShardFile(fmt::format("{}/{}", location(), step), file);
}

Status PosixStorage::Delete(const std::string& step) { return DeleteStep(location(), step); }

Status PosixStorage::Tidy() { return RemoveRecycled(location()); }

std::string PosixStorage::PathOf(const std::string& step, const std::string& file) const {
  return file.empty() ? fmt::format("{}/{}", location(), step) : fmt::format("{}/{}/{}", location(), step, file);
}

}  // namespace phalanx::checkpoint
