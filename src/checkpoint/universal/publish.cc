#include "checkpoint/universal/publish.h"

#include <fcntl.h>
#include <linux/fs.h>
#include <stdio.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/fd.h"
#include "checkpoint/universal/syscalls.h"

namespace phalanx::universal {
namespace {

// A file, written anew and on the disk; its name is not.
Result<Done> WriteFile(const std::string& path, std::string_view text) {
  const Fd fd(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0666));
  if (!fd.valid()) return CallFailed(path, "open", errno);
  PHX_TRY_DONE(WriteFully(fd.get(), path, text));
  return Sync(fd.get(), path);
}

Result<Done> SyncFolder(const std::string& path) {
  PHX_TRY(const Fd fd, OpenFolder(path));
  return Sync(fd.get(), path);
}

Result<Done> Rename(const std::string& from, const std::string& to) {
  if (rename(from.c_str(), to.c_str()) != 0) return CallFailed(to, "rename", errno);
  return Done{};
}

// By the system call: the C library's function would bind us to a newer one.
int Exchange(const std::string& one, const std::string& other) {
  const long failed = syscall(SYS_renameat2, AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE);
  return failed == 0 ? 0 : errno;
}

// Where the file system cannot exchange two names, `target` is missing for a moment.
Result<Done> MoveIn(const std::string& draft, const std::string& target) {
  const int error = Exchange(draft, target);
  if (error == 0) return Done{};
  if (error == ENOENT) return Rename(draft, target);
  if (error != EINVAL && error != ENOSYS) return CallFailed(target, "rename", error);
  const std::string aside = draft + ".old";
  PHX_TRY_DONE(Rename(target, aside));
  Result<Done> moved = Rename(draft, target);
  if (!moved.ok()) {
    PHX_TRY_DONE(Rename(aside, target));
    return moved;
  }
  return Rename(aside, draft);
}

}  // namespace

Result<Done> Publish(const Publication& publication) {
  PHX_TRY_DONE(WriteFile(publication.draft + "/" + publication.manifest_name, publication.manifest));
  PHX_TRY_DONE(SyncFolder(publication.draft));
  PHX_TRY_DONE(MoveIn(publication.draft, publication.target));
  const size_t slash = publication.target.rfind('/');
  const std::string folder = publication.target.substr(0, slash);
  PHX_TRY_DONE(SyncFolder(folder));
  if (publication.tracker_name.empty()) return Done{};
  const std::string tracker = folder + "/" + publication.tracker_name;
  const std::string new_tracker = publication.draft + ".tracker";
  PHX_TRY_DONE(WriteFile(new_tracker, std::string_view(publication.target).substr(slash + 1)));
  PHX_TRY_DONE(Rename(new_tracker, tracker));
  return SyncFolder(folder);
}

}  // namespace phalanx::universal
