#include "checkpoint/disk/close_step.h"

#include "checkpoint/disk/persist.h"
#include "checkpoint/disk/steps.h"
#include "checkpoint/disk/tracker.h"

namespace phalanx::checkpoint {

StatusOr<std::vector<std::string>> CloseStep(const StepToClose& step) {
  PHX_RETURN_IF_ERROR(WriteManifest(step.dir, step.name, step.manifest));
  const Status tracked = WriteTrackers(step.dir, step.name, step.manifest.step, step.trackers);
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
