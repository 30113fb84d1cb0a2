#include "master/endpoint/relay.h"

#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <utility>

namespace phalanx::master {
namespace {

constexpr size_t kPieceBytes = 64 << 10;

bool Transient(int error_number) { return error_number == EAGAIN || error_number == EINTR; }

}  // namespace

Relay::Relay(EventLoop& loop, Fd client, std::function<void()> on_over) : loop_(loop), on_over_(std::move(on_over)) {
  client_.fd = std::move(client);
}

Relay::~Relay() {
  loop_.Cancel(connect_timer_);
  for (const Side* side : {&client_, &store_}) {
    if (side->events != 0) loop_.Unwatch(side->fd.get());
  }
}

bool Relay::Start(const SocketAddress& store, const SocketAddress& from) {
  store_.fd.Reset(socket(store.family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!store_.fd.valid()) return false;
  const int on = 1;
  setsockopt(store_.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  setsockopt(client_.fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (from.family() == store.family() && !from.wildcard()) {
    setsockopt(store_.fd.get(), IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    SocketAddress any_port = from;
    any_port.set_port(0);
    if (bind(store_.fd.get(), any_port.get(), any_port.length) != 0) return false;
  }
  if (connect(store_.fd.get(), store.get(), store.length) != 0 && errno != EINPROGRESS) return false;
  connect_timer_ = loop_.At(loop_.Now() + kConnectMs, [this] { Over(); });
  store_.events = EPOLLOUT;
  loop_.Watch(store_.fd.get(), EPOLLOUT, [this](uint32_t) { OnConnecting(); });
  return true;
}

void Relay::OnConnecting() {
  int error_number = 0;
  socklen_t length = sizeof error_number;
  getsockopt(store_.fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &length);
  if (error_number != 0) return Over();
  loop_.Cancel(connect_timer_);
  loop_.Unwatch(store_.fd.get());
  store_.events = 0;
  UpdateInterest(client_, store_);
  UpdateInterest(store_, client_);
}

void Relay::OnEvents(Side& side, Side& other, uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0 && !Send(side)) return Over();
  if ((epoll_events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0 && !Receive(side, other)) return Over();
  // One side has ended, and the other has what it sent: a client of this protocol never half-closes.
  if ((side.ended && other.waiting.empty()) || (other.ended && side.waiting.empty())) return Over();
  UpdateInterest(side, other);
  UpdateInterest(other, side);
}

bool Relay::Receive(Side& from, Side& to) {
  if (from.ended || to.waiting.size() >= kMaxWaiting) return true;
  char piece[kPieceBytes];
  const ssize_t n = recv(from.fd.get(), piece, sizeof piece, 0);
  if (n < 0) return Transient(errno);
  if (n == 0) {
    from.ended = true;
    return true;
  }
  to.waiting.append(piece, static_cast<size_t>(n));
  return Send(to);
}

bool Relay::Send(Side& side) {
  if (side.waiting.empty()) return true;
  const ssize_t n = send(side.fd.get(), side.waiting.data(), side.waiting.size(), MSG_NOSIGNAL);
  if (n < 0) return Transient(errno);
  side.waiting.erase(0, static_cast<size_t>(n));
  return true;
}

void Relay::UpdateInterest(Side& side, const Side& other) {
  const bool reads = !side.ended && other.waiting.size() < kMaxWaiting;
  const uint32_t events = (reads ? EPOLLIN : 0u) | (side.waiting.empty() ? 0u : EPOLLOUT);
  if (events == side.events) return;
  if (events == 0) {  // a watch reports the end of the peer at any rate, again and again
    loop_.Unwatch(side.fd.get());
  } else {
    Side& peer = &side == &client_ ? store_ : client_;
    loop_.Watch(side.fd.get(), events, [this, &side, &peer](uint32_t now) { OnEvents(side, peer, now); });
  }
  side.events = events;
}

void Relay::Over() {
  const std::function<void()> over = std::exchange(on_over_, nullptr);
  if (over) over();
}

}  // namespace phalanx::master
