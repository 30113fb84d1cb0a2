#include "checkpoint/memory/memory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "base/fnv.h"
#include "base/json_text.h"
#include "base/process/memory.h"
#include "checkpoint/files/crew.h"
#include "checkpoint/files/file_crc.h"
#include "checkpoint/files/files.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/memory_names.h"

namespace phalanx::checkpoint {
namespace {

namespace fs = std::filesystem;
using Json = nlohmann::json;

constexpr size_t kInfoBytesMax = 64 * 1024;
constexpr int kFoldersOfOneAddress = 64;
// What is left to others of the node's memory.
constexpr uint64_t kSpareBytes = uint64_t{64} << 20;

// Names that any job id and path can have.
uint64_t Hash(const std::string& text) { return Fnv1a().Add(text).value(); }

std::string HexHash(const std::string& text) { return fmt::format("{:016x}", Hash(text)); }

// Ours and nobody else's to write: what lies in /dev/shm may be anybody's.
Status CheckOwn(int fd, const std::string& path, mode_t kind) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return CallFailed(path, "fstat", errno);
  if ((info.st_mode & S_IFMT) != kind)
    return absl::FailedPreconditionError(fmt::format("{}: not what it should be", path));
  if (info.st_uid != geteuid()) {
    return absl::PermissionDeniedError(fmt::format("{} belongs to user {}", path, info.st_uid));
  }
  if ((info.st_mode & 077) != 0) return absl::PermissionDeniedError(fmt::format("{} is open to other users", path));
  return absl::OkStatus();
}

StatusOr<Fd> OpenOwn(const std::string& path, int flags) {
  Fd file(open(path.c_str(), flags | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK, 0600));
  if (!file.valid()) return CallFailed(path, "open", errno);
  PHX_RETURN_IF_ERROR(CheckOwn(file.get(), path, S_IFREG));
  return file;
}

Status MakeOwnFolder(const std::string& path) {
  if (mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) return CallFailed(path, "mkdir", errno);
  const Fd folder(open(path.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC | O_NOFOLLOW));
  if (!folder.valid()) return CallFailed(path, "open", errno);
  return CheckOwn(folder.get(), path, S_IFDIR);
}

std::string MarkFrom(const struct stat& info) { return fmt::format("{}:{}", info.st_dev, info.st_ino); }

// A file system that is mounted again may have another device number: NFS, FUSE and btrfs are given one each time.
bool IsAnother(const std::string& mark, const struct stat& info) {
  return !mark.empty() && mark.substr(mark.find(':') + 1) != fmt::format("{}", info.st_ino);
}

// What is left of its path is of the file system that it was in: else that is not mounted.
bool IsDeleted(const DirectoryMark& known) {
  if (known.mark.empty()) return false;
  fs::path left = fs::path(known.dir).parent_path();
  struct stat info {};
  while (stat(left.c_str(), &info) != 0) {
    if (errno != ENOENT || left == left.parent_path()) return false;
    left = left.parent_path();
  }
  return known.mark.substr(0, known.mark.find(':')) == fmt::format("{}", info.st_dev);
}

std::optional<uint64_t> NumberBehindLastDot(const std::string& name) {
  const size_t dot = name.rfind('.');
  if (dot == std::string::npos || dot + 1 == name.size() || name.size() - dot > 19) return std::nullopt;
  uint64_t number = 0;
  for (size_t i = dot + 1; i < name.size(); ++i) {
    if (name[i] < '0' || name[i] > '9') return std::nullopt;
    number = number * 10 + static_cast<uint64_t>(name[i] - '0');
  }
  return number;
}

uint64_t FileBytes(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

// Of the first folder's name.
std::string BaseOf(const std::string& job_id, const std::string& address) {
  return fmt::format("{}{}-{}-{}", kMemoryPrefix, geteuid(), HexHash(job_id), HexHash(address));
}

Status MakeSlotFile(const SlotFile& file) {
  Fd fd(open(file.path.c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!fd.valid()) return CallFailed(file.path, "open", errno);
  // Reserved before it is mapped: whoever touches memory that is not there dies of SIGBUS.
  if (const int error = posix_fallocate(fd.get(), 0, static_cast<off_t>(file.bytes)); error != 0) {
    return ErrnoStatus(error, fmt::format("{}: reserving {} bytes", file.path, file.bytes));
  }
  void* const memory = mmap(nullptr, file.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd.get(), 0);
  if (memory == MAP_FAILED) return CallFailed(file.path, "mmap", errno);
  madvise(memory, file.bytes, MADV_HUGEPAGE);  // where the mount gives them
#ifdef MADV_POPULATE_WRITE
  const bool populated = madvise(memory, file.bytes, MADV_POPULATE_WRITE) == 0;
#else
  const bool populated = false;
#endif
  if (!populated) {  // before Linux 5.14; the memory is reserved, so touching it is safe
    for (uint64_t at = 0; at < file.bytes; at += kControlBytes) static_cast<volatile char*>(memory)[at] = 0;
  }
  munmap(memory, file.bytes);
  return absl::OkStatus();
}

}  // namespace

// What slots may still take of the memory behind `path`.
uint64_t FreeMemoryBytes(const std::string& path) {
  struct statvfs room {};
  const uint64_t shm = statvfs(path.c_str(), &room) == 0 ? uint64_t{room.f_bavail} * room.f_frsize : 0;
  const uint64_t both = std::min(shm, static_cast<uint64_t>(std::max<int64_t>(0, AvailableMemoryBytes())));
  return both - std::min(both, kSpareBytes);
}

Status MakeSlotFiles(const std::vector<SlotFile>& files) {
  for (const SlotFile& file : files) {
    // Whoever has planned it has looked as well, and others have been made since.
    const bool has_room = file.bytes <= FreeMemoryBytes(fs::path(file.path).parent_path());
    Status made = has_room ? MakeSlotFile(file)
                           : absl::ResourceExhaustedError(fmt::format("there is no memory for {} bytes", file.bytes));
    if (made.ok()) continue;
    for (const SlotFile& each : files) unlink(each.path.c_str());
    return made;
  }
  return absl::OkStatus();
}

DirectoryMark MarkOf(const std::string& dir) {
  struct stat info {};
  return {dir, stat(dir.c_str(), &info) == 0 ? MarkFrom(info) : ""};
}

std::set<std::string> GoneOf(const std::vector<DirectoryMark>& marks) {
  std::set<std::string> gone;
  for (const DirectoryMark& known : marks) {
    struct stat info {};
    const bool there = stat(known.dir.c_str(), &info) == 0;
    if (there ? IsAnother(known.mark, info) : errno == ENOENT && IsDeleted(known)) gone.insert(known.dir);
  }
  return gone;
}

ImageFault CheckMemoryImage(const MemoryImage& image) {
  // Too few descriptors, or too little memory, are this process's trouble.
  const auto fault = [](const Status& why) { return ImageFault{Message(why), !absl::IsResourceExhausted(why)}; };
  const StatusOr<Fd> file = OpenOwn(image.path, O_RDONLY);
  if (!file.ok()) return fault(file.status());
  const StatusOr<uint32_t> crc = FileCrc(file->get(), image.path, image.image.bytes, CrewSize());
  if (!crc.ok()) return fault(crc.status());
  if (*crc == image.image.crc32) return {};
  return {fmt::format("{} has CRC {:08x}, and {:08x} was sealed", image.path, *crc, image.image.crc32), true};
}

// --- a node's memory ----------------------------------------------------------------------------------------------

struct NodeMemory::Mapping {
  std::string path;  // of the control page
  uint8_t* bytes = nullptr;

  Mapping() = default;
  Mapping(const Mapping&) = delete;
  Mapping& operator=(const Mapping&) = delete;
  ~Mapping() {
    if (bytes != nullptr) munmap(bytes, kControlBytes);
  }
};

struct NodeMemory::Folder {
  std::string path;
  std::string mark;
  bool taken_up = false;                                     // and its directory not looked at yet
  std::map<std::string, std::unique_ptr<Mapping>> mappings;  // by page
};

NodeMemory::NodeMemory(std::string path, Fd lock) : path_(std::move(path)), lock_(std::move(lock)) {}

NodeMemory::~NodeMemory() = default;

bool NodeMemory::IsLeft(const std::string& root, const std::string& job_id, const std::string& address) {
  const std::string base = BaseOf(job_id, address);
  const StatusOr<std::vector<std::string>> names = ListFolder(root);
  return names.ok() && std::ranges::any_of(*names, [&](const std::string& name) { return name.starts_with(base); });
}

StatusOr<std::unique_ptr<NodeMemory>> NodeMemory::Open(const std::string& root, const std::string& job_id,
                                                       const std::string& address) {
  const std::string base = root + "/" + BaseOf(job_id, address);
  Status last = absl::OkStatus();
  for (int i = 0; i < kFoldersOfOneAddress; ++i) {
    const std::string path = i == 0 ? base : fmt::format("{}-{}", base, i);
    last = MakeOwnFolder(path);
    if (!last.ok()) continue;  // somebody else's
    StatusOr<Fd> lock = OpenOwn(path + "/" + kOwnerFile, O_RDWR | O_CREAT);
    if (!lock.ok()) {
      last = lock.status();
      continue;
    }
    if (flock(lock->get(), LOCK_EX | LOCK_NB) != 0) continue;  // another agent's of this job
    Json node = {{"version", 1}, {"job_id", job_id}, {"address", address}};
    const std::string text = node.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    PHX_RETURN_IF_ERROR(WriteFully(lock->get(), path, text));
    auto memory = std::unique_ptr<NodeMemory>(new NodeMemory(path, *std::move(lock)));
    PHX_RETURN_IF_ERROR(memory->TakeUp());
    return memory;
  }
  if (!last.ok()) return last;
  return absl::ResourceExhaustedError(
      fmt::format("{} and {} more are held by other agents", base, kFoldersOfOneAddress));
}

Status NodeMemory::TakeUp() {
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path_));
  for (const std::string& name : names) {
    if (name == kOwnerFile) continue;
    Status taken = TakeUpFolder(path_ + "/" + name);
    if (taken.ok()) continue;
    const auto half =
        std::ranges::find_if(folders_, [&](const auto& entry) { return entry.second->path == path_ + "/" + name; });
    if (half != folders_.end()) Unmap(half->first);
    if (absl::IsResourceExhausted(taken)) return taken;  // of open files, say: it can be read another time
    std::error_code error;
    fs::remove_all(path_ + "/" + name, error);  // nobody could ever read it
  }
  return absl::OkStatus();
}

