// More than 500 lines: one class on one completion queue; what needs neither is in files beside it.
#include "master/serve/server.h"

#include <grpc/support/log.h>
#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <deque>
#include <map>
#include <mutex>
#include <utility>

#include "base/log.h"
#include "base/net.h"
#include "master/core/convert.h"
#include "master/core/door.h"
#include "master/endpoint/endpoint.h"
#include "master/journal/journal.h"
#include "master/journal/snapshot.h"
#include "master/record/record.h"
#include "master/serve/state_lock.h"
#include "wire/admin_call.h"
#include "wire/operation.h"
#include "wire/session.h"

namespace phalanx::master {

using wire::AdminCall;
using wire::MemberOperation;
using wire::Operation;
using wire::Session;
using wire::SessionOwner;

namespace {

// A stream that has not said Hello within this, or does not end within this, is cancelled.
constexpr int64_t kHandshakeMs = 10'000;
// An embedded master whose first agent never came ends after this.
constexpr int64_t kFirstAgentMs = 60'000;
// The largest thing an agent sends is an error file and last words.
constexpr int kMaxMessageBytes = 1 << 20;
constexpr int kMaxStreamsPerConnection = 16;
constexpr int kMinPingIntervalMs = 1'000;
// What a live master tells of the past; all of it is in the record.
constexpr size_t kRecentRows = 4'096;
constexpr uint32_t kMaxEventsReply = 1'024;
// What is further away is waited for again.
constexpr int64_t kMaxWaitMs = int64_t{24} * 3'600'000;

gpr_timespec AtMs(Instant when) {
  const int64_t wait_ms = std::clamp<int64_t>(when - MonotonicMs(), 0, kMaxWaitMs);
  return gpr_time_add(gpr_now(GPR_CLOCK_MONOTONIC), gpr_time_from_millis(wait_ms, GPR_TIMESPAN));
}

// In the past, so that gRPC's thread for timers has no part in it: that one sleeps by the wall clock, and where that is
// set back by an hour, sleeps an hour longer.
gpr_timespec AtOnce() { return gpr_inf_past(GPR_CLOCK_MONOTONIC); }

std::string RandomId() {
  uint64_t words[2] = {static_cast<uint64_t>(MonotonicNs()), static_cast<uint64_t>(getpid())};
  if (getrandom(words, sizeof words, GRND_NONBLOCK) < 0) words[0] ^= static_cast<uint64_t>(UnixMs());
  return fmt::format("{:016x}{:016x}", words[0], words[1]);
}

void DropGrpcLog(gpr_log_func_args*) {}

StatusOr<JobState> JobOf(const std::string& journal, const std::string& job_id) {
  PHX_ASSIGN_OR_RETURN(const std::string payload, ReadJournal(journal));
  return RestoreState(payload, job_id, MonotonicMs());
}

}  // namespace

// What the record's thread has to say, until the master's own sequence takes it.
class RecordWarnings {
 public:
  void Add(const std::string& text) {
    const std::lock_guard<std::mutex> lock(mutex_);
    texts_.push_back(text);
  }
  std::vector<std::string> Take() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return std::exchange(texts_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> texts_;
};

class MasterServer::Impl final : public SessionOwner {
 public:
  explicit Impl(ServerOptions options);
  ~Impl() override;

  Status Listen();
  uint16_t port() const { return port_; }
  int Run();
  void Stop();

  void OnAccepted(Session& session) override;
  void OnMessage(Session& session, const v1::AgentMessage& message) override;
  void OnEnded(Session& session) override;
  void OnOver(Session& session) override;

 private:
  // --- serving ---
  Status Build();
  void OfferSession();
  void OfferAdmin();
  void OnTick(bool ok);
  void OnStop(bool ok);
  Instant NextWake();
  bool IsOver();
  void Shutdown();

  // --- the past ---
  Status LockState();
  Status TakeUp();
  Status RestoreJob();
  void ContinueRecord(RecordRun& run);

