// The process door: starting children, seeing their ends at once, looking at other processes from outside.
//
// Caveats of the system this hides or states:
// - PDEATHSIG is tied to the *thread* that started a child: start children from the main thread only.
// - A pid is ours to signal only until it is reaped. Only Reaper reaps, on the loop's thread, so that a pid whose end
// has
//   not been told yet is still that process.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/cpus.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/signals.h"
#include "base/status.h"

namespace phalanx {

struct SpawnSpec {
  std::string program;                     // with a '/': as it is; else looked for on the PATH of `env`
  std::vector<std::string> args;           // argv, args[0] included
  std::map<std::string, std::string> env;  // the whole environment
  std::string cwd;                         // empty: ours
  int stdin_fd = -1;                       // -1: ours
  int stdout_fd = -1;
  int stderr_fd = -1;
  std::vector<int> extra_fds;  // the child's 3, 4, ...; nothing else is inherited
  // The child's soft limit of open files; 0: ours. Set just after it has been executed.
  uint64_t open_files_limit = 0;
  CpuSet cpus;  // CPUs that it is bound to, from its first instruction; empty: ours
  bool new_session = true;
};

struct Child {
  pid_t pid = 0;
  Fd pidfd;  // invalid before Linux 5.3: the Reaper then learns of the end by SIGCHLD alone
};

// Starts a program: no signal blocked or ignored, in a session of its own. Returns when the program has been executed,
// or tells why it could not be. Give the child to Reaper::Await before returning to the loop.
StatusOr<Child> Spawn(const SpawnSpec& spec);

// Path of `program` as execvp would find it on the PATH of `env`.
StatusOr<std::string> FindProgram(const std::string& program, const std::map<std::string, std::string>& env);

// Invalid where the process is gone or the kernel has no pidfds.
Fd PidfdOpen(pid_t pid);

struct ProcessEnd {
  pid_t pid = 0;
  int exit_code = 0;  // counts where signal is 0
  int signal = 0;
  bool core_dumped = false;
  int64_t noticed_ns = 0;  // MonotonicNs at which the loop learned of it
  // Largest resident memory of the process or of a child that it had waited for; 0: not known.
  int64_t peak_resident_bytes = 0;
};

// The end of a child that has not been reaped yet, left for whoever reaps; nothing where it runs.
std::optional<ProcessEnd> PeekEnd(pid_t pid);

// The end of a process that the kernel has begun to take apart, or has come to its end with; without its peak, and
// nothing where it runs or /proc does not show it to us.
std::optional<ProcessEnd> EndUnderWay(pid_t pid);

// Reaps every child of this process, those it never started included: it makes the process the subreaper of its
// descendants, so that orphans come here. One in a process; the loop's thread. Construct it before any other thread
// starts.
class Reaper {
 public:
  explicit Reaper(EventLoop& loop);
  Reaper(const Reaper&) = delete;
  Reaper& operator=(const Reaper&) = delete;
  ~Reaper();

  // Calls back once, from the loop, as soon as the child has ended; it has been reaped then. The child must not have
  // been reaped yet: true where no callback has run since it was started or seen alive.
  void Await(Child child, std::function<void(const ProcessEnd&)> on_end);
  bool Awaits(pid_t pid) const { return awaited_.count(pid) > 0; }
  // From now on the end of that awaited child is told to `on_end` instead; nothing where it has been told.
  void Retarget(pid_t pid, std::function<void(const ProcessEnd&)> on_end);
  // Its end is no longer told. It is still reaped.
  void Forget(pid_t pid) { Retarget(pid, nullptr); }

  // Called from the loop after any child has been reaped, known or not. One callback; an empty one switches it off.
  void OnAnyEnd(std::function<void()> callback) { on_any_end_ = std::move(callback); }

 private:
  struct Awaited {
    Fd pidfd;
    std::function<void(const ProcessEnd&)> on_end;
  };

  void OnPidfd(pid_t pid);
  void ReapAll();
  void Told(const ProcessEnd& end);

  EventLoop& loop_;
  std::map<pid_t, Awaited> awaited_;
  std::function<void()> on_any_end_;
  std::unique_ptr<SignalSource> sigchld_;
};

// What /proc/<pid>/stat tells. A process may write almost anything into `comm`.
struct ProcStat {
  std::string comm;
  char state = '?';
  pid_t ppid = 0;
  pid_t pgrp = 0;
  pid_t session = 0;
  int threads = 0;
  uint64_t memory_bytes = 0;  // virtual; 0: it has none any more, or is the kernel's own
  // Addresses; 0: it is in the midst of an exec, or may not be looked at (then the code's is 1).
  uint64_t code_begin = 0;
  uint64_t environment_begin = 0;
  uint64_t environment_end = 0;
  int wait_status = 0;  // as wait() has it: of its end, or of what stopped it; 0 where it is not ours to see
  // Nothing of it runs or holds memory or devices any more; only its parent has not asked yet.
  bool Dead() const { return state == 'X' || (state == 'Z' && threads <= 1); }
};
std::optional<ProcStat> ParseProcStat(std::string_view text);
std::optional<ProcStat> ReadProcStat(pid_t pid);

// Whether the process has a handler for `signal`: SigCgt of /proc/<pid>/status. False where it is gone.
bool CatchesSignal(pid_t pid, int signal);
bool ParseCatches(std::string_view status_text, int signal);

// Whether the process lives on after `signal`: it has a handler, or ignores it (SigIgn). False where it is gone.
bool WithstandsSignal(pid_t pid, int signal);

// Whether the environment the process was started with (or shows) holds `entry`, "NAME=value"; kNo where it is gone or
// we may not look. kUnknown: it is in the midst of an exec, which takes the old environment away before the new one is
// shown. Whoever must not miss a process looks again.
enum class Holds { kNo, kYes, kUnknown };
Holds EnvironmentHolds(pid_t pid, std::string_view entry);

// All pids that /proc shows; those whose parent is this process.
std::vector<pid_t> AllProcesses();
std::vector<pid_t> OwnChildren();

// The soft limit of open files (RLIMIT_NOFILE) of this process.
uint64_t OpenFilesLimit();
// Raises it to `wanted`, or as far as the hard limit lets it; never lowers it. What it is then. Any thread.
uint64_t RaiseOpenFilesLimit(uint64_t wanted);

// Where this process's own executable lies; empty where that cannot be told.
std::string ExecutableDirectory();

// The first `limit` bytes of a file; empty where it cannot be read. For small files that others write.
std::string ReadFilePrefix(const std::string& path, size_t limit);

// From now on this process is killed (SIGKILL) when the thread that started it ends. False where its parent is not, or
// no longer, the process `parent`.
bool DieWithParent(pid_t parent);

// Descriptors 0, 1 and 2 become /dev/null where they are closed, so that nothing else lands there.
void EnsureStandardFds();

}  // namespace phalanx
