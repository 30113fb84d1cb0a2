#include "base/process/process.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/epoll.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <filesystem>
#include <memory>
#include <mutex>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace phalanx {
namespace {

constexpr size_t kProcFileBytesMax = 16 << 10;
constexpr size_t kEnvironmentBytesMax = 8 << 20;

// posix_spawn's two objects, with the first error of a series of calls.
class SpawnCalls {
 public:
  SpawnCalls() {
    Keep(posix_spawn_file_actions_init(&actions_));
    Keep(posix_spawnattr_init(&attributes_));
  }
  SpawnCalls(const SpawnCalls&) = delete;
  SpawnCalls& operator=(const SpawnCalls&) = delete;
  ~SpawnCalls() {
    posix_spawn_file_actions_destroy(&actions_);
    posix_spawnattr_destroy(&attributes_);
  }

  void Keep(int error) {
    if (error_ == 0) error_ = error;
  }
  int error() const { return error_; }
  posix_spawn_file_actions_t* actions() { return &actions_; }
  posix_spawnattr_t* attributes() { return &attributes_; }

 private:
  posix_spawn_file_actions_t actions_;
  posix_spawnattr_t attributes_;
  int error_ = 0;
};

std::vector<char*> Pointers(std::vector<std::string>& texts) {
  std::vector<char*> pointers;
  pointers.reserve(texts.size() + 1);
  for (std::string& text : texts) pointers.push_back(text.data());
  pointers.push_back(nullptr);
  return pointers;
}

// Copies of the descriptors above all numbers they are to have in the child, so that no move overwrites another's
// source.
StatusOr<std::vector<Fd>> CopiesOutOfTheWay(const std::vector<int>& fds, int lowest) {
  std::vector<Fd> copies;
  for (const int fd : fds) {
    copies.emplace_back(fd < 0 ? -1 : fcntl(fd, F_DUPFD_CLOEXEC, lowest));
    if (fd >= 0 && !copies.back().valid()) return ErrnoStatus(errno, "copying a descriptor for a child");
  }
  return copies;
}

void SetSignals(SpawnCalls& calls, bool new_session) {
  sigset_t none;
  sigset_t all;
  sigemptyset(&none);
  sigfillset(&all);
  calls.Keep(posix_spawnattr_setsigmask(calls.attributes(), &none));
  calls.Keep(posix_spawnattr_setsigdefault(calls.attributes(), &all));
  const int session = new_session ? POSIX_SPAWN_SETSID : 0;
  const int flags = POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF | session;
  calls.Keep(posix_spawnattr_setflags(calls.attributes(), static_cast<int16_t>(flags)));
}

// Binds the calling thread for as long as this lives: a child takes over what the thread that starts it has.
class BoundMeanwhile {
 public:
  // `cpus` empty: nothing changes.
  static StatusOr<BoundMeanwhile> To(const CpuSet& cpus) {
    BoundMeanwhile bound;
    if (cpus.empty()) return bound;
    PHX_ASSIGN_OR_RETURN(CpuSet before, AllowedCpus());
    PHX_RETURN_IF_ERROR(BindToCpus(0, cpus));
    bound.before_ = std::move(before);
    return bound;
  }
  BoundMeanwhile(BoundMeanwhile&& other) noexcept : before_(std::exchange(other.before_, {})) {}
  BoundMeanwhile(const BoundMeanwhile&) = delete;
  BoundMeanwhile& operator=(const BoundMeanwhile&) = delete;
  ~BoundMeanwhile() {
    if (before_.empty()) return;
    // It fails only where none of them is left to this process; then the kernel has given it others already.
    const Status back = BindToCpus(0, before_);
    static_cast<void>(back);
  }

