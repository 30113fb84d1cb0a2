// The end of a step's way to disk: the manifest, from which on it counts, then what follows from that.
#pragma once

#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/retention.h"

namespace phalanx::checkpoint {

struct StepToClose {
  std::string dir;
  std::string name;  // of its folder
  Manifest manifest;
  std::vector<std::string> trackers;
  Retention retention;
};

// Writes the manifest, as the one behind all that is stored there, then the trackers, then deletes what need not be
// kept; all shards are there. The error is that of the manifest: the step does not count. The texts tell what went
// wrong behind it. Where a tracker could not be written nothing is deleted: it may name a step that would go.
StatusOr<std::vector<std::string>> CloseStep(const StepToClose& step);

}  // namespace phalanx::checkpoint
