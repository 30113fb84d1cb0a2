// For tests: a folder with the slots of one rank, as an agent makes it.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "checkpoint/rank/control.h"

namespace phalanx::checkpoint {

class TestMemory {
 public:
  explicit TestMemory(uint64_t live_epoch) : control_(nullptr) {
    std::string name = "/dev/shm/phalanx-test-XXXXXX";
    dir_ = mkdtemp(name.data());
    Write("control-0", kControlBytes);
    const int file = open(control_path().c_str(), O_RDWR | O_CLOEXEC);
    page_ = static_cast<uint8_t*>(mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0));
    close(file);
    control_ = Control(page_);
    control_.Format(live_epoch);
  }
  TestMemory(const TestMemory&) = delete;
  TestMemory& operator=(const TestMemory&) = delete;
  ~TestMemory() {
    munmap(page_, kControlBytes);
    std::filesystem::remove_all(dir_);
  }

  // So many new files of that size.
  void MakeSlots(int count, uint64_t bytes) {
    std::vector<uint64_t> numbers;
    for (int i = 0; i < count; ++i) {
      numbers.push_back(++file_number_);
      Write(SlotName(i, file_number_), bytes);
    }
    control_.SetSlots(static_cast<uint32_t>(count), bytes, numbers.data());
  }

  ControlPage Read() const {
    std::array<uint8_t, kControlBytes> copy;
    control_.Copy(copy.data());
    ControlPage page;
    EXPECT_EQ(ParseControl(copy.data(), copy.size(), &page), "");
    return page;
  }
  Slot ReadSlot(int slot) const { return Read().slots[static_cast<size_t>(slot)]; }

  // As the master would: the slot's present image is committed.
  void Commit(int slot) { control_.SetCommitted(slot, ReadSlot(slot).generation); }

  Control& control() { return control_; }
  uint8_t* page() { return page_; }
  const std::string& dir() const { return dir_; }
  std::string control_path() const { return dir_ + "/control-0"; }
  std::string SlotPath(int slot) const { return dir_ + "/" + SlotName(slot, ReadSlot(slot).file_number); }

 private:
  static std::string SlotName(int slot, uint64_t number) {
    return "slot-0-" + std::to_string(slot) + "." + std::to_string(number);
  }
  void Write(const std::string& name, uint64_t bytes) const {
    const int file = open((dir_ + "/" + name).c_str(), O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    EXPECT_EQ(posix_fallocate(file, 0, static_cast<off_t>(bytes)), 0);
    close(file);
  }

  std::string dir_;
  uint8_t* page_ = nullptr;
  Control control_;
  uint64_t file_number_ = 0;
};

}  // namespace phalanx::checkpoint
