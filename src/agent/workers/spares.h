// What a node decides about its spares: how many wait, when one is forked and which one a worker is made of; when the
// zygote behind them is started, renewed or given up for cold starts; what is learnt of a script's lives. Pure: time,
// memory and the ends of processes come in as events. src/agent/workers/spare_pool.h brings them, and carries the
// actions out in order.
//
// There is one zygote that forks, and perhaps a next one, which still imports and takes its place when it is ready. The
// spares of the one before are stale then: they still serve where there is no fresh one, and each fresh one replaces
// one of them. Not so where a life has told of what it must not find imported: the waiting ones end with their zygote,
// which makes room at once where no next one can begin beside it or the next one fails.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "agent/workers/learnt.h"
#include "agent/workers/zygote_end.h"
#include "base/clock.h"

namespace phalanx::agent {

// Zygotes in a row that gave no spare, and zygotes of a whole run: then it is cold starts.
constexpr int kUselessZygotesMax = 2;
constexpr int kZygotesMax = 50;
constexpr size_t kDenyMax = 200;
// A better zygote is made a moment after the last rank has told of something new, so that one serves all ranks; and
// only so often in a run: a script that imports other modules in each life would have no end of it.
constexpr int64_t kRenewAfterMs = 1'000;
constexpr int kRenewalsMax = 3;
// Two zygotes stand side by side until the new one is ready.
constexpr int64_t kMemoryForRenewalBytes = int64_t{2} << 30;
// A fork takes milliseconds; a zygote that lets this pass is stopped or stuck.
constexpr int64_t kForkWithinMs = 10'000;
constexpr int kForkFailuresMax = 3;  // in a row
constexpr int kSparesLostMax = 5;    // since one was last taken
// A spare costs a few MiB until it runs; what it becomes costs what a rank costs. Below this nothing is forked ahead of
// need.
constexpr int64_t kMemoryForSparesBytes = int64_t{512} << 20;

// --- actions ------------------------------------------------------------------------------------------------------
// Zygotes and forks have numbers: what is told of one that does not count any more changes nothing.

// It imports ahead what the script will want. OnZygoteNotStarted, or OnZygoteReady and OnZygoteEnded follow.
struct StartZygote {
  int zygote = 0;
  Learnt learnt;
};
struct EndZygote {  // OnZygoteEnded follows, with this reason
  int zygote = 0;
  std::string why;
};
struct DropZygote {  // ends it; nothing more is told of it
  int zygote = 0;
};
struct ForkSpare {  // OnSpareWaits or OnForkFailed follows, or nothing where the zygote is stuck
  int zygote = 0;
  uint64_t fork = 0;
  bool ahead = false;  // no worker waits for it
};
struct DropFork {};  // a spare that is on its way finds nobody, and ends
struct DropSpare {   // it ends; nothing more is told of it
  int64_t pid = 0;
};
struct LookAtMemory {};  // OnMemory follows
struct KeepLearnt {      // for the next launch
  Learnt learnt;
};
struct TellWaiting {  // the number of spares that wait
  int waiting = 0;
};
struct TellSpare {};   // one more waits: it is to be taken where a worker needs it
struct TellWithheld {  // spares beyond those needed are not forked now. `why` is for the user
  std::string why;
};
struct TellCold {  // workers start cold from now on. `why` is for the user
  std::string why;
};

using SpareAction = std::variant<StartZygote, EndZygote, DropZygote, ForkSpare, DropFork, DropSpare, LookAtMemory,
                                 KeepLearnt, TellWaiting, TellSpare, TellWithheld, TellCold>;

// --- state --------------------------------------------------------------------------------------------------------

class Spares {
 public:
  // What has been decided since the last call, in order.
  std::vector<SpareAction> Take();
  // When OnTime must be called; kNever where nothing is due.
  Instant Deadline() const;
  void OnTime(Instant now);

  // `learnt` comes from earlier launches.
  void Start(Learnt learnt);
  // One spare is forked at a time: each fork takes memory and a little of the cores that train.
  //
  // `needed` workers wait for a spare at this moment. Where one more does, none is forked beyond them until Keep is
  // called: forking does not compete with what begins.
  void Need(int needed, Instant now);
  // Beyond those `kept` spares shall wait.
  void Keep(int kept, Instant now);

