#include "checkpoint/disk/archive.h"

#include <algorithm>

namespace phalanx::checkpoint {

bool AreSameSave(const Manifest& one, const Manifest& other) {
  return one.step == other.step && one.sequence == other.sequence && one.timeline == other.timeline &&
         one.branch == other.branch && one.epoch == other.epoch && one.job_id == other.job_id &&
         one.written_unix_ms == other.written_unix_ms && one.shards == other.shards;
}

std::vector<std::string> StepsToArchive(const std::vector<FoundStep>& here, const std::vector<FoundStep>& archived,
                                        int64_t every) {
  std::vector<std::string> names;
  for (const FoundStep& found : here) {
    if (!found.manifest) continue;
    const bool is_there = std::ranges::any_of(archived, [&](const FoundStep& other) {
      return other.manifest && AreSameSave(*found.manifest, *other.manifest);
    });
    if (every > 0 && (found.step % every != 0 || is_there)) continue;
    if (!is_there) names.push_back(found.name);
    if (every <= 0) break;
  }
  std::ranges::reverse(names);
  return names;
}

}  // namespace phalanx::checkpoint
