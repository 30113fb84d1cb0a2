// How a node comes into its job: devices are counted and located, places checked, the master found or started, the
// stream opened. Each step of NodeAgent (shell.h) is begun by the end of the one before.
#include <fmt/format.h>

#include <algorithm>
#include <thread>
#include <utility>

#include "agent/flags/elastic_config.h"
#include "agent/flags/flag_values.h"
#include "agent/flags/worker_env.h"
#include "agent/node/job_credentials.h"
#include "agent/node/shell.h"
#include "base/clock.h"
#include "base/net.h"
#include "wire/limits.h"

namespace phalanx::agent {
namespace {

constexpr int64_t kResolveTimeoutMs = 2'000;
// Of a --port-range: two are for stores in turn, one for what is lent of checkpoints, one for a master, one for
// presence.
constexpr int kLeastPortsToHost = 5;

// A job whose id nobody chose gets another one when the same command runs again.
std::string RunAgainText(const LaunchConfig& config) {
  const bool by_id = config.rdzv_id_invented && config.rdzv_id != kUnchosenId;
  return by_id ? fmt::format("the same command with --rdzv-id={}", config.rdzv_id) : "the same command";
}

std::string BindingFlag(const LaunchConfig& config) {
  return fmt::format("--numa-binding={}", Name(config.numa_binding));
}

// Whoever dials this node's master expects the endpoint's name in its certificate.
Status CheckMastersCertificate(const LaunchConfig& config) {
  PHX_ASSIGN_OR_RETURN(const wire::Identity identity, wire::ReadIdentity(config.tls, wire::Side::kMaster));
  const std::string name = config.endpoint_host.empty() ? "127.0.0.1" : config.endpoint_host;
  if (wire::IsOfToken(identity) || wire::HasName(identity, name)) return absl::OkStatus();
  return absl::InvalidArgumentError(
      fmt::format("{}: expected '{}', the endpoint's name, among the certificate's alternative names",
                  config.tls.certificate, name));
}

std::string DownText(wire::LinkFault fault, const std::string& address, const std::string& why) {
  switch (fault) {
    case wire::LinkFault::kNone:
      return why;
    case wire::LinkFault::kForeign:
      return fmt::format(
          "what answers at {} is not a Phalanx master ({}); give --rdzv-endpoint a port that is free or a Phalanx "
          "master's",
          address, why);
    case wire::LinkFault::kNotProved:
      return fmt::format(
          "the master at {} and this node do not believe each other: give all nodes of the job the same token "
          "(PHALANX_TOKEN, --job-token-file), or certificates of one authority (--tls-ca) ({})",
          address, why);
    case wire::LinkFault::kClosed:
      return fmt::format(
          "the job at {} is closed, and this node has nothing to prove that it belongs to it: give it the job's token "
          "(PHALANX_TOKEN, --job-token-file), or a certificate (--tls-cert). An open job takes, of its master's "
          "machine, only its own user's nodes",
          address);
  }
  return why;
}

}  // namespace

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
  const int workers = static_cast<int>(config_.nproc_per_node);
  Feed(Prepared{workers, config_.spares >= 0 ? config_.spares : workers});
  MakeRoomForFiles(fmt::format("a node of {} rank{}", workers, workers == 1 ? "" : "s"), 0);
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
  prepared_at_ = MonotonicMs();
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
  if (config_.numa_binding == NumaBinding::kNone) return Feed(joining::Begun{prepared_at_});
  auto probe = DeviceProbe::Start(loop_, reaper_, DeviceAddressCommand(config_.python), env_.values(),
                                  [this](const std::string& output) {
                                    const Status bound = WithContext(BindCpus(output), BindingFlag(config_));
                                    if (!bound.ok()) return Feed(MasterChildFailed{Message(bound)});
                                    Feed(joining::Begun{prepared_at_});
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

void NodeAgent::Do(const joining::Resolve& /*action*/) {
  const StatusOr<std::vector<std::string>> addresses = Resolve(config_.endpoint_host, kResolveTimeoutMs);
  if (!addresses.ok()) return Feed(joining::NotResolved{Message(addresses.status())});
  const Hosting hosting = DecideHosting(config_, *addresses, IsLocalAddress);
  Feed(joining::Resolved{{hosting.host, hosting.bind_address, hosting.dial_host}});
}

void NodeAgent::Do(const joining::StartMaster& action) {
  if (config_.tls.given()) {
    const Status fit = CheckMastersCertificate(config_);
    if (!fit.ok()) return Feed(joining::MasterNotReady{false, Message(fit)});
  }
  MakeMaster();
  master_place_ = endpoint_place_ = {action.bind_address, action.port};
  const Status started = master_->Start(config_, env_, master_place_, {});
  if (!started.ok()) Feed(joining::MasterNotReady{false, Message(started)});
}

void NodeAgent::MakeMaster() {
  EmbeddedMaster::Events events;
  events.on_ready = [this](uint16_t port) {
    Feed(leaving::MasterAnswered{});
    Feed(joining::MasterReady{port});
    if (core_.candidate) Feed(CandidateReady{JoinHostPort(address_, port)});
  };
  events.on_not_ready = [this](const MasterNotReady& why) {
    Feed(leaving::MasterAnswered{});
    Feed(joining::MasterNotReady{why.address_in_use, why.sentence});
  };
  events.on_ended = [this](const std::string& why) { Feed(MasterChildDied{why}); };
  master_ = std::make_unique<EmbeddedMaster>(loop_, reaper_, std::move(events));
}

void NodeAgent::Do(const joining::Say& action) { Do(Say{action.text}); }

void NodeAgent::Do(const joining::Fail& action) { Feed(MasterChildFailed{action.why}); }

void NodeAgent::Do(const joining::TellMasterDied& action) { Feed(MasterChildDied{action.why}); }

void NodeAgent::Do(const joining::Join& action) {
  const auto& [host, port] = action;
  master_place_.port = endpoint_place_.port = port;
  const std::string address = JoinHostPort(host, port);
  const Status prepared = PrepareAddress(host, port);
  if (!prepared.ok()) return Feed(MasterChildFailed{Message(prepared)});
  wire::LinkEvents events;
  events.on_up = [this](const std::string& master_ip) {
    if (!master_ip.empty()) master_addresses_.insert(master_ip);
    Feed(LinkUp{master_ip});
  };
  events.on_message = [this](v1::MasterMessage message) { OnMessage(std::move(message)); };
  events.on_down = [this](const Status& why, wire::LinkFault fault, bool silent) {
    const std::string text = DownText(fault, core_.search.dialled, Message(why));
    Feed(LinkDown{text, fault != wire::LinkFault::kNone, silent});
    Feed(leaving::StreamBroken{checkpoints_->StoringText()});
  };
  StatusOr<wire::Credentials> credentials = CredentialsOf(config_);
  if (!credentials.ok()) return Feed(MasterChildFailed{Message(credentials.status())});
  if (!credentials->given() && master_ && OthersComeByName(config_)) {
    Do(Say{fmt::format(
        "the job is open: whoever reaches {} and knows its id may join it as a node; one token for all nodes closes it "
        "(--job-token-file, docs/security.md)",
        address)});
  }
  if (config_.check_level > 0) Feed(checking::Wanted{});
  link_ = std::make_unique<wire::MasterLink>(loop_, *std::move(credentials), std::move(events));
  // What is in memory is older than any round to come.
  Feed(Begin{address, checkpoints_->TakeUp(), master_ && master_->serves()});
}

// Where others reach this node: --local-addr, else the address that its stream to the master leaves from.
Status NodeAgent::PrepareAddress(const std::string& master_host, uint16_t master_port) {
  const StatusOr<std::vector<std::string>> masters = Resolve(master_host, kResolveTimeoutMs);
  if (masters.ok()) master_addresses_.insert(masters->begin(), masters->end());
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
  PHX_RETURN_IF_ERROR(ReserveStore());
  if (core_.options.succession) ReserveMastersPlace();
  return absl::OkStatus();
}

// Where this node would host the job's master; and where its kernel says whether it lives. A node without does not.
void NodeAgent::ReserveMastersPlace() {
  const auto cannot = [this](const std::string& why) {
    Warn(fmt::format("this node cannot host the job's master: {}", why));
  };
  if (config_.tls.given()) {
    if (const Status fits = CheckMastersCertificate(config_); !fits.ok()) return cannot(Message(fits));
  }
  const int ports = config_.port_range_last - config_.port_range_first + 1;
  if (config_.port_range_first != 0 && ports < kLeastPortsToHost) {
    return cannot(fmt::format("--port-range={}-{} has {} ports, which its stores need; {} are enough for both",
                              config_.port_range_first, config_.port_range_last, ports, kLeastPortsToHost));
  }
  // The endpoint's number, where it is not this machine that is to have it: who dials a name of several machines later
  // finds the master wherever it is by then.
  const bool is_endpoint = IsLocalAddress(HostsAddress({master_addresses_.begin(), master_addresses_.end()}));
  auto place = ReservedPort::Take(address_, is_endpoint ? 0 : config_.endpoint_port, config_.port_range_first,
                                  config_.port_range_last);
  if (!place.ok()) return cannot(Message(place.status()));
  StatusOr<std::unique_ptr<PresencePort>> presence =
      PresencePort::Open(loop_, address_, node_id_, config_.port_range_first, config_.port_range_last);
  if (!presence.ok()) return cannot(Message(presence.status()));
  successor_place_ = *std::move(place);
  presence_ = *std::move(presence);
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
  links.ask_shards = [this](v1::ShardRequest request) {
    if (!core_.attached) return;  // it is asked again on the next stream
    v1::AgentMessage message;
    *message.mutable_shard_request() = std::move(request);
    SendMessage(std::move(message));
  };
  links.step = [this](NodeCheckpoints& core, const saving::Event& event) { return StepCheckpoints(core, event); };
  checkpoints_ =
      std::make_unique<CheckpointKeeper>(loop_,
                                         CheckpointKeeper::Options{static_cast<int>(config_.nproc_per_node),
                                                                   config_.rdzv_id,
                                                                   address_,
                                                                   RunAgainText(config_),
                                                                   config_.save_at_breakpoint,
                                                                   config_.max_nodes > 1,
                                                                   {config_.port_range_first, config_.port_range_last}},
                                         std::move(links));
}

void NodeAgent::OnMessage(v1::MasterMessage message) {
  if (message.has_checkpoint()) return checkpoints_->OnOrder(message.checkpoint());
  if (message.has_shard_reply()) return checkpoints_->OnShardReply(message.shard_reply());
  if (message.has_check()) {
    held_order_ = message.check();  // what is run for it is our own, or stands in this node's flags
    return GiveOrder();
  }
  // The store of a check may be where the round's is to be.
  if (message.has_start_round()) Feed(checking::Over{});
  const bool welcome = message.has_welcome();
  if (welcome) ForgetOrder();
  if (message.has_finish()) checkpoints_->OnJobEnded();
  Feed(FromMaster{std::move(message)});
  if (welcome) checkpoints_->OnAttached();
  if (welcome) TellUntold();
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
    Feed(WorkerStepped{local_rank, epoch, step, warm, ProgressOf(ReadRanks(), MonotonicNs())});
  };
  events.on_safe_point = [this](int local_rank, uint64_t epoch) { Feed(WorkerSafe{local_rank, epoch}); };
  events.on_worker_exited = [this](const WorkerEnd& end) { OnWorkerExited(end); };
  events.on_group_gone = [this](int local_rank, uint64_t epoch) { Feed(GroupGone{local_rank, epoch}); };
  events.on_start_failed = [this](int local_rank, uint64_t epoch, const Status& why) {
    Feed(WorkerStartFailed{local_rank, epoch,
                           fmt::format("local rank {} could not be started: {}", local_rank, Message(why)), UnixMs()});
  };
  events.on_warning = [this](const std::string& text) { Warn(text); };
  events.on_reader_gone = [this](const std::string& text) { TellOfConsole(text); };
  supervisor_ = MakeSupervisor(SupervisorParts{loop_, reaper_, &guard_, config_, env_, node_id_}, std::move(events));
  supervisor_->Start();
}

}  // namespace phalanx::agent
