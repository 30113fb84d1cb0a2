// The end of a step's way to storage: the manifest, from which on it counts, then what follows from that.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "checkpoint/disk/manifest.h"
#include "checkpoint/disk/retention.h"
#include "checkpoint/storage/storage.h"

namespace phalanx::checkpoint {

struct StepToPublish {
  std::string name;  // as Storage::Begin gave it
  Manifest manifest;
  std::vector<std::string> trackers;
  Retention retention;
  std::optional<std::string> goes_on_from = std::nullopt;  // NextPlaceOf
};

// Publishes the step as the one behind all that is stored there, then writes the trackers, then deletes what need not
// be kept; all its files are there. The error is that of the manifest, as of Publish. The texts tell what went
// wrong behind it. Where a tracker could not be written nothing is deleted: it may name a step that would go.
StatusOr<std::vector<std::string>> PublishStep(Storage& storage, const StepToPublish& step);

}  // namespace phalanx::checkpoint
