#include "cli/state_dir.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "agent/flags/flag_values.h"
#include "base/fd.h"
#include "base/log.h"

namespace phalanx::cli {
namespace {

namespace fs = std::filesystem;

constexpr size_t kMaxLineBytes = 4'096;
constexpr const char* kUnnamedMark = "unnamed";
constexpr std::array kMastersFiles = {"events.db",   "events.db-wal", "events.db-shm", "journal",
                                      "journal.new", "master.log",    "lock",          kUnnamedMark};

bool HoldsJob(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "events.db", error) || fs::exists(folder / "address", error);
}

// When something last happened there.
fs::file_time_type LastChange(const fs::path& folder) {
  fs::file_time_type last = fs::file_time_type::min();
  for (const char* name : {"events.db", "events.db-wal", "address"}) {
    std::error_code error;
    const fs::file_time_type time = fs::last_write_time(folder / name, error);
    if (!error) last = std::max(last, time);
  }
  return last;
}

// The folders of jobs in `root` whose name is wanted; the one changed last first.
template <typename IsWanted>
std::vector<std::string> JobFoldersIn(const fs::path& root, IsWanted is_wanted) {
  std::vector<std::pair<fs::file_time_type, std::string>> found;
  std::error_code error;
  for (fs::directory_iterator entry(root, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    const fs::path& folder = entry->path();
    if (is_wanted(folder.filename().string()) && HoldsJob(folder)) found.push_back({LastChange(folder), folder});
  }
  std::sort(found.rbegin(), found.rend());
  std::vector<std::string> folders;
  folders.reserve(found.size());
  for (auto& [time, folder] : found) folders.push_back(std::move(folder));
  return folders;
}

}  // namespace

std::string DefaultStateRoot(const Environment& env) {
  const std::string xdg = env.NonEmptyOr("XDG_STATE_HOME", "");
  if (!xdg.empty() && xdg[0] == '/') return xdg + "/phalanx";
  const std::string home = env.NonEmptyOr("HOME", "");
  if (!home.empty() && home[0] == '/') return home + "/.local/state/phalanx";
  return fmt::format("/tmp/phalanx-{}", getuid());
}

Status MakePrivateFolder(const std::string& path) {
  std::error_code error;
  const fs::path parent = fs::path(path).parent_path();
  if (!parent.empty()) fs::create_directories(parent, error);
  if (error) return ErrnoStatus(error.value(), parent.string());
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return ErrnoStatus(errno, path);
  struct stat info {};
  if (stat(path.c_str(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISDIR(info.st_mode)) return absl::FailedPreconditionError(fmt::format("{}: not a folder", path));
  if (info.st_uid != geteuid()) return absl::PermissionDeniedError(fmt::format("{}: belongs to another user", path));
  return absl::OkStatus();
}

Status WritePrivateFile(const std::string& path, const std::string& text) {
  const std::string draft = fmt::format("{}.{}", path, getpid());
  unlink(draft.c_str());
  Fd fd(open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return ErrnoStatus(errno, draft);
  const bool written = write(fd.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
  const int error = written ? 0 : errno;
  if (written && rename(draft.c_str(), path.c_str()) == 0) return absl::OkStatus();
  Status failed = ErrnoStatus(error != 0 ? error : errno, path);
  unlink(draft.c_str());
  return failed;
}

namespace {

// `mask`: nobody may do that to it.
StatusOr<std::string> ReadOwnLine(const std::string& path, mode_t mask) {
  const Fd fd(
      open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));  // whoever has made a pipe of it is not waited for
  if (!fd.valid()) return ErrnoStatus(errno, path);
  struct stat info {};
  if (fstat(fd.get(), &info) != 0) return ErrnoStatus(errno, path);
  if (!S_ISREG(info.st_mode)) return absl::FailedPreconditionError(fmt::format("{}: not a file", path));
  if (info.st_uid != geteuid() && info.st_uid != 0) {
    return absl::PermissionDeniedError(fmt::format("{}: belongs to another user", path));
  }
  if ((info.st_mode & mask) != 0) {
    return absl::PermissionDeniedError(fmt::format(
        "{}: others may read it (mode {:04o}); chmod 600 makes it yours alone", path, info.st_mode & 07777));
  }
  std::string text(kMaxLineBytes, '\0');
  const ssize_t n = read(fd.get(), text.data(), text.size());
  if (n < 0) return ErrnoStatus(errno, path);
  text.resize(static_cast<size_t>(n));
  return text.substr(0, text.find_first_of("\r\n"));
}

}  // namespace

StatusOr<std::string> ReadPrivateLine(const std::string& path) { return ReadOwnLine(path, 0); }

StatusOr<std::string> ReadSecretLine(const std::string& path) { return ReadOwnLine(path, S_IRWXG | S_IRWXO); }

StatusOr<std::string> SharedTokenIn(const std::string& root) {
  const std::string path = fmt::format("{}/{}", root, agent::kSharedTokenFile);
  StatusOr<std::string> found = ReadSecretLine(path);
  if (absl::IsNotFound(found.status())) return "";
  if (found.ok() && found->empty()) return absl::InvalidArgumentError(fmt::format("{}: the file is empty", path));
  return found;
}

std::string StateRootOf(const std::string& job_folder) {
  std::error_code error;
  fs::path folder = fs::absolute(job_folder, error).lexically_normal();
  if (!folder.has_filename()) folder = folder.parent_path();  // it ends with a slash
  return folder.parent_path().string();
}

void MarkUnnamed(const std::string& folder) {
  const Status marked = WritePrivateFile(folder + "/" + kUnnamedMark, "");
  if (!marked.ok()) Log(LogLevel::kWarning, "state-dir", {{"what", Message(marked)}});
}

void PruneUnnamedJobs(const std::string& root, std::chrono::hours kept_for) {
  const fs::file_time_type oldest = fs::file_time_type::clock::now() - kept_for;
  std::vector<fs::path> ended;
  std::error_code error;
  for (fs::directory_iterator entry(root, error); !error && entry != fs::directory_iterator(); entry.increment(error)) {
    std::error_code gone;
    const fs::path& folder = entry->path();
    if (!fs::exists(folder / kUnnamedMark, gone) || fs::exists(folder / "address", gone)) continue;
    const fs::file_time_type last = LastChange(folder);  // the earliest of times: its master has only just begun
    if (!fs::is_symlink(folder, gone) && last != fs::file_time_type::min() && last < oldest) ended.push_back(folder);
  }
  for (const fs::path& folder : ended) {
    for (const char* name : kMastersFiles) unlink((folder / name).c_str());
    rmdir(folder.c_str());
  }
}

std::vector<std::string> JobFolders(const Environment& env, const std::string& given) {
  if (!given.empty() && HoldsJob(given)) return {given};
  return JobFoldersIn(given.empty() ? DefaultStateRoot(env) : given, [](const std::string&) { return true; });
}

StatusOr<std::string> FindJobFolder(const Environment& env, const std::string& given, const std::string& job) {
  if (!given.empty() && HoldsJob(given)) return given;
  const fs::path root = given.empty() ? DefaultStateRoot(env) : given;
  const std::string name = agent::JobDirectoryName(job);
  const std::string shared_id = name + agent::kSharedIdMark;
  const std::vector<std::string> folders = JobFoldersIn(
      root, [&](const std::string& folder) { return job.empty() || folder == name || folder.starts_with(shared_id); });
  if (!folders.empty()) return folders.front();
  return absl::NotFoundError(fmt::format("no job{} in {}; --state-dir names another place, --master a master to ask",
                                         job.empty() ? "" : fmt::format(" '{}'", job), root.string()));
}

}  // namespace phalanx::cli
