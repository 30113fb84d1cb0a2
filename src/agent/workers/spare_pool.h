// The waiting spares of a node and the zygote behind them: who is forked when, and what happens when a zygote ends.
// The loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "agent/workers/guard.h"
#include "agent/workers/learnt.h"
#include "agent/workers/wire.h"
#include "agent/workers/zygote.h"
#include "base/event_loop.h"
#include "base/process/process.h"

namespace phalanx::agent {

// A process that waits for a `run` message. Its end is awaited by the reaper; who takes it retargets that and the
// channel.
struct Spare {
  pid_t pid = 0;
  int generation = 0;  // of the zygote it was forked by
  std::unique_ptr<Channel> channel;
};

class SparePool {
 public:
  struct Events {
    std::function<void(int waiting)> on_changed;  // the number of spares that wait
    std::function<void()> on_spare;               // one more waits: take it where a worker is needed
    // Spares beyond those needed are not forked now. `why` is for the user.
    std::function<void(const std::string& why)> on_withheld;
    // Workers start cold from now on. `why` is for the user.
    std::function<void(const std::string& why)> on_cold;
  };
  struct Parts {
    EventLoop& loop;
    Reaper& reaper;
    Guard* guard = nullptr;
    const LaunchConfig& config;  // outlives the pool
    std::map<std::string, std::string> env;
    std::string bootstrap;
    std::string cwd;
  };

  SparePool(Parts parts, Events events);
  SparePool(const SparePool&) = delete;
  SparePool& operator=(const SparePool&) = delete;
  // Ends zygote and spares.
  ~SparePool();

  void Start();

  // Whether a spare may be had by waiting: a zygote works or imports.
  bool alive() const { return zygote_ != nullptr && !cold_; }
  int waiting() const { return static_cast<int>(spares_.size()); }

  // `needed` workers wait for a spare at this moment; beyond them `kept` spares shall wait. Forks one at a time.
  void Want(int needed, int kept);

  // A spare that waits, if there is one. It belongs to the caller.
  std::optional<Spare> Take();

  // A rank has told what it had imported at its first step. Where the zygote did not know of it, a better one takes its
  // place in a moment: the next life shall be wholly warm.
  void Learn(const std::vector<std::string>& modules);

  // A rank had to start afresh since `module` was imported ahead of its turn: from the next zygote on it is not.
  void Unlearn(const std::string& module);

  // Whether that process is the zygote or a waiting spare.
  bool Knows(pid_t pid) const;

 private:
  void StartZygote();
  StatusOr<std::unique_ptr<Zygote>> LaunchZygote();
  void OnZygoteReady();
  void OnZygoteEnded(const ZygoteEnd& end);
  // Whether the module is new on the deny list.
  bool Deny(const std::string& module);
  void RenewSoon();
  void Renew();
  void OnNextZygoteEnded(const ZygoteEnd& end);
  void GoCold(const std::string& why);
  void Pump();
  void Withhold(const std::string& why);
  void EndFork();
  void OnSpareSpeaks(const PeerMessage& message);
  void OnForkFailed(const std::string& reason);
  void DropSpare(pid_t pid);
  bool Stale(const Spare& spare) const { return spare.generation != generation_; }
  // Those forked by the zygote that works now.
  int Fresh() const;
  void OnSpareLost(pid_t pid);

  Parts parts_;
  Events events_;
  const std::string learnt_path_;
  Learnt learnt_;
  std::vector<std::string> learnt_now_;  // from the lives of this run
  std::unique_ptr<Zygote> zygote_;
  std::unique_ptr<Zygote> ended_zygote_;  // lives until its callback is over
  std::unique_ptr<Zygote> next_zygote_;   // imports, to take the place of zygote_
  EventLoop::TimerId renew_timer_{};
  int renewals_ = 0;
  int generation_ = 0;       // of zygote_
  bool unfit_ = false;       // the spares of this generation have what was unlearnt since: none outlives its zygote
  int useless_zygotes_ = 0;  // in a row that ended without a spare
  int zygotes_ = 0;
  bool cold_ = false;

  std::deque<Spare> spares_;          // oldest first
  std::unique_ptr<Channel> forking_;  // of the one spare on its way
  uint64_t fork_id_ = 0;
  EventLoop::TimerId fork_timer_{};
  int fork_failures_ = 0;  // in a row
  int spares_lost_ = 0;    // since one was last taken
  int needed_ = 0;
  int kept_ = 0;
};

}  // namespace phalanx::agent
