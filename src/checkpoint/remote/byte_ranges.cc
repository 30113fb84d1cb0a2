#include "checkpoint/remote/byte_ranges.h"

#include <algorithm>
#include <iterator>

namespace phalanx::checkpoint {

void ByteRanges::Add(const ByteRange& range) {
  if (range.begin >= range.end) return;
  ByteRange joined = range;
  auto next = ends_.upper_bound(range.begin);
  if (next != ends_.begin() && std::prev(next)->second >= range.begin) --next;
  while (next != ends_.end() && next->first <= joined.end) {
    joined = {std::min(joined.begin, next->first), std::max(joined.end, next->second)};
    next = ends_.erase(next);
  }
  ends_[joined.begin] = joined.end;
}

uint64_t ByteRanges::Bytes() const {
  uint64_t bytes = 0;
  for (const auto& [begin, end] : ends_) bytes += end - begin;
  return bytes;
}

std::vector<ByteRange> ByteRanges::All() const {
  std::vector<ByteRange> all;
  all.reserve(ends_.size());
  for (const auto& [begin, end] : ends_) all.push_back({begin, end});
  return all;
}

bool ByteRanges::Contains(const ByteRange& range) const {
  if (range.begin >= range.end) return true;
  const auto behind = ends_.upper_bound(range.begin);
  return behind != ends_.begin() && std::prev(behind)->second >= range.end;
}

ByteRanges ByteRanges::Without(const ByteRanges& have) const {
  ByteRanges rest;
  for (const auto& [begin, end] : ends_) {
    uint64_t at = begin;
    auto there = have.ends_.upper_bound(begin);
    if (there != have.ends_.begin()) --there;
    for (; there != have.ends_.end() && there->first < end; ++there) {
      if (there->second <= at) continue;
      rest.Add({at, std::max(at, there->first)});
      at = there->second;
    }
    rest.Add({at, std::max(at, end)});
  }
  return rest;
}

}  // namespace phalanx::checkpoint