  // Whether a spare may be had by waiting: a zygote works or imports.
  bool alive() const { return serving_ != 0 && !cold_; }
  // The zygote that can fork now; 0: none.
  int ForksNow() const { return alive() && ready_ ? serving_ : 0; }
  int waiting() const { return static_cast<int>(spares_.size()); }
  // The spare that the next worker is made of, if one waits. Taken or PassOver follows, at once.
  std::optional<int64_t> Next() const;
  void Taken(int64_t pid);
  // It has ended, and its end has not been told yet.
  void PassOver(int64_t pid);

  // A rank has told what it had imported at its first step. Where the zygote did not know of it, a better one takes its
  // place in a moment: the next life shall be wholly warm.
  void Learn(const std::vector<std::string>& modules, Instant now);
  // A rank had to start afresh since `module` was imported ahead of its turn: from the next zygote on it is not. What
  // waits by then serves until that one is ready, and ends at once where none can begin beside the one that works.
  void Unlearn(const std::string& module, Instant now);

  void OnZygoteNotStarted(int zygote, const std::string& why);
  void OnZygoteReady(int zygote, Instant now);
  void OnZygoteEnded(int zygote, const ZygoteEnd& end);
  void OnSpareWaits(uint64_t fork, int64_t pid, Instant now);
  void OnForkFailed(uint64_t fork, const std::string& why, Instant now);
  // A waiting spare has ended, or does not do what spares do.
  void OnSpareLost(int64_t pid, Instant now);
  void OnMemory(int64_t available_bytes, Instant now);

 private:
  struct Spare {
    int64_t pid = 0;
    int generation = 0;  // of the zygote it was forked by
  };

  void Do(SpareAction action) { actions_.push_back(std::move(action)); }
  void StartServing();
  int NewZygote();
  // Another zygote in the place of one that has ended. `served`: it had done its imports.
  void Replace(const ZygoteEnd& end, bool served);
  bool Denied(const std::string& module) const;
  // Whether the module is new on the deny list.
  bool Deny(const std::string& module);
  void RenewSoon(Instant now);
  void Renew();
  void BeginNext(int64_t available_bytes);
  void DropNext();
  void LoseNext();
  void ReplaceUnfit();
  void DropUnfit();
  void GoCold(const std::string& why);

  bool WantsFork() const;
  void EndTooMany();
  void Pump(Instant now);
  void Fork(Instant now);
  void EndFork();
  // Until somebody wants spares anew.
  void Withhold(const std::string& why);
  bool Stale(const Spare& spare) const { return spare.generation != generation_; }
  // Those forked by the zygote that works now.
  int Fresh() const;
  bool Erase(int64_t pid);
  void Drop(int64_t pid);

  Learnt learnt_;
  std::vector<std::string> learnt_now_;  // from the lives of this run

  int zygotes_ = 0;  // of this run; the newest has this number
  int serving_ = 0;  // forks, or imports where none has forked before; 0: none
  bool ready_ = false;
  int next_ = 0;  // imports, to take the place of the serving one; 0: none
  Instant renew_at_ = kNever;
  int renewals_ = 0;
  int generation_ = 0;  // of the serving zygote
  // What waits has what was unlearnt since, and ends with its zygote; a better one is on its way.
  bool unfit_ = false;
  int useless_zygotes_ = 0;  // in a row that ended without a spare
  bool cold_ = false;

  std::deque<Spare> spares_;  // oldest first
  uint64_t forks_ = 0;
  bool forking_ = false;  // the fork of the highest number is on its way
  Instant fork_until_ = kNever;
  int fork_failures_ = 0;  // in a row
  int spares_lost_ = 0;    // since one was last taken
  int needed_ = 0;
  int kept_ = 0;
  bool fork_asks_ = false;     // OnMemory decides whether one is forked
  bool renewal_asks_ = false;  // ... and whether a next zygote begins

  std::vector<SpareAction> actions_;
};

}  // namespace phalanx::agent
