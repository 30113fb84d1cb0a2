#include "checkpoint/memory/memory_reader.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "base/json_text.h"
#include "base/save_key.h"
#include "checkpoint/files/files.h"
#include "checkpoint/rank/memory_names.h"

namespace phalanx::checkpoint {
namespace {

using nlohmann::ordered_json;

constexpr size_t kMaxJsonBytes = 1 << 20;
constexpr size_t kMaxLocksBytes = 16 << 20;

bool IsHash(std::string_view text) {
  return text.size() == 16 &&
         std::ranges::all_of(text, [](char c) { return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'f'); });
}

template <typename Number>
std::optional<Number> ParseNumber(std::string_view text) {
  Number value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Whether anybody holds its flock, from the kernel's list: to try it would take it for a moment, and an agent that
// begins just then would take this memory for another's.
bool IsLocked(const std::string& path) {
  struct stat info {};
  const StatusOr<std::string> locks = ReadFile("/proc/locks", kMaxLocksBytes);
  if (stat(path.c_str(), &info) != 0 || !locks.ok()) return false;
  const std::string inode = fmt::format(" {:02x}:{:02x}:{} ", major(info.st_dev), minor(info.st_dev), info.st_ino);
  for (size_t at = locks->find(inode); at != std::string::npos; at = locks->find(inode, at + 1)) {
    const size_t line = locks->rfind('\n', at) + 1;  // of the first line npos + 1, which is 0
    if (locks->substr(line, at - line).find(" FLOCK ") != std::string::npos) return true;
  }
  return false;
}

// An empty object and a problem where it is none.
ordered_json ReadObject(const std::string& path, std::vector<std::string>& problems) {
  const StatusOr<std::string> text = ReadFile(path, kMaxJsonBytes);
  if (!text.ok()) {
    problems.push_back(Message(text.status()));
    return ordered_json::object();
  }
  ordered_json object = ordered_json::parse(*text, nullptr, /*allow_exceptions=*/false);
  if (object.is_object()) return object;
  problems.push_back(fmt::format("{}: no JSON object", path));
  return ordered_json::object();
}

void ReadSlots(MemoryDirectory& directory, const std::string& page_name) {
  const std::string path = fmt::format("{}/{}{}", directory.folder, kControlPrefix, page_name);
  const StatusOr<std::string> text = ReadFile(path, kControlBytes);
  if (!text.ok()) {
    directory.problems.push_back(Message(text.status()));
    return;
  }
  ControlPage page;
  const std::string why = ParseControl(text->data(), text->size(), &page);
  if (!why.empty()) {
    directory.problems.push_back(fmt::format("{}: {}", path, why));
    return;
  }
  directory.pages.push_back(page_name);
  for (size_t i = 0; i < page.slots.size(); ++i) {
    const Slot& slot = page.slots[i];
    if (slot.file_number == 0) continue;
    const std::string name = SlotName(page_name, static_cast<int>(i), slot.file_number);
    directory.slots.push_back({page_name, fmt::format("{}/{}", directory.folder, name), slot});
  }
}

MemoryDirectory ReadDirectory(const std::string& folder) {
  MemoryDirectory directory;
  directory.folder = folder;
  directory.dir = TextIn(ReadObject(fmt::format("{}/{}", folder, kInfoFile), directory.problems), "dir");
  const StatusOr<std::vector<std::string>> names = ListFolder(folder);
  if (!names.ok()) {
    directory.problems.push_back(Message(names.status()));
    return directory;
  }
  for (const std::string& name : *names) {
    if (!name.starts_with(kControlPrefix)) continue;
    const std::string page = name.substr(kControlPrefix.size());
    const bool is_shared = IsSharedPage(page);
    if (is_shared || ParseNumber<uint32_t>(page)) ReadSlots(directory, page);
  }
  return directory;
}

}  // namespace

bool AddBytes(const std::string& path, uint64_t& bytes) {
  const StatusOr<std::vector<std::string>> names = ListFolder(path);
  if (!names.ok()) return false;
  bool complete = true;
  for (const std::string& name : *names) {
    const std::string below = fmt::format("{}/{}", path, name);
    struct stat info {};
    if (lstat(below.c_str(), &info) != 0) {
      complete = complete && errno == ENOENT;
    } else if (S_ISDIR(info.st_mode)) {
      complete = AddBytes(below, bytes) && complete;
    } else {
      bytes += static_cast<uint64_t>(info.st_size);
    }
  }
  return complete;
}

bool IsMemoryName(std::string_view name) {
  if (!name.starts_with(kMemoryPrefix)) return false;
  name.remove_prefix(kMemoryPrefix.size());
  const size_t dash = name.find('-');
  if (dash == std::string_view::npos || !ParseNumber<uint32_t>(name.substr(0, dash))) return false;
  name.remove_prefix(dash + 1);
  if (name.size() < 33 || !IsHash(name.substr(0, 16)) || name[16] != '-' || !IsHash(name.substr(17, 16))) return false;
  name.remove_prefix(33);
  return name.empty() || (name[0] == '-' && ParseNumber<uint32_t>(name.substr(1)));
}

StatusOr<MemoryFolder> ReadMemory(const std::string& path) {
  MemoryFolder memory;
  memory.path = path;
  struct stat info {};
  if (lstat(path.c_str(), &info) != 0) return CallFailed(path, "lstat", errno);
  if (!S_ISDIR(info.st_mode)) return absl::InvalidArgumentError(fmt::format("{} is not a folder", path));
  memory.own = info.st_uid == geteuid();
  memory.complete = AddBytes(path, memory.bytes);
  if (!memory.own) return memory;
  const ordered_json owner = ReadObject(fmt::format("{}/{}", path, kOwnerFile), memory.problems);
  memory.job_id = TextIn(owner, "job_id");
  memory.address = TextIn(owner, "address");
  memory.agent_lives = IsLocked(fmt::format("{}/{}", path, kOwnerFile));
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(path));
  for (const std::string& name : names) {
    if (IsHash(name)) memory.directories.push_back(ReadDirectory(fmt::format("{}/{}", path, name)));
  }
  return memory;
}

