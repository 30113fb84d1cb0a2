#include "cli/job_view.h"

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "cli/rows.h"
#include "cli/state_dir.h"
#include "phalanx/v1/admin.grpc.pb.h"

namespace phalanx::cli {
namespace {

// A master that does not answer within this is taken for dead.
constexpr int64_t kAskTimeoutMs = 3'000;
constexpr int64_t kMaxRows = 1'000'000;

class AdminClient {
 public:
  AdminClient(const std::string& address, std::string job, std::string token)
      : job_(std::move(job)), token_(std::move(token)) {
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    args.SetMaxReceiveMessageSize(-1);
    stub_ = v1::Admin::NewStub(grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), args));
  }

  StatusOr<JobView> Ask(bool rows) {
    JobView view;
    view.live = true;
    v1::StatusRequest request;
    request.set_job_id(job_);
    request.set_token(token_);
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status asked = stub_->Status(&context, request, &view.status);
    if (!asked.ok()) return ToStatus(asked);
    if (!rows) return view;
    PHX_ASSIGN_OR_RETURN(view.rows, AskRows());
    return view;
  }

 private:
  StatusOr<std::vector<master::RecordRow>> AskRows() {
    std::vector<master::RecordRow> rows;
    while (true) {
      v1::EventsRequest request;
      request.set_job_id(job_);
      request.set_token(token_);
      request.set_after_id(rows.empty() ? 0 : rows.back().id);
      v1::EventsReply reply;
      grpc::ClientContext context;
      SetDeadline(context);
      const grpc::Status asked = stub_->Events(&context, request, &reply);
      if (!asked.ok()) return ToStatus(asked);
      if (reply.events_size() == 0) return rows;
      for (const v1::EventRecord& e : reply.events()) {
        rows.push_back({e.id(), e.unix_ms(), e.epoch(), e.kind(), e.node(), e.rank(), e.reason(), e.detail_json()});
      }
    }
  }

  static void SetDeadline(grpc::ClientContext& context) {
    context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(kAskTimeoutMs));
  }

  static Status ToStatus(const grpc::Status& status) {
    const bool silent = status.error_code() == grpc::StatusCode::UNAVAILABLE ||
                        status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED;
    if (silent) return absl::UnavailableError(fmt::format("no master answers ({})", status.error_message()));
    if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED) {
      return absl::FailedPreconditionError("what answers there is not a Phalanx master");
    }
    return Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  std::string job_;
  std::string token_;
  std::unique_ptr<v1::Admin::Stub> stub_;
};

StatusOr<JobView> ReadRecord(const std::string& folder, const std::string& job) {
  PHX_ASSIGN_OR_RETURN(master::RecordReader reader, master::RecordReader::Open(folder + "/events.db"));
  PHX_ASSIGN_OR_RETURN(const std::optional<master::RecordRun> run, reader.LastRun(job));
  if (!run) return absl::NotFoundError(fmt::format("{}/events.db: no run of this job is recorded", folder));
  JobView view;
  view.recorded = true;
  PHX_ASSIGN_OR_RETURN(view.rows, reader.LastRows(run->run, kMaxRows));
  view.status = StatusFromRecord(*run, view.rows);
  return view;
}

}  // namespace

// Of a large job most rows are of other kinds, and are not parsed.
v1::StatusReply StatusFromRecord(const master::RecordRun& run, const std::vector<master::RecordRow>& rows) {
  v1::StatusReply status;
  status.set_job_id(run.job_id);
  status.set_started_unix_ms(run.started_unix_ms);
  status.set_phase("unfinished");
  for (const Row& row : rows) {
    if (!IsTurn(row)) continue;
    status.set_reason(row.reason);
    const auto detail = nlohmann::ordered_json::parse(row.detail_json, nullptr, /*allow_exceptions=*/false);
    if (!detail.is_object()) continue;
    if (row.kind == "round-started") {
      status.set_epoch(row.epoch);
      status.set_world_size(static_cast<uint32_t>(NumberIn(detail, "world_size")));
      status.set_restart_count(static_cast<uint32_t>(NumberIn(detail, "restart_count")));
      status.set_restarts_left(static_cast<uint32_t>(NumberIn(detail, "restarts_left")));
    }
    if (row.kind == "job-finished") {
      status.set_phase("finished");
      status.set_exit_code(static_cast<int32_t>(NumberIn(detail, "exit_code")));
    }
  }
  return status;
}

StatusOr<JobView> ViewJob(const JobQuery& query, const Environment& env) {
  std::string token = env.NonEmptyOr("PHALANX_TOKEN", "");
  if (!query.master.empty()) {
    StatusOr<JobView> view = AdminClient(query.master, query.job, token).Ask(query.rows);
    if (!view.ok()) return WithContext(view.status(), fmt::format("--master={}", query.master));
    return view;
  }
  PHX_ASSIGN_OR_RETURN(const std::string folder, FindJobFolder(env, query.state_dir, query.job));
  const StatusOr<std::string> address = ReadPrivateLine(folder + "/address");
  if (address.ok()) {
    const StatusOr<std::string> kept = ReadPrivateLine(folder + "/token");
    if (kept.ok()) token = *kept;
    StatusOr<JobView> view = AdminClient(*address, query.job, token).Ask(query.rows);
    if (view.ok()) {
      if (!query.rows || MissingRows(view->rows) == 0) return view;
      // The master remembers a part; the record knows the rest.
      StatusOr<JobView> record = ReadRecord(folder, query.job);
      if (!record.ok()) return view;
      std::optional<std::vector<master::RecordRow>> merged = Merged(record->rows, view->rows);
      // The record of a master that could not open it is of an earlier run, and tells nothing of this one.
      if (!merged) return view;
      view->rows = *std::move(merged);
      view->recorded = true;
      return view;
    }
    if (!absl::IsUnavailable(view.status()) && !absl::IsNotFound(view.status())) {
      return WithContext(view.status(), fmt::format("master at {}", *address));
    }
  }
  return ReadRecord(folder, query.job);
}

}  // namespace phalanx::cli
