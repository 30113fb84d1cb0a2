#include "agent/node/shell.h"

#include <fmt/format.h>
#include <signal.h>

#include <algorithm>
#include <set>
#include <string_view>
#include <utility>

#include "agent/core/signals.h"
#include "agent/flags/worker_env.h"
#include "agent/node/job_credentials.h"
#include "agent/node/named_file.h"
#include "agent/replay/frames.h"
#include "agent/report/failure_box.h"
#include "base/clock.h"
#include "base/net.h"
#include "base/process/memory.h"
#include "wire/node_key.h"
#include "wire/protocol.h"

namespace phalanx::agent {
namespace {

// Open files: of the agent itself; of each of its workers, with pipes, logs and sockets, and the spare that waits for
// its place; and a rank's connections to the store: one of the default group, others of further groups and of the
// user's own.
constexpr uint64_t kOwnFiles = 512;
constexpr uint64_t kFilesPerWorker = 16;
constexpr uint64_t kStoreFilesPerRank = 8;
// To the ranks, the store where they come by a relay.
constexpr const char* kRelayAddress = "127.0.0.1";
// A master looks at windows of twice that.
constexpr int64_t kPacesEachMs = 10'000;
// Our own error file is read by whoever reads that of torchrun.
constexpr mode_t kAsTorchMakesIt = 0666;

v1::CheckSpec CheckSpecOf(const LaunchConfig& config) {
  v1::CheckSpec check;
  check.set_level(config.check_level);
  check.set_excludes_stragglers(config.excludes_stragglers);
  check.set_straggler_rule(config.straggler_by_median ? v1::CheckSpec::MEDIAN_DEVIATION : v1::CheckSpec::MEAN);
  check.set_limit_ms(config.check_limit_ms);
  check.set_only(config.check_only);
  return check;
}

CoreOptions OptionsOf(const LaunchConfig& config, const std::string& node_id) {
  CoreOptions options;
  options.stop_timeout_ms = config.stop_timeout_ms;
  options.restart_grace_ms = config.restart_grace_ms;
  options.join_timeout_ms = config.join_timeout_ms;
  options.rescale_grace_ms = config.rescale_grace_ms;
  options.max_nodes = config.max_nodes;
  options.node_id = node_id;
  options.succession =
      config.max_nodes > 1 && config.master_addr_env.empty() && config.rendezvous != Rendezvous::kStandalone;
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

joining::Options JoiningOptionsOf(const LaunchConfig& config) {
  joining::Options options;
  options.standalone = config.rendezvous == Rendezvous::kStandalone;
  options.has_own_master = !config.master_addr_env.empty();
  options.endpoint_host = config.endpoint_host;
  options.endpoint_port = config.endpoint_port;
  options.join_timeout_ms = config.join_timeout_ms;
  return options;
}

}  // namespace

NodeAgent::NodeAgent(EventLoop& loop, Reaper& reaper, LaunchConfig config, Environment env, std::string node_key,
                     Guard& guard)
    : loop_(loop),
      reaper_(reaper),
      config_(std::move(config)),
      env_(std::move(env)),
      node_key_(std::move(node_key)),
      node_id_(wire::NodeIdOf(node_key_)),
      guard_(guard),
      speaker_{config_.log_format, config_.rdzv_id, Hostname()},
      began_ms_(MonotonicMs()) {
  core_.options = OptionsOf(config_, node_id_);
  joining_.options = JoiningOptionsOf(config_);
  leaving_.options = {config_.stop_timeout_ms, config_.max_nodes, config_.rescale_grace_ms};
}

NodeAgent::~NodeAgent() = default;

int NodeAgent::Run() {
  const Status log = OpenReplayLog();  // before any event
  std::set<int> signals = config_.signals_to_handle;
  signals.insert({SIGUSR1, SIGUSR2, SIGWINCH, SIGTSTP});
  if (IsIgnored(SIGHUP)) signals.erase(SIGHUP);  // nohup: the job outlives its terminal
  signals_ = std::make_unique<SignalSource>(loop_, signals, [this](int signal) { OnSignal(signal); });
  FillReports("");  // who reads one knows whether a job has begun, and takes none of an earlier one for this one's
  loop_.Post([this, log] {  // from the loop, so that what fails at once can end it
    if (!log.ok()) return Feed(MasterChildFailed{Message(log)});
    CountDevices();
  });
  loop_.Run();
  return exit_code_;
}

// --- the core -----------------------------------------------------------------------------------------------------

Status NodeAgent::OpenReplayLog() {
  if (config_.replay_log.empty()) return absl::OkStatus();
  v1::ReplayStart start;
  start.set_software_version(PHALANX_VERSION);
  start.set_job_id(config_.rdzv_id);
  start.set_unix_ms(UnixMs());
  start.set_now_ms(MonotonicMs());
  *start.mutable_agent() = StartOf({core_.options, joining_.options, leaving_.options}, node_id_, Hostname());
  auto opened =
      replay::Recorder::Open(config_.replay_log, fmt::format("agent-{}", node_id_), start,
                             [this](const std::string& text) { Warn(fmt::format("--replay-log: {}", text)); });
  if (!opened.ok()) return WithContext(opened.status(), "--replay-log");
  recorder_ = *std::move(opened);
  return absl::OkStatus();
}

void NodeAgent::Feed(FedEvent event) {
  // An action may bring an event at once; it waits until the decisions before it are carried out.
  queued_.push_back(std::move(event));
  if (stepping_) return;
  stepping_ = true;
  while (!queued_.empty()) {
    const FedEvent next = std::move(queued_.front());
    queued_.pop_front();
    if (const auto* of_core = std::get_if<Event>(&next)) StepOn(core_, *of_core);
    if (const auto* of_joining = std::get_if<joining::Event>(&next)) StepOn(joining_, *of_joining);
    if (const auto* of_leaving = std::get_if<leaving::Event>(&next)) StepOn(leaving_, *of_leaving);
    if (const auto* of_checking = std::get_if<checking::Event>(&next)) StepOnCheck(*of_checking);
  }
  stepping_ = false;
  ArmTimer();
  GiveOrder();
}

template <typename State, typename OneEvent>
void NodeAgent::StepOn(State& state, const OneEvent& event) {
  const Instant now = MonotonicMs();
  if (recorder_) recorder_->Add(EventFrame(now, event));
  const auto decisions = Step(state, event, now);
  // Before they are carried out: an action may bring an event of checkpoints, which is stepped on at once.
  if (recorder_) recorder_->Add(DecisionsFrame(decisions));
  for (const auto& decision : decisions) {
    if (config_.explain) {
      const std::string text = ExplainText(decision, now - begun_at_);
      if (!text.empty()) Do(Say{"explain: " + text});
    }
    std::visit([this](const auto& action) { this->Do(action); }, decision.action);
  }
}

saving::Decided NodeAgent::StepCheckpoints(NodeCheckpoints& checkpoints, const saving::Event& event) {
  if (recorder_) recorder_->Add(EventFrame(MonotonicMs(), event));
  saving::Decided decided = saving::Step(checkpoints, event);
  if (recorder_) recorder_->Add(DecisionsFrame(decided));
  return decided;
}

void NodeAgent::ArmTimer() {
  loop_.Cancel(timer_);
  timer_ = {};
  const Instant next =
      std::min({NextDeadline(core_), NextDeadline(joining_), NextDeadline(leaving_), NextDeadline(checking_)});
  if (next != kNever) timer_ = loop_.At(next, [this, next] { OnTimer(next); });
}

void NodeAgent::OnTimer(Instant armed) {
  // Before any of them steps: a step may move another's deadline.
  const bool core = NextDeadline(core_) <= armed;
  const bool join = NextDeadline(joining_) <= armed;
  const bool leave = NextDeadline(leaving_) <= armed;
  const bool check = NextDeadline(checking_) <= armed;
  if (core) Feed(Tick{});
  if (join) Feed(joining::Tick{});
  if (leave) Feed(leaving::Tick{checkpoints_ ? checkpoints_->StoringText() : ""});
  if (check) Feed(checking::Tick{});
}

// Ctrl-Z: the ranks have sessions of their own and would train on, or read the terminal that is a shell's again.
void NodeAgent::StandStill() {
  if (supervisor_) supervisor_->SignalAllGroups(SIGSTOP);
  kill(getpid(), SIGSTOP);
  if (supervisor_) supervisor_->SignalAllGroups(SIGCONT);  // and so do we, by now
}

void NodeAgent::OnSignal(int signal) {
  if (signal == SIGWINCH && supervisor_) supervisor_->ResizeTerminals();
  switch (MeaningOf(signal, config_.signals_to_handle.count(signal) > 0)) {
    case SignalMeaning::kStandStill:
      return StandStill();
    case SignalMeaning::kPassOn:
      return Feed(PassSignal{signal});
    case SignalMeaning::kStop:
      Feed(leaving::AskedAgain{});
      return Feed(StopSignal{signal, AnyHearsRescale()});
  }
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
  WorkerEnded event{end.exited};
  v1::WorkerExited& exited = event.exited;
  const int local_rank = static_cast<int>(exited.local_rank());
  if (checkpoints_) checkpoints_->OnRankEnded(local_rank);  // what it sealed last is known before its end
  exited.set_unix_ms(UnixMs() - (MonotonicNs() - end.noticed_ns) / 1'000'000);
  if (board_ && exited.epoch() == board_epoch_) {
    ended_ns_[static_cast<size_t>(local_rank)] = end.noticed_ns;
    exited.set_steps(StepOf(board_->Read(local_rank)));
    *exited.mutable_progress() = ProgressOf(ReadRanks(), MonotonicNs());
  }
  const std::string_view state = EndState(core_, local_rank, exited.exit_code(), exited.signal());
  if (state == "FAILED") BlameHardware(end.noticed_ns, exited);
  if (event_writer_) event_writer_->TellOfWorker(std::string(state), local_rank, &exited);
  last_workers_[local_rank].pid = static_cast<pid_t>(exited.pid());
  last_workers_[local_rank].left_error = !exited.error_json().empty();
  Feed(event);
}

// --- actions ------------------------------------------------------------------------------------------------------

void NodeAgent::Do(const Dial& action) { link_->Dial(action.address, action.timeout_ms); }

void NodeAgent::Do(const HangUp&) { link_->HangUp(); }

void NodeAgent::Do(const SendHello&) { SendMessage(HelloNow()); }

v1::AgentMessage NodeAgent::HelloNow() {
  v1::AgentMessage message;
  v1::Hello& hello = *message.mutable_hello();
  hello.set_protocol_version(wire::kProtocolVersion);
  hello.set_software_version(PHALANX_VERSION);
  hello.set_job_id(config_.rdzv_id);
  wire::SetNode(hello, node_key_);
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
  spec.set_older_save_after_lives(config_.older_save_after_lives);
  spec.set_hang_timeout_ms(config_.hang_timeout_ms);
  spec.set_retries_same_error(config_.retries_same_error);
  spec.set_lease_ms(config_.lease_ms);
  spec.set_sized_by_platform(config_.sized_by_platform);
  if (config_.check_level > 0 || config_.watches_ranks) *spec.mutable_check() = CheckSpecOf(config_);
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
  FillSuccession(core_, hello);
  hello.set_master_port(successor_place_.port());
  if (presence_) hello.set_presence_port(presence_->port());
  hello.set_hosts_master(HostsMaster(core_, master_ && master_->serves()));
  return message;
}

void NodeAgent::Do(const SendBeat& action) {
  v1::AgentMessage message;
  v1::Beat& beat = *message.mutable_beat();
  beat.set_epoch(action.epoch);
  beat.set_store_refused(action.store_refused);
  const std::vector<RankProgress> ranks = ReadRanks();
  FillBeat(ranks, MonotonicNs(), beat);
  if (config_.watches_ranks && MonotonicMs() >= paces_due_) {
    paces_due_ = MonotonicMs() + kPacesEachMs;
    FillPaces(ranks, beat);
  }
  SendMessage(std::move(message));
}

void NodeAgent::Do(const TellSteps& action) {
  v1::AgentMessage message;
  v1::Beat& beat = *message.mutable_beat();
  beat.set_epoch(action.epoch);
  beat.set_store_refused(action.store_refused);
  beat.set_asked_for(true);
  const std::vector<RankProgress> ranks = ReadRanks();
  FillBeat(ranks, MonotonicNs(), beat);
  if (action.ranks) FillRanks(ranks, MonotonicNs(), beat);
  SendMessage(std::move(message));
}

void NodeAgent::FillRanks(const std::vector<RankProgress>& ranks, int64_t now_ns, v1::Beat& beat) {
  for (const auto& [local_rank, worker] : core_.workers) {
    const auto index = static_cast<size_t>(local_rank);
    v1::RankStatus& rank = *beat.add_ranks();
    rank = RankStatusOf(index < ranks.size() ? ranks[index] : RankProgress(), now_ns);
    rank.set_local_rank(static_cast<uint32_t>(local_rank));
    if (rank.pid() == 0) rank.set_pid(worker.pid);
    if (worker.ended) rank.set_doing(v1::RankStatus::ENDED);
    if (!worker.ended && rank.pid() > 0) rank.set_resident_bytes(ResidentBytes(static_cast<pid_t>(rank.pid())));
  }
}

std::vector<RankProgress> NodeAgent::ReadRanks() {
  std::vector<RankProgress> ranks;
  for (size_t rank = 0; board_ && rank < ended_ns_.size(); ++rank) {
    ranks.push_back({board_->Read(static_cast<int>(rank)), ended_ns_[rank]});
  }
  return ranks;
}

void NodeAgent::Do(const Send& action) { SendMessage(action.message); }

void NodeAgent::SendMessage(v1::AgentMessage message) {
  if (reserved_) message.set_next_store_port(reserved_->port());
  if (link_) link_->Send(std::move(message));
}

void NodeAgent::Do(const OpenStore& action) {
  store_.reset();
  relay_.reset();
  if (RankZeroHoldsStore(env_)) {
    reserved_.reset();  // the port is rank 0's now
    return ReserveNextStore();
  }
  store::StoreOptions options;
  options.epoch = action.epoch;
  options.allowed_peers.insert(action.member_addresses.begin(), action.member_addresses.end());
  // Ranks that come by the job's endpoint come through the master.
  options.allowed_peers.insert(master_addresses_.begin(), master_addresses_.end());
  options.on_refused = [this, epoch = action.epoch](const std::string& sentence) {  // on the store's own thread
    loop_.Post([this, refused = StoreRefusedClient{epoch, sentence}] { Feed(refused); });
  };
  auto opened = OpenStoreOn(action.port, std::move(options));
  if (!opened.ok())
    return Feed(MasterChildFailed{fmt::format("store of epoch {}: {}", action.epoch, Message(opened.status()))});
  store_ = *std::move(opened);
  const uint64_t direct_ranks = RelaysStore(config_, env_, action.world_size)
                                    ? config_.nproc_per_node + action.member_addresses.size()
                                    : action.world_size;
  MakeRoomForFiles(fmt::format("the store of {} ranks", action.world_size), direct_ranks * kStoreFilesPerRank);
  ReserveNextStore();
}

StatusOr<std::unique_ptr<store::StoreServer>> NodeAgent::OpenStoreOn(uint32_t port, store::StoreOptions options) {
  if (!reserved_ || reserved_->port() != port) {
    // Two rounds were begun on one report; the port is still this node's, and the new store is empty.
    PHX_ASSIGN_OR_RETURN(
        reserved_, store::ListenSocket::Reserve({address_}, store::PortRange::Single(static_cast<uint16_t>(port))));
  }
  return store::StoreServer::Open(*std::exchange(reserved_, std::nullopt), std::move(options));
}

// The usual limit of 1,024 open files would shut out later workers of many, and later ranks of a large world from its
// store. Workers keep the limit they had.
void NodeAgent::MakeRoomForFiles(const std::string& who, uint64_t more) {
  const uint64_t wanted = kOwnFiles + config_.nproc_per_node * kFilesPerWorker + more;
  const uint64_t limit = RaiseOpenFilesLimit(wanted);
  if (limit >= wanted || std::exchange(told_of_file_limit_, true)) return;
  Do(Say{
      fmt::format("{} may want {} open files, and this machine's hard limit is {} (ulimit -Hn)", who, wanted, limit)});
}

Status NodeAgent::ReserveStore() {
  // A process of an older round shall find nobody where its store was, so ports go round.
  const store::PortRange range{config_.port_range_first, config_.port_range_last, 0};
  PHX_ASSIGN_OR_RETURN(reserved_, store::ListenSocket::Reserve({address_}, range.Behind(last_store_port_)));
  last_store_port_ = reserved_->port();
  return absl::OkStatus();
}

void NodeAgent::ReserveNextStore() {
  const Status next = ReserveStore();
  if (!next.ok()) Feed(MasterChildFailed{fmt::format("port for the next store: {}", Message(next))});
}

void NodeAgent::Do(const CloseStore&) {
  store_.reset();
  relay_.reset();
}

// Without one the ranks of a world that needs it may find no room at the store; those of another one do.
void NodeAgent::OpenRelay(const v1::StartRound& round) {
  relay_.reset();
  if (round.group_rank() == 0 || !RelaysStore(config_, env_, round.world_size())) return;
  auto opened = OpenRelayTo(round);
  if (!opened.ok()) {
    return Warn(
        fmt::format("this node's ranks connect to the store each by itself: no relay: {}", Message(opened.status())));
  }
  relay_ = *std::move(opened);
  last_relay_port_ = relay_->port();
}

StatusOr<std::unique_ptr<store::StoreRelay>> NodeAgent::OpenRelayTo(const v1::StartRound& round) {
  PHX_ASSIGN_OR_RETURN(store::ListenSocket socket, store::ListenSocket::Reserve({kRelayAddress}, {}));
  // A process of an older round shall find nobody where its relay was: another port is one taken beside that.
  std::optional<store::ListenSocket> avoided;
  if (socket.port() == last_relay_port_) {
    avoided = std::move(socket);
    PHX_ASSIGN_OR_RETURN(socket, store::ListenSocket::Reserve({kRelayAddress}, {}));
  }
  store::RelayOptions options;
  options.store_address = round.store_address();
  options.store_port = static_cast<uint16_t>(round.store_port());
  options.epoch = round.epoch();
  options.on_refused = [this, epoch = round.epoch()](const std::string& sentence) {  // on the relay's own thread
    loop_.Post([this, refused = StoreRefusedClient{epoch, sentence}] { Feed(refused); });
  };
  return store::StoreRelay::Open(std::move(socket), std::move(options));
}

void NodeAgent::Do(const OpenBoard& action) {
  for (int rank = 0; board_ && rank < static_cast<int>(config_.nproc_per_node); ++rank) {
    const BoardSlot slot = board_->Read(rank);
    if (slot.pid == 0) continue;
    told_step_ = std::max(told_step_, slot.step);
    if (slot.step >= 0) counts_on_ = slot.counts_on;
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
    OpenRelay(action.round);
    checkpoints_->OnRound(action.round);
    BeginWatching();
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
  RoundPlace place = PlaceOf(action.round);
  if (relay_) {
    place.master_addr = kRelayAddress;
    place.master_port = relay_->port();
  }
  spec.env = WorkerEnvironment(config_, env_, place, action.local_rank, files);
  spec.args = SubstituteLocalRank(config_.script_args, action.local_rank);
  spec.board_path = files.board_path;
  spec.exact_steps = told_step_ >= 0;
  spec.counts_on = counts_on_;
  spec.splits_steps = config_.watches_ranks;
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
  const bool withstands = supervisor_->GroupWithstands(action.local_rank, action.signal);
  supervisor_->SignalGroup(action.local_rank, action.signal);
  Feed(GroupSignalled{action.local_rank, action.epoch, withstands});
}

void NodeAgent::Do(const KillGroup& action) { supervisor_->SignalGroup(action.local_rank, SIGKILL); }

void NodeAgent::Do(const SignalWorker& action) {
  if (supervisor_->Catches(action.local_rank, action.signal))
    supervisor_->SignalWorker(action.local_rank, action.signal);
}

void NodeAgent::Do(const AskForSafePoint& action) {
  SafePointAsked asked{action.epoch, {}};
  const bool chosen = action.at_step > 0;
  const Status announced =
      board_ && chosen ? board_->AnnounceRescale(action.at_step, action.node_leaves) : absl::OkStatus();
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

void NodeAgent::Do(const RestartMaster& action) {
  // The endpoint's is no elected one, and has its own place.
  const bool is_elected = !core_.moved_on && !core_.search.own.empty();
  if (!is_elected) master_place_ = endpoint_place_;
  const Status started = master_->Start(config_, env_, master_place_, {true, is_elected, action.term, 0, "", false});
  if (!started.ok()) Feed(MasterChildDied{Message(started)});
}

void NodeAgent::Do(const TakeOver& action) {
  successor_place_.Release();
  MakeMaster();
  master_place_ = {address_, successor_place_.port()};
  const Status started = master_->Start(config_, env_, master_place_,
                                        {false, false, 0, action.term, action.before_id, action.before_broke});
  if (!started.ok()) Feed(MasterChildDied{Message(started)});
}

void NodeAgent::Do(const LetGo&) { master_->LetGo(); }

// Of a name of several machines each but the master's own, where a herald would be heard and nobody told: a machine
// that comes back hosts a master again.
std::vector<std::string> NodeAgent::PlacesOf(const std::string& address) const {
  if (address != core_.search.endpoint || master_addresses_.size() < 2) return {address};
  std::vector<std::string> places;
  for (const std::string& each : master_addresses_) {
    std::string place = JoinHostPort(each, config_.endpoint_port);
    if (place != core_.search.address) places.push_back(std::move(place));
  }
  return places;
}

// A place that cannot be told now is not told at all: who comes there finds nobody.
void NodeAgent::Do(const Herald& action) {
  heralds_.clear();
  std::vector<std::string> places;
  for (const std::string& address : action.addresses) {
    for (std::string& place : PlacesOf(address)) places.push_back(std::move(place));
  }
  for (const std::string& address : places) {
    StatusOr<wire::Credentials> credentials = CredentialsOf(config_);
    if (!credentials.ok()) return Warn(Message(credentials.status()));
    heralds_.push_back(std::make_unique<OldPlaceHerald>(loop_, address, *std::move(credentials),
                                                        [this]() -> std::optional<v1::AgentMessage> {
                                                          if (!core_.attached) return std::nullopt;
                                                          v1::AgentMessage message = HelloNow();
                                                          message.mutable_hello()->set_only_tells(true);
                                                          return message;
                                                        }));
  }
}

void NodeAgent::Do(const StopHerald&) { heralds_.clear(); }
void NodeAgent::Do(const GiveUpAnswers& action) { checkpoints_->OnMasterSilent(action.why); }

void NodeAgent::Do(const Say& action) { Tell(SayLine(speaker_, Level::kInfo, action.text, UnixMs())); }

void NodeAgent::Warn(const std::string& text) { Tell(SayLine(speaker_, Level::kWarning, text, UnixMs())); }

// To people as far as one of the two is still read, and to the record in any case.
void NodeAgent::TellOfConsole(const std::string& text) {
  Warn(text);
  v1::AgentMessage message;
  message.mutable_console_lost()->set_sentence(text);
  TellRecord(std::move(message));
}

void NodeAgent::Tell(const std::string& line) {
  if (supervisor_) return supervisor_->Say(line);
  fmt::print(stderr, "{}", line);  // the devices could not be counted: nothing has been started yet
}

std::string NodeAgent::HangText(const v1::Finish& finish) {
  std::vector<v1::RankStatus> ranks;
  const int64_t now_ns = MonotonicNs();
  for (const RankProgress& rank : ReadRanks()) {
    ranks.push_back(RankStatusOf(rank, now_ns));
    ranks.back().set_local_rank(static_cast<uint32_t>(ranks.size() - 1));
  }
  return SayHang(speaker_, finish, config_.ShownScript(), core_.round ? core_.round->rank_base() : 0, ranks, UnixMs());
}

void NodeAgent::Do(const ReportFailure& action) {
  if (IsHang(action.finish)) return Tell(HangText(action.finish));
  if (!action.finish.has_first_cause()) {
    return Tell(SayLine(speaker_, Level::kError, action.finish.reason(), UnixMs()));
  }
  supervisor_->Say(SayFailure(speaker_, action.finish, config_.ShownScript(), UnixMs()));
  if (config_.own_error_file.empty()) return;
  const NamedFile file{config_.own_error_file, false, true, false, kAsTorchMakesIt};
  const Status written = WriteNamed(file, OwnErrorJson(action.finish));
  if (!written.ok()) Do(Say{fmt::format("TORCHELASTIC_ERROR_FILE={}: {}", config_.own_error_file, Message(written))});
}

}  // namespace phalanx::agent
