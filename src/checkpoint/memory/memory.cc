// More than 500 lines: one class over the same pages and slots, whose every call must leave them as the others expect.
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
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

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

// FNV-1a, 64 bits: names that any job id and path can have.
uint64_t Hash(const std::string& text) {
  uint64_t hash = 14695981039346656037U;
  for (const char c : text) hash = (hash ^ static_cast<uint8_t>(c)) * 1099511628211U;
  return hash;
}

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

// What slots may still take of the memory behind `path`.
uint64_t FreeBytes(const std::string& path) {
  struct statvfs room {};
  const uint64_t shm = statvfs(path.c_str(), &room) == 0 ? uint64_t{room.f_bavail} * room.f_frsize : 0;
  const uint64_t both = std::min(shm, static_cast<uint64_t>(std::max<int64_t>(0, AvailableMemoryBytes())));
  return both - std::min(both, kSpareBytes);
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

Status MakeSlotFiles(const std::vector<SlotFile>& files) {
  for (const SlotFile& file : files) {
    Status made = MakeSlotFile(file);
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
    const bool other = there ? !known.mark.empty() && MarkFrom(info) != known.mark : errno == ENOENT;
    if (other) gone.insert(known.dir);
  }
  return gone;
}

std::string CheckMemoryImage(const MemoryImage& image) {
  const StatusOr<Fd> file = OpenOwn(image.path, O_RDONLY);
  if (!file.ok()) return Message(file.status());
  const StatusOr<uint32_t> crc = FileCrc(file->get(), image.path, image.image.bytes, CrewSize());
  if (!crc.ok()) return Message(crc.status());
  if (*crc == image.image.crc32) return "";
  return fmt::format("{} has CRC {:08x}, and {:08x} was sealed", image.path, *crc, image.image.crc32);
}

// --- a node's memory ----------------------------------------------------------------------------------------------

struct NodeMemory::Page {
  std::string path;    // of the control page
  std::string folder;  // where the slots are
  std::string name;
  uint8_t* mapped = nullptr;
  uint64_t next_number = 1;
  std::set<int> replaced_next;  // slots: when a newer save is committed
  std::set<int> replacing;      // held, and a new file is due
  std::vector<int> to_tell;     // of those, not told yet

  Page() = default;
  Page(const Page&) = delete;
  Page& operator=(const Page&) = delete;
  ~Page() {
    if (mapped != nullptr) munmap(mapped, kControlBytes);
  }

  Control control() const { return Control(mapped); }
  std::string SlotPath(int slot, uint64_t number) const {
    return fmt::format("{}/{}", folder, SlotName(name, slot, number));
  }
  ControlPage Parse() const {
    alignas(8) uint8_t copy[kControlBytes];
    control().Copy(copy);
    ControlPage page;
    if (!ParseControl(copy, sizeof copy, &page).empty()) page.slots.clear();
    return page;
  }
};

struct NodeMemory::Folder {
  std::string path;
  std::string mark;
  bool taken_up = false;  // and its directory not looked at yet
  std::map<std::string, std::unique_ptr<Page>> pages;
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
    const Status taken = TakeUpFolder(path_ + "/" + name);
    if (taken.ok()) continue;
    std::erase_if(folders_, [&](const auto& entry) { return entry.second->path == path_ + "/" + name; });
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
    folders_.erase(gone);
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

StatusOr<std::string> NodeMemory::OpenPage(const std::string& dir, const std::string& name) {
  if (Page* page = Find(dir, name)) return page->path;
  PHX_ASSIGN_OR_RETURN(Folder* const folder, OpenFolder(dir));
  auto page = std::make_unique<Page>();
  page->folder = folder->path;
  page->name = name;
  page->path = fmt::format("{}/{}{}", folder->path, kControlPrefix, name);
  PHX_ASSIGN_OR_RETURN(const Fd file, OpenOwn(page->path, O_RDWR | O_CREAT));
  const bool fresh = FileBytes(page->path) != kControlBytes;
  if (const int error = posix_fallocate(file.get(), 0, kControlBytes); error != 0) {
    return ErrnoStatus(error, fmt::format("{}: reserving its page", page->path));
  }
  void* const mapped = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) return CallFailed(page->path, "mmap", errno);
  page->mapped = static_cast<uint8_t*>(mapped);
  ControlPage parsed;
  if (fresh || !ParseControl(page->mapped, kControlBytes, &parsed).empty()) page->control().Format(live_epoch_);
  const ControlPage now = page->Parse();
  // Files that no slot names are left from a change that was cut off.
  std::set<std::string> named;
  for (size_t slot = 0; slot < now.slots.size(); ++slot) {
    const Slot& each = now.slots[slot];
    if (each.held != 0) page->control().Release(static_cast<int>(slot));
    if (each.sealed()) highest_epoch_ = std::max(highest_epoch_, each.image.epoch);
    if (each.file_number == 0) continue;
    named.insert(page->SlotPath(static_cast<int>(slot), each.file_number));
    page->next_number = std::max(page->next_number, each.file_number + 1);
    // Ranks of an earlier life may have had it mapped, or have it still.
    if (each.is_committed()) page->replaced_next.insert(static_cast<int>(slot));
  }
  const std::string prefix = SlotPrefix(name);
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> entries, ListFolder(folder->path));
  for (const std::string& entry : entries) {
    if (!entry.starts_with(prefix)) continue;
    const std::string path = folder->path + "/" + entry;
    if (!named.contains(path)) unlink(path.c_str());
    if (const auto number = NumberBehindLastDot(entry)) page->next_number = std::max(page->next_number, *number + 1);
  }
  const std::string path = page->path;
  folder->pages[name] = std::move(page);
  return path;
}

