// The files of a rank's slots, mapped as the control page names them.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "checkpoint/rank/control.h"

namespace phalanx::checkpoint {

class SlotFiles {
 public:
  SlotFiles() = default;
  SlotFiles(const SlotFiles&) = delete;
  SlotFiles& operator=(const SlotFiles&) = delete;
  ~SlotFiles();

  // Maps `control-<l>`; the slots are the files `slot-<l>-<i>.<number>` beside it. The reason where it cannot.
  std::string Open(const std::string& control_path);

  // Maps what the page names now and is not mapped yet, resident pages at once. A slot whose file is not there or has
  // not the length it should is left out: touching it could kill the rank. The reason where there is no page to read.
  std::string Map();
  // Whether the page has changed since the last Map.
  bool Outdated() const { return !mapped_ || control_.changes() != changes_; }

  // The page as it is now; the reason where it is none.
  std::string Read(ControlPage* page) const;
  Control& control() { return control_; }
  uint64_t slot_bytes() const { return slot_bytes_; }
  // Null: that slot cannot be used, for the reason given.
  uint8_t* data(int slot) const;
  // Whether what is mapped is the file that the slot has now.
  bool IsCurrent(int slot) const { return control_.file_number(slot) == slots_[static_cast<size_t>(slot)].file_number; }
  const std::string& why_not(int slot) const { return slots_[static_cast<size_t>(slot)].why_not; }

 private:
  struct Mapping {
    uint8_t* data = nullptr;
    uint64_t bytes = 0;
    uint64_t file_number = 0;
    std::string why_not;
  };

  void MapSlot(int i, uint64_t file_number, uint64_t bytes);
  static void Unmap(Mapping& mapping);

  std::string folder_;  // up to and with the slash
  std::string page_name_;
  uint8_t* page_ = nullptr;
  Control control_{nullptr};
  bool mapped_ = false;
  uint64_t changes_ = 0;
  uint64_t slot_bytes_ = 0;
  std::array<Mapping, kSlotsMax> slots_;
};

}  // namespace phalanx::checkpoint
