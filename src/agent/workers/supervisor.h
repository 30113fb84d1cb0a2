// The workers of one node: spares, the zygote behind them, live worker processes, their streams and their ends.
// A thin shell: it starts, signals and reaps what the agent's core decides, and tells it what happened. It decides
// nothing about the job. One thread: the event loop's.
//
// Ends: a worker is "exited" when the kernel has begun to take it apart after a signal, or its own process has been
// reaped (pidfd, at once), and "gone" when it has been reaped and its whole process group is gone; a new life on that
// local rank must wait for "gone" (device memory). Children of workers that outlive them are reaped here too (the agent
// is their subreaper).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "agent/workers/guard.h"
#include "agent/workers/spare.h"
#include "base/cpus.h"
#include "base/env.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"
#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// One worker to start. `env` is the worker's whole environment.
struct WorkerSpec {
  int local_rank = 0;
  int rank = 0;
  uint64_t epoch = 0;
  uint32_t restart_count = 0;  // attempt_N of its log files
  std::map<std::string, std::string> env;
  std::vector<std::string> args;  // the script's, substituted
  std::string board_path;         // empty: no board
  CpuSet cpus;                    // that it is bound to before any of its code runs; empty: the agent's
  // The rank's end of its checkpoint socket; null: it has none.
  std::shared_ptr<Fd> checkpoint_socket;
  bool counts_on = false;     // the life before counted on, from one save to the next, with the optimizer's steps
  bool exact_steps = false;   // the life before told its steps itself (phalanx.step)
  bool splits_steps = false;  // what of each step is the rank's own work goes to the board
};

struct WorkerEnd {
  // All but what the board and the wall clock know: `steps`, `progress`, `unix_ms`. The error file at most 64 KiB, the
  // last words 16 KiB; a program started without Python counts as started.
  v1::WorkerExited exited;
  bool warm = false;
  int64_t noticed_ns = 0;  // MonotonicNs at which the end was noticed
};

// What the supervisor tells its owner. Called from the loop, never from inside a call to the supervisor.
struct SupervisorEvents {
  // Spares that wait now.
  std::function<void(int waiting)> on_spares_changed;
  std::function<void(int local_rank, uint64_t epoch, pid_t pid)> on_worker_started;
  // `warm`: it began with its imports done.
  std::function<void(int local_rank, uint64_t epoch, int64_t step, bool warm)> on_first_step;
  // It has run what it had given to phalanx.on_rescale, and waits for its end.
  std::function<void(int local_rank, uint64_t epoch)> on_safe_point;
  std::function<void(const WorkerEnd&)> on_worker_exited;
  // The whole process group of that local rank's worker is gone.
  std::function<void(int local_rank, uint64_t epoch)> on_group_gone;
  // The worker could not be started at all.
  std::function<void(int local_rank, uint64_t epoch, const Status&)> on_start_failed;
  // No spare is to be waited for: workers start cold, from now on or from the start, or spares are withheld for now.
  std::function<void()> on_cold;
  // Said once for each cause: "warm start is off: ..."; once a round that log files take nothing more.
  std::function<void(const std::string&)> on_warning;
  // Nobody reads our stdout or our stderr any more: a sentence, at most once for each.
  std::function<void(const std::string&)> on_reader_gone;
};

class Supervisor {
 public:
  virtual ~Supervisor() = default;

  // Starts the zygote (where `config.warm` and the kind of script allow it); spares are forked only on request.
  virtual void Start() = 0;

  // Starts one worker: from a waiting spare if there is one; else, where a zygote is on its way or ready, from the next
  // spare it forks; else cold. Exactly one of on_worker_started and on_start_failed follows.
  virtual void StartWorker(WorkerSpec spec) = 0;

  // Brings the number of waiting spares to `count`, forking one at a time. 0 ends the waiting ones.
  virtual void WantSpares(int count) = 0;

  // Has the zygote fork a process that is no worker and no spare, as soon as it has done its imports. `told` is called
  // once, from the loop: with that process, which waits for a message and is the caller's from then on, or with why
  // there is none. It takes the place of an earlier call that has not been answered.
  virtual void ForkAside(std::function<void(StatusOr<Spare>)> told) = 0;
  // Nobody wants that any more; nothing is told.
  virtual void ForgetAside() = 0;

  // Signals the whole process group of that local rank's worker, also when only its children are left; nothing where
  // the group is gone.
  virtual void SignalGroup(int local_rank, int signal) = 0;
  // Signals the worker's own process; nothing where it has ended.
  virtual void SignalWorker(int local_rank, int signal) = 0;
  // Whether the worker's own process catches `signal` (SigCgt of /proc/<pid>/status); false where it is gone.
  virtual bool Catches(int local_rank, int signal) const = 0;

  // Whether a process of that local rank's group, also when only the worker's children are left, lives on after
  // `signal`: it wants time, or takes it.
  virtual bool GroupWithstands(int local_rank, int signal) = 0;
  // SIGSTOP and SIGCONT to all groups, as a shell does to a job.
  virtual void SignalAllGroups(int signal) = 0;

  // Processes that left their worker's group and session and are children of this agent now, as "pid name".
  virtual std::vector<std::string> Strays() const = 0;
  virtual void KillStrays() = 0;

  // TORCHELASTIC_ERROR_FILE of that worker; makes its directory. Empty where --log-dir=/dev/null, or where no directory
  // can be made (said once).
  virtual std::string ErrorFilePath(uint32_t restart_count, int local_rank) = 0;

  // The directory of this run's log files, made if need be.
  virtual StatusOr<std::string> RunDir() = 0;

  // Our terminal has another size now.
  virtual void ResizeTerminals() = 0;

  // Writes `text` to our stderr, whole and in order with what workers write there. Never blocks.
  virtual void Say(const std::string& text) = 0;
};

// What a supervisor works with. `reaper` and `guard` must outlive it; `guard` may be null (tests). Construct both
// before any other thread starts.
struct SupervisorParts {
  EventLoop& loop;
  Reaper& reaper;
  Guard* guard = nullptr;
  const LaunchConfig& config;  // copied; nproc_per_node resolved
  const Environment& env;      // what phalanx-run itself was started with; copied
  std::string node_id;         // the mark of this node's processes
};

// Destroying it ends zygote and spares, lets workers that still live go on, and writes out what the console still takes
// within a few seconds.
std::unique_ptr<Supervisor> MakeSupervisor(SupervisorParts parts, SupervisorEvents events);

}  // namespace phalanx::agent
