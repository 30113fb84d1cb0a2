// The supervisor: live workers, from their start to the end of their process groups. More than 500 lines: one class, of
// which each part moves the same workers on.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <deque>
#include <filesystem>
#include <iterator>
#include <set>
#include <system_error>
#include <utility>

#include "agent/machine/oom.h"
#include "agent/output/console.h"
#include "agent/output/streams.h"
#include "agent/workers/death_watch.h"
#include "agent/workers/ends.h"
#include "agent/workers/launch.h"
#include "agent/workers/lives.h"
#include "agent/workers/spare_pool.h"
#include "agent/workers/supervisor.h"
#include "base/check.h"
#include "base/clock.h"
#include "base/net.h"

namespace phalanx::agent {
namespace {

constexpr size_t kErrorFileBytesMax = 64 << 10;
constexpr unsigned kDefaultUmask = 022;

struct Worker {
  uint64_t epoch = 0;
  int local_rank = 0;
  pid_t pid = 0;
  bool warm = false;
  bool announced = false;  // on_worker_started has been told
  bool script_started = false;
  ends::State ending;
  std::string error_file;
  std::unique_ptr<WorkerStreams> streams;
  std::unique_ptr<Channel> channel;
  std::string board_path;
  std::unique_ptr<DeathWatch> death_watch;
  std::map<pid_t, Fd> group;  // members that outlive the worker, watched
};

// The end of a worker, as far as it is known.
struct Ending {
  int local_rank = 0;
  ProcessEnd end;
};

ends::Cause CauseOf(const ProcessEnd& end) { return {end.exit_code, end.signal}; }

std::string CurrentDirectory() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::current_path(error);
  return error ? "/" : path.string();
}

// umask(2) can only be read by changing it.
unsigned CurrentUmask() {
  constexpr std::string_view kLabel = "\nUmask:\t";
  const std::string status = ReadFilePrefix("/proc/self/status", 4096);
  const size_t at = status.find(kLabel);
  unsigned mask = kDefaultUmask;
  if (at != std::string::npos)
    std::from_chars(status.data() + at + kLabel.size(), status.data() + status.size(), mask, 8);
  return mask;
}

// Those that are gone by the time they are looked at are left out.
std::vector<SeenProcess> LookAt(const std::vector<pid_t>& pids) {
  std::vector<SeenProcess> seen;
  seen.reserve(pids.size());
  for (const pid_t pid : pids) {
    const std::optional<ProcStat> stat = ReadProcStat(pid);
    if (stat) seen.push_back({pid, stat->ppid, stat->pgrp, stat->Dead()});
  }
  return seen;
}

// Whether the process still shows the zygote's command line: a spare, also one on its way that has not said its pid
// yet.
bool ShowsZygote(pid_t pid) {
  return ReadFilePrefix(fmt::format("/proc/{}/cmdline", pid), 4096).find("/zygote.py") != std::string::npos;
}

// Those of `processes` that live in the group. Asking for a group costs far less than reading a file of /proc, so only
// members are looked at closely.
std::vector<int64_t> LiveMembersOf(pid_t group, const std::vector<pid_t>& processes) {
  std::vector<pid_t> members;
  std::copy_if(processes.begin(), processes.end(), std::back_inserter(members),
               [group](pid_t pid) { return getpgid(pid) == group; });
  return LiveMembers(LookAt(members), group);
}

bool GroupIsEmpty(pid_t group) { return kill(-group, 0) != 0 && errno == ESRCH; }

class Workers final : public Supervisor {
 public:
  Workers(SupervisorParts parts, SupervisorEvents events);
  ~Workers() override;

  void Start() override;
  void StartWorker(WorkerSpec spec) override;
  void WantSpares(int count) override;
  void ForkAside(std::function<void(StatusOr<Spare>)> told) override;
  void ForgetAside() override;
  void SignalGroup(int local_rank, int signal) override;
  void SignalWorker(int local_rank, int signal) override;
  bool Catches(int local_rank, int signal) const override;
  bool GroupWithstands(int local_rank, int signal) override;
  void SignalAllGroups(int signal) override;
  std::vector<std::string> Strays() const override;
  void KillStrays() override;
  std::string ErrorFilePath(uint32_t restart_count, int local_rank) override;
  StatusOr<std::string> RunDir() override { return streams_->RunDir(); }
  void ResizeTerminals() override { streams_->Resize(); }
  void Say(const std::string& text) override { streams_->Say(text); }

