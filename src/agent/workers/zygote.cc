#include "agent/workers/zygote.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <array>
#include <utility>

#include "agent/output/streams.h"
#include "base/check.h"
#include "base/pipe.h"

namespace phalanx::agent {
namespace {

// An import that takes longer (a dead file server) would keep workers waiting that a cold start might serve.
constexpr int64_t kReadyWithinMs = 120'000;
constexpr size_t kWordsMax = 2'000;

}  // namespace

StatusOr<std::unique_ptr<Zygote>> Zygote::Start(EventLoop& loop, Reaper& reaper, Guard* guard, SpawnSpec command,
                                                const std::string& preload, Events events) {
  PHX_ASSIGN_OR_RETURN(auto ends, Channel::MakePair());
  PHX_ASSIGN_OR_RETURN(Pipe words, MakePipe());
  DoNotBlock(words.reader);
  std::unique_ptr<Zygote> zygote(new Zygote(loop, reaper, guard, std::move(events)));
  Zygote* const self = zygote.get();
  self->words_ = std::move(words.reader);
  const Fd words_writer = std::move(words.writer);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));
  command.stdin_fd = null.get();
  command.stdout_fd = words_writer.get();
  command.stderr_fd = words_writer.get();
  command.extra_fds = {ends.second.get()};
  PHX_ASSIGN_OR_RETURN(Child child, Spawn(command));

  self->pid_ = child.pid;
  if (guard != nullptr) guard->Add(child.pid);
  reaper.Await(std::move(child), [self](const ProcessEnd& end) { self->OnProcessEnd(end); });
  loop.Watch(self->words_.get(), EPOLLIN, [self](uint32_t) { self->ReadWords(); });
  Channel::Events channel_events;
  channel_events.on_message = [self](const PeerMessage& message) { self->OnMessage(message); };
  // It has ended, or ends now; OnProcessEnd tells. No fork is asked of it meanwhile: a few that fail at once would look
  // like a machine that can fork no more.
  channel_events.on_closed = [self](const Status& why) {
    self->ready_ = false;
    if (!absl::IsUnavailable(why)) return self->GiveUp(fmt::format("it said {}", Message(why)));
    if (self->pid_ != 0) kill(self->pid_, SIGKILL);
  };
  self->channel_ = std::make_unique<Channel>(loop, std::move(ends.first), std::move(channel_events));
  self->channel_->Send(preload);
  self->timer_ = loop.At(loop.Now() + kReadyWithinMs, [self] {
    if (!self->ready_) self->GiveUp(fmt::format("its imports took more than {} s", kReadyWithinMs / 1000));
  });
  return zygote;
}

Zygote::~Zygote() {
  loop_.Cancel(timer_);
  if (words_.valid()) loop_.Unwatch(words_.get());
  if (pid_ == 0) return;
  reaper_.Forget(pid_);
  kill(pid_, SIGKILL);
  if (guard_ != nullptr) guard_->Remove(pid_);
}

void Zygote::Fork(uint64_t id, bool ahead, Fd spare_end) {
  PHX_CHECK(ready_, "a fork is asked of a zygote that is not ready");
  std::vector<Fd> fds;
  fds.push_back(std::move(spare_end));
  JsonObject fork;
  fork.Add("type", "fork").Add("id", static_cast<int64_t>(id)).Add("ahead", ahead);
  channel_->Send(fork.Text(), std::move(fds));
}

void Zygote::GiveUp(const std::string& reason) {
  if (pid_ == 0) return;
  ready_ = false;
  if (!std::exchange(said_why_, true)) end_ = ZygoteEnd{ZygoteEnd::Kind::kDied, "", reason};
  kill(pid_, SIGKILL);
}

void Zygote::OnMessage(const PeerMessage& message) {
  if (std::holds_alternative<ZygoteReady>(message)) {
    if (pid_ == 0 || std::exchange(ready_, true)) return;  // it may have ended since
    loop_.Cancel(timer_);
    const auto on_ready = events_.on_ready;
    on_ready();
  } else if (const auto* failed_fork = std::get_if<ForkFailed>(&message)) {
    const auto on_fork_failed = events_.on_fork_failed;
    on_fork_failed(failed_fork->id, failed_fork->reason);
  } else if (const auto* tainted = std::get_if<ZygoteTainted>(&message)) {
    end_ = ZygoteEnd{ZygoteEnd::Kind::kTainted, tainted->module, tainted->why};
    said_why_ = true;
  } else if (const auto* failed = std::get_if<ZygoteFailed>(&message)) {
    end_ = ZygoteEnd{ZygoteEnd::Kind::kFailed, "", failed->reason};
    said_why_ = true;
  } else {
    GiveUp("it spoke as a worker");
  }
}

void Zygote::ReadWords() {
  std::array<char, 4096> buffer;
  const ssize_t n = read(words_.get(), buffer.data(), buffer.size());
  if (n < 0 && errno == EAGAIN) return;
  if (n <= 0) {
    loop_.Unwatch(words_.get());
    words_.Reset();
    return;
  }
  last_words_.append(buffer.data(), static_cast<size_t>(n));
  if (last_words_.size() > 2 * kWordsMax) last_words_.erase(0, last_words_.size() - kWordsMax);
}

void Zygote::OnProcessEnd(const ProcessEnd& end) {
  pid_ = 0;
  ready_ = false;
  if (guard_ != nullptr) guard_->Remove(end.pid);
  channel_->ReceiveNow();  // why it ended may still be on its way
  if (words_.valid()) ReadWords();
  if (!said_why_) {
    const std::string how = end.signal != 0 ? fmt::format("killed by signal {}", end.signal)
                                            : fmt::format("ended with exit code {}", end.exit_code);
    const std::string words = TailForPeople(last_words_, kWordsMax);
    end_.reason = words.empty() ? how : fmt::format("{}; its last words: {}", how, words);
  }
  const auto on_ended = events_.on_ended;
  const ZygoteEnd told = end_;
  on_ended(told);
}

}  // namespace phalanx::agent
