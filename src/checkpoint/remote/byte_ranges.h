// Which bytes of a file are meant, or are there. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <vector>

namespace phalanx::checkpoint {

struct ByteRange {
  uint64_t begin = 0;
  uint64_t end = 0;  // behind the last
  uint64_t bytes() const { return end - begin; }
  bool operator==(const ByteRange&) const = default;
};

// Ranges that neither touch nor overlap, ascending.
class ByteRanges {
 public:
  ByteRanges() = default;
  explicit ByteRanges(const std::vector<ByteRange>& ranges) {
    for (const ByteRange& range : ranges) Add(range);
  }

  // Nothing where it is empty.
  void Add(const ByteRange& range);
  void Add(const ByteRanges& ranges) {
    for (const auto& [begin, end] : ranges.ends_) Add({begin, end});
  }

  bool empty() const { return ends_.empty(); }
  uint64_t Bytes() const;
  std::vector<ByteRange> All() const;
  bool Contains(const ByteRange& range) const;
  // What `have` has not.
  ByteRanges Without(const ByteRanges& have) const;
  bool operator==(const ByteRanges&) const = default;

 private:
  std::map<uint64_t, uint64_t> ends_;  // by where each begins
};

}  // namespace phalanx::checkpoint
