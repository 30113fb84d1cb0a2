// Which steps may go. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "checkpoint/disk/steps.h"

namespace phalanx::checkpoint {

struct Retention {
  int keep_last = 0;       // as many of the newest; 0: not asked
  int64_t keep_every = 0;  // steps that it divides; 0: not asked
};

// Names, oldest first; none where nothing is asked, or no step counts. The last are those that were stored last,
// whatever their numbers. Never the newest that counts, what is newer than the oldest of the last ones that are kept
// and does not count (it may be on its way, or be of use to somebody), nor what cannot be read.
std::vector<std::string> StepsToDelete(const std::vector<FoundStep>& newest_first, const Retention& retention);

}  // namespace phalanx::checkpoint
