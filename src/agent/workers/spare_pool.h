// The waiting spares of a node and the zygotes behind them, as processes. agent/workers/spares.h decides; this starts,
// ends and awaits what it says, and tells it what happened. The loop's thread.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "agent/workers/guard.h"
#include "agent/workers/spare.h"
#include "agent/workers/spares.h"
#include "agent/workers/wire.h"
#include "agent/workers/zygote.h"
#include "base/event_loop.h"
#include "base/process/process.h"
#include "base/status.h"

namespace phalanx::agent {

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
  // Ends zygotes and spares.
  ~SparePool();

  void Start();

  // Whether a spare may be had by waiting: a zygote works or imports.
  bool alive() const { return core_.alive(); }
  int waiting() const { return core_.waiting(); }

  // `needed` workers wait for a spare at this moment; beyond them `kept` spares shall wait, once Keep has been called
  // behind the last that came to need one.
  void Need(int needed);
  void Keep(int kept);

  // A spare that waits, if there is one. It belongs to the caller.
  std::optional<Spare> Take();

  // What a rank had imported at its first step, and what was imported ahead of its turn.
  void Learn(const std::vector<std::string>& modules);
  void Unlearn(const std::string& module);

  // Spares that wait have done ahead what a life has shown to be of use since they were forked.
  void Prepare();

  // Has the zygote fork one more process as soon as it can, which belongs to the caller, is no spare of this pool and
  // counts nowhere. `told` is called once with it, or with why there is none: workers start cold, or the fork came to
  // nothing. It may be called from within. It takes the place of an earlier call that has not been answered.
  void ForkAside(std::function<void(StatusOr<Spare>)> told);
  // Nobody wants that any more: what is on its way ends, and nothing is told.
  void ForgetAside();

  // Whether that process is a zygote or a waiting spare.
  bool Knows(pid_t pid) const;

 private:
  // A fork that was asked for aside.
  struct Aside {
    std::function<void(StatusOr<Spare>)> told;
    std::unique_ptr<Channel> channel;  // null: no zygote could fork yet
  };

  void Run();
  void SetTimer();
  void ServeAside();
  void OnAsideSpeaks(const PeerMessage& message);
  void TellAside(StatusOr<Spare> spare);
  std::optional<pid_t> AwaitForked(const PeerMessage& message, std::function<void(const ProcessEnd&)> on_end);
  void Do(const StartZygote& action);
  void Do(const EndZygote& action);
  void Do(const DropZygote& action);
  void Do(const ForkSpare& action);
  void Do(const DropFork& action);
  void Do(const DropSpare& action);
  void Do(const LookAtMemory& action);
  void Do(const KeepLearnt& action);
  void Do(const TellWaiting& action);
  void Do(const TellSpare& action);
  void Do(const TellWithheld& action);
  void Do(const TellCold& action);

  void OnZygoteEnded(int zygote, const ZygoteEnd& end);
  void OnSpareSpeaks(uint64_t fork, const PeerMessage& message);
  void OnForkFailed(uint64_t fork, const std::string& why);
  void OnSpareLost(pid_t pid);

  Parts parts_;
  Events events_;
  const std::string learnt_path_;
  Spares core_;
  bool running_ = false;
  EventLoop::TimerId timer_{};
  Instant timer_at_ = kNever;

  std::map<int, std::unique_ptr<Zygote>> zygotes_;  // by the core's number
  std::unique_ptr<Zygote> ended_zygote_;            // lives until its callback is over
  std::unique_ptr<Channel> forking_;                // of the one spare on its way
  std::map<pid_t, std::unique_ptr<Channel>> spares_;
  std::optional<Aside> aside_;
};

}  // namespace phalanx::agent
