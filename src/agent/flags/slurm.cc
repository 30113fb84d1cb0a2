#include "agent/flags/slurm.h"

#include <algorithm>

#include "agent/flags/flag_values.h"

namespace phalanx::agent {
namespace {

constexpr int64_t kMaxNodes = 1'000'000;
constexpr int64_t kMaxId = 0xFFFF'FFFF;
// Below Linux's and Slurm's own ranges of ephemeral ports (32768 and 60001 on).
constexpr uint16_t kFirstPort = 20'000;
constexpr uint16_t kPorts = 10'000;

Status Wrong(const std::string& name, const std::string& value, std::string_view what) {
  return absl::InvalidArgumentError(
      fmt::format("{}={}: {} (--standalone runs this node alone; --rdzv-endpoint names a "
                  "meeting point without Slurm's help)",
                  name, value, what));
}

StatusOr<int64_t> Number(const Environment& env, const std::string& name, int64_t least, int64_t most) {
  const std::string value = env.NonEmptyOr(name, "");
  StatusOr<int64_t> number = ParseInteger(value, least, most);
  if (!number.ok()) return Wrong(name, value, Message(number.status()));
  return number;
}

// "1(x4)" or "1,1": one task on every node.
bool OneTaskEach(std::string_view tasks) {
  while (!tasks.empty()) {
    const std::string_view entry = tasks.substr(0, tasks.find(','));
    if (entry != "1" && !entry.starts_with("1(x")) return false;
    tasks.remove_prefix(std::min(entry.size() + 1, tasks.size()));
  }
  return true;
}

// How many devices a list such as "0,2,GPU-1f" shows; without one all of `there`.
uint32_t Visible(const std::optional<std::string>& list, uint32_t there) {
  if (!list) return there;
  const auto commas = std::count(list->begin(), list->end(), ',');
  return list->empty() ? 0 : std::min(there, static_cast<uint32_t>(commas) + 1);
}

// "4", or "gpu:4" and "gpu:a100:4" of older Slurms.
uint32_t GpuCount(const std::string& text) {
  const StatusOr<int64_t> count = ParseInteger(text.substr(text.rfind(':') + 1), 0, 4096);  // npos + 1 is 0
  return count.ok() ? static_cast<uint32_t>(*count) : 0;
}

}  // namespace

StatusOr<std::string> FirstHost(std::string_view list) {
  const size_t open = list.find('[');
  const size_t comma = std::min(list.find(','), list.size());
  if (open > comma || open == std::string_view::npos) {
    if (comma == 0) return absl::InvalidArgumentError("expected a list of hosts such as tux[1-4]");
    return std::string(list.substr(0, comma));
  }
  const size_t close = list.find(']', open);
  const std::string_view inside = list.substr(open + 1, std::min(close, list.size()) - open - 1);
  const std::string_view number = inside.substr(0, inside.find_first_of(",-"));
  const bool digits = std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; });
  if (close == std::string_view::npos || number.empty() || !digits) {
    return absl::InvalidArgumentError("expected a list of hosts such as tux[1-4]");
  }
  // Names with two brackets ("rack[1-2]n[1-4]"): what follows the first is read the same way.
  const std::string_view behind = list.substr(close + 1);
  if (behind.empty() || behind.front() == ',') return fmt::format("{}{}", list.substr(0, open), number);
  PHX_ASSIGN_OR_RETURN(const std::string rest, FirstHost(behind));
  return fmt::format("{}{}{}", list.substr(0, open), number, rest);
}

StatusOr<std::optional<SlurmStep>> ReadSlurmStep(const Environment& env) {
  // A batch script has SLURM_JOB_ID and SLURM_NODEID, too; only what srun starts has a step.
  if (env.NonEmptyOr("SLURM_JOB_ID", "").empty() || env.NonEmptyOr("SLURM_STEP_ID", "").empty()) return std::nullopt;
  SlurmStep step;
  PHX_ASSIGN_OR_RETURN(const int64_t job_id, Number(env, "SLURM_JOB_ID", 0, kMaxId));
  PHX_ASSIGN_OR_RETURN(const int64_t step_id, Number(env, "SLURM_STEP_ID", 0, kMaxId));
  PHX_ASSIGN_OR_RETURN(const int64_t nodes, Number(env, "SLURM_STEP_NUM_NODES", 1, kMaxNodes));
  PHX_ASSIGN_OR_RETURN(const int64_t node, Number(env, "SLURM_NODEID", 0, nodes - 1));
  const std::string tasks = env.NonEmptyOr("SLURM_STEP_TASKS_PER_NODE", "1");
  if (!OneTaskEach(tasks)) {
    return Wrong("SLURM_STEP_TASKS_PER_NODE", tasks,
                 "expected one phalanx-run a node, which starts the workers itself: srun --ntasks-per-node=1");
  }
  const std::string list = env.NonEmptyOr("SLURM_STEP_NODELIST", "");
  const StatusOr<std::string> first = FirstHost(list);
  if (!first.ok()) return Wrong("SLURM_STEP_NODELIST", list, Message(first.status()));
  step.name = fmt::format("{}.{}", job_id, step_id);
  step.node_count = static_cast<uint32_t>(nodes);
  step.node_index = static_cast<int>(node);
  step.first_node = *first;
  step.port = static_cast<uint16_t>(kFirstPort + (job_id * 13 + step_id) % kPorts);
  // A task may be shown fewer than its node has (--gpus-per-task, --gpu-bind).
  step.gpu_count = Visible(env.Get("CUDA_VISIBLE_DEVICES"), GpuCount(env.NonEmptyOr("SLURM_GPUS_ON_NODE", "")));
  return step;
}

}  // namespace phalanx::agent
