#include "cli/job_view.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <utility>

#include "agent/flags/flag_values.h"
#include "cli/rows.h"
#include "cli/state_dir.h"
#include "phalanx/v1/admin.grpc.pb.h"
#include "wire/credentials.h"
#include "wire/grpc_log.h"
#include "wire/link_fault.h"

namespace phalanx::cli {
namespace {

// A master that says nothing within this stands still, or cannot be reached; one that is dead is refused at once.
constexpr int64_t kAskTimeoutMs = 6'000;
constexpr int64_t kMaxRows = 1'000'000;
// The last decision of a job of 10,000 nodes is among so many.
constexpr int64_t kListedRows = 50'000;

// Of the token; else of certificates that variables name.
StatusOr<wire::Credentials> CredentialsOf(const Environment& env, const std::string& token, wire::Role role) {
  if (!token.empty()) return wire::Credentials::FromToken(token, role);
  const TlsFiles files = TlsFilesOf(env);
  if (files.any() && !files.whole()) {
    return absl::InvalidArgumentError("PHALANX_TLS_CERT, PHALANX_TLS_KEY, PHALANX_TLS_CA: expected all three or none");
  }
  return files.given() ? wire::Credentials::FromFiles(files, wire::Side::kCaller) : wire::Credentials();
}

// As phalanx-run finds it.
StatusOr<std::string> TokenOf(const Environment& env, const std::string& state_dir) {
  if (TlsFilesOf(env).any()) return "";
  const std::string given = env.NonEmptyOr("PHALANX_TOKEN", "");
  if (!given.empty()) return given;
  return SharedTokenIn(state_dir.empty() ? DefaultStateRoot(env) : state_dir);
}

// Of the job of that folder, whose master leaves it there.
StatusOr<std::string> TokenOfJob(const std::string& folder, const Environment& env, const std::string& state_dir) {
  StatusOr<std::string> kept = ReadPrivateLine(folder + "/token");
  return kept.ok() ? kept : TokenOf(env, state_dir);
}

class AdminClient {
 public:
  static StatusOr<AdminClient> To(const std::string& address, std::string job, const wire::Credentials& credentials) {
    wire::SilenceGrpc();
    grpc::ChannelArguments args;
    args.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
    args.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
    args.SetInt(GRPC_ARG_SERVICE_CONFIG_DISABLE_RESOLUTION, 1);
    args.SetMaxReceiveMessageSize(-1);
    PHX_ASSIGN_OR_RETURN(std::shared_ptr<grpc::Channel> channel, credentials.Dial(address, args));
    return AdminClient(std::move(job), v1::Admin::NewStub(channel), credentials);
  }

  StatusOr<JobView> Ask(bool rows, bool ranks, bool check) {
    JobView view;
    view.live = true;
    v1::StatusRequest request;
    request.set_job_id(job_);
    request.set_fresh(true);
    request.set_ranks(ranks);
    request.set_check(check);
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status asked = stub_->Status(&context, request, &view.status);
    if (!asked.ok()) return ToStatus(asked);
    if (!rows) return view;
    PHX_ASSIGN_OR_RETURN(view.rows, AskRows());
    return view;
  }

  StatusOr<v1::LetInReply> LetIn(const std::string& node) {
    v1::LetInRequest request;
    request.set_job_id(job_);
    request.set_node(node);
    v1::LetInReply reply;
    grpc::ClientContext context;
    SetDeadline(context);
    const grpc::Status asked = stub_->LetIn(&context, request, &reply);
    if (!asked.ok()) return ToStatus(asked);
    return reply;
  }

 private:
  AdminClient(std::string job, std::unique_ptr<v1::Admin::Stub> stub, const wire::Credentials& credentials)
      : job_(std::move(job)), stub_(std::move(stub)), credentials_(credentials) {}

