// Files that other programs read to find the newest step.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace phalanx::checkpoint {

// What the tracker holds. InvalidArgument where no such is known. Pure.
StatusOr<std::string> TrackerText(std::string_view tracker, const std::string& step_name, int64_t step);

// Each is replaced as a whole. Call it when the step's manifest is written.
Status WriteTrackers(const std::string& dir, const std::string& step_name, int64_t step,
                     const std::vector<std::string>& trackers);

}  // namespace phalanx::checkpoint