  // --- carrying out ---
  void Feed(const Event& event);
  void CarryOut(const std::vector<Decision>& decisions);
  void TellOfRecord();
  Session* Find(uint64_t session);
  void Send(uint64_t session, v1::MasterMessage message);
  void EndSession(uint64_t session);
  void Do(const SendWelcome& action, const std::string& reason);
  void Do(const SendRefused& action, const std::string& reason);
  void Do(const SendStartRound& action, const std::string& reason);
  void Do(const SendHold& action, const std::string& reason);
  void Do(const SendFinish& action, const std::string& reason);
  void Do(const SendNotice& action, const std::string& reason);
  void Do(const SendAnnounceRescale& action, const std::string& reason);
  void Do(const SendCheckpoint& action, const std::string& reason);
  void Do(const Drop& action, const std::string& reason);
  void Do(const Record& action, const std::string& reason);
  void Do(const Remember& action, const std::string& reason);

  // --- admin ---
  grpc::Status Authorize(const std::string& job_id, const std::string& token) const;
  grpc::Status AnswerStatus(const v1::StatusRequest& request, v1::StatusReply& reply) const;
  grpc::Status AnswerEvents(const v1::EventsRequest& request, v1::EventsReply& reply) const;

  const ServerOptions options_;
  const std::string master_id_ = RandomId();
  const int64_t started_unix_ms_ = UnixMs();
  const Instant started_ = MonotonicMs();
  int64_t record_until_unix_ms_ = 0;  // the last row of an earlier master
  // The wall clock as it was at the start, going on evenly: times of rows never go back, and their sums are right.
  int64_t UnixNow() const { return std::max(started_unix_ms_, record_until_unix_ms_) + (MonotonicMs() - started_); }
  JobState state_;

  v1::AgentLink::AsyncService agent_service_;
  v1::Admin::AsyncService admin_service_;
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Endpoint> endpoint_;
  uint16_t port_ = 0;
  bool shutting_down_ = false;
  bool shut_down_ = false;

  std::map<uint64_t, std::unique_ptr<Session>> sessions_;  // the one that is offered included
  uint64_t next_session_ = 1;
  size_t open_sessions_ = 0;
  // Sessions to look at later, in order of time.
  std::deque<std::pair<Instant, uint64_t>> overdue_;
  bool any_agent_ = false;
  Instant empty_since_;
  int admin_calls_ = 0;

  MemberOperation<Impl> tick_{this, &Impl::OnTick};
  grpc::Alarm alarm_;
  bool tick_pending_ = false;

  MemberOperation<Impl> stop_{this, &Impl::OnStop};
  grpc::Alarm stop_alarm_;
  std::mutex stop_mutex_;  // guards stoppable_
  bool stoppable_ = true;
  bool stop_pending_ = false;  // guarded by stop_mutex_ until Shutdown
  bool stopped_ = false;

  std::shared_ptr<const Outcome> outcome_;  // whose message this is:
  std::shared_ptr<const v1::MasterMessage> finish_message_;

