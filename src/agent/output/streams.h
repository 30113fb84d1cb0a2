// What workers write, treated as torchrun treats it, with the last words of each kept.
//
// * Neither redirected nor tee'd: stdin and stdout are ours. stderr passes through us on its way to our stderr, through
//   a pseudo-terminal where ours is a terminal (progress bars work), else through a pipe. A traceback that several
//   ranks write is shown once (tracebacks.h); last words have it whole.
// * --redirects: the worker writes the file itself.
// * --tee: the same, and the file is followed (inotify) onto our console, each line whole behind its prefix.
// * --duplicate-*-filters: lines of what is followed that hold one of the texts are written once more, to one file a
//   stream and attempt.
// * --local-ranks-filter: other ranks do not reach the console; their files are written all the same.
// * --debug-rank: that rank has our three descriptors themselves; the others read nothing.
//
// * A console whose reader has gone (reader.h) is given up: one sentence, and lives that begin later write to
// /dev/null.
//
// A console that takes nothing stops the reading of pipes, and so at last the workers that write there, as in torchrun;
// never the event loop. A full disk or a vanished log directory stops nothing: one warning, and the output goes to the
// console. One thread: the event loop's.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "agent/flags/config.h"
#include "agent/output/console.h"
#include "agent/output/log_dirs.h"
#include "agent/output/reader.h"
#include "agent/output/tracebacks.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/status.h"

namespace phalanx::agent {

constexpr size_t kLastWordsMax = 16 << 10;

// The template of --log-line-prefix with ${role_name}, ${local_rank}, ${rank} and ${hostname} put in; what else looks
// like a variable stays. Pure.
std::string LinePrefix(const std::string& prefix_template, const std::string& role, int rank, int local_rank,
                       const std::string& hostname);

// Cuts a growing text into whole lines, each behind `prefix`; keeps what has no end yet, but not without bound. As in
// torchrun a carriage return ends a line too (progress bars). Pure.
class LineCutter {
 public:
  explicit LineCutter(std::string prefix) : prefix_(std::move(prefix)) {}
  std::string Feed(std::string_view bytes);
  std::string Flush();  // the line without an end, ended
  size_t prefix_size() const { return prefix_.size(); }

 private:
  std::string prefix_;
  std::string partial_;
  bool after_return_ = false;
};

// Those of `lines`, each ended by a newline and begun by `prefix_size` bytes that do not count, that hold one of
// `filters`. Pure.
std::string LinesThatHold(std::string_view lines, size_t prefix_size, const std::vector<std::string>& filters);

// Adds what was written next to the end of a text, as a terminal would show it: what a carriage return goes back over
// is gone, so that log lines are not lost among a progress bar's. `returned`: the text ended with such a return. Pure.
void AppendAsShown(std::string& text, std::string_view bytes, bool& returned);

// The end of a text that fits `limit` bytes, as valid UTF-8 that does not start within a line if it holds a whole one.
// Pure.
std::string TailForPeople(std::string_view bytes, size_t limit);

class Streams;

// A terminal's settings as they were, put back at the end: a debugger that was killed has left its own.
class TerminalSettings {
 public:
  explicit TerminalSettings(int fd);
  TerminalSettings(const TerminalSettings&) = delete;
  TerminalSettings& operator=(const TerminalSettings&) = delete;
  ~TerminalSettings();

 private:
  struct Saved;
  const int fd_;
  std::unique_ptr<Saved> saved_;  // null: no terminal
};

// The streams of one life of one worker. Its descriptors are for the worker; the rest goes on behind it until nobody
// holds the other ends any more, also after this object is gone.
class WorkerStreams {
 public:
  WorkerStreams(const WorkerStreams&) = delete;
  WorkerStreams& operator=(const WorkerStreams&) = delete;
  ~WorkerStreams();

  int stdin_fd() const { return stdin_fd_; }
  int stdout_fd() const { return stdout_fd_; }
  int stderr_fd() const { return stderr_fd_; }
  // The file that the worker writes as that stream (1: stdout, 2: stderr); empty: none.
  const std::string& FileOf(int stream) const { return files_[stream - 1]; }
  // Which of them are such files: 1: stdout, 2: stderr, 3: both.
  int log_streams() const { return (files_[0].empty() ? 0 : 1) | (files_[1].empty() ? 0 : 2); }
  // The worker has its descriptors: ours of them are closed, else the end of file would never come.
  void CloseWorkerEnds();

  // Takes what the worker has written until now and returns the tail of its stderr. Never waits: grandchildren may hold
  // the other end for ever.
  std::string LastWords();

 private:
  friend class Streams;
  explicit WorkerStreams(Streams& streams) : streams_(streams) {}