  StatusOr<std::vector<master::RecordRow>> AskRows() {
    std::vector<master::RecordRow> rows;
    while (true) {
      v1::EventsRequest request;
      request.set_job_id(job_);
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

  Status ToStatus(const grpc::Status& status) const {
    const wire::LinkFault fault = wire::FaultOf(status, credentials_, /*was_up=*/false);
    if (fault == wire::LinkFault::kNotProved) {
      return absl::PermissionDeniedError(
          fmt::format("the master and this command do not believe each other: PHALANX_TOKEN is another job's, or "
                      "PHALANX_TLS_CERT and PHALANX_TLS_CA are of another authority or name ({})",
                      status.error_message()));
    }
    if (fault == wire::LinkFault::kClosed) {
      return absl::PermissionDeniedError(
          "the job is closed: give its token as PHALANX_TOKEN, or a certificate as PHALANX_TLS_CERT, PHALANX_TLS_KEY "
          "and PHALANX_TLS_CA");
    }
    if (fault == wire::LinkFault::kNone && status.error_code() == grpc::StatusCode::DEADLINE_EXCEEDED) {
      return absl::DeadlineExceededError(fmt::format("its master has said nothing for {} s", kAskTimeoutMs / 1'000));
    }
    if (fault == wire::LinkFault::kNone && status.error_code() == grpc::StatusCode::UNAVAILABLE) {
      return absl::UnavailableError(fmt::format("no master answers ({})", status.error_message()));
    }
    if (fault == wire::LinkFault::kForeign) {
      return absl::FailedPreconditionError("what answers there is not a Phalanx master");
    }
    return Status(static_cast<absl::StatusCode>(status.error_code()), status.error_message());
  }

  std::string job_;
  std::unique_ptr<v1::Admin::Stub> stub_;
  wire::Credentials credentials_;
};

StatusOr<JobView> AskMaster(const std::string& address, const JobQuery& query, const Environment& env,
                            const std::string& token) {
  PHX_ASSIGN_OR_RETURN(const wire::Credentials credentials, CredentialsOf(env, token, wire::Role::kViewer));
  PHX_ASSIGN_OR_RETURN(AdminClient client, AdminClient::To(address, query.job, credentials));
  return client.Ask(query.rows, query.ranks, query.check);
}

// It may be of a job that trains: nobody has refused the connection.
void MarkSilent(JobView& view) {
  if (view.status.phase() == "unfinished") view.status.set_phase(std::string(kNotAnswering));
}

StatusOr<JobView> ReadRecord(const std::string& folder, const std::string& job, int64_t max_rows = kMaxRows) {
  PHX_ASSIGN_OR_RETURN(master::RecordReader reader, master::RecordReader::Open(folder + "/events.db"));
  PHX_ASSIGN_OR_RETURN(const std::optional<master::RecordRun> run, reader.LastRun(job));
  if (!run) return absl::NotFoundError(fmt::format("{}/events.db: no run of this job is recorded", folder));
  JobView view;
  view.recorded = true;
  PHX_ASSIGN_OR_RETURN(view.rows, reader.LastRows(run->run, max_rows));
  view.status = StatusFromRecord(*run, view.rows);
  view.ended = EndFromRecord(*run, view.rows);
  return view;
}

// -1: the row names none that the job has reached.
int64_t StepIn(const Row& row) {
  const char* key = row.kind == "worker-exited" ? "steps" : row.kind == "safe-step" ? "at_step" : "step";
  const bool names_one = row.kind == "worker-exited" || row.kind == "safe-step" || row.kind == "stalled" ||
                         row.kind == "stall-over" || row.kind == "hang" || row.kind == "checkpoint-stored" ||
                         row.kind == "checkpoint-restore";
  if (!names_one) return -1;
  const int64_t step = NumberIn(Detail(row), key);
  return step > 0 ? step : -1;
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

EndedJob EndFromRecord(const master::RecordRun& run, const std::vector<master::RecordRow>& rows) {
  EndedJob end;
  end.at_unix_ms = rows.empty() ? run.started_unix_ms : rows.back().unix_ms;
  if (!rows.empty() && rows.back().kind == "master-stopped") end.master_said = rows.back().reason;
  uint64_t step_epoch = 0;  // what an earlier round has done counts where no later one names a step
  for (const Row& row : rows) {
    if (row.kind == "job-finished") end.at_unix_ms = row.unix_ms;
    if (row.kind == "round-started") end.nodes = NumberIn(Detail(row), "nodes");
    const int64_t step = StepIn(row);
    if (step < 0 || row.epoch < step_epoch) continue;
    end.step = row.epoch > step_epoch ? step : std::max(end.step, step);
    step_epoch = row.epoch;
  }
  return end;
}

StatusOr<v1::LetInReply> LetNodeIn(const JobQuery& query, const std::string& node, const Environment& env) {
  std::string address = query.master;
  StatusOr<std::string> found;
  if (address.empty()) {
    PHX_ASSIGN_OR_RETURN(const std::string folder, FindJobFolder(env, query.state_dir, query.job));
    PHX_ASSIGN_OR_RETURN(address, ReadPrivateLine(folder + "/address"));
    found = TokenOfJob(folder, env, query.state_dir);
  } else {
    found = TokenOf(env, query.state_dir);
  }
  PHX_ASSIGN_OR_RETURN(const std::string token, std::move(found));
  PHX_ASSIGN_OR_RETURN(const wire::Credentials credentials, CredentialsOf(env, token, wire::Role::kOperator));
  PHX_ASSIGN_OR_RETURN(AdminClient client, AdminClient::To(address, query.job, credentials));
  return client.LetIn(node);
}

StatusOr<JobView> ViewJob(const JobQuery& query, const Environment& env) {
  if (!query.master.empty()) {
    PHX_ASSIGN_OR_RETURN(const std::string token, TokenOf(env, query.state_dir));
    StatusOr<JobView> view = AskMaster(query.master, query, env, token);
    if (!view.ok()) return WithContext(view.status(), fmt::format("--master={}", query.master));
    return view;
  }
  PHX_ASSIGN_OR_RETURN(const std::string folder, FindJobFolder(env, query.state_dir, query.job));
  const StatusOr<std::string> address = ReadPrivateLine(folder + "/address");
  if (address.ok()) {
    PHX_ASSIGN_OR_RETURN(const std::string token, TokenOfJob(folder, env, query.state_dir));
    StatusOr<JobView> view = AskMaster(*address, query, env, token);
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
    if (absl::IsDeadlineExceeded(view.status())) {
      StatusOr<JobView> record = ReadRecord(folder, query.job);
      if (!record.ok()) return WithContext(view.status(), fmt::format("master at {}", *address));
      MarkSilent(*record);
      return record;
    }
    if (!absl::IsUnavailable(view.status()) && !absl::IsNotFound(view.status())) {
      return WithContext(view.status(), fmt::format("master at {}", *address));
    }
  }
  return ReadRecord(folder, query.job);
}

StatusOr<JobView> ViewFolder(const std::string& folder, const Environment& env) {
  StatusOr<JobView> recorded = ReadRecord(folder, "", kListedRows);
  if (recorded.ok()) recorded->rows.clear();
  const StatusOr<std::string> address = ReadPrivateLine(folder + "/address");
  const bool over = recorded.ok() && recorded->status.phase() == "finished";
  if (!address.ok() || over) return recorded;
  JobQuery query;
  query.rows = false;
  // The port of a master that was killed may be another job's by now.
  if (recorded.ok()) query.job = recorded->status.job_id();
  const StatusOr<std::string> token = ReadPrivateLine(folder + "/token");
  StatusOr<JobView> live = AskMaster(*address, query, env, token.ok() ? *token : env.NonEmptyOr("PHALANX_TOKEN", ""));
  if (live.ok()) return live;
  if (recorded.ok() && absl::IsDeadlineExceeded(live.status())) MarkSilent(*recorded);
  return recorded;
}

}  // namespace phalanx::cli
