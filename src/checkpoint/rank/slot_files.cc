#include "checkpoint/rank/slot_files.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "checkpoint/rank/memory_names.h"

namespace phalanx::checkpoint {
namespace {

constexpr int kMapTries = 3;

std::string Failure(const std::string& path, const char* what) { return path + ": " + what; }

// Maps all of a file of `bytes`; null with the reason.
uint8_t* MapFile(const std::string& path, uint64_t bytes, std::string* why) {
  const int file = open(path.c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
  if (file < 0) {
    *why = Failure(path, std::strerror(errno));
    return nullptr;
  }
  uint8_t* data = nullptr;
  const off_t end = lseek(file, 0, SEEK_END);
  if (end < 0 || static_cast<uint64_t>(end) != bytes) {
    *why = path + " is " + std::to_string(end) + " bytes long and not " + std::to_string(bytes);
  } else {
    void* mapping = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE, file, 0);
    if (mapping == MAP_FAILED) {
      *why = Failure(path, std::strerror(errno));
    } else {
      data = static_cast<uint8_t*>(mapping);
      // A child has no business in it, and a core dump would hold what lies in the file anyway.
      madvise(mapping, bytes, MADV_DONTFORK);
      madvise(mapping, bytes, MADV_DONTDUMP);
    }
  }
  close(file);
  return data;
}

}  // namespace

SlotFiles::~SlotFiles() {
  for (Mapping& mapping : slots_) Unmap(mapping);
  if (page_ != nullptr) munmap(page_, kControlBytes);
}

std::string SlotFiles::Open(const std::string& control_path) {
  const size_t name_at = control_path.rfind('/') + 1;  // 0 where there is none
  const std::string name = control_path.substr(name_at);
  folder_ = control_path.substr(0, name_at);
  page_name_ = name.substr(name.find('-') + 1);
  if (name.compare(0, kControlPrefix.size(), kControlPrefix) != 0 || page_name_.empty() ||
      page_name_.find_first_not_of("0123456789abcdefghijklmnopqrstuvwxyz") != std::string::npos) {
    return control_path + " is not named control-<page>";
  }
  std::string why;
  page_ = MapFile(control_path, kControlBytes, &why);
  if (page_ == nullptr) return why;
  control_ = Control(page_);
  ControlPage page;
  why = Read(&page);
  return why.empty() ? why : control_path + ": " + why;
}

std::string SlotFiles::Map() {
  for (int turn = 0; turn < kMapTries; ++turn) {
    changes_ = control_.changes();
    ControlPage page;
    if (std::string why = Read(&page); !why.empty()) return why;
    slot_bytes_ = page.slot_bytes;
    for (size_t i = 0; i < slots_.size(); ++i) {
      MapSlot(static_cast<int>(i), i < page.slots.size() ? page.slots[i].file_number : 0, page.slot_bytes);
    }
    mapped_ = true;
    if (!Outdated()) return {};
  }
  return "the slots change faster than they can be mapped";
}

std::string SlotFiles::Read(ControlPage* page) const {
  std::array<uint8_t, kControlBytes> copy;
  control_.Copy(copy.data());
  return ParseControl(copy.data(), copy.size(), page);
}

uint8_t* SlotFiles::data(int slot) const {
  if (slot < 0 || slot >= static_cast<int>(kSlotsMax)) return nullptr;
  return slots_[static_cast<size_t>(slot)].data;
}

void SlotFiles::MapSlot(int i, uint64_t file_number, uint64_t bytes) {
  Mapping& mapping = slots_[static_cast<size_t>(i)];
  if (mapping.data != nullptr && mapping.file_number == file_number && mapping.bytes == bytes) return;
  Unmap(mapping);
  if (file_number == 0 || bytes == 0) {
    mapping.why_not = "it has no file";
    return;
  }
  mapping.data = MapFile(folder_ + SlotName(page_name_, i, file_number), bytes, &mapping.why_not);
  mapping.file_number = file_number;
  mapping.bytes = bytes;
}

void SlotFiles::Unmap(Mapping& mapping) {
  if (mapping.data != nullptr) munmap(mapping.data, mapping.bytes);
  mapping = Mapping();
}

}  // namespace phalanx::checkpoint
