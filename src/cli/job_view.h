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

// What the record tells of a job that nobody serves any more, beside its status.
struct EndedJob {
  int64_t at_unix_ms = 0;   // the job's end; where none is recorded, the last row
  std::string master_said;  // the last master's word when it ended; empty: it ended without one
  int64_t nodes = 0;        // of the last round
  int64_t step = -1;        // the last one that the record names, which may be behind what was done; -1: none
};

// The newest step of a directory that still lies in this machine's memory.
struct LeftStep {
  std::string dir;
  int64_t step = 0;
  std::string folder;  // where; of several folders, their root
};

// The phase of a job whose master neither answers nor refuses: it stands still, or cannot be reached from here.
inline constexpr std::string_view kNotAnswering = "not answering";

struct JobView {
  bool live = false;
  v1::StatusReply status;
  std::vector<master::RecordRow> rows;  // of the job's last run, by id; none where a live master was not asked for them
  bool recorded = false;                // they are all that the record has; else what a live master remembers
  EndedJob ended;                       // of the record; nothing where the job is live
  std::vector<LeftStep> left;           // of a job that nobody serves; only where it is asked for (cli/ckpt_rescue.h)

  bool MayTrain() const { return live || status.phase() == kNotAnswering; }
};

struct JobQuery {
  std::string job;        // empty: the most recent
  std::string state_dir;  // empty: the default root
  std::string master;     // host:port; only this one is asked then
  bool rows = true;       // false: the status is enough
  bool ranks = false;     // of a live job: what each rank does
  bool check = false;     // of a live job: what the last check of its nodes has found
};

// Asks the live master where there is one, else reads the record. A live master's view has no rows where none are
// wanted: thousands are many calls.
StatusOr<JobView> ViewJob(const JobQuery& query, const Environment& env);

// Tells the live master that a node which is left out has been mended: it is checked anew, or trains again.
StatusOr<v1::LetInReply> LetNodeIn(const JobQuery& query, const std::string& node, const Environment& env);

// As it is listed beside others: no rows, and the record wherever its own master does not answer.
StatusOr<JobView> ViewFolder(const std::string& folder, const Environment& env);

// What the record alone tells. Nodes are not told: they have gone.
v1::StatusReply StatusFromRecord(const master::RecordRun& run, const std::vector<master::RecordRow>& rows);
EndedJob EndFromRecord(const master::RecordRun& run, const std::vector<master::RecordRow>& rows);

}  // namespace phalanx::cli
