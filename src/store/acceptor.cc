#include "store/acceptor.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace phalanx::store {
namespace {

constexpr int kAcceptsPerTurn = 256;
constexpr int64_t kPauseMs = 100;

Fd SpareFd() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

}  // namespace

Acceptor::Acceptor(EventLoop& loop, ListenSocket socket, Calls calls)
    : loop_(loop), socket_(std::move(socket)), calls_(std::move(calls)), spare_fd_(SpareFd()) {}

Acceptor::~Acceptor() {
  loop_.Cancel(listen_again_);
  for (const Fd& fd : socket_.fds()) loop_.Unwatch(fd.get());
}

void Acceptor::Listen() {
  listen_again_ = {};
  for (const Fd& fd : socket_.fds()) {
    loop_.Watch(fd.get(), EPOLLIN, [this, listener = fd.get()](uint32_t) { OnAcceptable(listener); });
  }
}

void Acceptor::OnAcceptable(int listener) {
  for (int i = 0; i < kAcceptsPerTurn && AcceptOne(listener); ++i) {
  }
}

bool Acceptor::AcceptOne(int listener) {
  SocketAddress peer;
  peer.length = sizeof peer.storage;
  Fd fd(accept4(listener, peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    const int error_number = errno;
    if (error_number == ECONNABORTED || error_number == EINTR) return true;
    return error_number != EAGAIN && OnError(listener, error_number);
  }
  peer.Unmap();
  calls_.accepted(std::move(fd), peer);
  return true;
}

// Out of descriptors that no limit could be raised for, or of memory.
bool Acceptor::OnError(int listener, int error_number) {
  if (error_number == EMFILE && calls_.raise_limit()) return true;
  calls_.failed(error_number);  // counted by the time that who is refused can see it
  if (error_number == EMFILE || error_number == ENFILE) {
    spare_fd_.Reset();
    Fd refused(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    refused.Reset();
    spare_fd_ = SpareFd();
  }
  if (listen_again_ != EventLoop::TimerId{}) return false;
  for (const Fd& fd : socket_.fds()) loop_.Unwatch(fd.get());
  listen_again_ = loop_.At(loop_.Now() + kPauseMs, [this] { Listen(); });
  return false;
}

}  // namespace phalanx::store
