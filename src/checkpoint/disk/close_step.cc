#include "checkpoint/disk/close_step.h"

#include "checkpoint/disk/persist.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/disk/tracker.h"

namespace phalanx::checkpoint {

StatusOr<std::vector<std::string>> CloseStep(const StepToClose& step) {
  PHX_ASSIGN_OR_RETURN(const std::vector<FoundStep> before, FindSteps(step.dir));
  Manifest manifest = step.manifest;
  const NextPlace place = NextPlaceOf(manifest.step, before);
  manifest.sequence = place.sequence;
  manifest.timeline = place.timeline;
  PHX_RETURN_IF_ERROR(WriteManifest(step.dir, step.name, manifest));
  const Status tracked = WriteTrackers(step.dir, step.name, manifest.step, step.trackers);
  if (!tracked.ok()) return std::vector<std::string>{Message(tracked)};
  const StatusOr<std::vector<FoundStep>> steps = FindSteps(step.dir);
  if (!steps.ok()) return std::vector<std::string>{Message(steps.status())};
  std::vector<std::string> warnings;
  for (const std::string& old : StepsToDelete(*steps, step.retention)) {
    const Status deleted = DeleteStep(step.dir, old);
    if (!deleted.ok()) warnings.push_back(Message(deleted));
  }
  return warnings;
}

}  // namespace phalanx::checkpoint