 private:
  void MakePool();
  void Soon(std::function<void()> task);
  void Warn(const std::string& text);

  Worker NewWorker(const WorkerSpec& spec);
  void StartFrom(Spare spare, const WorkerSpec& spec);
  void StartCold(const WorkerSpec& spec);
  Status SpawnCold(const WorkerSpec& spec, Worker& worker);
  Status SendRun(const WorkerSpec& spec, Worker& worker);
  void FailStart(const WorkerSpec& spec, const Status& status);
  void Adopt(Worker worker);
  void Announce(Worker& worker);
  Worker* Find(int local_rank, pid_t pid);

  void ServePending();
  void GoCold(const std::string& why);

  void OnMessage(int local_rank, pid_t pid, const PeerMessage& message);
  void WatchForDeath(Worker& worker);
  void OnLogLost(const Worker& worker, const LogLost& lost);
  void OnDying(int local_rank, pid_t pid);
  void OnWorkerEnded(int local_rank, const ProcessEnd& end);
  void Decide(const Ending& ending, const ends::Event& event);
  void Do(const Ending& ending, const ends::CountKills&);
  void Do(const Ending& ending, const ends::TellEnd& action);
  void Do(const Ending& ending, const ends::LookAfterGroup&);
  WorkerEnd Report(Worker& worker, const ProcessEnd& end, OomAnswer memory);
  OomAnswer AskForMemory(const Worker& worker, const ProcessEnd& ended);

  void OnAnyEnd();
  void LookAfterGroup(int local_rank, pid_t pid);
  void WatchMember(Worker& worker, pid_t member);
  void GroupGone(int local_rank);
  std::vector<int64_t> StrayPids() const;
  const std::vector<pid_t>& ProcessesOfThisTurn();

