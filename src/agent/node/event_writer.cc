#include "agent/node/event_writer.h"

#include <fmt/format.h>

#include <utility>

#include "agent/node/named_file.h"
#include "base/net.h"

namespace phalanx::agent {

EventWriter::EventWriter(const Parts& parts) : parts_(parts), hostname_(Hostname()) {}

StatusOr<std::unique_ptr<EventWriter>> EventWriter::Open(const Parts& parts) {
  std::unique_ptr<EventWriter> writer;
  if (parts.config.event_log == EventLog::kNone) return writer;
  writer.reset(new EventWriter(parts));
  if (parts.config.event_log == EventLog::kFile) PHX_RETURN_IF_ERROR(writer->OpenFile());
  return writer;
}

Status EventWriter::OpenFile() {
  const LaunchConfig& config = parts_.config;
  std::string path = config.event_log_file;
  if (path.empty()) {
    StatusOr<std::string> dir = parts_.supervisor.RunDir();
    if (!dir.ok()) return WithContext(dir.status(), "--event-log-handler=jsonl");
    path = *dir + "/events.jsonl";
  }
  NamedFile file{path};
  file.append = true;
  file.follow_links = true;  // the person has named it, or it is in a folder of our own
  StatusOr<Fd> opened = OpenNamed(file);
  if (!opened.ok()) return WithContext(opened.status(), fmt::format("--event-log-handler=jsonl:{}", path));
  file_ = std::make_unique<Console>(parts_.loop, *std::move(opened),
                                    [path, tell = parts_.on_notice](int error) { tell(LossNotice(path, error)); });
  const bool in_an_unknown_folder = config.event_log_file.empty() && config.log_dir.empty();
  if (in_an_unknown_folder) parts_.on_notice(fmt::format("events are written to {} (--log-dir gives another)", path));
  return absl::OkStatus();
}

void EventWriter::TellOfAgent(const std::string& state, std::optional<int64_t> duration_ms) {
  Write(AgentEvent(SceneNow(), state, duration_ms));
}

void EventWriter::TellOfWorker(const std::string& state, int local_rank, const v1::WorkerExited* exited) {
  const CoreState& core = parts_.core;
  if (!core.round) return;
  EventWorker worker;
  worker.local_rank = local_rank;
  worker.rank = core.round->rank_base() + local_rank;
  worker.role_rank = core.round->role_rank_base() + local_rank;
  worker.role_world_size = core.round->role_world_size();
  const auto live = core.workers.find(local_rank);
  if (live != core.workers.end()) worker.pid = live->second.pid;
  if (exited != nullptr) {
    worker.pid = exited->pid();
    worker.error_json = exited->error_json();
    if (exited->signal() != 0) worker.exit_code = -exited->signal();
    if (exited->exit_code() != 0) worker.exit_code = exited->exit_code();
  }
  Write(WorkerEvent(SceneNow(), state, worker));
}

void EventWriter::Write(const std::string& event) {
  const std::string line = event + "\n";
  if (file_) return file_->Write(line);
  parts_.supervisor.Say(line);
}

EventScene EventWriter::SceneNow() const {
  const LaunchConfig& config = parts_.config;
  const CoreState& core = parts_.core;
  EventScene scene;
  scene.unix_ms = UnixMs();
  scene.run_id = config.rdzv_id;
  scene.role = config.role;
  scene.hostname = hostname_;
  scene.rdzv_backend = config.rendezvous == Rendezvous::kStatic ? "static" : "c10d";
  scene.entry_point = config.ShownScript();
  scene.total_run_s = (MonotonicMs() - parts_.began_ms) / 1'000;
  if (!core.round) return scene;
  scene.group_rank = core.round->group_rank();
  scene.group_world_size = core.round->group_world_size();
  scene.restart_count = core.round->restart_count();
  return scene;
}

}  // namespace phalanx::agent
