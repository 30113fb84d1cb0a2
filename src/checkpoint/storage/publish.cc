#include "checkpoint/storage/publish.h"

#include <algorithm>
#include <set>

namespace phalanx::checkpoint {

StatusOr<std::vector<std::string>> PublishStep(Storage& storage, const StepToPublish& step) {
  PHX_ASSIGN_OR_RETURN(const std::vector<FoundStep> before, storage.ListToPublish());
  Manifest manifest = step.manifest;
  const NextPlace place = NextPlaceOf(manifest.step, step.goes_on_from, before);
  manifest.sequence = std::max(place.sequence, storage.HighestSequenceElsewhere() + 1);
  manifest.timeline = place.timeline;
  manifest.goes_on_from = place.goes_on_from;
  PHX_RETURN_IF_ERROR(storage.Publish(step.name, manifest));
  const Status tracked = storage.PointTo(step.name, manifest.step, step.trackers);
  if (!tracked.ok()) return std::vector<std::string>{Message(tracked)};
  const StatusOr<std::vector<FoundStep>> steps = storage.ListToPublish();
  if (!steps.ok()) return std::vector<std::string>{Message(steps.status())};
  std::vector<std::string> warnings;
  const std::set<std::string> needed = storage.StillNeeded(*steps);
  for (const std::string& old : StepsToDelete(*steps, step.retention)) {
    if (needed.contains(old)) continue;
    const Status deleted = storage.Delete(old);
    if (!deleted.ok()) warnings.push_back(Message(deleted));
  }
  return warnings;
}

}  // namespace phalanx::checkpoint
