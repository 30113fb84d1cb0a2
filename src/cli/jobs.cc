#include "cli/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/phase_text.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

// -1: none of its nodes has told one; or its record names none.
int64_t StepOf(const JobView& view) {
  int64_t step = view.live ? -1 : view.ended.step;
  for (const v1::NodeStatus& node : view.status.nodes()) {
    if (node.group_rank() >= 0) step = std::max(step, node.max_step());
  }
  return step;
}

std::string NodesText(const v1::StatusReply& s) {
  const std::string of = s.min_nodes() == s.max_nodes() ? fmt::format("{}", s.max_nodes())
                                                        : fmt::format("{}:{}", s.min_nodes(), s.max_nodes());
  return s.max_nodes() == 0 ? fmt::format("{}", s.nodes_size()) : fmt::format("{} of {}", s.nodes_size(), of);
}

std::string NodesOf(const JobView& view) {
  if (view.live) return NodesText(view.status);
  return view.ended.nodes > 0 ? fmt::format("{}", view.ended.nodes) : "-";
}

std::string AgeOf(const JobView& view, int64_t now_unix_ms) {
  const int64_t until = view.live ? now_unix_ms : view.ended.at_unix_ms;
  return until < view.status.started_unix_ms() ? "-" : Span(until - view.status.started_unix_ms());
}

std::string NumberOrNone(int64_t number) { return number < 0 ? "-" : fmt::format("{}", number); }

}  // namespace

std::string JobsText(const std::vector<ListedJob>& jobs, size_t folders, int64_t now_unix_ms) {
  std::vector<std::vector<std::string>> table = {{"JOB", "STATE", "BEGAN", "FOR", "NODES", "WORLD", "STEP", "FOLDER"}};
  for (const ListedJob& job : jobs) {
    if (!job.fault.empty()) {
      table.push_back({"?", Printable(job.fault), "-", "-", "-", "-", "-", Printable(job.folder)});
      continue;
    }
    const v1::StatusReply& s = job.view.status;
    table.push_back({Printable(s.job_id()), PhaseText(s), Clock(s.started_unix_ms(), true).substr(0, 19),
                     AgeOf(job.view, now_unix_ms), NodesOf(job.view),
                     NumberOrNone(s.world_size() == 0 ? -1 : int64_t{s.world_size()}), NumberOrNone(StepOf(job.view)),
                     Printable(job.folder)});
  }
  std::string out = jobs.empty() ? "" : Table(table);
  if (folders > jobs.size()) out += fmt::format("and {} earlier ones: --all lists them\n", folders - jobs.size());
  return out;
}

std::string JobsJson(const std::vector<ListedJob>& jobs) {
  nlohmann::ordered_json list = nlohmann::ordered_json::array();
  for (const ListedJob& job : jobs) {
    nlohmann::ordered_json entry = {{"folder", job.folder}};
    if (!job.fault.empty()) entry["fault"] = job.fault;
    if (job.fault.empty()) {
      const v1::StatusReply& s = job.view.status;
      entry.update({{"job_id", s.job_id()},
                    {"live", job.view.live},
                    {"phase", s.phase()},
                    {"exit_code", s.exit_code()},
                    {"started_unix_ms", s.started_unix_ms()},
                    {"nodes", job.view.live ? s.nodes_size() : job.view.ended.nodes},
                    {"world_size", s.world_size()},
                    {"step", StepOf(job.view)}});
      if (!job.view.MayTrain()) entry["ended_unix_ms"] = job.view.ended.at_unix_ms;
    }
    list.push_back(std::move(entry));
  }
  return Dump(list, 1);
}

}  // namespace phalanx::cli
