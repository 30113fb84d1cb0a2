// `phalanx jobs`: what jobs there are on this machine, the one that changed last first. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "cli/job_view.h"

namespace phalanx::cli {

struct ListedJob {
  std::string folder;
  JobView view;
  std::string fault;  // why nothing is known of it; empty: `view` is
};

// One row a job: id, state, when it began, for how long it has run, nodes, world, the largest step, folder; of a job
// that nobody serves, as its record tells. `folders` of them are there, and not all of them are listed.
std::string JobsText(const std::vector<ListedJob>& jobs, size_t folders, int64_t now_unix_ms);
std::string JobsJson(const std::vector<ListedJob>& jobs);

}  // namespace phalanx::cli
