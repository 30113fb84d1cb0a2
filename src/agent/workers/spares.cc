#include "agent/workers/spares.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>
#include <utility>

#include "agent/workers/wire.h"

namespace phalanx::agent {

std::vector<SpareAction> Spares::Take() { return std::exchange(actions_, {}); }

Instant Spares::Deadline() const { return std::min(fork_until_, renew_at_); }

void Spares::OnTime(Instant now) {
  if (now >= fork_until_) {
    fork_until_ = kNever;
    Do(EndZygote{serving_, "it does not answer"});
  }
  if (now >= renew_at_) Renew();
}

// --- the zygote ---------------------------------------------------------------------------------------------------

void Spares::Start(Learnt learnt) {
  learnt_ = std::move(learnt);
  StartServing();
}

int Spares::NewZygote() {
  Do(StartZygote{++zygotes_, learnt_});
  return zygotes_;
}

void Spares::StartServing() {
  serving_ = NewZygote();
  ready_ = false;
}

void Spares::OnZygoteNotStarted(int zygote, const std::string& why) {
  if (zygote == next_) return LoseNext();
  if (zygote != serving_) return;
  serving_ = 0;
  GoCold(why);
}

void Spares::OnZygoteReady(int zygote, Instant now) {
  if (zygote == next_) {
    EndFork();
    Do(DropZygote{serving_});
    serving_ = std::exchange(next_, 0);
    ++generation_;
    DropUnfit();
  }
  if (zygote == serving_) ready_ = true;
  Pump(now);
}

void Spares::OnZygoteEnded(int zygote, const ZygoteEnd& end) {
  if (zygote == next_) {
    if (end.kind != ZygoteEnd::Kind::kTainted || !Deny(end.module)) return LoseNext();
    next_ = 0;
    return Renew();
  }
  if (zygote != serving_) return;
  serving_ = 0;
  const bool served = std::exchange(ready_, false);
  EndFork();
  DropUnfit();         // the zygote that follows knows better
  fork_failures_ = 0;  // they may have been its end
  if (cold_) return;
  if (next_ == 0) return Replace(end, served);
  serving_ = std::exchange(next_, 0);
  ++generation_;
}

void Spares::Replace(const ZygoteEnd& end, bool served) {
  if (end.kind == ZygoteEnd::Kind::kFailed) return GoCold(end.reason);
  if (end.kind == ZygoteEnd::Kind::kTainted) {
    if (Deny(end.module)) return StartServing();
    return GoCold(fmt::format("importing {} ahead of time {}", end.module, end.reason));
  }
  if (!served && !learnt_.modules.empty()) {  // what was learnt may be what ends it: the script's text has to do
    learnt_.modules.clear();
    Do(KeepLearnt{learnt_});
    return StartServing();
  }
  if (++useless_zygotes_ >= kUselessZygotesMax || zygotes_ >= kZygotesMax) {
    return GoCold(fmt::format("the process that spares come from does not live: {}", end.reason));
  }
  StartServing();
}

void Spares::GoCold(const std::string& why) {
  DropUnfit();
  if (std::exchange(cold_, true)) return;
  DropNext();
  if (serving_ != 0) Do(EndZygote{serving_, why});
  Do(TellCold{why});
}

void Spares::DropNext() {
  if (next_ != 0) Do(DropZygote{std::exchange(next_, 0)});
}

// The one that works goes on as it is, unless its spares must not.
void Spares::LoseNext() {
  next_ = 0;
  if (unfit_) ReplaceUnfit();
}

// No better zygote can be had beside the one that works: that one makes room. What it served says nothing of the next.
void Spares::ReplaceUnfit() {
  EndFork();
  fork_failures_ = 0;
  DropUnfit();
  Do(DropZygote{std::exchange(serving_, 0)});
  if (zygotes_ >= kZygotesMax) return GoCold("it took too many processes to find what must not be imported ahead");
  StartServing();
}

void Spares::DropUnfit() {
  if (!std::exchange(unfit_, false) || spares_.empty()) return;
  while (!spares_.empty()) Drop(spares_.front().pid);
  Do(TellWaiting{0});
}

// --- what lives teach ---------------------------------------------------------------------------------------------

bool Spares::Denied(const std::string& module) const {
  return std::find(learnt_.deny.begin(), learnt_.deny.end(), module) != learnt_.deny.end();
}

bool Spares::Deny(const std::string& module) {
  if (Denied(module) || learnt_.deny.size() >= kDenyMax || zygotes_ >= kZygotesMax) return false;
  learnt_.deny.push_back(module);
  Do(KeepLearnt{learnt_});
  return true;
}

void Spares::Learn(const std::vector<std::string>& modules, Instant now) {
  if (modules.empty()) return;  // all that it needed was there
  std::set<std::string> known(learnt_now_.begin(), learnt_now_.end());
  for (const std::string& module : modules) {
    if (learnt_now_.size() < kModulesMax && known.insert(module).second) learnt_now_.push_back(module);
  }
  if (learnt_now_ == learnt_.modules) return;
  learnt_.modules = learnt_now_;
  Do(KeepLearnt{learnt_});
  RenewSoon(now);
}

void Spares::Unlearn(const std::string& module, Instant now) {
  if (Denied(module)) return;  // another rank has told of it
  unfit_ = true;
  if (!Deny(module)) return GoCold(fmt::format("{} is not to be imported ahead, and no more can be noted", module));
  if (!alive()) return DropUnfit();
  DropNext();  // it does not know yet
  RenewSoon(now);
  if (renew_at_ == kNever && !renewal_asks_) ReplaceUnfit();
}

void Spares::RenewSoon(Instant now) {
  if (renewals_ == kRenewalsMax) return;
  if (renew_at_ == kNever) ++renewals_;
  renew_at_ = now + kRenewAfterMs;
}

void Spares::Renew() {
  renew_at_ = kNever;
  DropNext();  // it imports, and does not know what has come since
  if (!alive()) return;
  renewal_asks_ = true;
  Do(LookAtMemory{});
}

// The zygote that works goes on as it is where no better one can be had, unless its spares must not.
void Spares::BeginNext(int64_t available_bytes) {
  if (!alive()) return;
  if (available_bytes >= kMemoryForRenewalBytes) {
    next_ = NewZygote();
  } else if (unfit_) {
    ReplaceUnfit();
  }
}

void Spares::OnMemory(int64_t available_bytes, Instant now) {
  if (std::exchange(renewal_asks_, false)) BeginNext(available_bytes);
  if (!std::exchange(fork_asks_, false) || !WantsFork()) return;
  if (waiting() < needed_ || available_bytes >= kMemoryForSparesBytes) return Fork(now);
  if (waiting() >= needed_ + kept_) return;  // those of the zygote before will do
  Withhold("less than 512 MiB of memory are left for this job's processes");
}

// --- spares -------------------------------------------------------------------------------------------------------

void Spares::Need(int needed, Instant now) {
  if (needed > needed_) kept_ = 0;
  needed_ = needed;
  EndTooMany();
  Pump(now);
}

void Spares::Keep(int kept, Instant now) {
  kept_ = kept;
  EndTooMany();
  Pump(now);
}

void Spares::EndTooMany() {
  bool changed = false;
  while (waiting() > needed_ + kept_) {
    Drop(Stale(spares_.front()) ? spares_.front().pid : spares_.back().pid);
    changed = true;
  }
  if (changed) Do(TellWaiting{waiting()});
}

void Spares::Withhold(const std::string& why) {
  kept_ = std::max(0, waiting() - needed_);
  Do(TellWithheld{why});
}

bool Spares::WantsFork() const { return alive() && ready_ && !forking_ && Fresh() < needed_ + kept_; }

// A spare that a worker waits for is forked at once; memory is looked at before one that waits for a worker.
void Spares::Pump(Instant now) {
  if (!WantsFork()) return;
  if (waiting() < needed_) return Fork(now);
  if (!std::exchange(fork_asks_, true)) Do(LookAtMemory{});
}

void Spares::Fork(Instant now) {
  forking_ = true;
  fork_until_ = now + kForkWithinMs;
  Do(ForkSpare{serving_, ++forks_, waiting() >= needed_});
}

void Spares::EndFork() {
  fork_until_ = kNever;
  if (std::exchange(forking_, false)) Do(DropFork{});
}

void Spares::OnSpareWaits(uint64_t fork, int64_t pid, Instant now) {
  if (!forking_ || fork != forks_) return;
  forking_ = false;
  fork_until_ = kNever;
  fork_failures_ = 0;
  useless_zygotes_ = 0;
  spares_.push_back({pid, generation_});
  if (Stale(spares_.front())) Drop(spares_.front().pid);  // one for one: there are never fewer
  Do(TellWaiting{waiting()});
  Do(TellSpare{});
  Pump(now);
}

// Memory or process limits: spares are a luxury, workers are not.
void Spares::OnForkFailed(uint64_t fork, const std::string& why, Instant now) {
  if (!forking_ || fork != forks_) return;
  EndFork();
  if (++fork_failures_ < kForkFailuresMax) return Pump(now);
  fork_failures_ = 0;
  if (needed_ > 0) return GoCold(fmt::format("no spare can be forked: {}", why));
  Withhold(fmt::format("none can be forked: {}", why));
}

void Spares::OnSpareLost(int64_t pid, Instant now) {
  Drop(pid);
  Do(TellWaiting{waiting()});
  // Whatever ends them would end the next ones.
  if (++spares_lost_ >= kSparesLostMax) return Withhold("those that waited were ended by others");
  Pump(now);
}

int Spares::Fresh() const {
  return static_cast<int>(std::count_if(spares_.begin(), spares_.end(), [&](const Spare& s) { return !Stale(s); }));
}

std::optional<int64_t> Spares::Next() const {
  if (spares_.empty()) return std::nullopt;
  const auto fresh = std::find_if(spares_.begin(), spares_.end(), [&](const Spare& spare) { return !Stale(spare); });
  return fresh == spares_.end() ? spares_.front().pid : fresh->pid;
}

void Spares::Taken(int64_t pid) {
  Erase(pid);
  spares_lost_ = 0;
}

void Spares::PassOver(int64_t pid) { Drop(pid); }

bool Spares::Erase(int64_t pid) {
  return std::erase_if(spares_, [pid](const Spare& spare) { return spare.pid == pid; }) > 0;
}

void Spares::Drop(int64_t pid) {
  if (Erase(pid)) Do(DropSpare{pid});
}

}  // namespace phalanx::agent