  std::unique_ptr<JournalWriter> journal_;
  StateLock state_lock_;
  std::unique_ptr<RecordWriter> record_;
  const std::shared_ptr<RecordWarnings> record_warnings_ = std::make_shared<RecordWarnings>();  // its thread may stay
  int64_t next_row_ = 1;
  std::deque<RecordRow> recent_;
};

// --- serving ------------------------------------------------------------------------------------------------------

MasterServer::Impl::Impl(ServerOptions options) : options_(std::move(options)), empty_since_(started_) {
  state_.job_id = options_.job_id;
  if (options_.spec) state_.SetSpec(*options_.spec);
}

MasterServer::Impl::~Impl() {
  if (server_) Shutdown();
}

Status MasterServer::Impl::Listen() {
  gpr_set_log_function(DropGrpcLog);  // what it would say, our errors say in their own words
  PHX_RETURN_IF_ERROR(Build());
  PHX_RETURN_IF_ERROR(TakeUp());
  OfferSession();
  OfferAdmin();
  Do(Record{"master-started", 0, "", -1, {{"port", int64_t{port_}}}},
     fmt::format("Phalanx {} serves job '{}' at {}", PHALANX_VERSION, options_.job_id,
                 JoinHostPort(options_.hosts.front(), port_)));
  if (state_.arrivals > 0) CarryOut(Resume(state_, MonotonicMs()));
  endpoint_->Follow(state_);
  return absl::OkStatus();
}

// --- the past -----------------------------------------------------------------------------------------------------

// Behind the binding: of two masters of one endpoint the second shall find the port taken, and its node join the first.
Status MasterServer::Impl::LockState() {
  const std::string address = JoinHostPort(options_.hosts.front(), port_);
  StatusOr<StateLock> lock = StateLock::Take(options_.state_dir, options_.job_id, address);
  if (absl::IsFailedPrecondition(lock.status())) return lock.status();
  if (!lock.ok()) Log(LogLevel::kWarning, "state-lock", {{"what", Message(lock.status())}});
  if (lock.ok()) state_lock_ = *std::move(lock);
  return absl::OkStatus();
}

Status MasterServer::Impl::TakeUp() {
  if (options_.state_dir.empty()) return absl::OkStatus();
  PHX_RETURN_IF_ERROR(LockState());
  RecordRun run{0, master_id_, options_.job_id, PHALANX_VERSION, UnixNow(), 0};
  if (options_.resume) {
    PHX_RETURN_IF_ERROR(RestoreJob());
    ContinueRecord(run);
  } else {
    unlink((options_.state_dir + "/journal").c_str());  // of an earlier job with this id
  }
  const auto warn = [warnings = record_warnings_](const char* kind, const std::string& what) {
    Log(LogLevel::kWarning, kind, {{"what", what}});
    warnings->Add(what);
  };
  record_ = std::make_unique<RecordWriter>(options_.state_dir + "/events.db", run,
                                           [warn](const std::string& what) { warn("event-record", what); });
  journal_ = std::make_unique<JournalWriter>(options_.state_dir + "/journal",
                                             [warn](const std::string& what) { warn("journal", what); });
  return absl::OkStatus();
}

// A journal that says nothing of use is set aside: the agents know enough.
Status MasterServer::Impl::RestoreJob() {
  StatusOr<JobState> state = JobOf(options_.state_dir + "/journal", options_.job_id);
  if (!state.ok()) {
    Log(LogLevel::kWarning, "journal",
        {{"what", fmt::format("{}; the job is taken up from what its agents tell", Message(state.status()))}});
    return absl::OkStatus();
  }
  if (options_.spec && state->spec) {
    const JobSpec& was = *state->spec;
    const JobSpec& asked = *options_.spec;
    if (was.min_nodes != asked.min_nodes || was.max_nodes != asked.max_nodes || was.node_unit != asked.node_unit) {
      return absl::InvalidArgumentError(fmt::format(
          "--nnodes={}:{} --node-unit={}: the job of the journal has --nnodes={}:{} --node-unit={}; give the "
          "same, or leave out --resume",
          asked.min_nodes, asked.max_nodes, asked.node_unit, was.min_nodes, was.max_nodes, was.node_unit));
    }
    if (was.elastic_config != asked.elastic_config) {
      return absl::InvalidArgumentError(
          "--elastic-config: the job of the journal was begun with another one, or with none; give the same, or leave "
          "out --resume");
    }
    state->SetSpec(asked);
    state->spec_of_first_node = false;
  }
  state_ = *std::move(state);
  return absl::OkStatus();
}

// Rows of this master follow those of the one before: `phalanx ledger` sees one job.
void MasterServer::Impl::ContinueRecord(RecordRun& run) {
  StatusOr<RecordReader> reader = RecordReader::Open(options_.state_dir + "/events.db");
  if (!reader.ok()) return;
  const auto last = reader->LastRun(options_.job_id);
  if (!last.ok() || !*last) return;
  const auto end = reader->LastRow((*last)->run);
  if (!end.ok()) return;
  const auto rows = reader->Rows((*last)->run, *end - static_cast<int64_t>(kRecentRows), kRecentRows);
  if (!rows.ok()) return;
  run = **last;
  next_row_ = *end + 1;
  recent_.assign(rows->begin(), rows->end());
  if (!recent_.empty()) record_until_unix_ms_ = recent_.back().unix_ms;
}

Status MasterServer::Impl::Build() {
  PHX_ASSIGN_OR_RETURN(endpoint_, Endpoint::Listen(options_.hosts, options_.port, options_.verbose));
  port_ = endpoint_->port();
  grpc::ServerBuilder builder;
  endpoint_->Offer(builder);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // An agent that hears nothing pings; gRPC would take that for an attack and close the connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  // Not the minimal stack: it would leave out the filter that enforces this bound.
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.RegisterService(&agent_service_);
  builder.RegisterService(&admin_service_);
  queue_ = builder.AddCompletionQueue();
  server_ = builder.BuildAndStart();
  if (server_) return endpoint_->Start();
  queue_->Shutdown();
  return absl::UnavailableError("gRPC's server could not be started");
}

void MasterServer::Impl::OfferSession() {
  const uint64_t id = next_session_++;
  auto session = std::make_unique<Session>(id, this);
  session->Offer(agent_service_, *queue_);
  sessions_[id] = std::move(session);
}

void MasterServer::Impl::OfferAdmin() {
  using StatusCall = AdminCall<v1::StatusRequest, v1::StatusReply>;
  using EventsCall = AdminCall<v1::EventsRequest, v1::EventsReply>;
  StatusCall::Start(
      [this](auto* context, auto* request, auto* writer, void* tag) {
        admin_service_.RequestStatus(context, request, writer, queue_.get(), queue_.get(), tag);
      },
      [this](const auto& request, auto& reply) { return AnswerStatus(request, reply); }, &admin_calls_);
  EventsCall::Start(
      [this](auto* context, auto* request, auto* writer, void* tag) {
        admin_service_.RequestEvents(context, request, writer, queue_.get(), queue_.get(), tag);
      },
      [this](const auto& request, auto& reply) { return AnswerEvents(request, reply); }, &admin_calls_);
}

// The queue is waited on until something is due; no alarm is set for later (AtOnce says why).
int MasterServer::Impl::Run() {
  while (!IsOver()) {
    const Instant wake = NextWake();
    if (!tick_pending_ && wake <= MonotonicMs()) {
      tick_pending_ = true;  // its turn is behind what has come by now, beats above all
      alarm_.Set(queue_.get(), AtOnce(), &tick_);
    }
    void* tag = nullptr;
    bool ok = false;
    const auto next = queue_->AsyncNext(&tag, &ok, AtMs(tick_pending_ ? kNever : wake));
    if (next == grpc::CompletionQueue::SHUTDOWN) break;
    if (next == grpc::CompletionQueue::GOT_EVENT) static_cast<Operation*>(tag)->Done(ok);
  }
  const std::string why = stopped_         ? "it was asked to stop"
                          : state_.outcome ? "the job is over"
                                           : "its last agent has gone";
  Do(Record{"master-stopped", 0, "", -1, {}}, fmt::format("the master ends: {}", why));
  Shutdown();
  if (record_) record_->Close(RecordWriter::kCloseMs);
  return state_.outcome ? state_.outcome->exit_code : 1;
}

void MasterServer::Impl::Stop() {
  const std::lock_guard<std::mutex> lock(stop_mutex_);
  if (!stoppable_ || std::exchange(stop_pending_, true)) return;
  stop_alarm_.Set(queue_.get(), AtOnce(), &stop_);
}

void MasterServer::Impl::OnStop(bool) {
  const std::lock_guard<std::mutex> lock(stop_mutex_);
  stop_pending_ = false;
  stoppable_ = false;
  stopped_ = true;
}

bool MasterServer::Impl::IsOver() {
  if (stopped_) return true;
  if (open_sessions_ > 0) return false;
  if (state_.phase == Phase::kFinished) return state_.back_by == kNever;
  if (!options_.linger_ms) return false;
  return MonotonicMs() >= empty_since_ + (any_agent_ ? *options_.linger_ms : kFirstAgentMs);
}

Instant MasterServer::Impl::NextWake() {
  Instant wake = NextDeadline(state_);
  while (!overdue_.empty() && Find(overdue_.front().second) == nullptr) overdue_.pop_front();
  if (!overdue_.empty()) wake = std::min(wake, overdue_.front().first);
  if (open_sessions_ == 0 && options_.linger_ms && state_.phase != Phase::kFinished) {
    wake = std::min(wake, empty_since_ + (any_agent_ ? *options_.linger_ms : kFirstAgentMs));
  }
  return wake;
}

void MasterServer::Impl::OnTick(bool) {
  tick_pending_ = false;
  if (shutting_down_) return;
  const Instant now = MonotonicMs();
  while (!overdue_.empty() && overdue_.front().first <= now) {
    Session* session = Find(overdue_.front().second);
    overdue_.pop_front();
    if (session != nullptr && (!session->greeted() || session->ending())) session->Cancel();
  }
  if (NextDeadline(state_) <= now) Feed(Tick{});
}

void MasterServer::Impl::Shutdown() {
  if (std::exchange(shut_down_, true)) return;
  shutting_down_ = true;
  {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    stoppable_ = false;
  }
  endpoint_.reset();
  server_->Shutdown(AtOnce());
  // Every operation comes back before the queue may go.
  auto busy = [this] { return !sessions_.empty() || admin_calls_ > 0 || tick_pending_ || stop_pending_; };
  void* tag = nullptr;
  bool ok = false;
  while (busy() && queue_->Next(&tag, &ok)) static_cast<Operation*>(tag)->Done(ok);
  queue_->Shutdown();
  while (queue_->Next(&tag, &ok)) static_cast<Operation*>(tag)->Done(ok);
}

// --- sessions -----------------------------------------------------------------------------------------------------

Session* MasterServer::Impl::Find(uint64_t session) {
  const auto it = sessions_.find(session);
  return it == sessions_.end() ? nullptr : it->second.get();
}

void MasterServer::Impl::OnAccepted(Session& session) {
  ++open_sessions_;
  overdue_.push_back({MonotonicMs() + kHandshakeMs, session.id()});
  if (!shutting_down_) OfferSession();
}

void MasterServer::Impl::OnMessage(Session& session, const v1::AgentMessage& message) {
  if (shutting_down_) return;
  if (session.greeted()) {
    Feed(EventOf(session.id(), message));
    return endpoint_->OnMessage(state_, session.id(), message);
  }
  session.set_greeted();
  if (!message.has_hello()) {
    return Do(SendRefused{session.id()}, "the first message of a stream must be Hello");
  }
  const bool token_ok = options_.token.empty() || SameToken(message.hello().token(), options_.token);
  Feed(AttachedOf(session.id(), message, PeerAddress(session.peer()), token_ok));
  endpoint_->OnHello(state_, session.id(), message.hello());
  if (state_.nodes.contains(session.id())) any_agent_ = true;
}

void MasterServer::Impl::OnEnded(Session& session) {
  if (shutting_down_) return;
  Feed(AgentDetached{session.id(), "its stream broke"});
}

void MasterServer::Impl::OnOver(Session& session) {
  if (session.accepted() && --open_sessions_ == 0) empty_since_ = MonotonicMs();
  sessions_.erase(session.id());
}

// --- carrying out -------------------------------------------------------------------------------------------------

void MasterServer::Impl::Feed(const Event& event) {
  CarryOut(Step(state_, event, MonotonicMs()));
  if (endpoint_) endpoint_->Follow(state_);
  TellOfRecord();
}

void MasterServer::Impl::CarryOut(const std::vector<Decision>& decisions) {
  for (const Decision& decision : decisions) {
    std::visit([this, &decision](const auto& action) { Do(action, decision.reason); }, decision.action);
  }
}

void MasterServer::Impl::Do(const Remember& action, const std::string&) {
  if (!journal_) return;
  journal_->Put(SaveState(state_, MonotonicMs()), action.when == Remember::When::kSynced);
  if (action.when != Remember::When::kBehind) journal_->Flush(JournalWriter::kFlushMs);
}

// On one node's console: our own log may lie on the same full disk. With the next event, and beats are events.
void MasterServer::Impl::TellOfRecord() {
  const auto node =
      std::find_if(state_.nodes.begin(), state_.nodes.end(), [](const auto& n) { return !n.second.leaving; });
  if (node == state_.nodes.end()) return;
  for (const std::string& text : record_warnings_->Take()) Do(SendNotice{node->first}, text + "; the job goes on");
}

void MasterServer::Impl::Send(uint64_t session, v1::MasterMessage message) {
  if (Session* to = Find(session)) to->Send(std::make_shared<const v1::MasterMessage>(std::move(message)));
}

void MasterServer::Impl::EndSession(uint64_t session) {
  Session* ended = Find(session);
  if (ended == nullptr) return;
  overdue_.push_back({MonotonicMs() + kHandshakeMs, session});
  ended->End();
}

void MasterServer::Impl::Do(const SendWelcome& action, const std::string&) {
  v1::MasterMessage message;
  v1::Welcome& welcome = *message.mutable_welcome();
  welcome.set_master_id(master_id_);
  welcome.set_beat_interval_ms(action.beat_interval_ms);
  welcome.set_lease_ms(action.lease_ms);
  welcome.set_job_id(options_.job_id);
  Send(action.session, std::move(message));
}

void MasterServer::Impl::Do(const SendRefused& action, const std::string& reason) {
  v1::MasterMessage message;
  message.mutable_refused()->set_sentence(reason);
  Send(action.session, std::move(message));
  EndSession(action.session);
}

void MasterServer::Impl::Do(const SendStartRound& action, const std::string& reason) {
  if (endpoint_) endpoint_->OnStore(action.epoch, action.store_address, action.store_port);
  Send(action.session, MessageOf(action, reason));
}

void MasterServer::Impl::Do(const SendHold& action, const std::string& reason) {
  v1::MasterMessage message;
  message.mutable_hold_round()->set_epoch(action.epoch);
  message.mutable_hold_round()->set_reason(reason);
  Send(action.session, std::move(message));
}

void MasterServer::Impl::Do(const SendFinish& action, const std::string&) {
  if (outcome_ != action.outcome) {
    outcome_ = action.outcome;
    finish_message_ = std::make_shared<const v1::MasterMessage>(MessageOf(*outcome_));
  }
  if (Session* to = Find(action.session)) to->Send(finish_message_);
  EndSession(action.session);
}

void MasterServer::Impl::Do(const SendNotice& action, const std::string& reason) {
  v1::MasterMessage message;
  message.mutable_notice()->set_text(reason);
  Send(action.session, std::move(message));
}

void MasterServer::Impl::Do(const SendAnnounceRescale& action, const std::string& reason) {
  v1::MasterMessage message;
  v1::AnnounceRescale& announce = *message.mutable_announce_rescale();
  announce.set_epoch(action.epoch);
  announce.set_reason(reason);
  announce.set_at_step(action.at_step);
  Send(action.session, std::move(message));
}

void MasterServer::Impl::Do(const SendCheckpoint& action, const std::string&) {
  v1::MasterMessage message;
  *message.mutable_checkpoint() = action.order;
  Send(action.session, std::move(message));
}

void MasterServer::Impl::Do(const Drop& action, const std::string&) {
  if (Session* session = Find(action.session)) session->Cancel();
}

void MasterServer::Impl::Do(const Record& action, const std::string& reason) {
  if (options_.verbose) {
    LogFields fields;
    if (!action.node.empty()) fields.push_back({"node", action.node});
    if (action.rank >= 0) fields.push_back({"rank", fmt::format("{}", action.rank)});
    fields.push_back({"epoch", fmt::format("{}", action.epoch)});
    fields.push_back({"reason", reason});
    Log(LogLevel::kInfo, action.kind, fields);
  }
  RecordRow row;
  row.id = next_row_++;
  row.unix_ms = UnixNow();
  row.epoch = action.epoch;
  row.kind = action.kind;
  row.node = action.node;
  row.rank = action.rank;
  row.reason = reason;
  row.detail_json = DetailJson(action);
  if (record_) record_->Append(row);
  recent_.push_back(std::move(row));
  if (recent_.size() > kRecentRows) recent_.pop_front();
}

// --- admin --------------------------------------------------------------------------------------------------------

grpc::Status MasterServer::Impl::Authorize(const std::string& job_id, const std::string& token) const {
  if (!options_.token.empty() && !SameToken(token, options_.token)) {
    return grpc::Status(grpc::StatusCode::PERMISSION_DENIED, "the token is not that of the job (PHALANX_TOKEN)");
  }
  if (!job_id.empty() && job_id != options_.job_id) {
    return grpc::Status(grpc::StatusCode::NOT_FOUND, fmt::format("this master serves job '{}'", options_.job_id));
  }
  return grpc::Status::OK;
}

grpc::Status MasterServer::Impl::AnswerStatus(const v1::StatusRequest& request, v1::StatusReply& reply) const {
  grpc::Status allowed = Authorize(request.job_id(), request.token());
  if (!allowed.ok()) return allowed;
  reply = StatusOf(state_, MonotonicMs());
  reply.set_started_unix_ms(started_unix_ms_);
  reply.set_now_unix_ms(UnixNow());
  return grpc::Status::OK;
}

grpc::Status MasterServer::Impl::AnswerEvents(const v1::EventsRequest& request, v1::EventsReply& reply) const {
  grpc::Status allowed = Authorize(request.job_id(), request.token());
  if (!allowed.ok()) return allowed;
  const uint32_t limit = request.limit() == 0 ? kMaxEventsReply : std::min(request.limit(), kMaxEventsReply);
  auto row = std::upper_bound(recent_.begin(), recent_.end(), request.after_id(),
                              [](int64_t after, const RecordRow& r) { return after < r.id; });
  for (; row != recent_.end() && static_cast<uint32_t>(reply.events_size()) < limit; ++row) {
    v1::EventRecord& event = *reply.add_events();
    event.set_id(row->id);
    event.set_unix_ms(row->unix_ms);
    event.set_epoch(row->epoch);
    event.set_kind(row->kind);
    event.set_node(row->node);
    event.set_rank(static_cast<int32_t>(row->rank));
    event.set_reason(row->reason);
    event.set_detail_json(row->detail_json);
  }
  return grpc::Status::OK;
}

// --- the door -----------------------------------------------------------------------------------------------------

MasterServer::MasterServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
MasterServer::~MasterServer() = default;

StatusOr<std::unique_ptr<MasterServer>> MasterServer::Open(ServerOptions options) {
  auto impl = std::make_unique<Impl>(std::move(options));
  PHX_RETURN_IF_ERROR(impl->Listen());
  return std::unique_ptr<MasterServer>(new MasterServer(std::move(impl)));
}

uint16_t MasterServer::port() const { return impl_->port(); }
int MasterServer::Run() { return impl_->Run(); }
void MasterServer::Stop() { impl_->Stop(); }

}  // namespace phalanx::master
