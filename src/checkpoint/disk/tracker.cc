#include "checkpoint/disk/tracker.h"

#include <fmt/format.h>

#include "checkpoint/files/files.h"

namespace phalanx::checkpoint {

StatusOr<std::string> TrackerText(std::string_view tracker, const std::string& step_name, int64_t step) {
  if (tracker == "latest") return step_name;
  if (tracker == "dlrover_latest.txt" || tracker == "latest_checkpointed_iteration.txt") return fmt::format("{}", step);
  return absl::InvalidArgumentError(fmt::format(
      "'{}' is no tracker: known are latest, dlrover_latest.txt and latest_checkpointed_iteration.txt", tracker));
}

Status WriteTrackers(const std::string& dir, const std::string& step_name, int64_t step,
                     const std::vector<std::string>& trackers) {
  for (const std::string& tracker : trackers) {
    PHX_ASSIGN_OR_RETURN(const std::string text, TrackerText(tracker, step_name, step));
    PHX_RETURN_IF_ERROR(ReplaceFile(dir, step_name, dir, tracker, text));
  }
  return absl::OkStatus();
}

}  // namespace phalanx::checkpoint
