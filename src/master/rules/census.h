// How many nodes of each size there are, kept as they come, change and go: whether a round can begin, or be made
// larger, is known without a walk over the nodes. Pure.
//
// Nodes are of one kind when they have the same number of ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>

namespace phalanx::master {

class Census {
 public:
  struct Entry {
    uint32_t ranks = 0;
    bool candidate = false;  // it may be a member of the next round: it does not leave
    bool ready = false;      // ... and its workers could start at once
    bool member = false;     // it was a member of the last round that it could be one of
  };
  struct Count {
    size_t all = 0;
    size_t members = 0;
    bool operator==(const Count&) const = default;
  };
  // Of one kind.
  struct Kind {
    size_t nodes = 0;  // that are there, also those that leave
    Count candidates;
    Count ready;
    bool operator==(const Kind&) const = default;
  };

  void Add(const Entry& entry) { Change(entry, true); }
  // As it was added.
  void Remove(const Entry& entry) { Change(entry, false); }

  size_t candidates() const { return candidates_; }
  size_t ready() const { return ready_; }
  // By the number of ranks; none is empty.
  const std::map<uint32_t, Kind>& kinds() const { return kinds_; }

 private:
  void Change(const Entry& entry, bool comes);

  std::map<uint32_t, Kind> kinds_;
  size_t candidates_ = 0;
  size_t ready_ = 0;
};

}  // namespace phalanx::master
