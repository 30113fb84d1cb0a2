#include "agent/node/shell.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <thread>
#include <utility>

#include "agent/flags/elastic_config.h"
#include "agent/flags/flag_values.h"
#include "agent/flags/worker_env.h"
#include "agent/node/named_file.h"
#include "agent/node/progress.h"
#include "agent/report/failure_box.h"
#include "base/clock.h"
#include "base/net.h"
#include "wire/protocol.h"

namespace phalanx::agent {
namespace {

constexpr int64_t kResolveTimeoutMs = 2'000;
constexpr int64_t kResolveAgainMs = 1'000;
// The master needs the last words of a node that ends (a moment on a live stream), and its own record needs a moment
// more.
constexpr int64_t kGoodbyeMs = 2'000;
// The last checkpoint of a job is waited for that long; --stop-timeout where the node was asked to go.
constexpr int64_t kStorageAtEndMs = 600'000;
constexpr int64_t kTidyMs = 10'000;
// Open files: pipes, sockets and logs of the agent and its workers; and a rank's connections to the store: one of the
// default group, others of further groups and of the user's own.
constexpr uint64_t kOwnFiles = 512;
constexpr uint64_t kStoreFilesPerRank = 8;
// Our own error file is read by whoever reads that of torchrun.
constexpr mode_t kAsTorchMakesIt = 0666;

CoreOptions OptionsOf(const LaunchConfig& config) {
  CoreOptions options;
  options.stop_timeout_ms = config.stop_timeout_ms;
  options.restart_grace_ms = config.restart_grace_ms;
  options.join_timeout_ms = config.join_timeout_ms;
  options.rescale_grace_ms = config.rescale_grace_ms;
  options.max_nodes = config.max_nodes;
  return options;
}

RoundPlace PlaceOf(const v1::StartRound& round) {
  RoundPlace place;
  place.group_rank = round.group_rank();
  place.group_world_size = round.group_world_size();
  place.rank_base = round.rank_base();
  place.world_size = round.world_size();
  place.role_rank_base = round.role_rank_base();
  place.role_world_size = round.role_world_size();
  place.restart_count = round.restart_count();
  place.max_restarts = round.max_restarts();
  place.epoch = round.epoch();
  place.master_addr = round.store_address();
  place.master_port = static_cast<uint16_t>(round.store_port());
  return place;
}

int64_t StepOf(const BoardSlot& slot) {
  return slot.step >= 0 ? slot.step : static_cast<int64_t>(slot.optimizer_steps);
}

std::string BindingFlag(const LaunchConfig& config) {
  return fmt::format("--numa-binding={}", Name(config.numa_binding));
}

}  // namespace

NodeAgent::NodeAgent(EventLoop& loop, Reaper& reaper, LaunchConfig config, Environment env, std::string node_id,
                     Guard& guard)
    : loop_(loop),
      reaper_(reaper),
      config_(std::move(config)),
      env_(std::move(env)),
      node_id_(std::move(node_id)),
      guard_(guard),
      speaker_{config_.log_format, config_.rdzv_id, Hostname()},
      began_ms_(MonotonicMs()) {
  core_.options = OptionsOf(config_);
}

NodeAgent::~NodeAgent() = default;

int NodeAgent::Run() {
  std::set<int> signals = config_.signals_to_handle;
  signals.insert({SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP});
  if (IsIgnored(SIGHUP)) signals.erase(SIGHUP);  // nohup: the job outlives its terminal
  signals_ = std::make_unique<SignalSource>(loop_, signals, [this](int signal) { OnSignal(signal); });
  FillReports("");  // who reads one knows whether a job has begun, and takes none of an earlier one for this one's
  loop_.Post([this] { CountDevices(); });  // from the loop, so that what fails at once can end it
  loop_.Run();
  return exit_code_;
}

// --- joining ------------------------------------------------------------------------------------------------------

// --nproc-per-node gpu, xpu, auto.
void NodeAgent::CountDevices() {
  if (config_.nproc_kind == NprocKind::kCount) return Prepare();
  auto probe = DeviceProbe::Start(loop_, reaper_, DeviceCountCommand(config_.nproc_kind, config_.python), env_.values(),
                                  [this](const std::string& output) {
                                    const uint32_t cpus = std::max(1u, std::thread::hardware_concurrency());
                                    const StatusOr<uint32_t> count = ParseDeviceCount(config_.nproc_kind, output, cpus);
                                    if (!count.ok()) return Feed(MasterChildFailed{Message(count.status())});
                                    config_.nproc_per_node = *count;
                                    config_.nproc_kind = NprocKind::kCount;
                                    Prepare();
                                  });
  if (!probe.ok()) return Feed(MasterChildFailed{Message(probe.status())});
  probe_ = *std::move(probe);
}

void NodeAgent::Prepare() {
  const Status places = CheckPlaces();
  if (!places.ok()) return Feed(MasterChildFailed{Message(places)});
  core_.options.local_world_size = static_cast<int>(config_.nproc_per_node);
  core_.options.spares = config_.spares >= 0 ? config_.spares : static_cast<int>(config_.nproc_per_node);
  StartSupervisor();  // its Python starts importing while the job gathers
  const Status logs = CheckLogDir();
  if (!logs.ok()) return Feed(MasterChildFailed{Message(logs)});
  auto events = EventWriter::Open(
      {loop_, config_, core_, *supervisor_, began_ms_, [this](const std::string& text) { Warn(text); }});
  if (!events.ok()) return Feed(MasterChildFailed{Message(events.status())});
  event_writer_ = *std::move(events);
  if (config_.omp_num_threads_unset && config_.nproc_per_node > 1) {
    Do(Say{"OMP_NUM_THREADS is not set: 1 for each worker, so that they do not crowd this machine"});
  }
  Board::RemoveStale("/dev/shm");
  resolve_until_ = MonotonicMs() + config_.join_timeout_ms;
  LocateDevices();
}

// What can be refused before anything is started.
Status NodeAgent::CheckPlaces() {
  PHX_RETURN_IF_ERROR(CheckVisibleDevices(config_, env_));
  const Status sizes = CheckElasticSizes(config_);
  if (!sizes.ok()) return WithContext(sizes, "--elastic-config");
  if (config_.numa_binding == NumaBinding::kNone) return absl::OkStatus();
  PHX_ASSIGN_OR_RETURN(const CpuSet allowed, AllowedCpus());
  StatusOr<Topology> topology = ReadTopology(config_.sysfs_root, config_.numa_binding, allowed);
  if (!topology.ok()) return WithContext(topology.status(), BindingFlag(config_));
  topology_ = *std::move(topology);
  return absl::OkStatus();
}

// --numa-binding: asked while the workers' Python imports.
void NodeAgent::LocateDevices() {
  if (config_.numa_binding == NumaBinding::kNone) return FindMaster();
  auto probe = DeviceProbe::Start(loop_, reaper_, DeviceAddressCommand(config_.python), env_.values(),
                                  [this](const std::string& output) {
                                    const Status bound = WithContext(BindCpus(output), BindingFlag(config_));
                                    if (!bound.ok()) return Feed(MasterChildFailed{Message(bound)});
                                    FindMaster();
                                  });
  if (!probe.ok()) return Feed(MasterChildFailed{Message(probe.status())});
  probe_ = *std::move(probe);
}

Status NodeAgent::BindCpus(const std::string& probe_output) {
  PHX_ASSIGN_OR_RETURN(const auto addresses, ParseDeviceAddresses(probe_output));
  PHX_ASSIGN_OR_RETURN(const auto devices, ReadDevicePlaces(config_.sysfs_root, addresses));
  const int workers = static_cast<int>(config_.nproc_per_node);
  PHX_ASSIGN_OR_RETURN(CpuBinding bound, BindWorkers(config_.numa_binding, topology_, devices, workers));
  cpus_ = std::move(bound.workers);
  if (!bound.notice.empty()) Do(Say{fmt::format("{}: {}", BindingFlag(config_), bound.notice)});
  for (size_t rank = 0; config_.explain && rank < cpus_.size(); ++rank) {
    Do(Say{fmt::format("explain: local rank {} is bound to CPUs {}: {}", rank, CpuListText(cpus_[rank].cpus),
                       cpus_[rank].why)});
  }
  return absl::OkStatus();
}

// A log directory that cannot be is told before anything runs. A full disk is another matter: there may be room later.
Status NodeAgent::CheckLogDir() {
  const bool wanted = !config_.log_dir.empty() || config_.redirects.Any() || config_.tee.Any();
  if (!wanted || config_.log_dir == "/dev/null") return absl::OkStatus();
  const Status made = supervisor_->RunDir().status();
  return absl::IsResourceExhausted(made) ? absl::OkStatus() : made;
}

void NodeAgent::FindMaster() {
  if (config_.rendezvous == Rendezvous::kStandalone) return StartEmbedded(DecideHosting(config_, {}, IsLocalAddress));
  const StatusOr<std::vector<std::string>> addresses = Resolve(config_.endpoint_host, kResolveTimeoutMs);
  if (!addresses.ok()) return ResolveLater(addresses.status());
  const Hosting hosting = DecideHosting(config_, *addresses, IsLocalAddress);
  if (hosting.host && config_.master_addr_env.empty()) return StartEmbedded(hosting);
  Join(config_.endpoint_host, config_.endpoint_port);
}

// In a cluster that still starts up, names come late.
void NodeAgent::ResolveLater(const Status& why) {
  if (core_.exited) return;
  const Instant now = MonotonicMs();
  if (now >= resolve_until_) {
    return Feed(MasterChildFailed{fmt::format("--rdzv-endpoint: {} (--rdzv-conf join_timeout)", Message(why))});
  }
  if (!resolve_told_) Do(Say{fmt::format("--rdzv-endpoint: {}; asking again until it is known", Message(why))});
  resolve_told_ = true;
  loop_.At(std::min(now + kResolveAgainMs, resolve_until_), [this] { FindMaster(); });
}

void NodeAgent::StartEmbedded(const Hosting& hosting) {
  EmbeddedMaster::Events events;
  events.on_ready = [this, host = hosting.dial_host](uint16_t port) { OnMasterReady(port, host); };
  events.on_not_ready = [this](const MasterNotReady& why) { OnMasterNotReady(why); };
  events.on_ended = [this](const std::string& why) { Feed(MasterChildDied{why}); };
  master_ = std::make_unique<EmbeddedMaster>(loop_, reaper_, std::move(events));
  master_place_ = {hosting.bind_address, config_.endpoint_port};
  const Status started = master_->Start(config_, env_, master_place_, false);
  if (!started.ok()) {
    Feed(MasterChildFailed{fmt::format("the job's master could not be started: {}", Message(started))});
  }
}

void NodeAgent::OnMasterReady(uint16_t port, const std::string& dial_host) {
  if (leaving_master_) return loop_.Stop();
  if (link_) return;  // started again: the core dials when it is time
  master_place_.port = port;
  Join(dial_host, port);
}

void NodeAgent::OnMasterNotReady(const MasterNotReady& why) {
  if (leaving_master_) return loop_.Stop();
  if (link_) return Feed(MasterChildDied{why.sentence});
  // Another phalanx-run of this machine was first, or something else holds the port: the dial will tell.
  if (why.address_in_use && config_.endpoint_port != 0) return Join(config_.endpoint_host, config_.endpoint_port);
  Feed(MasterChildFailed{fmt::format("the job's master could not be started: {}", why.sentence)});
}

void NodeAgent::Join(const std::string& host, uint16_t port) {
  core_.options.master_address = JoinHostPort(host, port);
  const Status prepared = PrepareAddress(host, port);
  if (!prepared.ok()) return Feed(MasterChildFailed{Message(prepared)});
  LinkEvents events;
  events.on_up = [this] { Feed(LinkUp{}); };
  events.on_message = [this](v1::MasterMessage message) { OnMessage(std::move(message)); };
  events.on_down = [this](const Status& why, bool hopeless) {
    const std::string text = hopeless ? fmt::format("what answers at {} is not a Phalanx master ({})",
                                                    core_.options.master_address, Message(why))
                                      : Message(why);
    Feed(LinkDown{text, hopeless});
  };
  link_ = std::make_unique<MasterLink>(loop_, core_.options.master_address, std::move(events));
  Feed(Begin{});
}

// Where others reach this node: --local-addr, else the address that its stream to the master leaves from.
Status NodeAgent::PrepareAddress(const std::string& master_host, uint16_t master_port) {
  const StatusOr<std::vector<std::string>> masters = Resolve(master_host, kResolveTimeoutMs);
  if (masters.ok()) master_addresses_ = *masters;
  if (config_.local_addr.empty()) {
    if (!masters.ok()) return WithContext(masters.status(), "--rdzv-endpoint");
    PHX_ASSIGN_OR_RETURN(const std::string leaves_from, LocalAddressTowards(masters->front(), master_port));
    address_ = AdvertisedAddress(config_, leaves_from, InterfaceAddresses());
  } else {
    const StatusOr<std::vector<std::string>> resolved = Resolve(config_.local_addr, kResolveTimeoutMs);
    if (!resolved.ok()) return WithContext(resolved.status(), "--local-addr");
    const auto local = std::find_if(resolved->begin(), resolved->end(), IsLocalAddress);
    if (local == resolved->end()) {
      return absl::InvalidArgumentError(
          fmt::format("--local-addr={}: no address of this machine; give one of its own, or leave the flag out",
                      config_.local_addr));
    }
    address_ = *local;
  }
  KeepCheckpoints();
  return ReserveStore();
}

void NodeAgent::KeepCheckpoints() {
  CheckpointKeeper::Links links;
  links.tell = [this](v1::CheckpointReport report) {
    if (!core_.attached) return;  // it is told again on the next stream
    v1::AgentMessage message;
    *message.mutable_checkpoint() = std::move(report);
    SendMessage(std::move(message));
  };
  links.say = [this](const std::string& text) { Do(Say{text}); };
  checkpoints_ = std::make_unique<CheckpointKeeper>(
      loop_,
      CheckpointKeeper::Options{static_cast<int>(config_.nproc_per_node), config_.rdzv_id, address_,
                                config_.save_at_breakpoint},
      std::move(links));
  // What is in memory is older than any round to come.
  core_.seen_epoch = std::max(core_.seen_epoch, checkpoints_->TakeUp());
}

void NodeAgent::OnMessage(v1::MasterMessage message) {
  if (message.has_checkpoint()) return checkpoints_->OnOrder(message.checkpoint());
  const bool welcome = message.has_welcome();
  if (message.has_finish()) checkpoints_->OnJobEnded();
  Feed(FromMaster{std::move(message)});
  if (welcome) checkpoints_->OnAttached();
}

void NodeAgent::StartSupervisor() {
  SupervisorEvents events;
  events.on_spares_changed = [this](int waiting) {
    if (waiting >= core_.options.local_world_size) Feed(Warm{});
  };
  events.on_cold = [this] { Feed(Warm{}); };
  events.on_worker_started = [this](int local_rank, uint64_t epoch, pid_t pid) {
    Feed(WorkerStarted{local_rank, epoch, pid});
    if (event_writer_) event_writer_->TellOfWorker("START", local_rank, nullptr);
  };
  events.on_first_step = [this](int local_rank, uint64_t epoch, int64_t step, bool warm) {
    Feed(WorkerStepped{local_rank, epoch, step, warm, ReadProgress()});
  };
  events.on_safe_point = [this](int local_rank, uint64_t epoch) { Feed(WorkerSafe{local_rank, epoch}); };
  events.on_worker_exited = [this](const WorkerEnd& end) { OnWorkerExited(end); };
  events.on_group_gone = [this](int local_rank, uint64_t epoch) { Feed(GroupGone{local_rank, epoch}); };
  events.on_start_failed = [this](int local_rank, uint64_t epoch, const Status& why) {
    Feed(WorkerStartFailed{local_rank, epoch,
                           fmt::format("local rank {} could not be started: {}", local_rank, Message(why)), UnixMs()});
  };
  events.on_warning = [this](const std::string& text) { Warn(text); };
  supervisor_ = MakeSupervisor(SupervisorParts{loop_, reaper_, &guard_, config_, env_, node_id_}, std::move(events));
  supervisor_->Start();
}

Status NodeAgent::ReserveStore() {
  store::PortRange range{config_.port_range_first, config_.port_range_last, 0};
  PHX_ASSIGN_OR_RETURN(reserved_, store::ListenSocket::Reserve({address_}, range));
  return absl::OkStatus();
}

// --- the core -----------------------------------------------------------------------------------------------------

void NodeAgent::Feed(const Event& event) {
  // An action may bring an event at once; it waits until the decisions before it are carried out.
  queued_.push_back(event);
  if (stepping_) return;
  stepping_ = true;
  while (!queued_.empty()) {
    const Event next = std::move(queued_.front());
    queued_.pop_front();
    for (const Decision& decision : Step(core_, next, MonotonicMs())) {
      if (config_.explain) Do(Say{fmt::format("explain: {}", decision.reason)});
      std::visit([this](const auto& action) { Do(action); }, decision.action);
    }
  }
  stepping_ = false;
  ArmTimer();
}

void NodeAgent::ArmTimer() {
  loop_.Cancel(timer_);
  timer_ = {};
  const Instant next = NextDeadline(core_);
  if (next != kNever) timer_ = loop_.At(next, [this] { Feed(Tick{}); });
}

// Ctrl-Z: the ranks have sessions of their own and would train on, or read the terminal that is a shell's again.
void NodeAgent::StandStill() {
  if (supervisor_) supervisor_->SignalAllGroups(SIGSTOP);
  kill(getpid(), SIGSTOP);
  if (supervisor_) supervisor_->SignalAllGroups(SIGCONT);  // and so do we, by now
}

void NodeAgent::OnSignal(int signal) {
  if (signal == SIGTSTP && config_.signals_to_handle.count(SIGTSTP) == 0) return StandStill();
  const bool listed = config_.signals_to_handle.count(signal) > 0;  // then it ends the node, as in torchrun
  if (signal == SIGWINCH && supervisor_) supervisor_->ResizeTerminals();
  if (leave_by_ != kNever && listed) return Leave();  // whoever asks twice does not wait for storage
  if (!listed && (signal == SIGUSR1 || signal == SIGUSR2 || signal == SIGWINCH)) return Feed(PassSignal{signal});
  Feed(StopSignal{signal, AnyHearsRescale()});
}

// By phalanx.on_rescale, or, where that was allowed, by catching the signal.
bool NodeAgent::HearsRescale(int local_rank) {
  if (board_ && board_->Read(local_rank).hears_rescale) return true;
  return config_.rescale_signal && supervisor_->Catches(local_rank, SIGUSR1);
}

bool NodeAgent::AnyHearsRescale() {
  for (const auto& [local_rank, worker] : core_.workers) {
    if (!worker.ended && HearsRescale(local_rank)) return true;
  }
  return false;
}

void NodeAgent::OnWorkerExited(const WorkerEnd& end) {
  if (checkpoints_) checkpoints_->OnRankEnded(end.local_rank);  // what it sealed last is known before its end
  WorkerEnded event;
  v1::WorkerExited& exited = event.exited;
  exited.set_epoch(end.epoch);
  exited.set_local_rank(static_cast<uint32_t>(end.local_rank));
  exited.set_pid(end.pid);
  exited.set_exit_code(end.exit_code);
  exited.set_signal(end.signal);
  exited.set_script_started(end.script_started);
  exited.set_unix_ms(UnixMs() - (MonotonicNs() - end.noticed_ns) / 1'000'000);
  exited.set_error_json(end.error_json);
  exited.set_last_words(end.last_words);
  exited.set_peak_resident_bytes(end.peak_resident_bytes);
  exited.set_killed_by(end.killed_by);
  exited.set_end_note(end.end_note);
  if (board_ && end.epoch == board_epoch_) {
    ended_ns_[static_cast<size_t>(end.local_rank)] = end.noticed_ns;
    exited.set_steps(StepOf(board_->Read(end.local_rank)));
    *exited.mutable_progress() = ReadProgress();
  }
  const auto worker = core_.workers.find(end.local_rank);
  const bool doomed = worker != core_.workers.end() && worker->second.doomed;
  const bool well = end.exit_code == 0 && end.signal == 0;
  const char* const state = doomed ? "TERMINATED" : well ? "SUCCEEDED" : "FAILED";
  if (event_writer_) event_writer_->TellOfWorker(state, end.local_rank, &exited);
  last_workers_[end.local_rank].pid = end.pid;
  last_workers_[end.local_rank].left_error = !end.error_json.empty();
  Feed(event);
}

// --- actions ------------------------------------------------------------------------------------------------------

void NodeAgent::Do(const Dial&) { link_->Dial(); }

void NodeAgent::Do(const SendHello&) {
  v1::AgentMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol_version(wire::kProtocolVersion);
  hello.set_software_version(PHALANX_VERSION);
  hello.set_job_id(config_.rdzv_id);
  hello.set_token(config_.token);
  hello.set_node_id(node_id_);
  hello.set_hostname(Hostname());
  hello.set_address(address_);
  for (std::string& address : InterfaceAddresses()) hello.add_interface_addresses(std::move(address));
  hello.set_node_rank_wanted(config_.node_rank);
  hello.set_local_world_size(config_.nproc_per_node);
  hello.set_role(config_.role);
  v1::JobSpec& spec = *hello.mutable_spec();
  spec.set_min_nodes(config_.min_nodes);
  spec.set_max_nodes(config_.max_nodes);
  if (config_.max_restarts) spec.set_max_restarts(*config_.max_restarts);
  spec.set_restart_window_ms(config_.restart_window_ms);
  spec.set_join_timeout_ms(config_.join_timeout_ms);
  spec.set_last_call_ms(config_.last_call_ms);
  spec.set_last_call_fixed(config_.last_call_given);
  spec.set_node_unit(config_.node_unit);
  spec.set_rescale_grace_ms(config_.rescale_grace_ms);
  spec.set_elastic_config(config_.elastic_config);
  hello.set_warming(core_.warming);
  hello.set_seen_epoch(core_.seen_epoch);
  if (const v1::StartRound* live = LiveRound(core_)) {
    *hello.mutable_live_round() = *live;
    hello.mutable_live_round()->clear_member_addresses();
  } else if (last_round_) {
    *hello.mutable_last_round() = *last_round_;
    hello.mutable_last_round()->clear_member_addresses();
  }
  SendMessage(std::move(message));
}

void NodeAgent::Do(const SendBeat& action) {
  v1::AgentMessage message;
  v1::Beat& beat = *message.mutable_beat();
  beat.set_epoch(action.epoch);
  if (board_) {
    int64_t least = INT64_MAX;
    int64_t most = 0;
    for (int rank = 0; rank < static_cast<int>(config_.nproc_per_node); ++rank) {
      const int64_t step = StepOf(board_->Read(rank));
      least = std::min(least, step);
      most = std::max(most, step);
    }
    beat.set_min_step(least);
    beat.set_max_step(most);
    *beat.mutable_progress() = ReadProgress();
  }
  SendMessage(std::move(message));
}

v1::Progress NodeAgent::ReadProgress() {
  std::vector<RankProgress> ranks;
  for (size_t rank = 0; board_ && rank < ended_ns_.size(); ++rank) {
    ranks.push_back({board_->Read(static_cast<int>(rank)), ended_ns_[rank]});
  }
  return ProgressOf(ranks, MonotonicNs());
}

void NodeAgent::Do(const Send& action) { SendMessage(action.message); }

void NodeAgent::SendMessage(v1::AgentMessage message) {
  if (reserved_) message.set_next_store_port(reserved_->port());
  if (link_) link_->Send(std::move(message));
}

void NodeAgent::Do(const OpenStore& action) {
  store_.reset();
  if (RankZeroHoldsStore(env_)) {
    reserved_.reset();  // the port is rank 0's now
    return ReserveNextStore();
  }
  if (!reserved_ || reserved_->port() != action.port) {
    // Two rounds were begun on one report; the port is still this node's, and the new store is empty.
    auto again = store::ListenSocket::Reserve({address_}, store::PortRange::Single(static_cast<uint16_t>(action.port)));
    if (!again.ok())
      return Feed(MasterChildFailed{fmt::format("store of epoch {}: {}", action.epoch, Message(again.status()))});
    reserved_ = *std::move(again);
  }
  store::StoreOptions options;
  options.epoch = action.epoch;
  options.allowed_peers.insert(action.member_addresses.begin(), action.member_addresses.end());
  // Ranks that come by the job's endpoint come through the master.
  options.allowed_peers.insert(master_addresses_.begin(), master_addresses_.end());
  auto opened = store::StoreServer::Open(*std::exchange(reserved_, std::nullopt), std::move(options));
  if (!opened.ok())
    return Feed(MasterChildFailed{fmt::format("store of epoch {}: {}", action.epoch, Message(opened.status()))});
  store_ = *std::move(opened);
  MakeRoomForClients(action.world_size);
  ReserveNextStore();
}

// The usual limit of 1,024 open files would shut a large world's later ranks out. Workers keep the limit they had.
void NodeAgent::MakeRoomForClients(uint32_t world_size) {
  const uint64_t wanted = kOwnFiles + uint64_t{world_size} * kStoreFilesPerRank;
  const uint64_t limit = RaiseOpenFilesLimit(wanted);
  if (limit >= wanted || std::exchange(told_of_file_limit_, true)) return;
  Do(Say{fmt::format("the store of {} ranks may want {} open files, and this machine's hard limit is {} (ulimit -Hn)",
                     world_size, wanted, limit)});
}

void NodeAgent::ReserveNextStore() {
  const Status next = ReserveStore();
  if (!next.ok()) Feed(MasterChildFailed{fmt::format("port for the next store: {}", Message(next))});
}

void NodeAgent::Do(const CloseStore&) { store_.reset(); }

void NodeAgent::Do(const OpenBoard& action) {
  for (int rank = 0; board_ && rank < static_cast<int>(config_.nproc_per_node); ++rank) {
    const BoardSlot slot = board_->Read(rank);
    if (slot.pid != 0) told_step_ = std::max(told_step_, slot.step);
  }
  ended_ns_.assign(config_.nproc_per_node, 0);
  board_epoch_ = action.epoch;
  auto board = Board::Create(action.epoch, static_cast<int>(config_.nproc_per_node),
                             std::max(told_step_, action.highest_step), config_.state_dir);
  if (!board.ok()) {
    board_.reset();
    return Warn(fmt::format("no rank board, so steps are not seen: {}", Message(board.status())));
  }
  board_ = *std::move(board);
}

void NodeAgent::TellOfRound(const v1::StartRound& round) {
  const Instant since_ms = core_.recovering ? core_.trouble_since : began_ms_;
  if (event_writer_) event_writer_->TellOfAgent("RENDEZVOUS", MonotonicMs() - since_ms);
  if (config_.debug_rank < 0 || static_cast<uint32_t>(config_.debug_rank) < round.world_size()) return;
  Do(Say{fmt::format("--debug-rank={}: nobody has the terminal, as ranks are 0 to {}", config_.debug_rank,
                     round.world_size() - 1)});
}

void NodeAgent::Do(const StartWorker& action) {
  if (action.local_rank == 0) {
    TellOfRound(action.round);
    checkpoints_->OnRound(action.round);
  }
  WorkerFiles files;
  files.error_file = supervisor_->ErrorFilePath(action.round.restart_count(), action.local_rank);
  last_round_ = action.round;
  last_workers_[action.local_rank] = {files.error_file, 0, false};
  if (board_) files.board_path = board_->path();
  WorkerSpec spec;
  spec.local_rank = action.local_rank;
  spec.rank = static_cast<int>(action.round.rank_base()) + action.local_rank;
  spec.epoch = action.round.epoch();
  spec.restart_count = action.round.restart_count();
  spec.env = WorkerEnvironment(config_, env_, PlaceOf(action.round), action.local_rank, files);
  spec.args = SubstituteLocalRank(config_.script_args, action.local_rank);
  spec.board_path = files.board_path;
  spec.exact_steps = told_step_ >= 0;
  StatusOr<Fd> socket = checkpoints_->NewRank(action.local_rank);
  if (socket.ok()) {
    spec.checkpoint_socket = std::make_shared<Fd>(*std::move(socket));
  } else {
    Warn(Message(socket.status()));
  }
  if (!cpus_.empty()) spec.cpus = cpus_[static_cast<size_t>(action.local_rank)].cpus;
  supervisor_->StartWorker(std::move(spec));
}

void NodeAgent::Do(const EndGroup& action) {
  // Asked before: a wrapper may end at once, and leave the one behind it that saves.
  const bool wants_time = supervisor_->GroupWithstands(action.local_rank, action.signal);
  supervisor_->SignalGroup(action.local_rank, action.signal);
  if (!wants_time) supervisor_->SignalGroup(action.local_rank, SIGKILL);
}

void NodeAgent::Do(const KillGroup& action) { supervisor_->SignalGroup(action.local_rank, SIGKILL); }

void NodeAgent::Do(const SignalWorker& action) {
  if (supervisor_->Catches(action.local_rank, action.signal))
    supervisor_->SignalWorker(action.local_rank, action.signal);
}

void NodeAgent::Do(const AskForSafePoint& action) {
  SafePointAsked asked{action.epoch, {}};
  const bool chosen = action.at_step > 0;
  const Status announced = board_ && chosen ? board_->AnnounceRescale(action.at_step) : absl::OkStatus();
  if (!announced.ok()) Warn(fmt::format("ranks do not hear of the rescale: {}", Message(announced)));
  for (const auto& [local_rank, worker] : core_.workers) {
    if (worker.ended || !HearsRescale(local_rank)) continue;
    asked.local_ranks.insert(local_rank);
    if (!chosen) continue;
    if (!board_ || !board_->Read(local_rank).hears_rescale) supervisor_->SignalWorker(local_rank, SIGUSR1);
  }
  Feed(asked);
}

void NodeAgent::Do(const WantSpares& action) { supervisor_->WantSpares(action.count); }

void NodeAgent::Do(const KillStrays&) { supervisor_->KillStrays(); }

void NodeAgent::Do(const RestartMaster&) {
  const Status started = master_->Start(config_, env_, master_place_, true);
  if (!started.ok()) Feed(MasterChildDied{Message(started)});
}

void NodeAgent::Do(const Say& action) { Tell(SayLine(speaker_, Level::kInfo, action.text, UnixMs())); }

void NodeAgent::Warn(const std::string& text) { Tell(SayLine(speaker_, Level::kWarning, text, UnixMs())); }

void NodeAgent::Tell(const std::string& line) {
  if (supervisor_) return supervisor_->Say(line);
  fmt::print(stderr, "{}", line);  // the devices could not be counted: nothing has been started yet
}

void NodeAgent::Do(const ReportFailure& action) {
  if (!action.finish.has_first_cause()) {
    return Tell(SayLine(speaker_, Level::kError, action.finish.reason(), UnixMs()));
  }
  supervisor_->Say(SayFailure(speaker_, action.finish, config_.ShownScript(), UnixMs()));
  if (config_.own_error_file.empty()) return;
  const NamedFile file{config_.own_error_file, false, true, false, kAsTorchMakesIt};
  const Status written = WriteNamed(file, OwnErrorJson(action.finish));
  if (!written.ok()) Do(Say{fmt::format("TORCHELASTIC_ERROR_FILE={}: {}", config_.own_error_file, Message(written))});
}

// --- the end ------------------------------------------------------------------------------------------------------

void NodeAgent::Do(const Exit& action) {
  exit_code_ = action.code;
  if (checkpoints_ && core_.stop_signal != 0) checkpoints_->OnLeaving();
  if (checkpoints_ && exit_code_ == 0) checkpoints_->Tidy();
  if (checkpoints_ && checkpoints_->Storing() && core_.attached) return AwaitStorage();
  Leave();
}

// What is on its way to storage needs this node, its memory and its word.
void NodeAgent::AwaitStorage() {
  const std::string storing = checkpoints_->StoringText();
  const int64_t longest_ms = storing.empty() ? kTidyMs : kStorageAtEndMs;
  leave_by_ = MonotonicMs() + (core_.stop_signal != 0 ? config_.stop_timeout_ms : longest_ms);
  if (!storing.empty()) Do(Say{fmt::format("checkpoint: waiting for storage to take {}", storing)});
  checkpoints_->WhenStored([this] { loop_.Post([this] { Leave(); }); });
  BeatWhileWaiting();
}

void NodeAgent::BeatWhileWaiting() {
  if (leave_by_ == kNever) return;
  if (MonotonicMs() >= leave_by_) {
    const std::string storing = checkpoints_->StoringText();
    Warn(storing.empty() ? "checkpoint: storage has not removed its recycled files in time"
                         : fmt::format("checkpoint: storage has not taken {}", storing));
    return Leave();
  }
  Do(SendBeat{0});
  loop_.At(std::min(leave_by_, MonotonicMs() + core_.beat_interval_ms), [this] { BeatWhileWaiting(); });
}

void NodeAgent::Leave() {
  if (std::exchange(left_, true)) return;
  leave_by_ = kNever;
  if (checkpoints_) checkpoints_->End(exit_code_ != 0);
  if (event_writer_) event_writer_->TellOfAgent(exit_code_ == 0 ? "SUCCEEDED" : "FAILED", std::nullopt);
  WriteReport();
  if (!supervisor_) return loop_.Stop();
  for (const std::string& stray : supervisor_->Strays()) {
    Do(Say{fmt::format("left running, as the script left it: {}", stray)});
  }
  supervisor_->WantSpares(0);
  if (!link_) return AwaitMaster();
  link_->Close(kGoodbyeMs, [this] { AwaitMaster(); });
}

void NodeAgent::WriteReport() {
  JobEnd end;
  end.exit_code = exit_code_;
  end.job_id = config_.rdzv_id;
  end.script = config_.ShownScript();
  end.local_world_size = config_.nproc_per_node;
  end.round = last_round_;
  end.in_round = core_.round.has_value();
  end.workers = last_workers_;
  end.finish = core_.finish;
  FillReports(JobReport(end));
}

void NodeAgent::FillReports(const std::string& text) {
  for (const std::string& path : config_.report_files) {
    const Status written = WriteNamed({path}, text);
    if (!written.ok()) Do(Say{fmt::format("--report-file={}: {}", path, Message(written))});
  }
}

// A master that serves nobody else ends with us; its record is whole when this program is over.
void NodeAgent::AwaitMaster() {
  const bool ends_with_us = core_.finish.has_value() || config_.max_nodes == 1;
  if (!master_ || !ends_with_us) return loop_.Stop();
  master_->AwaitEnd(kGoodbyeMs, [this] { LeaveMaster(); });
}

// A master that was killed at the job's end may not have told all nodes. The next one does, and ends after that.
void NodeAgent::LeaveMaster() {
  const bool told_all = !core_.finish || config_.max_nodes == 1 || !master_->was_killed();
  leaving_master_ = true;
  if (told_all || !master_->Start(config_, env_, master_place_, true).ok()) return loop_.Stop();
  loop_.At(MonotonicMs() + kGoodbyeMs, [this] { loop_.Stop(); });
}

}  // namespace phalanx::agent
