// The events that torchrun's --event-log-handler records, as JSON lines that torch.distributed.elastic's
// Event.deserialize reads (docs/formats/torchelastic-events.md). Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace phalanx::agent {

// What is the same in all events of a moment.
struct EventScene {
  int64_t unix_ms = 0;
  std::string run_id;
  std::string role;
  std::string hostname;
  std::string rdzv_backend;  // "c10d" or "static"
  std::string entry_point;   // the script as it was given
  int64_t total_run_s = 0;
  int64_t group_rank = -1;  // -1: in no round yet
  int64_t group_world_size = 0;
  int64_t restart_count = 0;
};

struct EventWorker {
  int64_t rank = 0;
  int64_t local_rank = 0;
  int64_t role_rank = 0;
  int64_t role_world_size = 0;
  int64_t pid = 0;
  std::optional<int64_t> exit_code;  // negative: the signal; absent: it runs, or ended with 0
  std::string error_json;            // what it recorded; empty: nothing
};

// `state`: START, SUCCEEDED, FAILED or TERMINATED. Without a newline.
std::string WorkerEvent(const EventScene& scene, const std::string& state, const EventWorker& worker);

// `state`: RENDEZVOUS (with its duration), SUCCEEDED or FAILED.
std::string AgentEvent(const EventScene& scene, const std::string& state, std::optional<int64_t> duration_ms);

}  // namespace phalanx::agent
