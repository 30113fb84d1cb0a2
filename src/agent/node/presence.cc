#include "agent/node/presence.h"

#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

#include "base/clock.h"
#include "base/listen_tcp.h"
#include "base/socket_address.h"

namespace phalanx::agent {
namespace {

constexpr int64_t kPauseMs = 100;

}  // namespace

StatusOr<std::unique_ptr<PresencePort>> PresencePort::Open(EventLoop& loop, const std::string& address,
                                                           const std::string& node_id, uint16_t first, uint16_t last) {
  Status failed;
  for (int port = first; port <= last; ++port) {
    PHX_ASSIGN_OR_RETURN(SocketAddress at, ParseIp(address));
    at.set_port(static_cast<uint16_t>(port));
    const char* what = "";
    Fd socket = ListenTcp(&at, false, &what);
    if (socket.valid()) {
      return std::unique_ptr<PresencePort>(new PresencePort(loop, std::move(socket), at.port(), node_id));
    }
    failed = ErrnoStatus(errno, what);
  }
  return failed;
}

PresencePort::PresencePort(EventLoop& loop, Fd socket, uint16_t port, std::string node_id)
    : loop_(loop), socket_(std::move(socket)), port_(port), node_id_(std::move(node_id)) {
  Listen();
}

PresencePort::~PresencePort() {
  loop_.Cancel(again_);
  loop_.Unwatch(socket_.get());
}

void PresencePort::Listen() {
  loop_.Watch(socket_.get(), EPOLLIN, [this](uint32_t) { Accept(); });
}

// Whoever it was has its answer. One that cannot be told the id, so short a text, takes the end for it.
void PresencePort::Accept() {
  const Fd caller(accept4(socket_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (caller.valid()) {
    [[maybe_unused]] const ssize_t told = send(caller.get(), node_id_.data(), node_id_.size(), MSG_NOSIGNAL);
    return;
  }
  if (errno == EAGAIN || errno == ECONNABORTED || errno == EINTR) return;
  // No file can be opened now: the caller waits in the queue, and would wake this loop again and again.
  loop_.Unwatch(socket_.get());
  again_ = loop_.At(MonotonicMs() + kPauseMs, [this] { Listen(); });
}

}  // namespace phalanx::agent