  Streams& streams_;
  int stdin_fd_ = -1;
  int stdout_fd_ = -1;
  int stderr_fd_ = -1;
  Fd owned_stdout_;
  Fd owned_stderr_;
  Fd stderr_file_;      // for reading; where stderr is redirected
  uint64_t relay_ = 0;  // where stderr is ours
  std::shared_ptr<const std::string> relayed_;
  uint64_t tails_[2] = {};
  std::string files_[2];
};

class Streams {
 public:
  struct Options {
    int stdin_fd = 0;
    int stdout_fd = 1;
    int stderr_fd = 2;
    std::string tmp_dir = "/tmp";
    std::string hostname;
    std::function<void(const std::string&)> on_warning;  // each kind once (see Warning)
    // Nobody reads our stdout or our stderr any more, in a sentence; at most once for each. From the loop.
    std::function<void(const std::string&)> on_reader_gone;
  };

  Streams(EventLoop& loop, const LaunchConfig& config, Options options);
  Streams(const Streams&) = delete;
  Streams& operator=(const Streams&) = delete;
  // Takes what is there to be read, writes out what the console takes in a bounded time.
  ~Streams();

  // For a new life of that local rank. Never fails: what cannot be had is replaced (see above).
  std::unique_ptr<WorkerStreams> Open(int rank, int local_rank, uint32_t restart_count);

  // Our terminal has another size now: so have those of the workers.
  void Resize();

  // Of that worker; empty where there is none (--log-dir=/dev/null, or the directory cannot be made).
  std::string ErrorFilePath(uint32_t restart_count, int local_rank);

  // The directory of this run's log files, made where it is not there yet. NotFound with --log-dir=/dev/null.
  StatusOr<std::string> RunDir();

  // Onto our stderr, in order with what comes from the workers.
  void Say(const std::string& text) { stderr_console_->Write(text); }

 private:
  friend class WorkerStreams;

  // A worker's stderr on its way to ours.
  struct Relay {
    Fd source;
    bool shown = true;
    bool watched = false;
    bool is_terminal = false;
    uint32_t life = 0;
    int rank = 0;
    // The end of what went by, at least the last kLastWordsMax bytes. Shared: the end of file may come before the
    // worker's.
    std::shared_ptr<std::string> last = std::make_shared<std::string>();
    bool returned = false;  // AppendAsShown's
  };
  // A file that grows, on its way to the console.
  struct Tail {
    Fd file;
    int watch = -1;       // inotify's number
    bool behind = false;  // there may be more than has been taken
    bool ending = false;  // its worker is gone: over when all is taken
    Console* console = nullptr;
    LineCutter cutter;
    std::shared_ptr<Console> filtered;  // null: no filters
    const std::vector<std::string>* filters = nullptr;
  };

  // What one line says for all ranks and attempts.
  enum class Warning {
    kNoFile,    // a folder or a file cannot be made: no error file, and output goes to the console
    kNotShown,  // --tee cannot follow a file
    kNoCopy,    // --duplicate-*-filters cannot open theirs
  };

  struct LogFile {
    Fd write_end;
    std::string path;
  };
  StatusOr<LogFile> OpenFile(const std::string& name, uint32_t restart_count, int local_rank);
  void OpenStdout(WorkerStreams& worker, int rank, int local_rank, uint32_t restart_count);
  void OpenStderr(WorkerStreams& worker, int rank, int local_rank, uint32_t restart_count);
  uint64_t StartRelay(Fd source, bool shown, bool is_terminal);
  uint64_t StartTail(const std::string& path, int stream, int rank, int local_rank);
  std::shared_ptr<Console> FilteredFile(const std::string& log_path, int stream);
  static void Show(Tail& tail, const std::string& lines);
  void LendTerminal(WorkerStreams& worker);
  void WatchRelay(uint64_t id, Relay& relay);
  void OnRelay(uint64_t id);
  bool ReadRelay(Relay& relay, size_t limit);
  void ShowRest(const Relay& relay);
  void EndRelay(uint64_t id);
  void OnInotify();
  void ReadTail(uint64_t id);
  void EndTail(uint64_t id);
  void OnRoom();
  void DrainTails();
  bool Shown(int local_rank) const;
  void WarnOnce(Warning kind, const std::string& text);
  void OnReaderGone(int stream);

  EventLoop& loop_;
  const LaunchConfig config_;
  const Options options_;
  const bool stderr_is_terminal_;
  std::unique_ptr<TerminalSettings> terminal_;  // where a rank has it
  LogDirs log_dirs_;
  Fd null_;
  std::unique_ptr<Console> stdout_console_;
  std::unique_ptr<Console> stderr_console_;
  ConsoleReader stdout_reader_;
  ConsoleReader stderr_reader_;
  Tracebacks tracebacks_;
  Fd inotify_;
  uint64_t next_id_ = 1;
  std::map<uint64_t, Relay> relays_;
  std::map<uint64_t, Tail> tails_;
  std::map<int, uint64_t> tail_by_watch_;
  std::map<std::string, std::weak_ptr<Console>> filtered_files_;  // by path
  EventLoop::TimerId resume_{};
  std::set<Warning> warned_;
};

}  // namespace phalanx::agent
