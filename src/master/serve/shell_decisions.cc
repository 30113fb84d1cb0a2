#include "master/serve/shell_decisions.h"

#include <fmt/format.h>

#include <algorithm>

namespace phalanx::master {

Instant EndsAt(const Attendance& attendance, const JobState& job, std::optional<int64_t> linger_ms) {
  if (job.candidacy && job.candidacy->over) {
    return attendance.open_streams > 0 ? job.candidacy->over_at + kOverMs : attendance.empty_since;
  }
  if (attendance.open_streams > 0) return kNever;
  if (job.moved_to) return attendance.empty_since;  // nobody tells any more where the job is: the place is free
  if (job.candidacy && attendance.any_agent) return attendance.empty_since;  // its own node has gone
  // Of a job that is over the members that are away shall hear its end.
  if (job.phase == Phase::kFinished) return job.back_by == kNever ? attendance.empty_since : kNever;
  if (!linger_ms) return kNever;
  return attendance.empty_since + (attendance.any_agent ? *linger_ms : kFirstAgentMs);
}

Instant StreamDeadlines::Next(const std::function<bool(uint64_t)>& is_open) {
  while (!waiting_.empty() && !is_open(waiting_.front().second)) waiting_.pop_front();
  return waiting_.empty() ? kNever : waiting_.front().first;
}

std::vector<uint64_t> StreamDeadlines::TakeDue(Instant now) {
  std::vector<uint64_t> due;
  for (; !waiting_.empty() && waiting_.front().first <= now; waiting_.pop_front()) {
    due.push_back(waiting_.front().second);
  }
  return due;
}

std::string FirstMessageFault(const v1::AgentMessage& message) {
  return message.has_hello() ? "" : "the first message of a stream must be Hello";
}

uint64_t ListenerOf(const JobState& job) {
  const auto node =
      std::find_if(job.nodes.begin(), job.nodes.end(), [](const auto& entry) { return !entry.second.leaving; });
  return node == job.nodes.end() ? 0 : node->first;
}

std::string WhyNoAnswer(int questions) {
  if (questions <= kMaxQuestions) return "";
  return fmt::format("{} other questions are being answered: ask again later", kMaxQuestions);
}

Status MayTakeUp(const v1::JobSpec& was, const v1::JobSpec& asked) {
  if (was.min_nodes() != asked.min_nodes() || was.max_nodes() != asked.max_nodes() ||
      was.node_unit() != asked.node_unit()) {
    return absl::InvalidArgumentError(fmt::format(
        "--nnodes={}:{} --node-unit={}: the job of the journal has --nnodes={}:{} --node-unit={}; give the "
        "same, or leave out --resume",
        asked.min_nodes(), asked.max_nodes(), asked.node_unit(), was.min_nodes(), was.max_nodes(), was.node_unit()));
  }
  if (was.elastic_config() != asked.elastic_config()) {
    return absl::InvalidArgumentError(
        "--elastic-config: the job of the journal was begun with another one, or with none; give the same, or leave "
        "out --resume");
  }
  return absl::OkStatus();
}

}  // namespace phalanx::master
