#include "checkpoint/disk/recycled.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/magic.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <utility>

namespace phalanx::checkpoint {
namespace {

// Files of one step. Each that is written looks at all of them.
constexpr size_t kRecycledMax = 4'096;

std::string Folder(const std::string& dir) { return dir + "/.recycled"; }

// The size of a file that may be written over as far as its name tells: of this user, and no second name keeps it.
std::optional<uint64_t> RecyclableBytes(const std::string& path) {
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0 || !S_ISREG(info.st_mode)) return std::nullopt;
  if (info.st_uid != geteuid() || info.st_nlink != 1) return std::nullopt;
  return static_cast<uint64_t>(info.st_size);
}

bool CountsAllReaders(const std::string& path) {
  struct statfs info {};
  return statfs(path.c_str(), &info) == 0 && LeasesCountAllReaders(static_cast<uint64_t>(info.f_type));
}

// A program may still read the old step, mapped even: the kernel grants a lease only where nobody else has the file
// open.
bool IsOursAlone(int fd) {
  struct statfs info {};
  if (fstatfs(fd, &info) != 0 || !LeasesCountAllReaders(static_cast<uint64_t>(info.f_type))) return false;
  fcntl(fd, F_SETSIG, SIGURG);  // the default signal of a lease that is asked back would end us
  return fcntl(fd, F_SETLEASE, F_WRLCK) == 0 && fcntl(fd, F_SETLEASE, F_UNLCK) == 0;
}

// Files of other sizes will not be wanted again. Returns how many bytes stay.
uint64_t RemoveUnfit(const std::string& folder, const std::vector<Shard>& shards) {
  uint64_t kept = 0;
  const StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) return 0;
  for (const std::string& name : *names) {
    const std::string path = fmt::format("{}/{}", folder, name);
    const std::optional<uint64_t> bytes = RecyclableBytes(path);
    const bool fits = bytes && std::ranges::any_of(shards, [&](const Shard& shard) { return shard.bytes == *bytes; });
    if (fits) {
      kept += *bytes;
    } else {
      unlink(path.c_str());
    }
  }
  return kept;
}

}  // namespace

bool LeasesCountAllReaders(uint64_t file_system) {
  constexpr uint64_t kXfs = 0x58465342, kZfs = 0x2fc12fc1, kBcachefs = 0xca451a4e;
  constexpr uint64_t kLocal[] = {EXT4_SUPER_MAGIC,      kXfs, BTRFS_SUPER_MAGIC, F2FS_SUPER_MAGIC, TMPFS_MAGIC,
                                 OVERLAYFS_SUPER_MAGIC, kZfs, kBcachefs};
  return std::ranges::find(kLocal, file_system) != std::end(kLocal);
}

StatusOr<Draft> MakeShardDraft(const std::string& dir, const std::string& step_name, const std::string& file,
                               uint64_t bytes) {
  PHX_ASSIGN_OR_RETURN(Draft draft, Draft::Make(dir, step_name, file));
  const StatusOr<std::vector<std::string>> names = ListFolder(Folder(dir));
  if (!names.ok()) return draft;
  for (const std::string& name : *names) {
    const std::string path = Folder(dir) + "/" + name;
    if (RecyclableBytes(path) != bytes) continue;
    const Status taken = draft.TakeOver(path);
    if (absl::IsNotFound(taken)) continue;  // another writer has it
    if (taken.ok() && IsOursAlone(draft.fd())) return draft;
    return Draft::Make(dir, step_name, file);  // whoever reads the old file keeps it
  }
  return draft;
}

Status Recycle(const std::string& dir, const std::string& step_name, const std::vector<Shard>& shards) {
  const std::string folder = Folder(dir);
  const bool may = shards.size() <= kRecycledMax && CountsAllReaders(dir) && MakeFolder(folder).ok();
  uint64_t room = 0;
  for (const Shard& shard : shards) room += shard.bytes;
  const uint64_t kept = RemoveUnfit(folder, shards);
  room -= std::min(kept, room);
  for (const Shard& shard : shards) {
    const std::string from = fmt::format("{}/{}/{}", dir, step_name, shard.file);
    const std::string to = fmt::format("{}/{}-{}", folder, step_name, shard.file);
    if (may && shard.bytes <= room && RecyclableBytes(from) == shard.bytes && rename(from.c_str(), to.c_str()) == 0) {
      room -= shard.bytes;
    } else if (unlink(from.c_str()) != 0 && errno != ENOENT) {
      return CallFailed(from, "unlink", errno);
    }
  }
  return absl::OkStatus();
}

Status RemoveRecycled(const std::string& dir) {
  const std::string folder = Folder(dir);
  const StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (absl::IsNotFound(names.status())) return absl::OkStatus();
  if (!names.ok()) return names.status();
  for (const std::string& name : *names) {
    const std::string path = fmt::format("{}/{}", folder, name);
    if (unlink(path.c_str()) != 0 && errno != ENOENT) return CallFailed(path, "unlink", errno);
  }
  if (rmdir(folder.c_str()) != 0 && errno != ENOENT && errno != ENOTEMPTY) return CallFailed(folder, "rmdir", errno);
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint
