#include "master/serve/server.h"

#include <grpcpp/alarm.h>
#include <grpcpp/grpcpp.h>
#include <sys/random.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "base/grpc_peer.h"
#include "base/log.h"
#include "base/net.h"
#include "master/core/admit.h"
#include "master/core/convert.h"
#include "master/core/door.h"
#include "master/core/messages.h"
#include "master/core/succession.h"
#include "master/endpoint/endpoint.h"
#include "master/journal/journal.h"
#include "master/journal/snapshot.h"
#include "master/replay/frames.h"
#include "master/replay/start.h"
#include "master/serve/admin_desk.h"
#include "master/serve/platform_desk.h"
#include "master/serve/prober.h"
#include "master/serve/record_keeper.h"
#include "master/serve/shell_decisions.h"
#include "master/serve/state_lock.h"
#include "replay/recorder.h"
#include "wire/grpc_log.h"
#include "wire/limits.h"
#include "wire/node_key.h"
#include "wire/operation.h"
#include "wire/session.h"

namespace phalanx::master {

using wire::MemberOperation;
using wire::Operation;
using wire::Session;
using wire::SessionOwner;

namespace {

// The largest thing an agent sends is an error file and last words.
constexpr int kMaxMessageBytes = 1 << 20;
constexpr int kMaxStreamsPerConnection = 16;
constexpr int kMinPingIntervalMs = 1'000;
// What is further away is waited for again.
constexpr int64_t kMaxWaitMs = int64_t{24} * 3'600'000;

// When the last node tells what it holds, each may hear in that step of every directory: which save is committed, goes
// to storage or has ended there, is looked for or restored; beside all those that are dropped.
static_assert(wire::kMaxQueued >= 8 * kMaxCheckpointDirs);

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

}  // namespace

class MasterServer::Impl final : public SessionOwner {
 public:
  explicit Impl(ServerOptions options);
  ~Impl() override;

  Status Listen();
  uint16_t port() const { return port_; }
  int Run();
  void Stop() { AskToEnd(true); }
  void LetGo() { AskToEnd(false); }

  void OnAccepted(Session& session) override;
  void OnMessage(Session& session, const v1::AgentMessage& message) override;
  void OnEnded(Session& session) override;
  void OnOver(Session& session) override;

 private:
  // --- serving ---
  Status Build();
  void OfferSession();
  void OnTick(bool ok);
  void AskToEnd(bool elected_as_well);
  void OnStop(bool ok);
  void OnProbed(bool ok);
  Instant NextWake();
  bool IsOver();
  void Shutdown();

  // --- the past ---
  Status LockState();
  Status TakeUp();
  void OnElected();
  void OnMoved();
  void BewareOfEarlier();
  Status RestoreJob();
  void ResumeJob(Instant now);
  Status OpenReplayLog();

  // --- carrying out ---
  void Feed(const Event& event);
  void CarryOut(const std::vector<Decision>& decisions);
  void TellOfDisk();
  Session* Find(uint64_t session);
  void Tell(uint64_t session, v1::MasterMessage message);
  void EndSession(uint64_t session);
  void Do(const Send& action, const std::string& reason);
  void Do(const Drop& action, const std::string& reason);
  void Do(const Record& action, const std::string& reason);
  void Do(const Remember& action, const std::string& reason);
  void Do(const Probe& action, const std::string& reason);
  // On the prober's thread.
  void TellOfProbes();

  const ServerOptions options_;
  const std::string master_id_ = RandomId();
  const int64_t started_unix_ms_ = UnixMs();
  JobState state_;
  StateLock state_lock_;  // outlives those that write to the directory
  RecordKeeper record_{started_unix_ms_};
  AdminDesk desk_{options_.job_id, state_, record_};
  PlatformDesk platform_{options_.job_id, state_};

  v1::AgentLink::AsyncService agent_service_;
  std::shared_ptr<grpc::ServerCredentials> tls_;  // outlives the server
  std::unique_ptr<grpc::ServerCompletionQueue> queue_;
  std::unique_ptr<grpc::Server> server_;
  std::unique_ptr<Endpoint> endpoint_;
  uint16_t port_ = 0;
  bool shutting_down_ = false;
  bool shut_down_ = false;
  bool moved_ = false;  // it sends on who comes

  std::map<uint64_t, std::unique_ptr<Session>> sessions_;  // the one that is offered included
  uint64_t next_session_ = 1;
  StreamDeadlines deadlines_;
  Attendance attendance_;

  MemberOperation<Impl> tick_{this, &Impl::OnTick};
  grpc::Alarm alarm_;
  bool tick_pending_ = false;

  MemberOperation<Impl> stop_{this, &Impl::OnStop};
  grpc::Alarm stop_alarm_;
  std::mutex stop_mutex_;  // guards stoppable_
  bool stoppable_ = true;
  bool ends_elected_ = false;  // guarded by stop_mutex_; whatever it is, it ends
  bool stop_pending_ = false;  // guarded by stop_mutex_ until Shutdown
  bool stopped_ = false;

  MemberOperation<Impl> probed_{this, &Impl::OnProbed};
  grpc::Alarm probed_alarm_;
  bool probed_pending_ = false;  // guarded by stop_mutex_
  Prober prober_{[this] { TellOfProbes(); }};

  std::unique_ptr<JournalWriter> journal_;
  v1::ReplayStart replay_start_;                // what state_ is made of
  std::unique_ptr<replay::Recorder> recorder_;  // null: nobody wants a replay log
};

// --- serving ------------------------------------------------------------------------------------------------------

MasterServer::Impl::Impl(ServerOptions options) : options_(std::move(options)) {
  attendance_.empty_since = MonotonicMs();
  state_.job_id = options_.job_id;
  if (options_.spec) {
    v1::JobSpec spec = *options_.spec;
    AdmitSpec(spec);
    state_.SetSpec(spec);
  }
  replay_start_.set_now_ms(MonotonicMs());
}

MasterServer::Impl::~Impl() {
  if (server_) Shutdown();
}

Status MasterServer::Impl::Listen() {
  wire::SilenceGrpc();
  PHX_RETURN_IF_ERROR(Build());
  if (options_.candidate_term == 0) PHX_RETURN_IF_ERROR(TakeUp());
  state_.master_id = master_id_;
  v1::MasterStart& start = *replay_start_.mutable_master();
  start.set_port(port_);
  start.set_succession(options_.succession);
  start.set_at_endpoint(options_.candidate_term == 0 && !options_.elected);
  start.set_term(options_.term);
  start.set_candidate_term(options_.candidate_term);
  start.set_before_broke(options_.before_broke);
  start.set_await_platform_ms(options_.await_platform_ms);
  start.set_any_job_id(options_.any_job_id);
  start.set_open(options_.plain_nodes || !options_.credentials.given());
  if (options_.epoch) start.set_epoch(*options_.epoch);
  TakeItsPlace(state_, start, replay_start_.now_ms());
  PHX_RETURN_IF_ERROR(OpenReplayLog());
  OfferSession();
  desk_.Offer(*queue_, *endpoint_, [this](const Event& event) { Feed(event); });
  platform_.Offer(*queue_, *endpoint_, [this](const Event& event) { Feed(event); });
  Do(Record{"master-started", 0, "", -1, {{"port", int64_t{port_}}}},
     fmt::format("Phalanx {} serves job '{}' at {}", PHALANX_VERSION, options_.job_id,
                 JoinHostPort(options_.hosts.front(), port_)));
  if (state_.arrivals > 0) ResumeJob(MonotonicMs());  // a candidate has none yet
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
  const std::string journal = options_.state_dir + "/journal";
  if (options_.resume) PHX_RETURN_IF_ERROR(RestoreJob());
  if (!options_.resume) {
    if (options_.succession && options_.candidate_term == 0) BewareOfEarlier();
    unlink(journal.c_str());  // of an earlier job with this id
  }
  const RecordRun run{0, master_id_, options_.job_id, PHALANX_VERSION, record_.UnixNow(), 0};
  record_.Open(options_.state_dir + "/events.db", run, options_.resume, options_.before_id);
  journal_ = std::make_unique<JournalWriter>(journal, record_.Warner("journal"));
  return absl::OkStatus();
}

// The state directory may be needed by the next master of this node.
void MasterServer::Impl::OnMoved() {
  journal_.reset();
  record_.Close();
  state_lock_ = StateLock();
  if (options_.on_moved) options_.on_moved();
}

// This node may have come back to a job that has gone on without it.
void MasterServer::Impl::BewareOfEarlier() {
  replay_start_.set_now_ms(MonotonicMs());
  const StatusOr<std::string> payload = ReadJournal(options_.state_dir + "/journal");
  if (!payload.ok()) return;
  const StatusOr<JobState> before = RestoreState(*payload, options_.job_id, replay_start_.now_ms());
  if (!before.ok()) return;
  BewareOf(state_, *before, replay_start_.now_ms());
  if (!options_.replay_log.empty()) replay_start_.mutable_master()->set_before(*payload);
}

// Until then the state directory may be that of the master before, which may be back. One that another master holds is
// not waited for: the job goes on.
void MasterServer::Impl::OnElected() {
  const Status taken = TakeUp();
  if (!taken.ok()) Log(LogLevel::kWarning, "state-dir", {{"what", Message(taken)}});
  if (options_.on_elected) options_.on_elected();
}

// A journal that says nothing of use is set aside: the agents know enough.
Status MasterServer::Impl::RestoreJob() {
  replay_start_.set_now_ms(MonotonicMs());
  const StatusOr<std::string> payload = ReadJournal(options_.state_dir + "/journal");
  StatusOr<JobState> state = payload.ok() ? RestoreState(*payload, options_.job_id, replay_start_.now_ms())
                                          : StatusOr<JobState>(payload.status());
  if (!state.ok()) {
    Log(LogLevel::kWarning, "journal",
        {{"what", fmt::format("{}; the job is taken up from what its agents tell", Message(state.status()))}});
    return absl::OkStatus();
  }
  if (options_.spec) {
    if (state->spec) PHX_RETURN_IF_ERROR(MayTakeUp(*state->spec, *options_.spec));
    TakeOwnSpec(*state, *options_.spec);
  }
  if (!options_.replay_log.empty()) replay_start_.mutable_master()->set_snapshot(*payload);
  state_ = *std::move(state);
  return absl::OkStatus();
}

// A job that trains must not end for want of a log: its next master goes on without one.
Status MasterServer::Impl::OpenReplayLog() {
  if (options_.replay_log.empty()) return absl::OkStatus();
  replay_start_.set_software_version(PHALANX_VERSION);
  replay_start_.set_job_id(options_.job_id);
  replay_start_.set_unix_ms(UnixMs() - (MonotonicMs() - replay_start_.now_ms()));
  replay_start_.mutable_master()->set_master_id(master_id_);
  if (options_.spec) *replay_start_.mutable_master()->mutable_spec() = *options_.spec;
  auto opened = replay::Recorder::Open(options_.replay_log, fmt::format("master-{}", master_id_), replay_start_,
                                       record_.Warner("replay-log"));
  replay_start_.Clear();  // a snapshot may be large
  if (opened.ok()) {
    recorder_ = *std::move(opened);
    return absl::OkStatus();
  }
  Status why = WithContext(opened.status(), "--replay-log");
  if (!options_.resume && options_.candidate_term == 0) return why;
  record_.Warner("replay-log")(Message(why));
  return absl::OkStatus();
}

Status MasterServer::Impl::Build() {
  PHX_ASSIGN_OR_RETURN(endpoint_, Endpoint::Listen(options_.hosts, options_.port, options_.verbose));
  port_ = endpoint_->port();
  grpc::ServerBuilder builder;
  if (options_.credentials.given()) tls_ = options_.credentials.ForServer(record_.Warner("tls-files"));
  endpoint_->Offer(builder, tls_, options_.plain_nodes || !tls_);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_BDP_PROBE, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreamsPerConnection);
  // An agent that hears nothing pings; gRPC would take that for an attack and close the connection.
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kMinPingIntervalMs);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONNECTION_IDLE_MS, options_.idle_ms);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, options_.idle_ms);
  // Not the minimal stack: it would leave out the filter that enforces this bound.
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.RegisterService(&agent_service_);
  builder.RegisterService(&desk_.service());
  builder.RegisterService(&platform_.service());
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
  const std::string why = stopped_                      ? "it was asked to stop"
                          : state_.outcome              ? "the job is over"
                          : state_.platform.has_another ? "another one has taken its place"
                                                        : "its last agent has gone";
  Do(Record{"master-stopped", 0, "", -1, {}}, fmt::format("the master ends: {}", why));
  Shutdown();
  record_.Close();
  recorder_.reset();
  if (state_.outcome) return state_.outcome->exit_code;
  return stopped_ || state_.platform.has_another ? kStoppedExit : 1;
}

void MasterServer::Impl::AskToEnd(bool elected_as_well) {
  const std::lock_guard<std::mutex> lock(stop_mutex_);
  if (!stoppable_) return;
  ends_elected_ |= elected_as_well;
  if (std::exchange(stop_pending_, true)) return;
  stop_alarm_.Set(queue_.get(), AtOnce(), &stop_);
}

void MasterServer::Impl::OnStop(bool) {
  const std::lock_guard<std::mutex> lock(stop_mutex_);
  stop_pending_ = false;
  if (!ends_elected_ && !state_.candidacy) return;
  stoppable_ = false;
  stopped_ = true;
}

bool MasterServer::Impl::IsOver() {
  return stopped_ || state_.platform.has_another || MonotonicMs() >= EndsAt(attendance_, state_, options_.linger_ms);
}

Instant MasterServer::Impl::NextWake() {
  const Instant deadline = deadlines_.Next([this](uint64_t session) { return Find(session) != nullptr; });
  return std::min({NextDeadline(state_), deadline, platform_.DueAt(), EndsAt(attendance_, state_, options_.linger_ms)});
}

void MasterServer::Impl::OnTick(bool) {
  tick_pending_ = false;
  if (shutting_down_) return;
  const Instant now = MonotonicMs();
  for (const uint64_t id : deadlines_.TakeDue(now)) {
    Session* session = Find(id);
    if (session != nullptr && HasFailed(session->greeted(), session->ending())) session->Cancel();
  }
  if (platform_.DueAt() <= now) platform_.Settle(now);
  if (NextDeadline(state_) <= now) Feed(Tick{});
}

void MasterServer::Impl::Shutdown() {
  if (std::exchange(shut_down_, true)) return;
  shutting_down_ = true;
  {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    stoppable_ = false;
  }
  desk_.Withdraw(MonotonicMs());
  platform_.Withdraw();
  endpoint_.reset();
  prober_.Finish();
  server_->Shutdown(AtOnce());
  // Every operation comes back before the queue may go.
  auto busy = [this] {
    return !sessions_.empty() || desk_.calls() > 0 || platform_.streams() > 0 || tick_pending_ || stop_pending_ ||
           probed_pending_;
  };
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
  if (endpoint_ && session.role()) endpoint_->Proved(session.peer());
  ++attendance_.open_streams;
  deadlines_.Begin(session.id(), MonotonicMs());
  if (!shutting_down_) OfferSession();
}

void MasterServer::Impl::OnMessage(Session& session, const v1::AgentMessage& message) {
  if (shutting_down_) return;
  if (session.greeted()) {
    Feed(EventOf(session.id(), message));
    return endpoint_->OnMessage(state_, session.id(), message);
  }
  session.set_greeted();
  std::string fault = FirstMessageFault(message);
  if (fault.empty()) fault = wire::NodeKeyFault(message.hello());
  if (!fault.empty()) return Tell(session.id(), RefusedFor(fault));
  const std::optional<wire::Role> role = session.role();
  // Of certificates in files a master's may be that of a node, too: any may come to host the master.
  if (role.has_value() && *role != wire::Role::kAgent && *role != wire::Role::kMaster) {
    return Tell(session.id(), RefusedFor(fmt::format("a certificate of the role {}: it may not join as a node",
                                                     wire::NameOf(*role))));
  }
  const std::string address = PeerAddress(session.peer());
  if (!role && !MayHerald(state_, message.hello())) {
    endpoint_->CountRefused(
        Refusals::Door::kEndpoint,
        fmt::format("one at {} tells of another master, and is no node of this one", session.peer()));
    const Instant until = state_.doubted_until;
    const bool is_doubted = until != kNever && until - MonotonicMs() > kDoubtMs / 2;
    if (state_.at_endpoint && message.hello().term() > state_.term && !is_doubted) {
      v1::AgentMessage doubted = message;
      doubted.mutable_hello()->clear_master();
      Feed(AttachedOf(session.id(), doubted, address));
    }
    return Tell(session.id(), RefusedFor("only a node of this job may tell of another master"));
  }
  if (!role && state_.moved_to && !message.hello().only_tells() && !IsNodeOf(state_, message.hello().node_id())) {
    // It is sent on like everybody, and not where it says.
    v1::AgentMessage doubted = message;
    doubted.mutable_hello()->clear_master();
    doubted.mutable_hello()->clear_term();
    Feed(AttachedOf(session.id(), doubted, address));
  } else {
    Feed(AttachedOf(session.id(), message, address));
  }
  endpoint_->OnHello(state_, session.id(), message.hello());
  if (state_.nodes.contains(session.id()) || state_.candidacy || message.hello().only_tells()) {
    attendance_.any_agent = true;
  } else {
    endpoint_->CountRefused(Refusals::Door::kEndpoint,
                            fmt::format("a node at {} was refused: phalanx events says why", session.peer()));
  }
}

void MasterServer::Impl::OnEnded(Session& session) {
  if (shutting_down_) return;
  Feed(AgentDetached{session.id(), "its stream broke"});
}

void MasterServer::Impl::OnOver(Session& session) {
  if (session.accepted() && --attendance_.open_streams == 0) attendance_.empty_since = MonotonicMs();
  sessions_.erase(session.id());
}

// --- carrying out -------------------------------------------------------------------------------------------------

void MasterServer::Impl::Feed(const Event& event) {
  const Instant now = MonotonicMs();
  if (recorder_) recorder_->Add(EventFrame(now, event));
  const bool stood = state_.candidacy.has_value();
  const std::vector<Decision> decisions = Step(state_, event, now);
  if (stood && !state_.candidacy) OnElected();
  CarryOut(decisions);
  if (state_.moved_to && !std::exchange(moved_, true)) OnMoved();
  if (endpoint_) endpoint_->Follow(state_);
  desk_.Settle(now);
  platform_.Settle(now);
  TellOfDisk();
}

void MasterServer::Impl::CarryOut(const std::vector<Decision>& decisions) {
  for (const Decision& decision : decisions) {
    std::visit([this, &decision](const auto& action) { Do(action, decision.reason); }, decision.action);
  }
  if (recorder_) recorder_->Add(DecisionsFrame(decisions));
}

void MasterServer::Impl::ResumeJob(Instant now) {
  if (recorder_) recorder_->Add(ResumedFrame(now));
  CarryOut(Resume(state_, now));
}

void MasterServer::Impl::Do(const Remember& action, const std::string&) {
  if (!journal_) return;
  journal_->Put(SaveState(state_, MonotonicMs()), action.when == Remember::When::kSynced);
  if (action.when != Remember::When::kBehind) journal_->Flush(JournalWriter::kFlushMs);
}

void MasterServer::Impl::Do(const Probe& action, const std::string&) { prober_.Ask(action); }

void MasterServer::Impl::TellOfProbes() {
  const std::lock_guard<std::mutex> lock(stop_mutex_);
  if (!stoppable_ || std::exchange(probed_pending_, true)) return;
  probed_alarm_.Set(queue_.get(), AtOnce(), &probed_);
}

void MasterServer::Impl::OnProbed(bool) {
  {
    const std::lock_guard<std::mutex> lock(stop_mutex_);
    probed_pending_ = false;
  }
  if (shutting_down_) return;
  for (const Probed& answer : prober_.Take()) Feed(answer);
}

// On one node's console: our own log may lie on the same full disk. With the next event, and beats are events.
void MasterServer::Impl::TellOfDisk() {
  if (record_.warnings().empty()) return;  // before the nodes are walked over
  const uint64_t listener = ListenerOf(state_);
  if (listener == 0) return;
  for (const std::string& text : record_.warnings().Take()) Tell(listener, NoticeOf(text + "; the job goes on"));
}

void MasterServer::Impl::Tell(uint64_t session, v1::MasterMessage message) {
  Do(Send{session, std::make_shared<const v1::MasterMessage>(std::move(message))}, "");
}

void MasterServer::Impl::EndSession(uint64_t session) {
  Session* ended = Find(session);
  if (ended == nullptr) return;
  deadlines_.Begin(session, MonotonicMs());
  ended->End();
}

void MasterServer::Impl::Do(const Send& action, const std::string&) {
  const v1::MasterMessage& message = *action.message;
  if (endpoint_ && message.has_start_round()) {
    const v1::StartRound& round = message.start_round();
    endpoint_->OnStore(round.epoch(), round.store_address(), round.store_port());
  }
  if (Session* to = Find(action.session)) to->Send(action.message);
  if (EndsStream(message)) EndSession(action.session);
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
  record_.Add(action, reason);
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

void MasterServer::LetGo() { impl_->LetGo(); }

}  // namespace phalanx::master