Status NodeMemory::TakeUpFolder(const std::string& path) {
  const std::string info_path = path + "/" + kInfoFile;
  PHX_ASSIGN_OR_RETURN(const std::string text, ReadFile(info_path, kInfoBytesMax));
  const Json object = Json::parse(text, nullptr, false);
  const std::string dir = TextIn(object, "dir");
  if (dir.empty()) return absl::DataLossError(fmt::format("{} names no directory", info_path));
  auto folder = std::make_unique<Folder>();
  folder->path = path;
  folder->mark = TextIn(object, "identity");
  folder->taken_up = true;
  folders_[dir] = std::move(folder);
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
  for (const std::string& name : names) {
    if (!name.starts_with(kControlPrefix)) continue;
    PHX_RETURN_IF_ERROR(OpenPage(dir, name.substr(kControlPrefix.size())).status());
  }
  return absl::OkStatus();
}

StatusOr<std::string> NodeMemory::FetchedFolder() const {
  std::string folder = path_ + "/" + kFetchedFolder;
  PHX_RETURN_IF_ERROR(MakeOwnFolder(folder));
  return folder;
}

std::vector<DirectoryMark> NodeMemory::TakenUp() const {
  std::vector<DirectoryMark> taken_up;
  for (const auto& [dir, folder] : folders_) {
    if (folder->taken_up) taken_up.push_back({dir, folder->mark});
  }
  return taken_up;
}

