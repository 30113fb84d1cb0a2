#include "agent/report/event_log.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

namespace phalanx::agent {
namespace {

using nlohmann::ordered_json;

std::string Dump(const ordered_json& json) { return json.dump(-1, ' ', false, ordered_json::error_handler_t::replace); }

ordered_json NullUnless(bool known, int64_t value) { return known ? ordered_json(value) : ordered_json(); }

// torchrun's keys in torchrun's order; `details` becomes a text that holds JSON.
ordered_json Metadata(const EventScene& scene, const std::string& state, const ordered_json& details) {
  return {{"run_id", scene.run_id},
          {"global_rank", nullptr},
          {"group_rank", NullUnless(scene.group_rank >= 0, scene.group_rank)},
          {"worker_id", nullptr},
          {"role", scene.role},
          {"hostname", scene.hostname},
          {"state", state},
          {"total_run_time", scene.total_run_s},
          {"rdzv_backend", scene.rdzv_backend},
          {"raw_error", nullptr},
          {"metadata", Dump(details)},
          {"agent_restarts", scene.restart_count},
          {"duration_ms", nullptr}};
}

ordered_json Details(const EventScene& scene) {
  return {{"group_world_size", NullUnless(scene.group_rank >= 0, scene.group_world_size)},
          {"entry_point", scene.entry_point}};
}

std::string Event(const EventScene& scene, const std::string& state, const char* source, ordered_json metadata) {
  return Dump({{"name", fmt::format("torchelastic.worker.status.{}", state)},
               {"source", source},
               {"timestamp", scene.unix_ms},
               {"metadata", std::move(metadata)}});
}

}  // namespace

std::string WorkerEvent(const EventScene& scene, const std::string& state, const EventWorker& worker) {
  ordered_json details = Details(scene);
  // Lists of one, as torchrun writes them.
  details["local_rank"] = ordered_json::array({worker.local_rank});
  details["role_rank"] = ordered_json::array({worker.role_rank});
  details["role_world_size"] = ordered_json::array({worker.role_world_size});
  const bool failed = worker.exit_code.has_value();
  details["exit_code"] = ordered_json::array({NullUnless(failed, worker.exit_code.value_or(0))});
  details["worker_pid"] = ordered_json::array({NullUnless(failed, worker.pid)});
  ordered_json metadata = Metadata(scene, state, details);
  metadata["global_rank"] = worker.rank;
  metadata["worker_id"] = fmt::format("{}", worker.pid);
  if (!worker.error_json.empty()) metadata["raw_error"] = worker.error_json;
  return Event(scene, state, "WORKER", std::move(metadata));
}

std::string AgentEvent(const EventScene& scene, const std::string& state, std::optional<int64_t> duration_ms) {
  ordered_json metadata = Metadata(scene, state, Details(scene));
  metadata["duration_ms"] = NullUnless(duration_ms.has_value(), duration_ms.value_or(0));
  return Event(scene, state, "AGENT", std::move(metadata));
}

}  // namespace phalanx::agent
