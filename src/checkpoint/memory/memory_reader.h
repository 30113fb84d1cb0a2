// What lies in a node's checkpoint memory (docs/formats/checkpoint-image.md), of a job that lives or of a dead one.
// Reads only, and believes nothing.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/fd.h"
#include "base/status.h"
#include "checkpoint/rank/control.h"

namespace phalanx::checkpoint {

struct MemorySlot {
  std::string page;  // a local rank's number, or "main": what is the same on all ranks
  std::string path;
  Slot slot;
};

// The slots for one checkpoint directory.
struct MemoryDirectory {
  std::string folder;
  std::string dir;                 // whose steps they are; empty where that is not known
  std::vector<std::string> pages;  // whose control pages can be read
  std::vector<MemorySlot> slots;
  std::vector<std::string> problems;
};

// What one agent has made.
struct MemoryFolder {
  std::string path;
  bool own = false;      // this user's; of others only name and size are known
  bool complete = true;  // `bytes` is all of it
  uint64_t bytes = 0;
  std::string job_id;
  std::string address;
  bool agent_lives = false;  // as far as this machine tells
  std::vector<MemoryDirectory> directories;
  std::vector<std::string> problems;
};

// "phx-<uid>-<16 hex digits>-<16 hex digits>", and perhaps "-<number>". Pure.
bool IsMemoryName(std::string_view name);

// Adds the bytes of all files below; false where some cannot be seen.
bool AddBytes(const std::string& path, uint64_t& bytes);

StatusOr<MemoryFolder> ReadMemory(const std::string& path);

// Of all folders below `root` with such a name.
StatusOr<std::vector<MemoryFolder>> ReadMemories(const std::string& root);

// The one that `path` is or, where it is /dev/shm, all of this user's below it whose agents are dead; NotFound where
// there is none.
StatusOr<std::vector<std::string>> DeadMemories(const std::string& path);

// The agent's own lock: FailedPrecondition while that lives, and no agent starts there while the result does.
StatusOr<Fd> LockMemory(const std::string& path);

// A save that is sealed, and not dropped, in every page of some directories, as one slot of each page.
struct SaveOfAll {
  std::vector<const MemorySlot*> slots;  // empty: there is none
  bool committed = false;                // all ranks of its world have it: some page says so, or they all are here
  std::vector<int64_t> newer;            // steps of newer saves that every page has, and of which that is not known
};

// How many ranks have an image of their own in it. Pure.
size_t RanksOf(const SaveOfAll& save);

// The newest that is committed, by SaveKey; where none is, the newest. `step`: of saves of that step alone. Pure.
SaveOfAll NewestOfAll(const std::vector<const MemoryDirectory*>& directories, std::optional<int64_t> step);

}  // namespace phalanx::checkpoint