void NodeMemory::KeepAllBut(const std::set<std::string>& dirs) {
  for (const std::string& dir : dirs) {
    const auto gone = folders_.find(dir);
    if (gone == folders_.end() || !gone->second->taken_up) continue;
    std::error_code error;
    fs::remove_all(gone->second->path, error);
    Unmap(dir);
  }
  for (const auto& [dir, folder] : folders_) folder->taken_up = false;
}

bool NodeMemory::WantsMark(const std::string& dir) const {
  const auto folder = folders_.find(dir);
  return folder != folders_.end() && folder->second->mark.empty();
}

void NodeMemory::SetMark(const DirectoryMark& mark) {
  const auto folder = folders_.find(mark.dir);
  if (folder == folders_.end()) return;
  folder->second->mark = mark.mark;
  // Of tmpfs, and a few bytes longer than before: where that fails, nothing is known, as before.
  WriteInfo(*folder->second, mark.dir).IgnoreError();
}

Status NodeMemory::WriteInfo(const Folder& folder, const std::string& dir) {
  const std::string path = fmt::format("{}/{}", folder.path, kInfoFile);
  PHX_ASSIGN_OR_RETURN(const Fd info, OpenOwn(path, O_RDWR | O_CREAT));
  const Json object = {{"version", 1}, {"dir", dir}, {"identity", folder.mark}};
  return WriteFully(info.get(), path, object.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n");
}

StatusOr<NodeMemory::Folder*> NodeMemory::OpenFolder(const std::string& dir) {
  if (const auto known = folders_.find(dir); known != folders_.end()) return known->second.get();
  const std::string path = path_ + "/" + HexHash(dir);
  std::error_code error;
  fs::remove_all(path, error);  // of a directory that was deleted, or whose name has the same hash
  PHX_RETURN_IF_ERROR(MakeOwnFolder(path));
  auto folder = std::make_unique<Folder>();
  folder->path = path;
  PHX_RETURN_IF_ERROR(WriteInfo(*folder, dir));
  return (folders_[dir] = std::move(folder)).get();
}

void NodeMemory::Unmap(const std::string& dir) {
  pages_.Forget(dir);
  folders_.erase(dir);
}

StatusOr<std::string> NodeMemory::OpenPage(const std::string& dir, const std::string& name) {
  if (const auto known = folders_.find(dir); known != folders_.end()) {
    if (const auto mapped = known->second->mappings.find(name); mapped != known->second->mappings.end()) {
      return mapped->second->path;
    }
  }
  PHX_ASSIGN_OR_RETURN(Folder* const folder, OpenFolder(dir));
  auto mapping = std::make_unique<Mapping>();
  mapping->path = fmt::format("{}/{}{}", folder->path, kControlPrefix, name);
  PHX_ASSIGN_OR_RETURN(const Fd file, OpenOwn(mapping->path, O_RDWR | O_CREAT));
  const bool fresh = FileBytes(mapping->path) != kControlBytes;
  if (const int error = posix_fallocate(file.get(), 0, kControlBytes); error != 0) {
    return ErrnoStatus(error, fmt::format("{}: reserving its page", mapping->path));
  }
  void* const mapped = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return CallFailed(mapping->path, "mmap", errno);
  mapping->bytes = static_cast<uint8_t*>(mapped);
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> entries, ListFolder(folder->path));
  if (fresh) std::memset(mapping->bytes, 0, kControlBytes);  // what was half a page is none
  pages_.Add(dir, name, folder->path, mapping->bytes);
  RemoveUnnamed(dir, name, entries);
  return (folder->mappings[name] = std::move(mapping))->path;
}

