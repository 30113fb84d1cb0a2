#include "agent/checks/helper.h"

#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <utility>
#include <vector>

#include "agent/checks/lines.h"
#include "agent/core/core.h"
#include "agent/output/streams.h"
#include "agent/workers/launch.h"
#include "base/clock.h"
#include "base/pipe.h"

namespace phalanx::agent::checks {
namespace {

constexpr size_t kLastWordsBytes = 4 << 10;
constexpr size_t kShownBytes = 300;
// It ends by itself when its orders are over.
constexpr int64_t kEndByItselfMs = 1'000;

struct Pipes {
  Pipe orders;
  Pipe lines;
  Pipe words;
};

StatusOr<Pipes> MakePipes() {
  PHX_ASSIGN_OR_RETURN(Pipe orders, MakePipe());
  PHX_ASSIGN_OR_RETURN(Pipe lines, MakePipe());
  PHX_ASSIGN_OR_RETURN(Pipe words, MakePipe());
  return Pipes{std::move(orders), std::move(lines), std::move(words)};
}

// Of a traceback that is the exception.
std::string LastLine(const std::string& words) {
  const size_t end = words.find_last_not_of(" \n");
  if (end == std::string::npos) return "";
  const size_t begin = words.rfind('\n', end);
  return TailForPeople(words.substr(begin + 1, end - begin), kShownBytes);
}

// What is there. False: it is over.
bool ReadInto(const Fd& fd, std::string& text) {
  std::array<char, 16 << 10> buffer;
  while (true) {
    const ssize_t n = read(fd.get(), buffer.data(), buffer.size());
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return true;
    if (n <= 0) return false;
    text.append(buffer.data(), static_cast<size_t>(n));
    if (text.size() > 2 * kMaxLineBytes) return true;  // the rest when this is taken
  }
}

}  // namespace

StatusOr<std::unique_ptr<CheckHelper>> CheckHelper::Start(EventLoop& loop, Reaper& reaper, const std::string& python,
                                                          const std::map<std::string, std::string>& env,
                                                          OnEvent on_event) {
  PHX_ASSIGN_OR_RETURN(Pipes pipes, MakePipes());
  SpawnSpec spec;
  spec.program = python;
  spec.args = {python, "-u", "-m", "phalanx.node_check"};
  spec.env = env;
  spec.stdin_fd = pipes.orders.reader.get();
  spec.stdout_fd = pipes.lines.writer.get();
  spec.stderr_fd = pipes.words.writer.get();
  PHX_ASSIGN_OR_RETURN(Child child, Spawn(spec));
  std::unique_ptr<CheckHelper> helper(new CheckHelper(loop, reaper, std::move(on_event)));
  helper->pid_ = child.pid;
  reaper.Await(std::move(child), [self = helper.get()](const ProcessEnd& end) { self->OnProcessEnd(end); });
  helper->Listen(std::move(pipes.orders.writer), std::move(pipes.lines.reader), std::move(pipes.words.reader));
  return helper;
}

StatusOr<std::unique_ptr<CheckHelper>> CheckHelper::StartFrom(EventLoop& loop, Reaper& reaper, Spare spare,
                                                              const std::map<std::string, std::string>& env,
                                                              OnEvent on_event) {
  if (!reaper.Awaits(spare.pid)) return absl::UnavailableError("what was forked has ended");
  PHX_ASSIGN_OR_RETURN(Pipes pipes, MakePipes());
  std::vector<Fd> fds;
  fds.push_back(std::move(pipes.orders.reader));
  fds.push_back(std::move(pipes.lines.writer));
  fds.push_back(std::move(pipes.words.writer));
  std::unique_ptr<CheckHelper> helper(new CheckHelper(loop, reaper, std::move(on_event)));
  helper->pid_ = spare.pid;
  helper->channel_ = std::move(spare.channel);
  helper->channel_->Send(CheckMessage(env), std::move(fds));
  reaper.Retarget(spare.pid, [self = helper.get()](const ProcessEnd& end) { self->OnProcessEnd(end); });
  helper->Listen(std::move(pipes.orders.writer), std::move(pipes.lines.reader), std::move(pipes.words.reader));
  return helper;
}

void CheckHelper::Listen(Fd orders, Fd lines, Fd words) {
  orders_ = std::move(orders);
  lines_ = std::move(lines);
  words_ = std::move(words);
  for (const Fd* fd : {&orders_, &lines_, &words_}) DoNotBlock(*fd);
  loop_.Watch(lines_.get(), EPOLLIN, [this](uint32_t) { Read(); });
  loop_.Watch(words_.get(), EPOLLIN, [this](uint32_t) { ReadWords(); });
}

void CheckHelper::OnProcessEnd(const ProcessEnd& end) {
  pid_ = 0;
  if (words_.valid()) ReadWords();
  std::string why = fault_.empty() ? DescribeEnd(end.exit_code, end.signal) : fault_;
  const std::string said = LastLine(last_words_);
  if (fault_.empty() && !said.empty()) why += ": " + said;
  const OnEvent told = on_event_;
  told(checking::HelperEnded{std::move(why)});  // may destroy the helper
}

CheckHelper::~CheckHelper() {
  *alive_ = false;
  if (lines_.valid()) loop_.Unwatch(lines_.get());
  if (words_.valid()) loop_.Unwatch(words_.get());
  orders_.Reset();
  if (pid_ == 0) return;
  reaper_.Forget(pid_);
  loop_.At(MonotonicMs() + kEndByItselfMs, [&reaper = reaper_, pid = pid_] {
    if (reaper.Awaits(pid)) kill(-pid, SIGKILL);
  });
}

void CheckHelper::Give(const std::string& line) {
  size_t written = 0;
  while (written < line.size()) {
    const ssize_t n = write(orders_.get(), line.data() + written, line.size() - written);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return;  // it does not read, or is gone: the order's limit tells
    written += static_cast<size_t>(n);
  }
}

void CheckHelper::Read() {
  const bool more = ReadInto(lines_, text_);
  const std::shared_ptr<bool> alive = alive_;
  TakeLines();
  if (!*alive || more) return;
  loop_.Unwatch(lines_.get());
  lines_.Reset();
}

void CheckHelper::TakeLines() {
  const std::shared_ptr<bool> alive = alive_;
  const OnEvent told = on_event_;  // it outlives this object, which an event may end
  while (*alive && fault_.empty()) {
    const size_t end = text_.find('\n');
    if (end == std::string::npos && text_.size() <= kMaxLineBytes) return;
    const std::string line = text_.substr(0, end);
    text_.erase(0, end == std::string::npos ? end : end + 1);
    StatusOr<checking::Event> event = ParseLine(line);
    if (event.ok()) {
      told(*std::move(event));
      continue;
    }
    // Who does not keep to the protocol is not listened to. Its end is told.
    fault_ = fmt::format("it said what is no line of docs/formats/node-check.md ({}): {}", Message(event.status()),
                         TailForPeople(line.substr(0, kShownBytes), kShownBytes));
    if (pid_ != 0) kill(-pid_, SIGKILL);
  }
  if (*alive) text_.clear();
}

void CheckHelper::ReadWords() {
  const bool more = ReadInto(words_, last_words_);
  if (last_words_.size() > kLastWordsBytes) last_words_.erase(0, last_words_.size() - kLastWordsBytes);
  if (more) return;
  loop_.Unwatch(words_.get());
  words_.Reset();
}

}  // namespace phalanx::agent::checks