StatusOr<std::vector<MemoryFolder>> ReadMemories(const std::string& root) {
  PHX_ASSIGN_OR_RETURN(const std::vector<std::string> names, ListFolder(root));
  std::vector<MemoryFolder> memories;
  for (const std::string& name : names) {
    if (!IsMemoryName(name)) continue;
    StatusOr<MemoryFolder> memory = ReadMemory(fmt::format("{}/{}", root, name));
    if (memory.ok()) memories.push_back(*std::move(memory));  // else it has gone meanwhile
  }
  return memories;
}

StatusOr<std::vector<std::string>> DeadMemories(const std::string& path) {
  const std::string named = path.substr(0, path.find_last_not_of('/') + 1);  // as a shell completes it
  if (IsMemoryName(named.substr(named.rfind('/') + 1))) return std::vector<std::string>{named};
  PHX_ASSIGN_OR_RETURN(const std::vector<MemoryFolder> all, ReadMemories(path));
  std::vector<std::string> dead;
  for (const MemoryFolder& memory : all) {
    if (memory.own && !memory.agent_lives) dead.push_back(memory.path);
  }
  if (!dead.empty()) return dead;
  return absl::NotFoundError(
      fmt::format("no checkpoint memory of this user in {} whose agent is dead (of {} in all)", path, all.size()));
}

StatusOr<Fd> LockMemory(const std::string& path) {
  const std::string file = fmt::format("{}/{}", path, kOwnerFile);
  Fd fd(open(file.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (!fd.valid()) return CallFailed(file, "open", errno);
  if (flock(fd.get(), LOCK_EX | LOCK_NB) == 0) return fd;
  if (errno != EWOULDBLOCK) return CallFailed(file, "flock", errno);
  return absl::FailedPreconditionError(fmt::format("{}: its agent lives", path));
}

size_t RanksOf(const SaveOfAll& save) {
  std::set<uint32_t> ranks;
  for (const MemorySlot* slot : save.slots) {
    if (!IsSharedPage(slot->page)) ranks.insert(slot->slot.image.rank);
  }
  return ranks.size();
}

SaveOfAll NewestOfAll(const std::vector<const MemoryDirectory*>& directories, std::optional<int64_t> step) {
  std::map<SaveKey, SaveOfAll> saves;
  size_t pages = 0;
  for (const MemoryDirectory* directory : directories) {
    pages += directory->pages.size();
    for (const std::string& page : directory->pages) {
      std::set<SaveKey> seen;  // two slots of a page never count as two pages
      for (const MemorySlot& slot : directory->slots) {
        if (slot.page != page || !slot.slot.sealed() || slot.slot.is_dropped()) continue;
        const SaveKey save = KeyOf(slot.slot.image);
        if ((step && save.step != *step) || !seen.insert(save).second) continue;
        saves[save].slots.push_back(&slot);
        saves[save].committed |= slot.slot.is_committed();
      }
    }
  }
  std::erase_if(saves, [&](const auto& save) { return save.second.slots.size() != pages; });
  for (auto& [key, save] : saves) save.committed |= RanksOf(save) == save.slots.front()->slot.image.world_size;
  const auto committed =
      std::find_if(saves.rbegin(), saves.rend(), [](const auto& save) { return save.second.committed; });
  if (committed == saves.rend()) return saves.empty() ? SaveOfAll{} : saves.rbegin()->second;
  for (auto newer = saves.rbegin(); newer != committed; ++newer) committed->second.newer.push_back(newer->first.step);
  return committed->second;
}

}  // namespace phalanx::checkpoint
