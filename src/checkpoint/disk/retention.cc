#include "checkpoint/disk/retention.h"

#include <algorithm>
#include <set>

namespace phalanx::checkpoint {

std::vector<std::string> StepsToDelete(const std::vector<FoundStep>& newest_first, const Retention& retention) {
  if (retention.keep_last <= 0 && retention.keep_every <= 0) return {};
  const size_t last = static_cast<size_t>(std::max(retention.keep_last, 1));
  std::set<int64_t> kept;  // of one step written twice, the newer counts
  std::vector<std::string> names;
  for (const FoundStep& found : newest_first) {
    if (found.state == StepState::kUnreadable) continue;
    if (found.state != StepState::kCommitted) {
      if (kept.size() >= last) names.push_back(found.name);
      continue;
    }
    const bool repeated = kept.contains(found.step);
    const bool due = retention.keep_every > 0 && found.step % retention.keep_every == 0;
    if (!repeated && (kept.size() < last || due)) {
      kept.insert(found.step);
    } else {
      names.push_back(found.name);
    }
  }
  std::ranges::reverse(names);
  return names;
}

}  // namespace phalanx::checkpoint
