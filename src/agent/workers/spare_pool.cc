#include "agent/workers/spare_pool.h"

#include <unistd.h>

#include <utility>

#include "agent/workers/launch.h"
#include "agent/workers/learnt.h"
#include "base/process/memory.h"

namespace phalanx::agent {
namespace {

// No number of Spares' forks: those begin with 1.
constexpr uint64_t kAsideFork = 0;

}  // namespace

SparePool::SparePool(Parts parts, Events events)
    : parts_(std::move(parts)), events_(std::move(events)), learnt_path_(LearntPath(parts_.config, parts_.cwd)) {}

SparePool::~SparePool() {
  parts_.loop.Cancel(timer_);
  for (const auto& [pid, channel] : spares_) {
    parts_.reaper.Forget(pid);
    if (parts_.guard != nullptr) parts_.guard->Remove(pid);
  }
}

void SparePool::Start() {
  core_.Start(ReadLearnt(learnt_path_));
  Run();
}

void SparePool::Need(int needed) {
  core_.Need(needed, parts_.loop.Now());
  Run();
}

void SparePool::Keep(int kept) {
  core_.Keep(kept, parts_.loop.Now());
  Run();
}

void SparePool::Learn(const std::vector<std::string>& modules) {
  core_.Learn(modules, parts_.loop.Now());
  Run();
}

void SparePool::Unlearn(const std::string& module) {
  core_.Unlearn(module, parts_.loop.Now());
  Run();
}

std::optional<Spare> SparePool::Take() {
  std::optional<int64_t> next = core_.Next();
  for (; next && PeekEnd(static_cast<pid_t>(*next)); next = core_.Next()) core_.PassOver(*next);
  std::optional<Spare> spare;
  if (next) {
    const auto pid = static_cast<pid_t>(*next);
    core_.Taken(pid);
    spare = Spare{pid, std::move(spares_.extract(pid).mapped())};
  }
  Run();
  return spare;
}

bool SparePool::Knows(pid_t pid) const {
  for (const auto& [number, zygote] : zygotes_) {
    if (zygote->pid() == pid) return true;
  }
  return spares_.contains(pid);
}

// --- actions ------------------------------------------------------------------------------------------------------

// What is decided while an action is carried out waits until those decided before it are.
void SparePool::Run() {
  if (std::exchange(running_, true)) return;
  for (std::vector<SpareAction> actions = core_.Take(); !actions.empty(); actions = core_.Take()) {
    for (const SpareAction& action : actions) std::visit([this](const auto& each) { Do(each); }, action);
  }
  running_ = false;
  SetTimer();
  ServeAside();
}

void SparePool::SetTimer() {
  const Instant deadline = core_.Deadline();
  if (deadline == timer_at_) return;
  parts_.loop.Cancel(timer_);
  timer_ = {};
  timer_at_ = deadline;
  if (deadline == kNever) return;
  timer_ = parts_.loop.At(deadline, [this] {
    timer_at_ = kNever;
    core_.OnTime(parts_.loop.Now());
    Run();
  });
}

void SparePool::Do(const StartZygote& action) {
  Zygote::Events events;
  events.on_ready = [this, number = action.zygote] {
    core_.OnZygoteReady(number, parts_.loop.Now());
    Run();
  };
  events.on_fork_failed = [this](uint64_t fork, const std::string& why) {
    if (fork != kAsideFork) return OnForkFailed(fork, why);
    if (aside_ && aside_->channel) TellAside(absl::UnavailableError(why));
  };
  events.on_ended = [this, number = action.zygote](const ZygoteEnd& end) { OnZygoteEnded(number, end); };
  const SpawnSpec command = ZygoteCommand(parts_.config, parts_.env, parts_.bootstrap);
  const std::string preload = PreloadMessage(parts_.config, command.env, parts_.cwd, action.learnt);
  StatusOr<std::unique_ptr<Zygote>> started =
      Zygote::Start(parts_.loop, parts_.reaper, parts_.guard, command, preload, std::move(events));
  if (!started.ok()) return core_.OnZygoteNotStarted(action.zygote, Message(started.status()));
  zygotes_[action.zygote] = *std::move(started);
}

void SparePool::Do(const EndZygote& action) { zygotes_.at(action.zygote)->GiveUp(action.why); }

void SparePool::Do(const DropZygote& action) { zygotes_.erase(action.zygote); }

void SparePool::Do(const ForkSpare& action) {
  Zygote& zygote = *zygotes_.at(action.zygote);
  if (!zygote.ready()) return;  // its end is about to be told
  auto ends = Channel::MakePair();
  if (!ends.ok()) return core_.OnForkFailed(action.fork, Message(ends.status()), parts_.loop.Now());
  Channel::Events events;
  events.on_message = [this, fork = action.fork](const PeerMessage& message) { OnSpareSpeaks(fork, message); };
  events.on_closed = [this, fork = action.fork](const Status& why) { OnForkFailed(fork, Message(why)); };
  forking_ = std::make_unique<Channel>(parts_.loop, std::move(ends->first), std::move(events));
  zygote.Fork(action.fork, action.ahead, std::move(ends->second));
}

void SparePool::Do(const DropFork&) { forking_.reset(); }

void SparePool::Do(const DropSpare& action) {
  const auto pid = static_cast<pid_t>(action.pid);
  const auto dropped = spares_.extract(pid);  // the end of its socket ends it
  parts_.reaper.Forget(pid);
  if (parts_.guard != nullptr) parts_.guard->Remove(pid);
}

void SparePool::Do(const LookAtMemory&) { core_.OnMemory(AvailableMemoryBytes(), parts_.loop.Now()); }

void SparePool::Do(const KeepLearnt& action) { WriteLearnt(learnt_path_, action.learnt); }

void SparePool::Do(const TellWaiting& action) { events_.on_changed(action.waiting); }

void SparePool::Do(const TellSpare&) { events_.on_spare(); }

void SparePool::Do(const TellWithheld& action) { events_.on_withheld(action.why); }

void SparePool::Do(const TellCold& action) { events_.on_cold(action.why); }

// --- events -------------------------------------------------------------------------------------------------------

void SparePool::Prepare() {
  for (const auto& [pid, channel] : spares_) channel->Send(R"({"type":"prepare"})");
}

void SparePool::OnZygoteEnded(int zygote, const ZygoteEnd& end) {
  ended_zygote_ = std::move(zygotes_.extract(zygote).mapped());  // it is calling us
  core_.OnZygoteEnded(zygote, end);
  Run();
}

void SparePool::OnSpareSpeaks(uint64_t fork, const PeerMessage& message) {
  const std::optional<pid_t> forked = AwaitForked(message, [this](const ProcessEnd& end) { OnSpareLost(end.pid); });
  if (!forked) return OnForkFailed(fork, "what was forked is not a spare of this agent");
  const pid_t pid = *forked;
  if (parts_.guard != nullptr) parts_.guard->Add(pid);
  Channel::Events events;
  events.on_message = [this, pid](const PeerMessage&) { OnSpareLost(pid); };
  events.on_closed = [this, pid](const Status&) { OnSpareLost(pid); };
  forking_->SetEvents(std::move(events));
  spares_[pid] = std::move(forking_);
  core_.OnSpareWaits(fork, pid, parts_.loop.Now());
  Run();
}

// The process that speaks, if it is a fork of ours that nobody knows yet: its end is told from now on.
std::optional<pid_t> SparePool::AwaitForked(const PeerMessage& message, std::function<void(const ProcessEnd&)> on_end) {
  const auto* spare = std::get_if<SpareWaits>(&message);
  const pid_t pid = spare == nullptr ? 0 : static_cast<pid_t>(spare->pid);
  const std::optional<ProcStat> stat = pid > 1 ? ReadProcStat(pid) : std::nullopt;
  if (!stat || stat->ppid != getpid() || stat->session != pid || parts_.reaper.Awaits(pid)) return std::nullopt;
  parts_.reaper.Await(Child{pid, PidfdOpen(pid)}, std::move(on_end));
  return pid;
}

void SparePool::OnForkFailed(uint64_t fork, const std::string& why) {
  core_.OnForkFailed(fork, why, parts_.loop.Now());
  Run();
}

void SparePool::OnSpareLost(pid_t pid) {
  core_.OnSpareLost(pid, parts_.loop.Now());
  Run();
}

// --- aside --------------------------------------------------------------------------------------------------------

void SparePool::ForkAside(std::function<void(StatusOr<Spare>)> told) {
  aside_ = Aside{std::move(told), nullptr};
  ServeAside();
}

void SparePool::ForgetAside() { aside_.reset(); }

// Behind all that may have changed whether there is a zygote, and what it does.
void SparePool::ServeAside() {
  if (!aside_ || aside_->channel) return;
  if (!core_.alive()) return TellAside(absl::UnavailableError("workers start cold"));
  const auto zygote = zygotes_.find(core_.ForksNow());
  if (zygote == zygotes_.end() || !zygote->second->ready()) return;  // it imports, or its end is about to be told
  auto ends = Channel::MakePair();
  if (!ends.ok()) return TellAside(ends.status());
  Channel::Events events;
  events.on_message = [this](const PeerMessage& message) { OnAsideSpeaks(message); };
  events.on_closed = [this](const Status& why) { TellAside(why); };
  aside_->channel = std::make_unique<Channel>(parts_.loop, std::move(ends->first), std::move(events));
  zygote->second->Fork(kAsideFork, false, std::move(ends->second));
}

void SparePool::OnAsideSpeaks(const PeerMessage& message) {
  const std::optional<pid_t> pid = AwaitForked(message, nullptr);
  if (!pid) return TellAside(absl::InternalError("what was forked is no child of this agent"));
  Channel::Events silent;
  silent.on_message = [](const PeerMessage&) {};
  aside_->channel->SetEvents(std::move(silent));
  TellAside(Spare{*pid, std::move(aside_->channel)});
}

void SparePool::TellAside(StatusOr<Spare> spare) {
  const Aside aside = *std::exchange(aside_, std::nullopt);
  aside.told(std::move(spare));
}

}  // namespace phalanx::agent