 private:
  BoundMeanwhile() = default;
  CpuSet before_;
};

ProcessEnd EndOf(const siginfo_t& info) {
  ProcessEnd end;
  end.pid = info.si_pid;
  if (info.si_code == CLD_EXITED) {
    end.exit_code = info.si_status;
  } else {
    end.signal = info.si_status;
    end.core_dumped = info.si_code == CLD_DUMPED;
  }
  end.noticed_ns = MonotonicNs();
  return end;
}

// waitid of the system itself: unlike the C library's it tells what the child used.
bool Wait(idtype_t kind, pid_t pid, int options, siginfo_t& info, rusage& usage) {
  return syscall(SYS_waitid, kind, pid, &info, options, &usage) == 0 && info.si_pid != 0;
}

ProcessEnd EndOf(const siginfo_t& info, const rusage& usage) {
  ProcessEnd end = EndOf(info);
  end.peak_resident_bytes = int64_t{usage.ru_maxrss} * 1024;
  return end;
}

std::string ReadPrefix(const Fd& file, size_t limit) {
  std::string text;
  char buffer[16 << 10];
  while (file.valid() && text.size() < limit) {
    const ssize_t n = read(file.get(), buffer, std::min(sizeof buffer, limit - text.size()));
    if (n <= 0) break;
    text.append(buffer, static_cast<size_t>(n));
  }
  return text;
}

// Takes what fits a number off the front of `text`; false where there is none.
template <typename Number>
bool TakeNumber(std::string_view& text, Number& number) {
  const auto [end, code] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (code != std::errc()) return false;
  text.remove_prefix(static_cast<size_t>(end - text.data()));
  if (text.starts_with(' ')) text.remove_prefix(1);
  return true;
}

// `pid` 0: this process.
void SetOpenFilesLimit(pid_t pid, uint64_t soft) {
  rlimit limit{};
  if (prlimit(pid, RLIMIT_NOFILE, nullptr, &limit) != 0 || limit.rlim_cur == soft) return;
  limit.rlim_cur = std::min<rlim_t>(soft, limit.rlim_max);
  prlimit(pid, RLIMIT_NOFILE, &limit, nullptr);
}

// Whether a line of /proc/<pid>/status, a mask in hexadecimal digits behind `label`, holds `signal`.
bool IsInMask(std::string_view status_text, std::string_view label, int signal) {
  const size_t at = status_text.find(label);
  if (at == std::string_view::npos || signal < 1 || signal > 64) return false;
  const std::string_view digits = status_text.substr(at + label.size());
  uint64_t mask = 0;
  const auto [end, code] = std::from_chars(digits.data(), digits.data() + digits.size(), mask, 16);
  return code == std::errc() && (mask >> (signal - 1) & 1) != 0;
}

// /proc/<pid>/task/<tid>/children; empty where the kernel has no such list.
std::vector<pid_t> ListedChildren(const std::string& path) {
  constexpr size_t kChildrenBytesMax = 1 << 20;
  const std::string text = ReadFilePrefix(path, kChildrenBytesMax);
  std::vector<pid_t> pids;
  std::string_view rest = text;
  for (pid_t pid = 0; TakeNumber(rest, pid);) pids.push_back(pid);
  return pids;
}

}  // namespace

uint64_t OpenFilesLimit() {
  rlimit limit{};
  return getrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : 0;
}

uint64_t RaiseOpenFilesLimit(uint64_t wanted) {
  static std::mutex mutex;  // whoever has read a limit must not set a lower one than another thread has set since
  const std::lock_guard<std::mutex> lock(mutex);
  if (OpenFilesLimit() < wanted) SetOpenFilesLimit(0, wanted);
  return OpenFilesLimit();
}

StatusOr<std::string> FindProgram(const std::string& program, const std::map<std::string, std::string>& env) {
  if (program.empty()) return absl::InvalidArgumentError("the name of the program is empty");
  if (program.find('/') != std::string::npos) return program;
  const auto path = env.find("PATH");
  std::string_view rest = path == env.end() ? std::string_view("/usr/local/bin:/usr/bin:/bin") : path->second;
  bool denied = false;
  while (true) {
    const size_t colon = std::min(rest.find(':'), rest.size());
    const std::string_view directory = rest.substr(0, colon);
    std::string candidate = fmt::format("{}/{}", directory.empty() ? "." : directory, program);
    struct stat info {};
    if (stat(candidate.c_str(), &info) == 0 && S_ISREG(info.st_mode)) {
      if (access(candidate.c_str(), X_OK) == 0) return candidate;
      denied = true;
    }
    if (colon == rest.size()) break;
    rest.remove_prefix(colon + 1);
  }
  if (denied) return absl::PermissionDeniedError(fmt::format("{}: found on PATH, but not executable", program));
  return absl::NotFoundError(fmt::format("{}: no such program on PATH", program));
}

