// What `phalanx status|events|why|ledger` knows of a job: asked of its live master, or read from its record.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/env.h"
#include "base/status.h"
#include "master/record/record.h"
#include "phalanx/v1/admin.pb.h"

namespace phalanx::cli {

struct JobView {
  bool live = false;
  v1::StatusReply status;
  std::vector<master::RecordRow> rows;  // of the job's last run, by id; none where a live master was not asked for them
  bool recorded = false;                // they are all that the record has; else what a live master remembers
};

struct JobQuery {
  std::string job;        // empty: the most recent
  std::string state_dir;  // empty: the default root
  std::string master;     // host:port; only this one is asked then
  bool rows = true;       // false: the status is enough
  bool ranks = false;     // of a live job: what each rank does
};

// Asks the live master where there is one, else reads the record. A live master's view has no rows where none are
// wanted: thousands are many calls.
StatusOr<JobView> ViewJob(const JobQuery& query, const Environment& env);

// As it is listed beside others: no rows, and the record wherever its own master does not answer.
StatusOr<JobView> ViewFolder(const std::string& folder, const Environment& env);

// What the record alone tells. Nodes are not told: they have gone.
v1::StatusReply StatusFromRecord(const master::RecordRun& run, const std::vector<master::RecordRow>& rows);

}  // namespace phalanx::cli
