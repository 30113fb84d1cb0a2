// Numbers of addresses, in the order in which they come: neighbours in memory are neighbours here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace phalanx::checkpoint {

class AddressTable {
 public:
  static constexpr uint32_t kNone = UINT32_MAX;

  // `expected`: how many there will be, about.
  explicit AddressTable(size_t expected = 0) : entries_(SizeFor(expected)) {}

  // kNone: it has none.
  uint32_t Find(const void* address) const { return entries_[SlotOf(address)].number; }

  // It has none yet, and is not null.
  void Add(const void* address, uint32_t number) {
    if (5 * ++count_ > kFullFifths * entries_.size()) Grow();
    entries_[SlotOf(address)] = {address, number};
  }

  // So that a later Find has less to wait for.
  void Prefetch(const void* address) const { __builtin_prefetch(&entries_[HomeOf(address)]); }

  template <typename Visit>
  void ForEach(Visit visit) const {
    for (const Entry& entry : entries_) {
      if (entry.address != nullptr) visit(entry.address);
    }
  }

 private:
  static constexpr size_t kFirst = 1024;    // a power of two, as all sizes
  static constexpr size_t kFullFifths = 3;  // it is full to three fifths at most

  static size_t SizeFor(size_t expected) {
    size_t size = kFirst;
    while (kFullFifths * size < 5 * expected) size *= 2;
    return size;
  }

  struct Entry {
    const void* address = nullptr;
    uint32_t number = kNone;
  };

  // Python's objects are some 64 bytes apart, with what the collector puts before them.
  static constexpr int kApart = 6;

  size_t HomeOf(const void* address) const {
    return (reinterpret_cast<uint64_t>(address) >> kApart) & (entries_.size() - 1);
  }

  // Where it stands, or belongs.
  size_t SlotOf(const void* address) const {
    const size_t mask = entries_.size() - 1;
    auto left = reinterpret_cast<uint64_t>(address);
    size_t slot = HomeOf(address);
    while (entries_[slot].address != nullptr && entries_[slot].address != address) {
      left >>= 5;
      slot = (5 * slot + left + 1) & mask;
    }
    return slot;
  }

  void Grow() {
    std::vector<Entry> before(2 * entries_.size());
    before.swap(entries_);
    for (const Entry& entry : before) {
      if (entry.address != nullptr) entries_[SlotOf(entry.address)] = entry;
    }
  }

  std::vector<Entry> entries_;
  size_t count_ = 0;
};

}  // namespace phalanx::checkpoint
