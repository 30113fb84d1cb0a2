// Whether what a node has told of its hardware explains a worker's end. Pure.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "agent/watch/differ.h"
#include "base/clock.h"

namespace phalanx::agent::watch {

// What came about longer before an end does not explain it, unless it still is so.
constexpr int64_t kExplainsMs = 30'000;
// What is noticed so long behind an end may have come before it: an end is told at once, a report of the driver by way
// of its library.
constexpr int64_t kBehindMs = 1'000;
constexpr size_t kMaxRecent = 256;

// Grave facts of late: the last of each kind of each device. Which rank uses which device is not known here, so a
// device is named, and nothing is claimed of a rank's own.
class Recent {
 public:
  // `every_ms`: between two readings. A state that was so at the last one stands until the next but one.
  explicit Recent(int64_t every_ms) : stands_ms_(std::max(kExplainsMs, 2 * every_ms)) {}
  void Note(const Found& found);
  // "XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before"; of what is read from time to time
  // "..., at most 12.0 s before". Empty: nothing explains an end of that moment. Of several facts the kind that
  // explains most, and of those the latest. A state that still stands explains an end however long it has stood.
  std::string Explain(Instant ended_at) const;

 private:
  bool Explains(const Found& found, Instant ended_at) const;

  int64_t stands_ms_;
  std::map<std::pair<std::string, std::string>, Found> facts_;  // by kind and device
};

}  // namespace phalanx::agent::watch
