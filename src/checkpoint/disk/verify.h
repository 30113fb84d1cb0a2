// Whether what lies on disk is what its manifest says, to the last byte.
#pragma once

#include <string>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"

namespace phalanx::checkpoint {

// Reads the whole shard in a step's folder: blocks for as long as storage takes. DataLoss where its bytes are others.
Status CheckShardFile(const std::string& folder, const Shard& shard);

}  // namespace phalanx::checkpoint
