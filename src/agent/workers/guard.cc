#include "agent/workers/guard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <linux/close_range.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <vector>

#include "base/clock.h"
#include "base/process/process.h"

extern char** environ;

namespace phalanx::agent {
namespace {

constexpr char kAdd = '+';
constexpr char kRemove = '-';
constexpr char kFarewell = '.';
// A process in uninterruptible sleep outlives SIGKILL; the guard does not wait for it for ever.
constexpr int64_t kEndsWithinMs = 5'000;
constexpr int64_t kPassMs = 50;

struct Message {
  char what = 0;
  int32_t process_group = 0;
};

// --- inside the guard ---------------------------------------------------------------------------------------------

// The guard must survive what ends its agent: a terminal's signals, and the guard of an agent around this one, which
// looks for its own mark in the environment that we inherited.
void Settle(int socket) {
  setsid();
  prctl(PR_SET_NAME, "phalanx-guard", 0, 0, 0);
  for (int signal = 1; signal < SIGRTMIN; ++signal) {
    if (signal != SIGKILL && signal != SIGSTOP) ::signal(signal, SIG_IGN);
  }
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry)
    std::memset(*entry, 0, std::strlen(*entry));
  [[maybe_unused]] const int rc = chdir("/");
  // No end of a pipe may be held open by us: whoever reads phalanx-run's output waits for its end of file.
  dup2(socket, 3);
  syscall(SYS_close_range, 4U, ~0U, 0U);
  for (const int fd : {0, 1, 2}) close(fd);
  EnsureStandardFds();
}

// The groups to end when the agent has gone; nothing where it said farewell.
std::optional<std::set<pid_t>> Listen(int socket) {
  std::set<pid_t> groups;
  while (true) {
    Message message;
    const ssize_t n = recv(socket, &message, sizeof message, 0);
    if (n < 0 && errno == EINTR) continue;
    if (n <= 0) return groups;
    if (n != static_cast<ssize_t>(sizeof message)) continue;
    if (message.what == kFarewell) return std::nullopt;
    if (message.what == kAdd && message.process_group > 1) groups.insert(message.process_group);
    if (message.what == kRemove) groups.erase(message.process_group);
  }
}

bool IsOurUsers(pid_t pid) {
  struct stat info {};
  return stat(fmt::format("/proc/{}", pid).c_str(), &info) == 0 && info.st_uid == geteuid();
}

// SIGKILL to each marked process. The pidfds are of those that may take a moment to end. `any`: a further pass must
// look, since one was there, or one does not show yet whether it is marked.
std::vector<Fd> KillMarked(const std::string& mark, bool& any) {
  std::vector<Fd> killed;
  any = false;
  for (const pid_t pid : AllProcesses()) {
    if (pid == getpid() || !IsOurUsers(pid)) continue;
    // Taken first: should the pid pass to another process meanwhile, the signal reaches nobody.
    Fd pidfd = PidfdOpen(pid);
    const Holds marked = EnvironmentHolds(pid, mark);
    if (marked == Holds::kNo) continue;
    any = true;
    if (marked == Holds::kUnknown) continue;
    if (pidfd.valid()) {
      syscall(SYS_pidfd_send_signal, pidfd.get(), SIGKILL, nullptr, 0);
      killed.push_back(std::move(pidfd));
    } else {
      kill(pid, SIGKILL);
    }
  }
  return killed;
}

// Waits until the killed have ended, at most kPassMs: a pass over processes that still end would count them again.
void AwaitEnds(const std::vector<Fd>& killed) {
  const Instant until = MonotonicMs() + kPassMs;
  for (const Fd& pidfd : killed) {
    pollfd ended{pidfd.get(), POLLIN, 0};
    const Instant left_ms = until - MonotonicMs();
    if (left_ms <= 0 || poll(&ended, 1, static_cast<int>(left_ms)) == 0) return;
  }
  if (killed.empty()) poll(nullptr, 0, 1);  // an exec takes less; or a kernel without pidfds
}

void EndEverything(const std::set<pid_t>& groups, const std::string& mark) {
  for (const pid_t group : groups) kill(-group, SIGKILL);
  // A process may have forked while we looked; only a pass that finds none is the last.
  const Instant until = MonotonicMs() + kEndsWithinMs;
  for (bool any = true; any && MonotonicMs() < until;) AwaitEnds(KillMarked(mark, any));
}

[[noreturn]] void GuardMain(int socket, const std::string& mark) {
  Settle(socket);
  [[maybe_unused]] const ssize_t n = send(3, &kAdd, 1, MSG_NOSIGNAL);  // settled
  const std::optional<std::set<pid_t>> groups = Listen(3);
  if (groups) EndEverything(*groups, mark);
  _exit(0);
}

}  // namespace

// --- inside the agent ---------------------------------------------------------------------------------------------

StatusOr<Guard> Guard::Start(const std::string& node_id) {
  int pair[2];
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0) return ErrnoStatus(errno, "socketpair");
  Fd ours(pair[0]);
  Fd theirs(pair[1]);
  const std::string mark = fmt::format("{}={}", kNodeMark, node_id);
  const pid_t pid = fork();
  if (pid < 0) return ErrnoStatus(errno, "fork");
  if (pid == 0) {
    ours.Reset();
    GuardMain(theirs.get(), mark);
  }
  theirs.Reset();
  char settled = 0;
  if (recv(ours.get(), &settled, 1, 0) != 1) return absl::InternalError("the guard process ended at once");
  return Guard(pid, std::move(ours));
}

Guard::~Guard() {
  if (socket_.valid()) Tell(kFarewell, 0);
}

void Guard::Add(pid_t process_group) { Tell(kAdd, process_group); }

void Guard::Remove(pid_t process_group) { Tell(kRemove, process_group); }

void Guard::Tell(char what, pid_t process_group) {
  const Message message{what, process_group};
  [[maybe_unused]] const ssize_t n = send(socket_.get(), &message, sizeof message, MSG_NOSIGNAL | MSG_DONTWAIT);
}

}  // namespace phalanx::agent