void NodeMemory::SetLiveEpoch(uint64_t epoch) {
  live_epoch_ = epoch;
  for (const auto& [dir, folder] : folders_) {
    for (const auto& [name, page] : folder->pages) page->control().SetLiveEpoch(epoch);
  }
}

StatusOr<SlotPlan> NodeMemory::Plan(const std::string& dir, const std::string& name, uint64_t bytes, int slots,
                                    uint64_t budget) {
  Page* page = Find(dir, name);
  if (page == nullptr) return absl::NotFoundError(fmt::format("{} has not been opened", dir));
  const ControlPage now = page->Parse();
  SlotPlan plan{dir, name, bytes, 0, {}, ""};
  const int newest = NewestCommitted(now);
  const uint64_t free_bytes = FreeBytes(path_);
  uint64_t wanted = 0;
  uint64_t total = 0;
  for (int slot = 0; slot < slots; ++slot) {
    const bool there =
        slot < static_cast<int>(now.slots.size()) && now.slots[static_cast<size_t>(slot)].file_number != 0;
    const uint64_t number = there ? now.slots[static_cast<size_t>(slot)].file_number : 0;
    const bool fits = there && FileBytes(page->SlotPath(slot, number)) == bytes;
    const bool stays = fits || slot == newest || page->replacing.contains(slot);
    const uint64_t more = stays ? 0 : bytes;
    const std::string limit =
        wanted + more > free_bytes
            ? fmt::format("{} MiB of /dev/shm or of the group's memory are free", free_bytes >> 20)
        : budget != 0 && total + bytes > budget ? fmt::format("memory_budget is {} MiB", budget >> 20)
                                                : "";
    if (!limit.empty() && !stays) {
      if (slot >= 2) {
        plan.why = fmt::format("{} slots of {} MiB instead of {}: {}", slot, bytes >> 20, slots, limit);
        break;
      }
      return absl::ResourceExhaustedError(
          fmt::format("{}: two slots of {} MiB each are needed for page '{}', and {}", dir, bytes >> 20, name, limit));
    }
    total += bytes;
    wanted += more;
    ++plan.slots;
    if (stays && !fits) page->replaced_next.insert(slot);  // of an older plan's size
    if (stays) continue;
    std::erase(page->to_tell, slot);  // one that went without a file
    plan.files.push_back(NewFile(*page, slot, bytes));
  }
  return plan;
}

void NodeMemory::Install(const SlotPlan& plan) {
  Page* page = Find(plan.dir, plan.page);
  if (page == nullptr) {
    for (const SlotFile& file : plan.files) unlink(file.path.c_str());
    return;
  }
  const ControlPage before = page->Parse();
  std::vector<uint64_t> numbers;
  for (const Slot& slot : before.slots) numbers.push_back(slot.file_number);
  numbers.resize(static_cast<size_t>(plan.slots));
  for (const SlotFile& file : plan.files) numbers[static_cast<size_t>(file.slot)] = file.number;
  page->control().SetSlots(static_cast<uint32_t>(numbers.size()), plan.bytes, numbers.data());
  for (size_t slot = 0; slot < before.slots.size(); ++slot) {
    const uint64_t old = before.slots[slot].file_number;
    const bool stays = slot < numbers.size() && numbers[slot] == old;
    if (stays || old == 0) continue;
    unlink(page->SlotPath(static_cast<int>(slot), old).c_str());
    page->replaced_next.erase(static_cast<int>(slot));
    if (page->replacing.erase(static_cast<int>(slot)) > 0) page->control().Release(static_cast<int>(slot));
  }
}

SlotFile NodeMemory::NewFile(Page& page, int slot, uint64_t bytes) {
  const uint64_t number = page.next_number++;
  return {slot, number, page.SlotPath(slot, number), bytes};
}

NodeMemory::Page* NodeMemory::Find(const std::string& dir, const std::string& name) const {
  const auto folder = folders_.find(dir);
  if (folder == folders_.end() || !folder->second) return nullptr;
  const auto page = folder->second->pages.find(name);
  return page == folder->second->pages.end() ? nullptr : page->second.get();
}

void NodeMemory::AddImages(const std::string& dir, const Page& page, std::vector<MemoryImage>& images) const {
  const ControlPage now = page.Parse();
  for (size_t i = 0; i < now.slots.size(); ++i) {
    const Slot& slot = now.slots[i];
    if (!slot.sealed() || slot.file_number == 0 || slot.generation <= slot.dropped) continue;
    const int index = static_cast<int>(i);
    images.push_back({dir, page.name, page.SlotPath(index, slot.file_number), index, slot.generation, slot.image,
                      slot.is_committed()});
  }
}