Fd PidfdOpen(pid_t pid) { return Fd(static_cast<int>(syscall(SYS_pidfd_open, pid, 0))); }

StatusOr<Child> Spawn(const SpawnSpec& spec) {
  PHX_ASSIGN_OR_RETURN(const std::string path, FindProgram(spec.program, spec.env));
  std::vector<int> fds{spec.stdin_fd, spec.stdout_fd, spec.stderr_fd};
  fds.insert(fds.end(), spec.extra_fds.begin(), spec.extra_fds.end());
  const int first_closed = static_cast<int>(fds.size());
  PHX_ASSIGN_OR_RETURN(const std::vector<Fd> copies, CopiesOutOfTheWay(fds, first_closed));

  SpawnCalls calls;
  SetSignals(calls, spec.new_session);
  for (int target = 0; target < first_closed; ++target) {
    const Fd& copy = copies[static_cast<size_t>(target)];
    if (copy.valid()) calls.Keep(posix_spawn_file_actions_adddup2(calls.actions(), copy.get(), target));
  }
  calls.Keep(posix_spawn_file_actions_addclosefrom_np(calls.actions(), first_closed));
  if (!spec.cwd.empty()) calls.Keep(posix_spawn_file_actions_addchdir_np(calls.actions(), spec.cwd.c_str()));
  if (calls.error() != 0) return ErrnoStatus(calls.error(), "preparing to start a process");

  std::vector<std::string> args = spec.args;
  std::vector<std::string> env;
  env.reserve(spec.env.size());
  for (const auto& [name, value] : spec.env) env.push_back(fmt::format("{}={}", name, value));
  PHX_ASSIGN_OR_RETURN(const BoundMeanwhile bound, BoundMeanwhile::To(spec.cpus));
  Child child;
  const int error = posix_spawn(&child.pid, path.c_str(), calls.actions(), calls.attributes(), Pointers(args).data(),
                                Pointers(env).data());
  if (error != 0) return ErrnoStatus(error, fmt::format("starting {}", path));
  child.pidfd = PidfdOpen(child.pid);
  if (spec.open_files_limit != 0) SetOpenFilesLimit(child.pid, spec.open_files_limit);
  return child;
}

// --- ends ---------------------------------------------------------------------------------------------------------

Reaper::Reaper(EventLoop& loop) : loop_(loop) {
  const int rc = prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0);
  PHX_CHECK(rc == 0, "PR_SET_CHILD_SUBREAPER failed");
  sigchld_ = std::make_unique<SignalSource>(loop_, std::set<int>{SIGCHLD}, [this](int) { ReapAll(); });
}

Reaper::~Reaper() {
  for (const auto& [pid, awaited] : awaited_) {
    if (awaited.pidfd.valid()) loop_.Unwatch(awaited.pidfd.get());
  }
}

void Reaper::Await(Child child, std::function<void(const ProcessEnd&)> on_end) {
  PHX_CHECK(child.pid > 0 && awaited_.count(child.pid) == 0, "a child is awaited once");
  const pid_t pid = child.pid;
  if (child.pidfd.valid()) loop_.Watch(child.pidfd.get(), EPOLLIN, [this, pid](uint32_t) { OnPidfd(pid); });
  awaited_.emplace(pid, Awaited{std::move(child.pidfd), std::move(on_end)});
}

