#include "agent/workers/spare_pool.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <set>
#include <utility>

#include "agent/workers/launch.h"
#include "base/process/memory.h"

namespace phalanx::agent {
namespace {

// Zygotes in a row that gave no spare, and zygotes of a whole run: then it is cold starts.
constexpr int kUselessMax = 2;
constexpr int kZygotesMax = 50;
constexpr size_t kDenyMax = 200;
// A better zygote is made a moment after the last rank has told of something new, so that one serves all ranks; and
// only so often in a run: a script that imports other modules in each life would have no end of it.
constexpr int64_t kRenewAfterMs = 1'000;
constexpr int kRenewalsMax = 3;
// Two zygotes stand side by side until the new one is ready.
constexpr int64_t kMemoryForRenewal = int64_t{2} << 30;
// A fork takes milliseconds; a zygote that lets this pass is stopped or stuck.
constexpr int64_t kForkWithinMs = 10'000;
constexpr int kForkFailuresMax = 3;
constexpr int kSparesLostMax = 5;
// A spare costs a few MiB until it runs; what it becomes costs what a rank costs. Below this nothing is forked ahead of
// need.
constexpr int64_t kMemoryForSpares = int64_t{512} << 20;

}  // namespace

SparePool::SparePool(Parts parts, Events events)
    : parts_(std::move(parts)), events_(std::move(events)), learnt_path_(LearntPath(parts_.config, parts_.cwd)) {}

SparePool::~SparePool() {
  parts_.loop.Cancel(fork_timer_);
  parts_.loop.Cancel(renew_timer_);
  for (const Spare& spare : spares_) {
    parts_.reaper.Forget(spare.pid);
    if (parts_.guard != nullptr) parts_.guard->Remove(spare.pid);
  }
}

void SparePool::Start() {
  learnt_ = ReadLearnt(learnt_path_);
  StartZygote();
}

StatusOr<std::unique_ptr<Zygote>> SparePool::LaunchZygote() {
  ++zygotes_;
  Zygote::Events events;
  events.on_ready = [this] { OnZygoteReady(); };
  events.on_fork_failed = [this](uint64_t id, const std::string& reason) {
    if (forking_ && id == fork_id_) OnForkFailed(reason);
  };
  events.on_ended = [this](const ZygoteEnd& end) {
    // The one that has ended has no process any more.
    next_zygote_ && next_zygote_->pid() == 0 ? OnNextZygoteEnded(end) : OnZygoteEnded(end);
  };
  return Zygote::Start(parts_.loop, parts_.reaper, parts_.guard,
                       ZygoteCommand(parts_.config, parts_.env, parts_.bootstrap),
                       PreloadMessage(parts_.config, parts_.cwd, learnt_), std::move(events));
}

void SparePool::StartZygote() {
  StatusOr<std::unique_ptr<Zygote>> started = LaunchZygote();
  if (!started.ok()) return GoCold(Message(started.status()));
  zygote_ = *std::move(started);
}

void SparePool::OnZygoteReady() {
  if (next_zygote_ && next_zygote_->ready()) {
    EndFork();  // a spare on its way finds nobody, and ends
    zygote_ = std::move(next_zygote_);
    ++generation_;
    if (std::exchange(unfit_, false)) {
      while (!spares_.empty()) DropSpare(spares_.front().pid);
    }
  }
  Pump();
}

bool SparePool::Deny(const std::string& module) {
  const bool known = std::find(learnt_.deny.begin(), learnt_.deny.end(), module) != learnt_.deny.end();
  if (known || learnt_.deny.size() >= kDenyMax || zygotes_ >= kZygotesMax) return false;
  learnt_.deny.push_back(module);
  WriteLearnt(learnt_path_, learnt_);
  return true;
}

void SparePool::OnZygoteEnded(const ZygoteEnd& end) {
  const bool served = zygote_->ready();
  ended_zygote_ = std::move(zygote_);  // it is calling us
  EndFork();
  if (cold_) return;
  if (next_zygote_) {
    zygote_ = std::move(next_zygote_);
    ++generation_;
    return;
  }
  if (end.kind == ZygoteEnd::Kind::kFailed) return GoCold(end.reason);
  if (end.kind == ZygoteEnd::Kind::kTainted) {
    if (Deny(end.module)) return StartZygote();
    return GoCold(fmt::format("importing {} ahead of time {}", end.module, end.reason));
  }
  if (!served && !learnt_.modules.empty()) {  // what was learnt may be what ends it: the script's text has to do
    learnt_.modules.clear();
    WriteLearnt(learnt_path_, learnt_);
    return StartZygote();
  }
  if (++useless_zygotes_ >= kUselessMax || zygotes_ >= kZygotesMax) {
    return GoCold(fmt::format("the process that spares come from does not live: {}", end.reason));
  }
  StartZygote();
}

// The zygote that works goes on as it is where no better one can be had.
void SparePool::Renew() {
  parts_.loop.Cancel(renew_timer_);
  renew_timer_ = {};
  next_zygote_.reset();  // it imports, and does not know what has come since
  if (!alive() || AvailableMemoryBytes() < kMemoryForRenewal) return;
  StatusOr<std::unique_ptr<Zygote>> started = LaunchZygote();
  if (started.ok()) next_zygote_ = *std::move(started);
}

void SparePool::OnNextZygoteEnded(const ZygoteEnd& end) {
  ended_zygote_ = std::move(next_zygote_);  // it is calling us
  if (end.kind == ZygoteEnd::Kind::kTainted && Deny(end.module)) Renew();
}

void SparePool::GoCold(const std::string& why) {
  if (std::exchange(cold_, true)) return;
  next_zygote_.reset();
  if (zygote_) zygote_->GiveUp(why);
  events_.on_cold(why);
}

void SparePool::Want(int needed, int kept) {
  needed_ = needed;
  kept_ = kept;
  bool changed = false;
  while (waiting() > needed_ + kept_) {
    DropSpare(Stale(spares_.front()) ? spares_.front().pid : spares_.back().pid);
    changed = true;
  }
  if (changed) events_.on_changed(waiting());
  Pump();
}

// Until somebody wants spares anew.
void SparePool::Withhold(const std::string& why) {
  kept_ = std::max(0, waiting() - needed_);
  events_.on_withheld(why);
}

// One fork at a time: each takes memory and a little of the cores that train.
void SparePool::Pump() {
  if (!alive() || !zygote_->ready() || forking_ || Fresh() >= needed_ + kept_) return;
  if (waiting() >= needed_ && AvailableMemoryBytes() < kMemoryForSpares) {
    if (waiting() >= needed_ + kept_) return;  // those of the zygote before will do
    return Withhold("less than 512 MiB of memory are left for this job's processes");
  }
  auto ends = Channel::MakePair();
  if (!ends.ok()) return OnForkFailed(Message(ends.status()));
  Channel::Events events;
  events.on_message = [this](const PeerMessage& message) { OnSpareSpeaks(message); };
  events.on_closed = [this](const Status& why) { OnForkFailed(Message(why)); };
  forking_ = std::make_unique<Channel>(parts_.loop, std::move(ends->first), std::move(events));
  fork_timer_ = parts_.loop.At(parts_.loop.Now() + kForkWithinMs, [this] { zygote_->GiveUp("it does not answer"); });
  zygote_->Fork(++fork_id_, std::move(ends->second));
}

void SparePool::EndFork() {
  parts_.loop.Cancel(fork_timer_);
  fork_timer_ = {};
  forking_.reset();
}

void SparePool::OnSpareSpeaks(const PeerMessage& message) {
  const auto* spare = std::get_if<SpareWaits>(&message);
  const pid_t pid = spare == nullptr ? 0 : static_cast<pid_t>(spare->pid);
  const std::optional<ProcStat> stat = pid > 1 ? ReadProcStat(pid) : std::nullopt;
  if (!stat || stat->ppid != getpid() || stat->session != pid || parts_.reaper.Awaits(pid)) {
    return OnForkFailed("what was forked is not a spare of this agent");
  }
  Spare waiting_spare{pid, generation_, std::move(forking_)};
  EndFork();
  fork_failures_ = 0;
  useless_zygotes_ = 0;
  if (parts_.guard != nullptr) parts_.guard->Add(pid);
  Channel::Events events;
  events.on_message = [this, pid](const PeerMessage&) { OnSpareLost(pid); };
  events.on_closed = [this, pid](const Status&) { OnSpareLost(pid); };
  waiting_spare.channel->SetEvents(std::move(events));
  parts_.reaper.Await(Child{pid, PidfdOpen(pid)}, [this, pid](const ProcessEnd&) { OnSpareLost(pid); });
  spares_.push_back(std::move(waiting_spare));
  if (Stale(spares_.front())) DropSpare(spares_.front().pid);  // one for one: there are never fewer
  events_.on_changed(waiting());
  events_.on_spare();
  Pump();
}

// Memory or process limits: spares are a luxury, workers are not.
void SparePool::OnForkFailed(const std::string& reason) {
  EndFork();
  if (++fork_failures_ < kForkFailuresMax) return Pump();
  fork_failures_ = 0;
  if (needed_ > 0) return GoCold(fmt::format("no spare can be forked: {}", reason));
  Withhold(fmt::format("none can be forked: {}", reason));
}

void SparePool::DropSpare(pid_t pid) {
  const auto it = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.pid == pid; });
  if (it == spares_.end()) return;
  const Spare dropped = std::move(*it);  // the end of its socket ends it
  spares_.erase(it);
  parts_.reaper.Forget(pid);
  if (parts_.guard != nullptr) parts_.guard->Remove(pid);
}

