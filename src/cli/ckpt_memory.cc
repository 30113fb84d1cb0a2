#include "cli/ckpt_memory.h"

#include <fmt/format.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <nlohmann/json.hpp>
#include <vector>

#include "base/read_file.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/memory_names.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

using checkpoint::MemoryDirectory;
using checkpoint::MemoryFolder;
using checkpoint::MemorySlot;
using nlohmann::ordered_json;

// What the saves to one directory take on this node.
struct Cost {
  uint64_t save_bytes = 0;  // a slot of each page
  size_t slots_min = 0;     // of a page that has any
  size_t slots_max = 0;
  uint64_t used_bytes = 0;
};

uint64_t FileBytes(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 ? static_cast<uint64_t>(info.st_size) : 0;
}

Cost CostOf(const MemoryDirectory& directory) {
  struct Page {
    size_t slots = 0;
    uint64_t slot_bytes = 0;
  };
  std::map<std::string, Page> pages;
  for (const MemorySlot& slot : directory.slots) {
    Page& page = pages[slot.page];
    ++page.slots;
    page.slot_bytes = std::max(page.slot_bytes, FileBytes(slot.path));
  }
  Cost cost;
  for (const auto& [name, page] : pages) {
    cost.save_bytes += page.slot_bytes;
    cost.slots_min = cost.slots_min == 0 ? page.slots : std::min(cost.slots_min, page.slots);
    cost.slots_max = std::max(cost.slots_max, page.slots);
  }
  checkpoint::AddBytes(directory.folder, cost.used_bytes);
  return cost;
}

std::string SlotsText(const Cost& cost) {
  if (cost.slots_min == cost.slots_max) return fmt::format("{}", cost.slots_max);
  return fmt::format("{} to {}", cost.slots_min, cost.slots_max);
}

std::string DirText(const MemoryDirectory& directory) {
  return directory.dir.empty() ? "an unknown directory" : Printable(directory.dir);
}

std::string Text(const MemoryFolder& memory) {
  const std::string size = fmt::format("{}{}", memory.complete ? "" : "at least ", Bytes(memory.bytes));
  if (!memory.own) return fmt::format("{}: {} used, another user's\n", memory.path, size);
  std::string text =
      fmt::format("{}: {} used, job '{}' on {}, its agent {}\n", memory.path, size, Printable(memory.job_id),
                  Printable(memory.address), memory.agent_lives ? "lives" : "is dead");
  std::vector<std::vector<std::string>> rows = {
      {"WRITERS", "SLOTS", "ONE SAVE", "2 SLOTS NEED", "3 SLOTS NEED", "USED", "DIRECTORY"}};
  for (const MemoryDirectory& directory : memory.directories) {
    const Cost cost = CostOf(directory);
    rows.push_back({fmt::format("{}", directory.pages.size()), SlotsText(cost), Bytes(cost.save_bytes),
                    Bytes(2 * cost.save_bytes), Bytes(3 * cost.save_bytes), Bytes(cost.used_bytes),
                    DirText(directory)});
  }
  return text + (memory.directories.empty() ? "" : Table(rows));
}

ordered_json Json(const MemoryFolder& memory) {
  ordered_json json = {{"path", memory.path}, {"own", memory.own}, {"used_bytes", memory.bytes}};
  if (!memory.own) return json;
  json.update({{"job_id", memory.job_id}, {"address", memory.address}, {"agent_lives", memory.agent_lives}});
  json["directories"] = ordered_json::array();
  for (const MemoryDirectory& directory : memory.directories) {
    const Cost cost = CostOf(directory);
    json["directories"].push_back({{"dir", directory.dir},
                                   {"writers", directory.pages.size()},
                                   {"slots_min", cost.slots_min},
                                   {"slots_max", cost.slots_max},
                                   {"save_bytes", cost.save_bytes},
                                   {"two_slots_need_bytes", 2 * cost.save_bytes},
                                   {"three_slots_need_bytes", 3 * cost.save_bytes},
                                   {"used_bytes", cost.used_bytes}});
  }
  return json;
}

}  // namespace

StatusOr<CkptAnswer> CkptMemory(const std::string& given, bool json) {
  std::string path = given;
  while (path.size() > 1 && path.ends_with('/')) path.pop_back();
  std::vector<MemoryFolder> memories;
  if (checkpoint::IsMemoryName(path.substr(path.rfind('/') + 1))) {
    PHX_ASSIGN_OR_RETURN(MemoryFolder memory, checkpoint::ReadMemory(path));
    memories.push_back(std::move(memory));
  } else {
    PHX_ASSIGN_OR_RETURN(memories, checkpoint::ReadMemories(path));
  }
  struct statvfs room {};
  if (statvfs(path.c_str(), &room) != 0) return CallFailed(path, "statvfs", errno);
  const uint64_t bytes = uint64_t{room.f_blocks} * room.f_frsize;
  const uint64_t free_bytes = uint64_t{room.f_bavail} * room.f_frsize;
  ordered_json list = ordered_json::array();
  std::string text;
  for (const MemoryFolder& memory : memories) {
    list.push_back(Json(memory));
    text += Text(memory);
  }
  if (json) {
    return CkptAnswer{
        Dump({{"path", path}, {"bytes", bytes}, {"free_bytes", free_bytes}, {"memories", std::move(list)}}, 2)};
  }
  if (memories.empty()) text = "no checkpoint memory here\n";
  return CkptAnswer{fmt::format("{}{}: {} free of {}\n", text, path, Bytes(free_bytes), Bytes(bytes))};
}

}  // namespace phalanx::cli
