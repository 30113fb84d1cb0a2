// What has come about between two readings of a node's hardware, as facts. Pure.
//
// * The first reading of a value is its base line: what has been counted before is no fact of this training.
// * A counter that goes back has been reset: the smaller value is a new base line, and its limit begins anew. Of one
// that
//   is reset again and again within kWindowMs the limit stays.
// * A fact of one value of one device is told when it comes to its limit (src/agent/watch/kinds.h), and again each time
//   that there is twice as much of it: of something that happens a million times 20 facts are told.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "agent/watch/kinds.h"
#include "base/clock.h"
#include "phalanx/v1/health.pb.h"

namespace phalanx::agent::watch {

// More values than any machine has. Further ones are not watched.
constexpr size_t kMaxTracks = 16'384;

struct Sample {
  const Kind* kind = nullptr;
  std::string device;  // "GPU 3", "mlx5_0 port 1"; empty: the node
  std::string source;  // "NVML", or a path
  int64_t value = 0;
};
using Readings = std::vector<Sample>;

struct Found {
  v1::NodeFact fact;
  std::string what;  // "XID 79 (GPU has fallen off the bus) on GPU 3"
  // When it came about: between two readings, or, where both are the same, then.
  Instant since = 0;
  Instant at = 0;
  Instant until = 0;  // a state was still so then; of anything else `at`
  // A state that was still so at the last reading; one that was, and is so no more: `until` is when it was so last.
  bool stands = false;
  bool over = false;
  bool told = false;  // worth telling now; else only of use to explain an end
};

// One value of one device.
struct Track {
  int64_t base = 0;
  Instant base_at = 0;
  int64_t last = 0;
  Instant last_at = 0;
  int64_t times = 0;              // that a state has come about
  int64_t told = 0;               // growth, or times, when it was told last; 0: never
  Instant reset_at = -kWindowMs;  // a counter's last
  int64_t in_row = 0;
  Instant fell_since = 0;
  Instant fell_at = 0;
  bool was_well = false;
};

struct Differ {
  std::map<std::pair<std::string, std::string>, Track> tracks;  // by name and device
};

// `unix_ms`: the same moment as `now`, for people. A value that a reading lacks stays as it was.
std::vector<Found> Compare(Differ& differ, const Readings& readings, Instant now, int64_t unix_ms);

// The driver has told of an XID, so many times by now. `number`: at most kMaxXid. Always one fact, or none where there
// are too many different ones.
std::vector<Found> OnXid(Differ& differ, int64_t gpu, int64_t number, int64_t times, Instant now, int64_t unix_ms);

std::string GpuName(int64_t gpu);

}  // namespace phalanx::agent::watch