void SparePool::OnSpareLost(pid_t pid) {
  DropSpare(pid);
  events_.on_changed(waiting());
  // Whatever ends them would end the next ones.
  if (++spares_lost_ >= kSparesLostMax) return Withhold("those that waited were ended by others");
  Pump();
}

int SparePool::Fresh() const {
  return static_cast<int>(std::count_if(spares_.begin(), spares_.end(), [&](const Spare& s) { return !Stale(s); }));
}

std::optional<Spare> SparePool::Take() {
  while (!spares_.empty()) {
    const auto fresh = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return !Stale(spare); });
    const auto it = fresh == spares_.end() ? spares_.begin() : fresh;
    if (PeekEnd(it->pid)) {
      DropSpare(it->pid);
      continue;
    }
    Spare spare = std::move(*it);
    spares_.erase(it);
    spares_lost_ = 0;
    return spare;
  }
  return std::nullopt;
}

void SparePool::Learn(const std::vector<std::string>& modules) {
  if (modules.empty()) return;  // all that it needed was there
  std::set<std::string> known(learnt_now_.begin(), learnt_now_.end());
  for (const std::string& module : modules) {
    if (learnt_now_.size() < kModulesMax && known.insert(module).second) learnt_now_.push_back(module);
  }
  if (learnt_now_ == learnt_.modules) return;
  learnt_.modules = learnt_now_;
  WriteLearnt(learnt_path_, learnt_);
  RenewSoon();
}

void SparePool::Unlearn(const std::string& module) {
  if (!Deny(module)) return;
  next_zygote_.reset();  // it does not know yet
  unfit_ = true;
  RenewSoon();
}

void SparePool::RenewSoon() {
  if (renewals_ == kRenewalsMax) return;
  if (renew_timer_ == EventLoop::TimerId{}) ++renewals_;
  parts_.loop.Cancel(renew_timer_);
  renew_timer_ = parts_.loop.At(parts_.loop.Now() + kRenewAfterMs, [this] { Renew(); });
}

bool SparePool::Knows(pid_t pid) const {
  if (zygote_ && zygote_->pid() == pid) return true;
  if (next_zygote_ && next_zygote_->pid() == pid) return true;
  return std::any_of(spares_.begin(), spares_.end(), [&](const Spare& spare) { return spare.pid == pid; });
}

}  // namespace phalanx::agent
