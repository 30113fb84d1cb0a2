#include "base/process/signals.h"

#include <pthread.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <unistd.h>

#include "base/check.h"

namespace phalanx {

SignalSource::SignalSource(EventLoop& loop, const std::set<int>& signals, std::function<void(int)> on_signal)
    : loop_(loop), on_signal_(std::move(on_signal)) {
  sigset_t set;
  sigemptyset(&set);
  for (const int signal : signals) sigaddset(&set, signal);
  const int rc = pthread_sigmask(SIG_BLOCK, &set, nullptr);
  PHX_CHECK(rc == 0, "pthread_sigmask failed");
  fd_ = Fd(signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK));
  PHX_CHECK(fd_.valid(), "signalfd failed");
  loop_.Watch(fd_.get(), EPOLLIN, [this](uint32_t) { Read(); });
}

SignalSource::~SignalSource() { loop_.Unwatch(fd_.get()); }

// One at a time: the callback may end this source. What is left is readable still.
void SignalSource::Read() {
  signalfd_siginfo info{};
  if (read(fd_.get(), &info, sizeof info) == static_cast<ssize_t>(sizeof info)) {
    const auto on_signal = on_signal_;
    on_signal(static_cast<int>(info.ssi_signo));
  }
}

bool IsIgnored(int signal) {
  struct sigaction action {};
  return sigaction(signal, nullptr, &action) == 0 && action.sa_handler == SIG_IGN;
}

}  // namespace phalanx