void Reaper::Retarget(pid_t pid, std::function<void(const ProcessEnd&)> on_end) {
  const auto it = awaited_.find(pid);
  if (it != awaited_.end()) it->second.on_end = std::move(on_end);
}

void Reaper::OnPidfd(pid_t pid) {
  siginfo_t info{};
  rusage usage{};
  if (Wait(P_PID, pid, WEXITED | WNOHANG, info, usage)) Told(EndOf(info, usage));
}

// SIGCHLDs melt into one: take all there are. A callback may start children; they are taken as well.
void Reaper::ReapAll() {
  while (true) {
    siginfo_t info{};
    rusage usage{};
    if (!Wait(P_ALL, 0, WEXITED | WNOHANG, info, usage)) break;
    Told(EndOf(info, usage));
  }
  if (const auto callback = on_any_end_) callback();
}

void Reaper::Told(const ProcessEnd& end) {
  const auto it = awaited_.find(end.pid);
  if (it == awaited_.end()) return;  // an orphan of a child
  const Awaited awaited = std::move(it->second);
  awaited_.erase(it);
  if (awaited.pidfd.valid()) loop_.Unwatch(awaited.pidfd.get());
  if (awaited.on_end) awaited.on_end(end);
}

std::optional<ProcessEnd> PeekEnd(pid_t pid) {
  siginfo_t info{};
  rusage usage{};
  if (!Wait(P_PID, pid, WEXITED | WNOHANG | WNOWAIT, info, usage)) return std::nullopt;
  return EndOf(info, usage);
}

std::optional<ProcessEnd> EndUnderWay(pid_t pid) {
  const std::optional<ProcStat> stat = ReadProcStat(pid);
  if (!stat || stat->wait_status == 0 || stat->state == 'T' || stat->state == 't') return std::nullopt;
  ProcessEnd end;
  end.pid = pid;
  if (WIFEXITED(stat->wait_status)) {
    end.exit_code = WEXITSTATUS(stat->wait_status);
  } else {
    end.signal = WTERMSIG(stat->wait_status);
    end.core_dumped = WCOREDUMP(stat->wait_status);
  }
  end.noticed_ns = MonotonicNs();
  return end;
}

// --- looking at processes -----------------------------------------------------------------------------------------

std::string ExecutableDirectory() {
  std::error_code error;
  const std::filesystem::path path = std::filesystem::read_symlink("/proc/self/exe", error);
  return error ? "" : path.parent_path().string();
}

std::string ReadFilePrefix(const std::string& path, size_t limit) {
  return ReadPrefix(Fd(open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK)), limit);
}

// "pid (comm) state ppid pgrp session tty tpgid flags minflt cminflt majflt cmajflt utime stime cutime cstime priority
// nice threads ...". The name may hold spaces and parentheses: what counts starts behind the last one.
std::optional<ProcStat> ParseProcStat(std::string_view text) {
  const size_t open = text.find('(');
  const size_t close = text.rfind(')');
  if (open == std::string_view::npos || close == std::string_view::npos || close < open) return std::nullopt;
  ProcStat stat;
  stat.comm = std::string(text.substr(open + 1, close - open - 1));
  text.remove_prefix(close + 1);
  if (text.size() < 4 || text[0] != ' ' || text[2] != ' ') return std::nullopt;
  stat.state = text[1];
  text.remove_prefix(3);
  if (!TakeNumber(text, stat.ppid) || !TakeNumber(text, stat.pgrp) || !TakeNumber(text, stat.session))
    return std::nullopt;
  constexpr int kBetweenSessionAndThreads = 13;
  for (int i = 0; i < kBetweenSessionAndThreads; ++i) {
    int64_t skipped = 0;
    uint64_t skipped_unsigned = 0;
    if (!TakeNumber(text, skipped) && !TakeNumber(text, skipped_unsigned)) return std::nullopt;
  }
  if (!TakeNumber(text, stat.threads)) return std::nullopt;
  std::string_view rest = text;  // from field 21, as proc(5) counts; an older kernel may have fewer
  for (int field = 21; field <= 51; ++field) {
    uint64_t value = 0;
    int64_t skipped = 0;
    if (!TakeNumber(rest, value) && !TakeNumber(rest, skipped)) break;
    if (field == 23) stat.memory_bytes = value;
    if (field == 26) stat.code_begin = value;
    if (field == 50) stat.environment_begin = value;
    if (field == 51) stat.environment_end = value;
  }
  std::string_view last = text.substr(text.rfind(' ') + 1);
  if (!TakeNumber(last, stat.wait_status)) return std::nullopt;
  return stat;
}

