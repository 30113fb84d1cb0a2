#include "cli/jobs.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/rows.h"

namespace phalanx::cli {
namespace {

// -1: none of its nodes has told one.
int64_t StepOf(const JobView& view) {
  int64_t step = -1;
  for (const v1::NodeStatus& node : view.status.nodes()) {
    if (node.group_rank() >= 0) step = std::max(step, node.max_step());
  }
  return step;
}

std::string StateText(const JobView& view) {
  const v1::StatusReply& s = view.status;
  return s.phase() == "finished" && s.exit_code() != 0 ? fmt::format("failed ({})", s.exit_code()) : s.phase();
}

std::string NodesText(const v1::StatusReply& s) {
  const std::string of = s.min_nodes() == s.max_nodes() ? fmt::format("{}", s.max_nodes())
                                                        : fmt::format("{}:{}", s.min_nodes(), s.max_nodes());
  return s.max_nodes() == 0 ? fmt::format("{}", s.nodes_size()) : fmt::format("{} of {}", s.nodes_size(), of);
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
    const bool live = job.view.live;
    table.push_back({Printable(s.job_id()), StateText(job.view), Clock(s.started_unix_ms(), true).substr(0, 19),
                     live ? Span(now_unix_ms - s.started_unix_ms()) : "-", live ? NodesText(s) : "-",
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
                    {"nodes", s.nodes_size()},
                    {"world_size", s.world_size()},
                    {"step", StepOf(job.view)}});
    }
    list.push_back(std::move(entry));
  }
  return Dump(list, 1);
}

}  // namespace phalanx::cli