// Files that no slot names are left from a change that was cut off.
void NodeMemory::RemoveUnnamed(const std::string& dir, const std::string& name,
                               const std::vector<std::string>& entries) {
  const std::set<std::string> named = pages_.Files(dir, name);
  const std::string prefix = SlotPrefix(name);
  for (const std::string& entry : entries) {
    if (!entry.starts_with(prefix)) continue;
    const std::string path = folders_.at(dir)->path + "/" + entry;
    if (!named.contains(path)) unlink(path.c_str());
    if (const auto number = NumberBehindLastDot(entry)) pages_.SkipNumber(dir, name, *number);
  }
}

void NodeMemory::FreeUnneeded(const std::string& dir, const SaveKey& save) {
  for (const std::string& name : pages_.Unneeded(dir, save)) {
    const auto folder = folders_.find(dir);
    const auto mapping = folder->second->mappings.find(name);
    for (const std::string& path : pages_.Files(dir, name)) unlink(path.c_str());
    unlink(mapping->second->path.c_str());
    pages_.Forget(dir, name);
    folder->second->mappings.erase(mapping);
  }
}

StatusOr<SlotPlan> NodeMemory::Plan(const std::string& dir, const std::string& name, uint64_t bytes, int slots,
                                    uint64_t budget) {
  return pages_.Plan(dir, name, {bytes, slots, budget}, FreeMemoryBytes(path_), FileBytes);
}

void NodeMemory::Install(const SlotPlan& plan) {
  for (const std::string& path : pages_.Install(plan)) unlink(path.c_str());
}

bool NodeMemory::HandOut(const MemoryImage& image) { return pages_.HandOut(image, FreeMemoryBytes(path_)); }

bool NodeMemory::HasRoomFor(const SlotPlan& plan) const {
  return plan.bytes * plan.files.size() <= FreeMemoryBytes(path_);
}

bool NodeMemory::Postpone(const SlotPlan& plan) {
  bool had = false;
  Install(pages_.Postponed(plan, &had));
  return had;
}

uint64_t NodeMemory::Bytes() const {
  uint64_t bytes = 0;
  AddBytes(path_, bytes);
  return bytes;
}

void NodeMemory::Remove() {
  while (!folders_.empty()) Unmap(std::string(folders_.begin()->first));
  std::error_code error;
  fs::remove_all(path_, error);
}

}  // namespace phalanx::checkpoint
