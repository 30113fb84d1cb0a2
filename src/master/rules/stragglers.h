// Which nodes are slow beside the others of the same check. Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "phalanx/v1/health.pb.h"

namespace phalanx::master {

// Below this nobody is slow: so much the same node differs from one time to the next. CPUs are shared with others;
// devices are not, but the network beside them is, which the mean sums up with them.
constexpr int64_t kSlowFloorUs = 100'000;
constexpr int64_t kSlowFloorOfDevicesUs = 20'000;
constexpr int64_t kSlowValueOfDevicesUs = 1'000;
// What one node has measured, its best of several parts, by name.
using Measured = std::map<std::string, v1::CheckValue>;

struct Slow {
  size_t node = 0;
  // "3.1 x the mean of the others: 620 ms, most of it matmul_time"
  std::string why;
};

// Whether it is better than another of its name, in the direction that it has.
bool IsBetter(const v1::CheckValue& value, const v1::CheckValue& than);
// "31 ms", "1429 MB/s"
std::string ValueText(const v1::CheckValue& value);
// The better of both counts.
void Merge(Measured& measured, const v1::CheckValue& value);

// How long the node's check took: what it has measured in microseconds, where less is better; 0: nothing.
int64_t CheckTimeUs(const Measured& measured);

// "matmul_time 2701 us, disk_write 1429 MB/s"
std::string MeasuredText(const Measured& measured);

// MEAN: its check took more than twice the mean of the others (the guide's rule), of what all have measured.
// MEDIAN_DEVIATION: one of its values is half as bad again as the median, and six times the median deviation away from
// it. Nodes that have measured nothing are neither slow nor counted.
std::vector<Slow> FindSlow(v1::CheckSpec::StragglerRule rule, const std::vector<Measured>& nodes);

}  // namespace phalanx::master
