// How a job is told: tables for people, JSON for programs. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.h"
#include "cli/hang.h"
#include "cli/job_view.h"

namespace phalanx::cli {

// `ranks`: with the table of ranks.
std::string StatusText(const JobView& view, int64_t now_unix_ms, bool ranks = false);
std::string StatusJson(const JobView& view);

// What whoever is told of these rows must know: some are not there. Empty: all are.
std::string MissingText(const JobView& view);

std::string EventsText(const std::vector<master::RecordRow>& rows);
// One object a line.
std::string EventsJson(const std::vector<master::RecordRow>& rows);

// Why a round began, was held, or the job ended: what happened on the way, and who was first.
struct Story {
  const master::RecordRow* turn = nullptr;         // the decision
  const master::RecordRow* first_cause = nullptr;  // the worker's end that it came from; null for membership changes
  std::vector<const master::RecordRow*> rows;      // from the round before to the first steps after
  std::optional<Hang> hang;                        // of the round that goes on; none where another one is asked for
};

// The story of the last turn, or of the beginning of `epoch`. Points into `rows`. NotFound, with a sentence, where
// there is none.
StatusOr<Story> TellStory(const std::vector<master::RecordRow>& rows, std::optional<uint64_t> epoch);

// `view`: of a job that hangs, what its ranks have said.
std::string StoryText(const Story& story, const JobView& view, int64_t now_unix_ms);
std::string StoryJson(const Story& story, const JobView& view, int64_t now_unix_ms);

}  // namespace phalanx::cli
