// Reads all of a dataset.
#pragma once

#include <string>

#include "data/join.h"

namespace phalanx::data {

// Whether the two files are well-formed and fit together; their counts and CRCs, for comparison with a sidecar's.
// Blocks for as long as storage takes.
Result<JoinCounts> CheckDataset(const std::string& prefix);

}  // namespace phalanx::data