std::optional<ProcStat> ReadProcStat(pid_t pid) {
  return ParseProcStat(ReadFilePrefix(fmt::format("/proc/{}/stat", pid), kProcFileBytesMax));
}

bool ParseCatches(std::string_view status_text, int signal) { return IsInMask(status_text, "\nSigCgt:\t", signal); }

bool CatchesSignal(pid_t pid, int signal) {
  return ParseCatches(ReadFilePrefix(fmt::format("/proc/{}/status", pid), kProcFileBytesMax), signal);
}

Holds EnvironmentHolds(pid_t pid, std::string_view entry) {
  const std::string path = fmt::format("/proc/{}/environ", pid);
  const Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return Holds::kNo;  // it is gone, or not ours to look at
  const std::string environment = ReadPrefix(file, kEnvironmentBytesMax);
  if (environment.empty()) {
    // The kernel gives a program its memory first, then says where in it the environment begins and, after a while,
    // ends, and last where the code is (create_elf_tables and load_elf_binary of Linux).
    const std::optional<ProcStat> stat = ReadProcStat(pid);
    if (!stat || stat->state == 'X' || stat->state == 'Z' || stat->memory_bytes == 0) return Holds::kNo;
    const bool is_empty = stat->code_begin != 0 && stat->environment_begin == stat->environment_end;
    return is_empty ? Holds::kNo : Holds::kUnknown;
  }
  const std::string_view text = environment;
  for (size_t at = text.find(entry); at != std::string_view::npos; at = text.find(entry, at + 1)) {
    const size_t end = at + entry.size();
    if ((at == 0 || text[at - 1] == '\0') && (end == text.size() || text[end] == '\0')) return Holds::kYes;
  }
  return Holds::kNo;
}

std::vector<pid_t> AllProcesses() {
  std::vector<pid_t> pids;
  const std::unique_ptr<DIR, int (*)(DIR*)> proc(opendir("/proc"), closedir);
  while (const dirent* entry = proc ? readdir(proc.get()) : nullptr) {
    std::string_view name = entry->d_name;
    pid_t pid = 0;
    if (TakeNumber(name, pid) && name.empty()) pids.push_back(pid);
  }
  return pids;
}

bool WithstandsSignal(pid_t pid, int signal) {
  const std::string status = ReadFilePrefix(fmt::format("/proc/{}/status", pid), kProcFileBytesMax);
  return ParseCatches(status, signal) || IsInMask(status, "\nSigIgn:\t", signal);
}

std::vector<pid_t> OwnChildren() {
  // Orphans come to the main thread, and only it starts children. A kernel may lack the list.
  const pid_t self = getpid();
  const std::string path = fmt::format("/proc/self/task/{}/children", self);
  if (access(path.c_str(), R_OK) == 0) return ListedChildren(path);
  std::vector<pid_t> pids;
  for (const pid_t pid : AllProcesses()) {
    const std::optional<ProcStat> stat = ReadProcStat(pid);
    if (stat && stat->ppid == self) pids.push_back(pid);
  }
  return pids;
}

bool DieWithParent(pid_t parent) {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  return getppid() == parent;  // asked afterwards: it may have ended before
}

void EnsureStandardFds() {
  while (true) {
    const int fd = open("/dev/null", O_RDWR);
    PHX_CHECK(fd >= 0, "/dev/null cannot be opened");
    if (fd <= STDERR_FILENO) continue;
    close(fd);
    return;
  }
}

}  // namespace phalanx
