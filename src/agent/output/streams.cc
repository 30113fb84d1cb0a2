// More than 500 lines: pipes, terminals and files of workers end in one order, which one class keeps.
#include "agent/output/streams.h"

#include <asm/termbits.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/inotify.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <filesystem>
#include <optional>
#include <utility>
#include <vector>

#include "base/pipe.h"
#include "base/utf8.h"

namespace phalanx::agent {
namespace {

constexpr int kOut = 1;
constexpr int kErr = 2;
constexpr size_t kChunk = 64 << 10;
constexpr size_t kTurnBytesMax = 1 << 20;  // of one stream before the loop serves others
constexpr size_t kPartialLineMax = 64 << 10;
constexpr int kDrainAtEndMs = 1'000;

bool ContinuesName(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// The text with the value of the variable at its start ("$name", "${name}", "$$") and how much of it that was.
std::pair<std::string, size_t> Substitute(std::string_view text,
                                          const std::map<std::string, std::string, std::less<>>& values) {
  if (text.starts_with("$$")) return {"$", 2};
  const bool braced = text.starts_with("${");
  const size_t start = braced ? 2 : 1;
  size_t end = start;
  while (end < text.size() && ContinuesName(text[end])) ++end;
  const auto value = values.find(text.substr(start, end - start));
  const bool closed = !braced || (end < text.size() && text[end] == '}');
  if (value == values.end() || !closed) return {"$", 1};
  return {value->second, braced ? end + 1 : end};
}

struct StreamEnds {
  Fd ours;  // non-blocking
  Fd workers;
};

std::optional<StreamEnds> OpenPipe() {
  StatusOr<Pipe> pipe = MakePipe();
  if (!pipe.ok()) return std::nullopt;
  DoNotBlock(pipe->reader);
  return StreamEnds{std::move(pipe->reader), std::move(pipe->writer)};
}

// A pseudo-terminal of the size of `terminal`. What it turns newlines into is left to the real one.
std::optional<StreamEnds> OpenTerminal(int terminal) {
  StreamEnds ends;
  ends.ours = Fd(open("/dev/ptmx", O_RDWR | O_NOCTTY | O_CLOEXEC | O_NONBLOCK));
  int unlocked = 0;
  if (!ends.ours.valid() || ioctl(ends.ours.get(), TIOCSPTLCK, &unlocked) != 0) return std::nullopt;
  ends.workers = Fd(ioctl(ends.ours.get(), TIOCGPTPEER, O_RDWR | O_NOCTTY | O_CLOEXEC));
  if (!ends.workers.valid()) return std::nullopt;
  struct termios settings {};
  if (ioctl(ends.workers.get(), TCGETS, &settings) == 0) {
    settings.c_oflag &= ~static_cast<tcflag_t>(OPOST);
    settings.c_lflag &= ~static_cast<tcflag_t>(ECHO);
    ioctl(ends.workers.get(), TCSETS, &settings);
  }
  struct winsize size {};
  if (ioctl(terminal, TIOCGWINSZ, &size) == 0) ioctl(ends.workers.get(), TIOCSWINSZ, &size);
  return ends;
}

}  // namespace

// --- pure parts ---------------------------------------------------------------------------------------------------

std::string LinePrefix(const std::string& prefix_template, const std::string& role, int rank, int local_rank,
                       const std::string& hostname) {
  const std::map<std::string, std::string, std::less<>> values{{"role_name", role},
                                                               {"rank", fmt::format("{}", rank)},
                                                               {"local_rank", fmt::format("{}", local_rank)},
                                                               {"hostname", hostname}};
  std::string prefix;
  for (std::string_view rest = prefix_template; !rest.empty();) {
    const size_t dollar = std::min(rest.find('$'), rest.size());
    prefix += rest.substr(0, dollar);
    rest.remove_prefix(dollar);
    if (rest.empty()) break;
    const auto [value, length] = Substitute(rest, values);
    prefix += value;
    rest.remove_prefix(length);
  }
  return prefix;
}

void AppendAsShown(std::string& text, std::string_view bytes, bool& returned) {
  for (const char c : bytes) {
    const bool over = std::exchange(returned, false) && c != '\n' && c != '\r';
    if (over) text.erase(text.rfind('\n') + 1);  // npos + 1 is 0
    if (c == '\r') {
      returned = true;
    } else {
      text += c;
    }
  }
}

std::string LineCutter::Feed(std::string_view bytes) {
  std::string lines;
  for (const char c : bytes) {
    const bool second_of_pair = c == '\n' && after_return_;
    after_return_ = c == '\r';
    if (second_of_pair) continue;
    if (c != '\n' && c != '\r') {
      partial_ += c;
      if (partial_.size() < kPartialLineMax) continue;
    }
    lines += prefix_;
    lines += partial_;
    lines += '\n';
    partial_.clear();
  }
  return lines;
}

std::string LineCutter::Flush() {
  if (partial_.empty()) return "";
  return prefix_ + std::exchange(partial_, {}) + '\n';
}

std::string LinesThatHold(std::string_view lines, size_t prefix_size, const std::vector<std::string>& filters) {
  std::string held;
  while (!lines.empty()) {
    const std::string_view line = lines.substr(0, lines.find('\n') + 1);  // npos + 1 is 0, and cannot be
    if (line.empty()) break;
    const std::string_view text = line.substr(std::min(prefix_size, line.size()));
    const auto holds = [&](const std::string& filter) { return text.find(filter) != std::string_view::npos; };
    if (std::any_of(filters.begin(), filters.end(), holds)) held += line;
    lines.remove_prefix(line.size());
  }
  return held;
}

std::string TailForPeople(std::string_view bytes, size_t limit) {
  std::string text;
  for (std::string_view rest = bytes.substr(bytes.size() - std::min(bytes.size(), limit)); !rest.empty();) {
    const size_t length = Utf8Length(rest);
    if (length == 0 || rest[0] == '\0') {
      text += '?';
    } else {
      text += rest.substr(0, length);
    }
    rest.remove_prefix(std::max<size_t>(length, 1));
  }
  if (bytes.size() <= limit) return text;
  const size_t newline = text.find('\n');
  return newline + 1 < text.size() ? text.substr(newline + 1) : text;  // npos + 1 is 0
}

// --- our terminal -------------------------------------------------------------------------------------------------

struct TerminalSettings::Saved {
  struct termios settings {};
};

TerminalSettings::TerminalSettings(int fd) : fd_(fd), saved_(std::make_unique<Saved>()) {
  if (ioctl(fd_, TCGETS, &saved_->settings) != 0) saved_.reset();
}

TerminalSettings::~TerminalSettings() {
  if (!saved_) return;
  // In the background this would stop us.
  sigset_t stop;
  sigset_t before;
  sigemptyset(&stop);
  sigaddset(&stop, SIGTTOU);
  pthread_sigmask(SIG_BLOCK, &stop, &before);
  ioctl(fd_, TCSETSW, &saved_->settings);
  pthread_sigmask(SIG_SETMASK, &before, nullptr);
}

// --- one worker ---------------------------------------------------------------------------------------------------

WorkerStreams::~WorkerStreams() {
  for (const uint64_t tail : tails_) streams_.EndTail(tail);
}

void WorkerStreams::CloseWorkerEnds() {
  owned_stdout_.Reset();
  owned_stderr_.Reset();
  stdin_fd_ = stdout_fd_ = stderr_fd_ = -1;
}

std::string WorkerStreams::LastWords() {
  const auto relay = streams_.relays_.find(relay_);
  if (relay != streams_.relays_.end()) {
    streams_.ReadRelay(relay->second, kTurnBytesMax);
    streams_.ShowRest(relay->second);
  }
  if (relayed_) return TailForPeople(*relayed_, kLastWordsMax);
  struct stat info {};
  if (!stderr_file_.valid() || fstat(stderr_file_.get(), &info) != 0) return "";
  std::string bytes(kLastWordsMax + 1, '\0');
  const off_t from = std::max<off_t>(0, info.st_size - static_cast<off_t>(bytes.size()));
  const ssize_t n = pread(stderr_file_.get(), bytes.data(), bytes.size(), from);
  std::string shown;
  bool returned = false;
  AppendAsShown(shown, std::string_view(bytes).substr(0, n > 0 ? static_cast<size_t>(n) : 0), returned);
  return TailForPeople(shown, kLastWordsMax);
}

// --- all workers --------------------------------------------------------------------------------------------------

Streams::Streams(EventLoop& loop, const LaunchConfig& config, Options options)
    : loop_(loop),
      config_(config),
      options_(std::move(options)),
      stderr_is_terminal_(isatty(options_.stderr_fd) == 1),
      terminal_(config.debug_rank >= 0 ? std::make_unique<TerminalSettings>(options_.stdin_fd) : nullptr),
      log_dirs_(config, options_.tmp_dir),
      null_(open("/dev/null", O_RDWR | O_CLOEXEC)),
      stdout_console_(std::make_unique<Console>(loop, options_.stdout_fd, [this] { OnRoom(); })),
      stderr_console_(std::make_unique<Console>(loop, options_.stderr_fd, [this] { OnRoom(); })),
      stdout_reader_(loop, options_.stdout_fd, [this] { OnReaderGone(kOut); }),
      stderr_reader_(loop, options_.stderr_fd, [this] { OnReaderGone(kErr); }) {}

Streams::~Streams() {
  DrainTails();
  for (auto& [id, relay] : relays_) {
    ReadRelay(relay, kTurnBytesMax);
    ShowRest(relay);
    if (relay.watched) loop_.Unwatch(relay.source.get());
  }
  if (inotify_.valid()) loop_.Unwatch(inotify_.get());
  loop_.Cancel(resume_);
}

std::unique_ptr<WorkerStreams> Streams::Open(int rank, int local_rank, uint32_t restart_count) {
  std::unique_ptr<WorkerStreams> worker(new WorkerStreams(*this));
  if (rank == config_.debug_rank) {
    LendTerminal(*worker);
    return worker;
  }
  worker->stdin_fd_ = config_.debug_rank >= 0 ? null_.get() : options_.stdin_fd;
  OpenStdout(*worker, rank, local_rank, restart_count);
  OpenStderr(*worker, rank, local_rank, restart_count);
  return worker;
}

// Its last words are on the terminal.
void Streams::LendTerminal(WorkerStreams& worker) {
  worker.stdin_fd_ = options_.stdin_fd;
  worker.stdout_fd_ = options_.stdout_fd;
  worker.stderr_fd_ = options_.stderr_fd;
}

void Streams::OnReaderGone(int stream) {
  if (!options_.on_reader_gone) return;
  options_.on_reader_gone(fmt::format(
      "nobody reads {} of phalanx-run any more; training goes on, and what goes there is dropped from now on",
      stream == kOut ? "stdout" : "stderr"));
}

void Streams::Resize() {
  struct winsize size {};
  if (ioctl(options_.stderr_fd, TIOCGWINSZ, &size) != 0) return;
  for (const auto& [id, relay] : relays_) {
    if (relay.is_terminal) ioctl(relay.source.get(), TIOCSWINSZ, &size);
  }
}

StatusOr<std::string> Streams::RunDir() {
  if (log_dirs_.none()) return absl::NotFoundError("--log-dir=/dev/null");
  return log_dirs_.RunDir();
}

std::string Streams::ErrorFilePath(uint32_t restart_count, int local_rank) {
  if (log_dirs_.none()) return "";
  const StatusOr<std::string> dir = log_dirs_.Of(restart_count, local_rank);
  if (dir.ok()) return *dir + "/error.json";
  WarnOnce(Warning::kNoFile, fmt::format("workers get no error file: {}", Message(dir.status())));
  return "";
}

StatusOr<Streams::LogFile> Streams::OpenFile(const std::string& name, uint32_t restart_count, int local_rank) {
  PHX_ASSIGN_OR_RETURN(const std::string dir, log_dirs_.Of(restart_count, local_rank));
  LogFile file;
  file.path = fmt::format("{}/{}", dir, name);
  file.write_end = Fd(open(file.path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644));
  if (!file.write_end.valid()) return ErrnoStatus(errno, fmt::format("opening {}", file.path));
  return file;
}

void Streams::OpenStdout(WorkerStreams& worker, int rank, int local_rank, uint32_t restart_count) {
  const int tee = config_.tee.Of(local_rank);
  if (((config_.redirects.Of(local_rank) | tee) & kOut) != 0 && !log_dirs_.none()) {
    StatusOr<LogFile> file = OpenFile("stdout.log", restart_count, local_rank);
    if (file.ok()) {
      worker.files_[0] = file->path;
      worker.owned_stdout_ = std::move(file->write_end);
      worker.stdout_fd_ = worker.owned_stdout_.get();
      if ((tee & kOut) != 0 && Shown(local_rank)) {
        worker.tails_[0] = StartTail(file->path, kOut, rank, local_rank);
      }
      return;
    }
    WarnOnce(Warning::kNoFile, fmt::format("output goes to the console instead of a file: {}", Message(file.status())));
  }
  worker.stdout_fd_ = Shown(local_rank) && !stdout_reader_.gone() ? options_.stdout_fd : null_.get();
}

void Streams::OpenStderr(WorkerStreams& worker, int rank, int local_rank, uint32_t restart_count) {
  const int tee = config_.tee.Of(local_rank);
  if (((config_.redirects.Of(local_rank) | tee) & kErr) != 0 && !log_dirs_.none()) {
    StatusOr<LogFile> file = OpenFile("stderr.log", restart_count, local_rank);
    if (file.ok()) {
      worker.files_[1] = file->path;
      worker.owned_stderr_ = std::move(file->write_end);
      worker.stderr_fd_ = worker.owned_stderr_.get();
      worker.stderr_file_ = Fd(open(file->path.c_str(), O_RDONLY | O_CLOEXEC));
      if ((tee & kErr) != 0 && Shown(local_rank)) {
        worker.tails_[1] = StartTail(file->path, kErr, rank, local_rank);
      }
      return;
    }
    WarnOnce(Warning::kNoFile, fmt::format("output goes to the console instead of a file: {}", Message(file.status())));
  }
  std::optional<StreamEnds> ends;
  if (stderr_is_terminal_ && Shown(local_rank)) ends = OpenTerminal(options_.stderr_fd);
  const bool is_terminal = ends.has_value();
  if (!ends) ends = OpenPipe();
  if (!ends) {  // out of descriptors: no last words, but the worker's output
    worker.stderr_fd_ = Shown(local_rank) ? options_.stderr_fd : null_.get();
    return;
  }
  worker.owned_stderr_ = std::move(ends->workers);
  worker.stderr_fd_ = worker.owned_stderr_.get();
  worker.relay_ = StartRelay(std::move(ends->ours), Shown(local_rank), is_terminal);
  Relay& relay = relays_.at(worker.relay_);
  relay.life = restart_count;
  relay.rank = rank;
  worker.relayed_ = relay.last;
}

bool Streams::Shown(int local_rank) const {
  return log_dirs_.none() || config_.local_ranks_filter.empty() || config_.local_ranks_filter.count(local_rank) > 0;
}

void Streams::WarnOnce(Warning kind, const std::string& text) {
  if (warned_.insert(kind).second && options_.on_warning) options_.on_warning(text);
}

// --- stderr on its way through us ---------------------------------------------------------------------------------

uint64_t Streams::StartRelay(Fd source, bool shown, bool is_terminal) {
  const uint64_t id = next_id_++;
  Relay& relay = relays_[id];
  relay.source = std::move(source);
  relay.shown = shown;
  relay.is_terminal = is_terminal;
  WatchRelay(id, relay);
  return id;
}

void Streams::WatchRelay(uint64_t id, Relay& relay) {
  if (std::exchange(relay.watched, true)) return;
  loop_.Watch(relay.source.get(), EPOLLIN, [this, id](uint32_t) { OnRelay(id); });
}

void Streams::OnRelay(uint64_t id) {
  Relay& relay = relays_.at(id);
  if (relay.shown && !stderr_console_->HasRoom()) {
    loop_.Unwatch(relay.source.get());
    relay.watched = false;
    return;
  }
  if (!ReadRelay(relay, kChunk)) EndRelay(id);
}

// False at the end of file.
bool Streams::ReadRelay(Relay& relay, size_t limit) {
  std::array<char, kChunk> buffer;
  for (size_t taken = 0; taken < limit;) {
    const ssize_t n = read(relay.source.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;  // a pseudo-terminal ends with EIO
    const std::string_view bytes(buffer.data(), static_cast<size_t>(n));
    taken += bytes.size();
    if (relay.shown) stderr_console_->Write(tracebacks_.Feed(relay.life, relay.rank, bytes));
    AppendAsShown(*relay.last, bytes, relay.returned);
    if (relay.last->size() > 2 * kChunk) relay.last->erase(0, relay.last->size() - 2 * kLastWordsMax);
  }
  return true;
}

// The half of a traceback that was held back, as another rank had written the same so far.
void Streams::ShowRest(const Relay& relay) {
  const std::string rest = tracebacks_.End(relay.life, relay.rank);
  if (relay.shown && !rest.empty()) stderr_console_->Write(rest);
}

void Streams::EndRelay(uint64_t id) {
  Relay& relay = relays_.at(id);
  ShowRest(relay);
  loop_.Unwatch(relay.source.get());
  relays_.erase(id);
}

void Streams::OnRoom() {
  if (stderr_console_->HasRoom()) {
    for (auto& [id, relay] : relays_) WatchRelay(id, relay);
  }
  std::vector<uint64_t> behind;
  for (const auto& [id, tail] : tails_) {
    if (tail.behind) behind.push_back(id);
  }
  for (const uint64_t id : behind) ReadTail(id);
}

// --- files on their way to the console ----------------------------------------------------------------------------

uint64_t Streams::StartTail(const std::string& path, int stream, int rank, int local_rank) {
  if (!inotify_.valid()) {
    inotify_ = Fd(inotify_init1(IN_CLOEXEC | IN_NONBLOCK));
    if (inotify_.valid()) loop_.Watch(inotify_.get(), EPOLLIN, [this](uint32_t) { OnInotify(); });
  }
  Fd file(open(path.c_str(), O_RDONLY | O_CLOEXEC));
  const int watch = inotify_.valid() ? inotify_add_watch(inotify_.get(), path.c_str(), IN_MODIFY) : -1;
  if (!file.valid() || watch < 0) {
    WarnOnce(Warning::kNotShown,
             fmt::format("--tee: {} is not shown: {}", path, Message(ErrnoStatus(errno, "inotify"))));
    return 0;
  }
  const uint64_t id = next_id_++;
  const std::string prefix =
      LinePrefix(config_.log_line_prefix_template, config_.role, rank, local_rank, options_.hostname);
  Console* const console = stream == kOut ? stdout_console_.get() : stderr_console_.get();
  Tail tail{std::move(file), watch, false, false, console, LineCutter(prefix), nullptr, nullptr};
  tail.filters = stream == kOut ? &config_.stdout_filters : &config_.stderr_filters;
  if (!tail.filters->empty()) tail.filtered = FilteredFile(path, stream);
  tails_.emplace(id, std::move(tail));
  tail_by_watch_[watch] = id;
  return id;
}

// One for all ranks of an attempt, in the directory above theirs. Null where it cannot be opened.
std::shared_ptr<Console> Streams::FilteredFile(const std::string& log_path, int stream) {
  const std::filesystem::path attempt_dir = std::filesystem::path(log_path).parent_path().parent_path();
  const std::string path = attempt_dir / (stream == kOut ? "filtered_stdout.log" : "filtered_stderr.log");
  if (std::shared_ptr<Console> open_one = filtered_files_[path].lock()) return open_one;
  Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!file.valid()) {
    WarnOnce(Warning::kNoCopy, fmt::format("no filtered copy of lines: {}", Message(ErrnoStatus(errno, path))));
    return nullptr;
  }
  auto console = std::make_shared<Console>(loop_, std::move(file), [path, tell = options_.on_warning](int error) {
    if (tell) tell(LossNotice(path, error));
  });
  filtered_files_[path] = console;
  return console;
}

void Streams::Show(Tail& tail, const std::string& lines) {
  tail.console->Write(lines);
  if (tail.filtered) tail.filtered->Write(LinesThatHold(lines, tail.cutter.prefix_size(), *tail.filters));
}

void Streams::OnInotify() {
  alignas(inotify_event) std::array<char, 16 << 10> buffer;
  const ssize_t n = read(inotify_.get(), buffer.data(), buffer.size());
  bool all = false;
  std::vector<uint64_t> changed;
  for (size_t at = 0; at + sizeof(inotify_event) <= static_cast<size_t>(std::max<ssize_t>(n, 0));) {
    const auto* event = reinterpret_cast<const inotify_event*>(buffer.data() + at);
    all = all || (event->mask & IN_Q_OVERFLOW) != 0;
    const auto tail = tail_by_watch_.find(event->wd);
    if (tail != tail_by_watch_.end()) changed.push_back(tail->second);
    at += sizeof(inotify_event) + event->len;
  }
  if (all) {
    changed.clear();
    for (const auto& [id, tail] : tails_) changed.push_back(id);
  }
  for (const uint64_t id : changed) ReadTail(id);
}

void Streams::ReadTail(uint64_t id) {
  const auto found = tails_.find(id);
  if (found == tails_.end()) return;
  Tail& tail = found->second;
  std::array<char, kChunk> buffer;
  tail.behind = true;
  for (size_t taken = 0; taken < kTurnBytesMax;) {
    if (!tail.console->HasRoom()) return;  // OnRoom goes on
    const ssize_t n = read(tail.file.get(), buffer.data(), buffer.size());
    if (n <= 0) {
      tail.behind = false;
      break;
    }
    taken += static_cast<size_t>(n);
    Show(tail, tail.cutter.Feed(std::string_view(buffer.data(), static_cast<size_t>(n))));
  }
  if (tail.behind) {
    loop_.Cancel(resume_);
    resume_ = loop_.At(loop_.Now(), [this] { OnRoom(); });
  } else if (tail.ending) {
    Show(tail, tail.cutter.Flush());
    tails_.erase(found);
  }
}

void Streams::EndTail(uint64_t id) {
  const auto found = tails_.find(id);
  if (found == tails_.end()) return;
  found->second.ending = true;
  inotify_rm_watch(inotify_.get(), found->second.watch);
  tail_by_watch_.erase(found->second.watch);
  ReadTail(id);
}

// At our own end: what is in the files comes onto the console as far as that takes it in a bounded time.
void Streams::DrainTails() {
  const Instant until = MonotonicMs() + kDrainAtEndMs;
  while (!tails_.empty() && MonotonicMs() < until) {
    const auto& [id, tail] = *tails_.begin();
    if (!tail.console->HasRoom()) tail.console->Drain(static_cast<int>(until - MonotonicMs()));
    if (tail.ending) {
      ReadTail(id);
    } else {
      EndTail(id);
    }
  }
}

}  // namespace phalanx::agent