std::vector<MemoryImage> NodeMemory::Images() const {
  std::vector<MemoryImage> images;
  for (const auto& [dir, folder] : folders_) {
    for (const auto& [name, page] : folder->pages) AddImages(dir, *page, images);
  }
  return images;
}

std::vector<MemoryImage> NodeMemory::Images(const std::string& dir, const SaveKey& save) const {
  std::vector<MemoryImage> images;
  const auto folder = folders_.find(dir);
  if (folder == folders_.end() || !folder->second) return images;
  for (const auto& [name, page] : folder->second->pages) AddImages(dir, *page, images);
  std::erase_if(images, [&](const MemoryImage& image) { return KeyOf(image.image) != save; });
  return images;
}

void NodeMemory::Commit(const std::string& dir, const SaveKey& save) {
  for (const MemoryImage& image : Images(dir, save)) {
    Page* page = Find(dir, image.page);
    page->control().SetCommitted(image.slot, image.generation);
    for (const int slot : std::exchange(page->replaced_next, {})) {
      if (slot == image.slot) {
        page->replaced_next.insert(slot);
        continue;
      }
      const ControlPage now = page->Parse();
      if (!page->control().Hold(slot, now.slots[static_cast<size_t>(slot)].generation)) continue;  // empty by now
      page->replacing.insert(slot);
      page->to_tell.push_back(slot);
    }
  }
}

void NodeMemory::Drop(const std::string& dir, const SaveKey& save) {
  for (const MemoryImage& image : Images(dir, save)) {
    if (!image.committed) Find(dir, image.page)->control().SetDropped(image.slot, image.generation);
  }
}

void NodeMemory::GiveUp(const MemoryImage& image) {
  Page* page = Find(image.dir, image.page);
  if (page == nullptr) return;
  const ControlPage now = page->Parse();
  const auto slot = static_cast<size_t>(image.slot);
  if (slot >= now.slots.size() || now.slots[slot].generation != image.generation) return;  // another image by now
  page->control().SetCommitted(image.slot, 0);
  page->control().SetDropped(image.slot, image.generation);
}

bool NodeMemory::Hold(const MemoryImage& image) {
  Page* page = Find(image.dir, image.page);
  return page != nullptr && page->control().Hold(image.slot, image.generation);
}

void NodeMemory::Release(const MemoryImage& image) {
  Page* page = Find(image.dir, image.page);
  if (page != nullptr && !page->replacing.contains(image.slot)) page->control().Release(image.slot);
}

bool NodeMemory::HandOut(const MemoryImage& image) {
  Page* page = Find(image.dir, image.page);
  if (page == nullptr) return false;
  const bool fresh = page->replaced_next.insert(image.slot).second;
  if (DueBytes() <= FreeBytes(path_)) return true;
  if (fresh) page->replaced_next.erase(image.slot);
  return false;
}

// What files that are to be replaced will take a second time.
uint64_t NodeMemory::DueBytes() const {
  uint64_t bytes = 0;
  for (const auto& [dir, folder] : folders_) {
    for (const auto& [name, page] : folder->pages) {
      bytes += (page->replaced_next.size() + page->replacing.size()) * page->Parse().slot_bytes;
    }
  }
  return bytes;
}

std::vector<SlotPlan> NodeMemory::Replacements() {
  std::vector<SlotPlan> plans;
  for (const auto& [dir, folder] : folders_) {
    for (const auto& [name, page] : folder->pages) {
      if (page->to_tell.empty()) continue;
      const ControlPage now = page->Parse();
      SlotPlan plan{dir, name, now.slot_bytes, static_cast<int>(now.slots.size()), {}, ""};
      for (const int slot : std::exchange(page->to_tell, {}))
        plan.files.push_back(NewFile(*page, slot, now.slot_bytes));
      plans.push_back(std::move(plan));
    }
  }
  return plans;
}

bool NodeMemory::HasRoomFor(const SlotPlan& plan) const { return plan.bytes * plan.files.size() <= FreeBytes(path_); }

bool NodeMemory::Postpone(const SlotPlan& plan) {
  Page* page = Find(plan.dir, plan.page);
  if (page == nullptr) return false;
  const ControlPage before = page->Parse();
  SlotPlan without = plan;
  bool had = false;
  for (SlotFile& file : without.files) {
    had = had || before.slots[static_cast<size_t>(file.slot)].file_number != 0;
    file.number = 0;
    page->to_tell.push_back(file.slot);
  }
  Install(without);
  return had;
}

uint64_t NodeMemory::Bytes() const {
  uint64_t bytes = 0;
  AddBytes(path_, bytes);
  return bytes;
}

void NodeMemory::Remove() {
  folders_.clear();
  std::error_code error;
  fs::remove_all(path_, error);
}

}  // namespace phalanx::checkpoint
