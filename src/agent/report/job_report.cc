#include "agent/report/job_report.h"

#include "agent/report/failure_json.h"

namespace phalanx::agent {
namespace {

using nlohmann::ordered_json;

// Empty where the worker was not one of this node's last round, or left nothing.
std::string ErrorFile(const JobEnd& end, const v1::Failure& failure) {
  const auto worker = end.workers.find(static_cast<int>(failure.local_rank()));
  const bool here = end.round && end.round->group_rank() == failure.group_rank() && worker != end.workers.end() &&
                    worker->second.pid == failure.exited().pid();
  // The master may have left its text out, as too long.
  return here && worker->second.left_error ? worker->second.error_file : "";
}

ordered_json Shown(const JobEnd& end, const v1::Failure& failure) {
  ordered_json object = FailureJson(failure);
  object["error_json"] = failure.exited().error_json();
  object["error_file"] = ErrorFile(end, failure);
  return object;
}

}  // namespace

std::string JobReport(const JobEnd& end) {
  ordered_json failures = ordered_json::array();
  if (end.finish && end.finish->has_first_cause()) {
    failures.push_back(Shown(end, end.finish->first_cause()));
    for (const v1::Failure& other : end.finish->others()) failures.push_back(Shown(end, other));
  }
  const ordered_json report = {
      {"version", 1},
      {"exit_code", end.exit_code},
      {"job_id", end.job_id},
      {"script", end.script},
      {"reason", end.finish ? end.finish->reason() : ""},
      {"restart_count", end.round ? static_cast<int64_t>(end.round->restart_count()) : -1},
      {"rank_base", end.round ? end.round->rank_base() : 0},
      {"workers", end.exit_code == 0 && !end.in_round ? 0 : end.local_world_size},
      {"failures", std::move(failures)},
  };
  return JsonLine(report);
}

}  // namespace phalanx::agent
