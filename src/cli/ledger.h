// Where a job's time went: each millisecond from its beginning to its end has one cause, so that they add up. Pure.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "cli/job_view.h"
#include "master/record/record.h"

namespace phalanx::cli {

enum class Cause {
  kTraining,
  kSaving,      // training waits for a checkpoint
  kRedoing,     // steps that an earlier life had done
  kRecovering,  // from an incident until every rank has made a step again, but for the next
  kWaiting,     // for nodes: too few are there
  kStarting,    // from the first round's beginning until every rank has made a step
  kEnding,      // from the job's end, or the failure that ended it, until its master has ended
  kStalled,     // no step came for long beside the job's usual gap
};
constexpr size_t kCauses = 8;

// Something that ended a round.
struct Incident {
  int64_t unix_ms = 0;      // when it happened; for a node that fell silent, when it was last heard
  uint64_t epoch = 0;       // of the round that ended
  std::string what;         // the decision that followed, as a sentence
  std::string first_cause;  // the worker's or the node's end; empty where the job grew
  std::string node;
  int64_t rank = -1;
  std::optional<int64_t> noticed_ms;  // later; absent: unknown
  int64_t recovering_ms = 0;
  int64_t waiting_ms = 0;
  int64_t redoing_ms = 0;
  int64_t rank_ms = 0;  // of the three above, times the ranks
  // Absent: not known yet, or never, where `steps_untold`: the script tells no steps, so what it does again is taken
  // for training.
  std::optional<int64_t> steps_lost;
  bool steps_untold = false;
  bool ended_job = false;
};

struct Ledger {
  int64_t begin_unix_ms = 0;
  int64_t end_unix_ms = 0;
  std::array<int64_t, kCauses> ms = {};  // by Cause; their sum is end - begin
  std::vector<Incident> incidents;       // in order of time
  std::vector<std::string> notes;        // what the figures do not say, as sentences

  int64_t Of(Cause cause) const { return ms[static_cast<size_t>(cause)]; }
};

// Of `view.rows`; up to `now_unix_ms` by the master's clock where the job is live, else up to the last row.
Ledger MakeLedger(const JobView& view, int64_t now_unix_ms);

std::string LedgerText(const JobView& view, const Ledger& ledger);
std::string LedgerJson(const JobView& view, const Ledger& ledger);

}  // namespace phalanx::cli