  EventLoop& loop_;
  Reaper& reaper_;
  Guard* const guard_;
  const LaunchConfig config_;
  const Environment env_;
  const std::string node_id_;
  const SupervisorEvents events_;
  const std::string bootstrap_;
  const std::string cwd_;
  const unsigned umask_;
  std::unique_ptr<Streams> streams_;
  std::map<int, Worker> workers_;
  std::deque<WorkerSpec> pending_;  // for the next spares
  uint64_t oom_epoch_ = 0;          // the round that `oom_` is about
  OomRound oom_;
  uint64_t log_lost_epoch_ = 0;  // the last round in which that was told
  uint64_t asides_ = 0;          // the last call of ForkAside or ForgetAside has this number
  std::set<std::string> warned_;
  std::optional<std::vector<pid_t>> processes_;  // of this machine, in this turn of the loop; nothing: not looked at
  std::unique_ptr<SparePool> pool_;              // null: every start is cold
  std::shared_ptr<bool> alive_ = std::make_shared<bool>(true);
};

Workers::Workers(SupervisorParts parts, SupervisorEvents events)
    : loop_(parts.loop),
      reaper_(parts.reaper),
      guard_(parts.guard),
      config_(parts.config),
      env_(parts.env),
      node_id_(std::move(parts.node_id)),
      events_(std::move(events)),
      bootstrap_(FindBootstrap(config_, ExecutableDirectory())),
      cwd_(CurrentDirectory()),
      umask_(CurrentUmask()) {
  Streams::Options options;
  options.tmp_dir = env_.NonEmptyOr("TMPDIR", "/tmp");
  options.hostname = Hostname();
  options.on_warning = [this](const std::string& text) { Warn(text); };
  options.on_reader_gone = events_.on_reader_gone;
  streams_ = std::make_unique<Streams>(loop_, config_, std::move(options));
  reaper_.OnAnyEnd([this] { OnAnyEnd(); });
}

Workers::~Workers() {
  *alive_ = false;
  reaper_.OnAnyEnd(nullptr);
  for (auto& [local_rank, worker] : workers_) {
    if (!worker.ending.over) reaper_.Forget(worker.pid);
    for (const auto& [pid, pidfd] : worker.group) loop_.Unwatch(pidfd.get());
  }
  workers_.clear();  // before the streams they belong to
}

// Callbacks are never made from inside a call to us: they wait for the end of the loop's turn.
void Workers::Soon(std::function<void()> task) {
  loop_.At(loop_.Now(), [alive = alive_, task = std::move(task)] {
    if (*alive) task();
  });
}

void Workers::Warn(const std::string& text) {
  if (!warned_.insert(text).second) return;
  Soon([this, text] { events_.on_warning(text); });
}

// --- spares -------------------------------------------------------------------------------------------------------

void Workers::Start() {
  const WarmStart warm = WarmStartOf(config_, !bootstrap_.empty());
  if (!warm.possible) {
    Soon([this] { events_.on_cold(); });
    if (!warm.warning.empty()) Warn(warm.warning);
    return;
  }
  MakePool();
  pool_->Start();
}

void Workers::MakePool() {
  std::map<std::string, std::string> env = env_.values();
  env[kNodeMark] = node_id_;
  SparePool::Events events;
  events.on_changed = [this](int waiting) { Soon([this, waiting] { events_.on_spares_changed(waiting); }); };
  events.on_spare = [this] { ServePending(); };
  events.on_withheld = [this](const std::string& why) {
    Warn(fmt::format("spares are withheld: {}", why));
    Soon([this] { events_.on_cold(); });  // nobody shall wait for them
  };
  events.on_cold = [this](const std::string& why) { GoCold(why); };
  pool_ = std::make_unique<SparePool>(
      SparePool::Parts{loop_, reaper_, guard_, config_, std::move(env), bootstrap_, cwd_}, std::move(events));
}

void Workers::WantSpares(int count) {
  if (pool_) pool_->Keep(count);
}

void Workers::ForkAside(std::function<void(StatusOr<Spare>)> told) {
  const auto tell = [this, number = ++asides_, told = std::move(told)](StatusOr<Spare> spare) {
    Soon([this, number, told, held = std::make_shared<StatusOr<Spare>>(std::move(spare))] {
      if (number == asides_) told(std::move(*held));
    });
  };
  if (!pool_) return tell(absl::UnavailableError("workers start cold"));
  pool_->ForkAside(tell);
}

void Workers::ForgetAside() {
  ++asides_;
  if (pool_) pool_->ForgetAside();
}

void Workers::ServePending() {
  while (!pending_.empty()) {
    std::optional<Spare> spare = pool_->Take();
    if (!spare) break;
    const WorkerSpec spec = std::move(pending_.front());
    pending_.pop_front();
    StartFrom(*std::move(spare), spec);
  }
  pool_->Need(static_cast<int>(pending_.size()));
}

void Workers::GoCold(const std::string& why) {
  Soon([this] { events_.on_cold(); });
  Warn(fmt::format("warm start is off: {}", why));
  for (const WorkerSpec& spec : std::exchange(pending_, {})) StartCold(spec);
}

// --- starting -----------------------------------------------------------------------------------------------------

void Workers::StartWorker(WorkerSpec spec) {
  spec.env[kNodeMark] = node_id_;
  const bool last_life_runs = workers_.count(spec.local_rank) > 0;
  std::optional<Spare> spare = pool_ && !last_life_runs ? pool_->Take() : std::nullopt;
  switch (BeginningOf(last_life_runs, spare.has_value(), pool_ && pool_->alive())) {
    case Beginning::kRefused:
      return FailStart(spec, absl::FailedPreconditionError("processes of its last life still run"));
    case Beginning::kFromSpare:
      StartFrom(*std::move(spare), spec);
      return Soon([this, waiting = pool_->waiting()] { events_.on_spares_changed(waiting); });
    case Beginning::kAwaitsSpare:
      pending_.push_back(std::move(spec));
      return pool_->Need(static_cast<int>(pending_.size()));
    case Beginning::kCold:
      return StartCold(spec);
  }
}

void Workers::FailStart(const WorkerSpec& spec, const Status& status) {
  Soon([this, local_rank = spec.local_rank, epoch = spec.epoch, status] {
    events_.on_start_failed(local_rank, epoch, status);
  });
}

Worker Workers::NewWorker(const WorkerSpec& spec) {
  Worker worker;
  worker.epoch = spec.epoch;
  worker.local_rank = spec.local_rank;
  worker.board_path = spec.board_path;
  if (std::exchange(oom_epoch_, spec.epoch) != spec.epoch) oom_ = OomRound{ReadOomCounters(), 0};
  const auto error_file = spec.env.find("TORCHELASTIC_ERROR_FILE");
  if (error_file != spec.env.end()) worker.error_file = error_file->second;
  worker.streams = streams_->Open(spec.rank, spec.local_rank, spec.restart_count);
  return worker;
}

void Workers::StartFrom(Spare spare, const WorkerSpec& spec) {
  Worker worker = NewWorker(spec);
  worker.pid = spare.pid;
  worker.warm = true;
  worker.channel = std::move(spare.channel);
  Status status = spec.cpus.empty() ? absl::OkStatus() : BindToCpus(worker.pid, spec.cpus);
  if (status.ok()) status = SendRun(spec, worker);
  if (!status.ok()) {  // without its socket the spare ends
    reaper_.Forget(worker.pid);
    return FailStart(spec, status);
  }
  reaper_.Retarget(worker.pid,
                   [this, local_rank = spec.local_rank](const ProcessEnd& end) { OnWorkerEnded(local_rank, end); });
  Adopt(std::move(worker));
}

void Workers::StartCold(const WorkerSpec& spec) {
  Worker worker = NewWorker(spec);
  const Status status = SpawnCold(spec, worker);
  if (!status.ok()) return FailStart(spec, status);
  Adopt(std::move(worker));
}

Status Workers::SpawnCold(const WorkerSpec& spec, Worker& worker) {
  SpawnSpec command = WorkerCommand(config_, spec, bootstrap_);
  command.stdin_fd = worker.streams->stdin_fd();
  command.stdout_fd = worker.streams->stdout_fd();
  command.stderr_fd = worker.streams->stderr_fd();
  std::pair<Fd, Fd> ends;
  if (!bootstrap_.empty()) {
    PHX_ASSIGN_OR_RETURN(ends, Channel::MakePair());
    command.extra_fds = {ends.second.get()};
  }
  PHX_ASSIGN_OR_RETURN(Child child, Spawn(command));
  worker.pid = child.pid;
  if (bootstrap_.empty()) {
    worker.script_started = true;  // as far as anybody can tell
  } else {
    worker.channel = std::make_unique<Channel>(loop_, std::move(ends.first), Channel::Events{});
    PHX_RETURN_IF_ERROR(SendRun(spec, worker));  // without its socket the worker ends, and is reaped
  }
  if (guard_ != nullptr) guard_->Add(child.pid);
  reaper_.Await(std::move(child),
                [this, local_rank = spec.local_rank](const ProcessEnd& end) { OnWorkerEnded(local_rank, end); });
  return absl::OkStatus();
}

Status Workers::SendRun(const WorkerSpec& spec, Worker& worker) {
  std::vector<Fd> fds;
  std::vector<int> given = {worker.streams->stdin_fd(), worker.streams->stdout_fd(), worker.streams->stderr_fd()};
  if (spec.checkpoint_socket) given.push_back(spec.checkpoint_socket->get());
  for (const int fd : given) {
    fds.emplace_back(fcntl(fd, F_DUPFD_CLOEXEC, 3));
    if (!fds.back().valid()) return ErrnoStatus(errno, "copying a descriptor for a worker");
  }
  worker.channel->Send(RunMessage(config_, spec, worker.streams->log_streams(), cwd_, umask_), std::move(fds));
  return absl::OkStatus();
}

void Workers::Adopt(Worker worker) {
  const int local_rank = worker.local_rank;
  const pid_t pid = worker.pid;
  worker.streams->CloseWorkerEnds();
  if (worker.channel) {
    Channel::Events events;
    events.on_message = [this, local_rank, pid](const PeerMessage& message) { OnMessage(local_rank, pid, message); };
    worker.channel->SetEvents(std::move(events));  // its end is no news: the process's is
  }
  workers_.insert_or_assign(local_rank, std::move(worker));
  Soon([this, local_rank, pid] {
    if (Worker* const started = Find(local_rank, pid)) Announce(*started);
  });
}

void Workers::Announce(Worker& worker) {
  if (std::exchange(worker.announced, true)) return;
  events_.on_worker_started(worker.local_rank, worker.epoch, worker.pid);
}

Worker* Workers::Find(int local_rank, pid_t pid) {
  const auto it = workers_.find(local_rank);
  return it == workers_.end() || it->second.pid != pid ? nullptr : &it->second;
}

// --- what they say ------------------------------------------------------------------------------------------------

void Workers::OnMessage(int local_rank, pid_t pid, const PeerMessage& message) {
  Worker* const worker = Find(local_rank, pid);
  if (worker == nullptr) return;
  const uint64_t epoch = worker->epoch;
  if (const auto* started = std::get_if<ScriptStarted>(&message)) {
    Announce(*worker);
    worker->script_started = true;
    WatchForDeath(*worker);
    if (pool_ && !started->deny.empty()) pool_->Unlearn(started->deny);
    if (started->cold.empty()) return;
    worker->warm = false;
    Warn(fmt::format("a spare had to start afresh: {}", started->cold));
  } else if (const auto* first = std::get_if<FirstStep>(&message)) {
    if (pool_) pool_->Learn(first->modules);
    if (pool_ && local_rank == 0) pool_->Prepare();  // whose life tells which pages it has written
    events_.on_first_step(local_rank, epoch, first->step, worker->warm);
  } else if (std::holds_alternative<SafePointReached>(message)) {
    events_.on_safe_point(local_rank, epoch);
  } else if (const auto* lost = std::get_if<LogLost>(&message)) {
    OnLogLost(*worker, *lost);
  }
}

void Workers::WatchForDeath(Worker& worker) {
  if (worker.board_path.empty()) return;
  worker.death_watch.reset();  // of the program that this process was before
  worker.death_watch =
      DeathWatch::Start(loop_, worker.board_path, worker.local_rank,
                        [this, local_rank = worker.local_rank, pid = worker.pid] { OnDying(local_rank, pid); });
}

// A full disk is every rank's: one line a round.
void Workers::OnLogLost(const Worker& worker, const LogLost& lost) {
  const std::string& path = worker.streams->FileOf(lost.stream);
  if (path.empty() || std::exchange(log_lost_epoch_, worker.epoch) == worker.epoch) return;
  Soon([this, text = LossNotice(path, lost.error)] { events_.on_warning(text); });
}

// --- ends ---------------------------------------------------------------------------------------------------------

void Workers::OnDying(int local_rank, pid_t pid) {
  const std::optional<ProcessEnd> end = EndUnderWay(pid);
  ends::Dying dying;
  if (end) dying.cause = CauseOf(*end);
  ProcessEnd seen;
  seen.pid = pid;
  Decide({local_rank, end.value_or(seen)}, dying);
}

void Workers::OnWorkerEnded(int local_rank, const ProcessEnd& end) {
  Worker* const worker = Find(local_rank, end.pid);
  PHX_CHECK(worker != nullptr && !worker->ending.over, "the end of a worker that is not there");
  worker->death_watch.reset();
  Decide({local_rank, end}, ends::Reaped{CauseOf(end)});
}

void Workers::Decide(const Ending& ending, const ends::Event& event) {
  Worker* const worker = Find(ending.local_rank, ending.end.pid);
  if (worker == nullptr) return;
  for (const ends::Decision& decision : ends::Step(worker->ending, event)) {
    std::visit([&](const auto& action) { Do(ending, action); }, decision.action);
  }
}

void Workers::Do(const Ending& ending, const ends::CountKills& /*action*/) {
  Decide(ending, ends::KillsCounted{KillsSince(oom_.before, ReadOomCounters())});
}

void Workers::Do(const Ending& ending, const ends::TellEnd& action) {
  Worker& worker = *Find(ending.local_rank, ending.end.pid);
  OomAnswer memory;
  if (action.asks_memory) memory = AskForMemory(worker, ending.end);
  if (worker.channel) worker.channel->ReceiveNow();  // what it said before it ended
  Announce(worker);
  events_.on_worker_exited(Report(worker, ending.end, std::move(memory)));
}

void Workers::Do(const Ending& ending, const ends::LookAfterGroup& /*action*/) {
  LookAfterGroup(ending.local_rank, ending.end.pid);
}

WorkerEnd Workers::Report(Worker& worker, const ProcessEnd& end, OomAnswer memory) {
  WorkerEnd report;
  report.warm = worker.warm;
  report.noticed_ns = end.noticed_ns;
  v1::WorkerExited& exited = report.exited;
  exited.set_local_rank(static_cast<uint32_t>(worker.local_rank));
  exited.set_epoch(worker.epoch);
  exited.set_pid(end.pid);
  exited.set_exit_code(end.exit_code);
  exited.set_signal(end.signal);
  exited.set_core_dumped(end.core_dumped);
  exited.set_script_started(worker.script_started);
  exited.set_peak_resident_bytes(end.peak_resident_bytes);
  exited.set_killed_by(std::move(memory.killed_by));
  exited.set_end_note(std::move(memory.note));
  if (!worker.error_file.empty()) exited.set_error_json(ReadFilePrefix(worker.error_file, kErrorFileBytesMax));
  exited.set_last_words(worker.streams->LastWords());
  worker.channel.reset();
  return report;
}

// Ends are told one after the other: others that have happened by now are looked at, so that none takes the blame, or
// the excuse, that is another's.
OomAnswer Workers::AskForMemory(const Worker& worker, const ProcessEnd& ended) {
  if (worker.epoch != oom_epoch_) return {};
  OomQuestion question;
  question.killed = ended.signal == SIGKILL;
  question.peak_resident_bytes = ended.peak_resident_bytes;
  for (const auto& [local_rank, other] : workers_) {
    if (!ends::IsOpen(other.ending)) continue;
    const std::optional<ProcessEnd> end = EndUnderWay(other.pid);
    if (end && end->signal == SIGKILL) ++question.others_killed;
  }
  return JudgeEnd(oom_, ReadOomCounters(), question);
}

// Orphans of a group come to us and are reaped: the last of them may be a group's last member.
void Workers::OnAnyEnd() {
  std::vector<std::pair<int, pid_t>> gone;
  for (const auto& [local_rank, worker] : workers_) {
    if (!worker.ending.over) continue;
    const GroupLook look{worker.ending.over, !GroupIsEmpty(worker.pid), {}};
    if (GroupOf(look) == GroupNow::kGone) gone.emplace_back(local_rank, worker.pid);
  }
  for (const auto& [local_rank, pid] : gone) {
    if (Find(local_rank, pid) != nullptr) GroupGone(local_rank);
  }
}

// Called when a worker has ended and when its last watched member has. Members whose parent lives elsewhere are no
// children of ours: each live one is watched.
void Workers::LookAfterGroup(int local_rank, pid_t pid) {
  Worker* const worker = Find(local_rank, pid);
  if (worker == nullptr || !worker->group.empty()) return;
  GroupLook look{worker->ending.over, !GroupIsEmpty(pid), {}};
  if (GroupOf(look) == GroupNow::kNotKnown) {
    const std::vector<int64_t> members = LiveMembersOf(pid, AllProcesses());
    look.live_members = members.size();
    for (const int64_t member : members) WatchMember(*worker, static_cast<pid_t>(member));
  }
  if (GroupOf(look) == GroupNow::kGone) GroupGone(local_rank);
}

void Workers::WatchMember(Worker& worker, pid_t member) {
  Fd pidfd = PidfdOpen(member);
  if (!pidfd.valid()) {
    // Gone meanwhile: look again. Or a kernel without pidfds: SIGCHLD tells of our own children, at least.
    if (errno == ESRCH)
      Soon([this, local_rank = worker.local_rank, pid = worker.pid] { LookAfterGroup(local_rank, pid); });
    return;
  }
  const int fd = pidfd.get();
  worker.group.emplace(member, std::move(pidfd));
  loop_.Watch(fd, EPOLLIN, [this, member, local_rank = worker.local_rank, pid = worker.pid](uint32_t) {
    Worker* const found = Find(local_rank, pid);
    if (found == nullptr) return;
    loop_.Unwatch(found->group.at(member).get());
    found->group.erase(member);
    LookAfterGroup(local_rank, pid);
  });
}

void Workers::GroupGone(int local_rank) {
  const auto it = workers_.find(local_rank);
  Worker& worker = it->second;
  for (const auto& [pid, pidfd] : worker.group) loop_.Unwatch(pidfd.get());
  if (guard_ != nullptr) guard_->Remove(worker.pid);
  const uint64_t epoch = worker.epoch;
  workers_.erase(it);
  events_.on_group_gone(local_rank, epoch);
}

// --- signals ------------------------------------------------------------------------------------------------------

void Workers::SignalGroup(int local_rank, int signal) {
  const auto it = workers_.find(local_rank);
  if (it != workers_.end()) {
    if (signal == SIGKILL) ends::Step(it->second.ending, ends::KilledByUs{});  // nothing follows from that
    kill(-it->second.pid, signal);
    return;
  }
  // One that still waits for a spare never starts.
  const auto waits = std::find_if(pending_.begin(), pending_.end(),
                                  [&](const WorkerSpec& spec) { return spec.local_rank == local_rank; });
  if (waits == pending_.end() || (signal != SIGKILL && signal != SIGTERM)) return;
  const uint64_t epoch = waits->epoch;
  pending_.erase(waits);
  pool_->Need(static_cast<int>(pending_.size()));
  Soon([this, local_rank, epoch] {
    events_.on_start_failed(local_rank, epoch, absl::CancelledError("told to end before it began"));
  });
}

void Workers::SignalWorker(int local_rank, int signal) {
  const auto it = workers_.find(local_rank);
  if (it != workers_.end() && !it->second.ending.over) kill(it->second.pid, signal);
}

bool Workers::Catches(int local_rank, int signal) const {
  const auto it = workers_.find(local_rank);
  return it != workers_.end() && !it->second.ending.over && CatchesSignal(it->second.pid, signal);
}

bool Workers::GroupWithstands(int local_rank, int signal) {
  const auto it = workers_.find(local_rank);
  if (it == workers_.end()) return false;
  const pid_t group = it->second.pid;
  if (!it->second.ending.over && WithstandsSignal(group, signal)) return true;
  // Not by their parents: an orphan of the group is a child of ours.
  const std::vector<int64_t> members = LiveMembersOf(group, ProcessesOfThisTurn());
  return std::any_of(members.begin(), members.end(),
                     [signal](int64_t pid) { return WithstandsSignal(static_cast<pid_t>(pid), signal); });
}

// All groups of a round are asked about in one turn: one look serves them.
const std::vector<pid_t>& Workers::ProcessesOfThisTurn() {
  if (!processes_) {
    processes_ = AllProcesses();
    Soon([this] { processes_.reset(); });
  }
  return *processes_;
}

void Workers::SignalAllGroups(int signal) {
  for (const auto& [local_rank, worker] : workers_) kill(-worker.pid, signal);
}

// --- strays -------------------------------------------------------------------------------------------------------

std::vector<int64_t> Workers::StrayPids() const {
  const std::string mark = fmt::format("{}={}", kNodeMark, node_id_);
  std::set<int64_t> groups;
  for (const auto& [local_rank, worker] : workers_) groups.insert(worker.pid);
  const auto is_of_pool = [this](int64_t child) {
    const auto pid = static_cast<pid_t>(child);
    return pool_ && (pool_->Knows(pid) || ShowsZygote(pid));
  };
  const auto has_mark = [&mark](int64_t pid) { return EnvironmentHolds(static_cast<pid_t>(pid), mark) == Holds::kYes; };
  return StraysAmong(LookAt(OwnChildren()), groups, is_of_pool, has_mark);
}

std::vector<std::string> Workers::Strays() const {
  std::vector<std::string> texts;
  for (const int64_t pid : StrayPids()) {
    const std::optional<ProcStat> stat = ReadProcStat(static_cast<pid_t>(pid));
    if (stat) texts.push_back(fmt::format("{} {}", pid, TailForPeople(stat->comm, 64)));
  }
  return texts;
}

void Workers::KillStrays() {
  const std::vector<int64_t> strays = StrayPids();
  if (strays.empty()) return;
  for (const int64_t pid : WithDescendants(strays, LookAt(AllProcesses()))) kill(static_cast<pid_t>(pid), SIGKILL);
}

std::string Workers::ErrorFilePath(uint32_t restart_count, int local_rank) {
  return streams_->ErrorFilePath(restart_count, local_rank);
}

}  // namespace

std::unique_ptr<Supervisor> MakeSupervisor(SupervisorParts parts, SupervisorEvents events) {
  return std::make_unique<Workers>(std::move(parts), std::move(events));
}

}  // namespace phalanx::agent
