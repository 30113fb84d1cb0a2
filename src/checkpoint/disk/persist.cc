#include "checkpoint/disk/persist.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "base/fd.h"
#include "checkpoint/disk/bulk.h"
#include "checkpoint/disk/recycled.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {
namespace {

// A device or a pipe may never end, and what is too short is known before anything is written.
StatusOr<Fd> OpenSource(const WriteJob& job) {
  Fd fd(open(job.source.c_str(), O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK));
  if (!fd.valid()) return CallFailed(job.source, "open", errno);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return CallFailed(job.source, "fstat", errno);
  if (!S_ISREG(info.st_mode)) return absl::InvalidArgumentError(fmt::format("{} is not a regular file", job.source));
  const auto bytes = static_cast<uint64_t>(info.st_size);
  if (job.offset <= bytes && bytes - job.offset >= job.bytes) return fd;
  return absl::DataLossError(fmt::format("{} has {} bytes instead of {}", job.source, bytes, job.offset + job.bytes));
}

Status CheckJob(const WriteJob& job) {
  if (job.bytes == 0) return absl::InvalidArgumentError(fmt::format("{}: an empty shard", job.source));
  PHX_RETURN_IF_ERROR(CheckStepName(job.step_name));
  if (!IsFileName(job.file) || job.file == kManifestName) {
    return absl::InvalidArgumentError("a shard needs a plain file name");
  }
  return absl::OkStatus();
}

Status CheckUncommitted(const std::string& folder) {
  const std::string path = fmt::format("{}/{}", folder, kManifestName);
  if (access(path.c_str(), F_OK) == 0) {
    return absl::FailedPreconditionError(fmt::format("{}: the step is committed already; nothing is written", path));
  }
  return errno == ENOENT ? absl::OkStatus() : CallFailed(path, "access", errno);
}

Status MakeStepFolder(const std::string& dir, const std::string& folder) {
  if (mkdir(folder.c_str(), 0777) != 0) {
    if (errno != EEXIST) return CallFailed(folder, "mkdir", errno);
    // Of one who was killed in between.
    const StatusOr<std::vector<std::string>> names = ListFolder(folder);
    return names.ok() && names->empty() ? MarkUnfinished(folder) : absl::OkStatus();
  }
  PHX_RETURN_IF_ERROR(MarkUnfinished(folder));
  return SyncFolder(dir);
}

// All of the file's blocks, so that a full disk is known before anything is written. What lies there for a next step
// makes room. File systems that cannot reserve are taken as they are.
Status Reserve(const WriteJob& job, const Draft& draft) {
  bool made_room = false;
  while (fallocate(draft.fd(), 0, 0, static_cast<off_t>(job.bytes)) != 0) {
    if (errno == EOPNOTSUPP || errno == ENOSYS) return absl::OkStatus();
    if (errno == EINTR) continue;
    const int error = errno;
    const bool is_full = error == ENOSPC || error == EDQUOT;
    if (!is_full || made_room || !RemoveRecycled(job.dir).ok()) {
      return CallFailed(draft.path(), "fallocate", error);
    }
    made_room = true;
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<Shard> WriteShard(const WriteJob& job) {
  PHX_RETURN_IF_ERROR(CheckJob(job));
  PHX_ASSIGN_OR_RETURN(const Fd source, OpenSource(job));
  const std::string folder = fmt::format("{}/{}", job.dir, job.step_name);
  PHX_RETURN_IF_ERROR(CheckUncommitted(folder));
  PHX_RETURN_IF_ERROR(MakeStepFolder(job.dir, folder));
  PHX_ASSIGN_OR_RETURN(Draft draft, MakeShardDraft(job.dir, job.step_name, job.file, job.bytes));
  PHX_RETURN_IF_ERROR(Reserve(job, draft));
  const auto write = [&] {
    return WriteBulk({.fd = draft.fd(),
                      .path = draft.path(),
                      .source_fd = source.get(),
                      .source = job.source,
                      .source_offset = job.offset,
                      .bytes = job.bytes,
                      .direct = job.direct,
                      .ring = job.ring});
  };
  StatusOr<uint32_t> crc = write();
  // Of a file system that cannot reserve.
  if (absl::IsResourceExhausted(crc.status()) && RemoveRecycled(job.dir).ok()) crc = write();
  if (!crc.ok()) return crc.status();
  if (*crc != job.crc32) {
    return absl::DataLossError(
        fmt::format("{}: its CRC is {:08x} instead of {:08x}; nothing is written", job.source, *crc, job.crc32));
  }
  // A manifest may have come while a slow disk took its time.
  PHX_RETURN_IF_ERROR(CheckUncommitted(folder));
  PHX_RETURN_IF_ERROR(draft.Place(folder, job.file));
  return Shard{.rank = job.rank, .file = job.file, .bytes = job.bytes, .crc32 = *crc, .needed_by = job.needed_by};
}

Status WriteManifest(const std::string& dir, const std::string& step_name, const Manifest& manifest) {
  const std::string folder = fmt::format("{}/{}", dir, step_name);
  const std::string path = fmt::format("{}/{}", folder, kManifestName);
  const std::optional<StepName> name = ParseStepName(step_name);
  if (!name || name->step != manifest.step) {
    return absl::InvalidArgumentError(fmt::format("{}: a manifest of step {}", path, manifest.step));
  }
  const std::string text = ManifestText(manifest);
  PHX_RETURN_IF_ERROR(WithContext(ParseManifest(text).status(), path));
  const StatusOr<std::string> there = ReadFile(path, kMaxManifestBytes);
  const std::string mark = fmt::format("{}/{}", folder, kUnfinishedName);
  if (there.ok() && *there == text) {
    unlink(mark.c_str());
    return SyncFolder(folder);
  }
  if (!absl::IsNotFound(there.status())) {
    if (!there.ok() && !absl::IsOutOfRange(there.status())) return there.status();
    return absl::AlreadyExistsError(fmt::format("{}: the step has a manifest already", path));
  }
  PHX_RETURN_IF_ERROR(ReplaceFile(dir, step_name, folder, kManifestName, text));
  unlink(mark.c_str());  // one that stays beside a manifest says nothing
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint
