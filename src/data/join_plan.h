// Whether sources go together, and what comes of them. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "data/source.h"

namespace phalanx::data {

struct JoinPlan {
  IndexHeader index;
  uint64_t tokens = 0;
  uint64_t bin_bytes = 0;
};

// For sources in their order. Those that are parts must be all of the parts, of one run. At least one is needed, since
// nothing else says what a token is.
Result<JoinPlan> PlanJoin(const std::vector<Source>& sources, Layout layout);

}  // namespace phalanx::data
