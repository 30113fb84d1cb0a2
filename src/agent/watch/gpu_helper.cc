#include "agent/watch/gpu_helper.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <utility>

#include "agent/output/streams.h"
#include "base/pipe.h"
#include "base/signal_name.h"

namespace phalanx::agent::watch {
namespace {

constexpr size_t kShownBytes = 200;

}  // namespace

StatusOr<std::unique_ptr<GpuHelper>> GpuHelper::Start(EventLoop& loop, Reaper& reaper, const std::string& python,
                                                      const std::map<std::string, std::string>& env, int64_t every_ms,
                                                      Events events) {
  PHX_ASSIGN_OR_RETURN(Pipe alive, MakePipe());
  PHX_ASSIGN_OR_RETURN(Pipe lines, MakePipe());
  SpawnSpec spec;
  spec.program = python;
  spec.args = {python, "-u", "-m", "phalanx.node_watch", fmt::format("{}", every_ms)};
  spec.env = env;
  spec.stdin_fd = alive.reader.get();
  spec.stdout_fd = lines.writer.get();
  spec.stderr_fd = lines.writer.get();
  PHX_ASSIGN_OR_RETURN(Child child, Spawn(spec));
  std::unique_ptr<GpuHelper> helper(new GpuHelper(loop, reaper, std::move(events)));
  GpuHelper* const self = helper.get();
  self->pid_ = child.pid;
  self->alive_ = std::move(alive.writer);
  self->lines_ = std::move(lines.reader);
  DoNotBlock(self->lines_);
  loop.Watch(self->lines_.get(), EPOLLIN, [self](uint32_t) { self->ReadNow(); });
  reaper.Await(std::move(child), [self](const ProcessEnd& end) {
    self->pid_ = 0;
    self->ReadNow();
    self->Close();
    const std::string how = end.signal != 0 ? SignalName(end.signal) : fmt::format("exit code {}", end.exit_code);
    self->events_.on_end(self->last_line_.empty() ? how : fmt::format("{}: {}", how, self->last_line_));
  });
  return helper;
}

GpuHelper::~GpuHelper() {
  Close();
  if (pid_ == 0) return;
  reaper_.Forget(pid_);
  kill(-pid_, SIGKILL);
}

void GpuHelper::Close() {
  if (lines_.valid()) loop_.Unwatch(lines_.get());
  lines_.Reset();
}

void GpuHelper::ReadNow() {
  std::array<char, 16 << 10> buffer;
  while (lines_.valid()) {
    const ssize_t n = read(lines_.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) return Close();
    text_.append(buffer.data(), static_cast<size_t>(n));
    TakeLines();
  }
}

void GpuHelper::TakeLines() {
  while (true) {
    const size_t end = text_.find('\n');
    if (end == std::string::npos && text_.size() <= kMaxGpuLineBytes) return;
    const std::string line = text_.substr(0, end);
    text_.erase(0, end == std::string::npos ? end : end + 1);
    const StatusOr<GpuLine> parsed = ParseGpuLine(line);
    if (parsed.ok()) {
      events_.on_line(*parsed);
      continue;
    }
    // A traceback, or what a library prints: of the former the last line is the exception.
    if (!line.empty()) last_line_ = TailForPeople(line, kShownBytes);
  }
}

}  // namespace phalanx::agent::watch
