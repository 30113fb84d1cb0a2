// Names in a node's checkpoint memory (docs/formats/checkpoint-image.md, "The memory of a node"). Pure, and of the
// standard library alone: ranks have it too.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace phalanx::checkpoint {

constexpr const char* kMemoryRoot = "/dev/shm";
constexpr std::string_view kMemoryPrefix = "phx-";  // of a node's folder
constexpr const char* kOwnerFile = "node.json";     // in it: whose it is; locked while that agent lives
constexpr const char* kInfoFile = "info.json";      // in the folder of a checkpoint directory
constexpr const char* kFetchedFolder = "fetched";   // in a node's folder: images of other nodes
constexpr std::string_view kControlPrefix = "control-";

// The page that the ranks of a node share. A rank's own page has its local rank for a name.
constexpr const char* kMainPageName = "main";

inline bool IsSharedPage(std::string_view page) { return page == kMainPageName; }

inline std::string SlotPrefix(std::string_view page) { return "slot-" + std::string(page) + "-"; }

inline std::string SlotName(std::string_view page, int slot, uint64_t file_number) {
  return SlotPrefix(page) + std::to_string(slot) + "." + std::to_string(file_number);
}

}  // namespace phalanx::checkpoint
