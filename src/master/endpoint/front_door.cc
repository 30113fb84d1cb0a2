#include "master/endpoint/front_door.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <cerrno>
#include <system_error>
#include <utility>

#include "base/listen_tcp.h"
#include "base/net.h"
#include "base/signals_blocked.h"
#include "master/endpoint/first_bytes.h"
#include "wire/closed_door.h"

namespace phalanx::master {
namespace {

constexpr int64_t kAcceptPauseMs = 100;
// Of one that was sent away, so much is read until it goes.
constexpr size_t kFarewellBytes = 64 << 10;

// Whether nothing but this family can be there: a machine without IPv6.
bool NoSuchFamily(int error_number) { return error_number == EAFNOSUPPORT || error_number == EADDRNOTAVAIL; }

StatusOr<Fd> ListenOnHost(const std::string& host, SocketAddress* address) {
  const uint16_t port = address->port();
  const char* failed = "";
  Fd fd;
  if (address->wildcard()) {
    SocketAddress both = *ParseIp("::");
    both.set_port(port);
    fd = ListenTcp(&both, true, &failed);
    if (fd.valid()) *address = both;
  }
  const bool other_way = !address->wildcard() || (NoSuchFamily(errno) && address->family() == AF_INET);
  if (!fd.valid() && other_way) fd = ListenTcp(address, false, &failed);
  if (fd.valid()) return fd;
  const int error = errno;
  const std::string where = JoinHostPort(host, port);
  if (error == EADDRINUSE) return absl::AlreadyExistsError(fmt::format("{} is in use by another program", where));
  return ErrnoStatus(error, fmt::format("cannot {} at {}", failed, where));
}

}  // namespace

StatusOr<std::unique_ptr<FrontDoor>> FrontDoor::Listen(const std::vector<std::string>& hosts, uint16_t port) {
  std::vector<Fd> listeners;
  SocketAddress bound_to;
  for (const std::string& host : hosts) {
    StatusOr<SocketAddress> address = ParseIp(host);
    if (!address.ok()) {
      return absl::InvalidArgumentError(fmt::format("'{}' is not an IP address of this machine", host));
    }
    address->set_port(port);
    PHX_ASSIGN_OR_RETURN(Fd listener, ListenOnHost(host, &*address));
    port = address->port();
    bound_to = *address;
    listeners.push_back(std::move(listener));
  }
  std::unique_ptr<FrontDoor> door(new FrontDoor(port));
  door->listeners_ = std::move(listeners);
  if (hosts.size() == 1) door->bound_to_ = bound_to;
  return door;
}

Status FrontDoor::Start(Events events) {
  events_ = std::move(events);
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] {
      pthread_setname_np(pthread_self(), "phx-door");
      ListenAgain();
      loop_.Run();
      visitors_.clear();
      relays_.clear();
    });
  } catch (const std::system_error& error) {
    return ErrnoStatus(error.code().value(), "cannot start the thread of the endpoint");
  }
  return absl::OkStatus();
}

FrontDoor::~FrontDoor() {
  if (!thread_.joinable()) return;
  loop_.Post([this] { loop_.Stop(); });
  thread_.join();
}

// --- what counts --------------------------------------------------------------------------------------------------

// What waits to be accepted connected before: a rank of an older round may be among it, whose node has said since that
// it is gone.
void FrontDoor::Post(std::function<void()> task) {
  loop_.Post([this, task = std::move(task)] {
    if (listen_again_ == EventLoop::TimerId{}) AcceptAll();
    task();
  });
}

void FrontDoor::ServeStore(const std::string& ip, uint16_t store_port) {
  const StatusOr<SocketAddress> parsed = ParseIp(ip);
  if (!parsed.ok()) return ServeNoStore();  // the door of the master lets no such address in
  Post([this, address = *parsed, store_port] {
    CloseRelays();
    store_ = address;
    store_.set_port(store_port);
    serving_ = true;
  });
}

void FrontDoor::ServeNoStore() {
  Post([this] { CloseRelays(); });
}

void FrontDoor::LetIn(std::vector<std::string> ips, bool allowed) {
  Post([this, ips = std::move(ips), allowed] {
    for (const std::string& ip : ips) {
      const StatusOr<SocketAddress> address = ParseIp(ip);
      if (!address.ok()) continue;  // nobody comes from what is none
      if (allowed) {
        let_in_.insert(address->ip());
      } else {
        let_in_.erase(address->ip());
      }
    }
  });
}

void FrontDoor::LetInLocal() {
  Post([this] { local_let_in_ = true; });
}

void FrontDoor::SetRoom(EndpointRoom room) {
  Post([this, room = std::move(room)] { room_ = room; });
}

void FrontDoor::CloseRelays() {
  relays_.clear();
  let_in_.clear();
  local_let_in_ = false;
  serving_ = false;
  ++turn_;
}

std::string FrontDoor::WhyNot(const Visitor& visitor) const {
  if (!serving_) return "no round lives";
  if (let_in_.contains(visitor.peer.ip())) return "";
  SocketAddress local;
  local.length = sizeof local.storage;
  const bool own = visitor.peer.loopback() ||
                   (getsockname(visitor.fd.get(), local.get(), &local.length) == 0 && local.ip() == visitor.peer.ip());
  if (own && local_let_in_) return "";
  return "the live round has no node there, or its older ranks are not known to be gone";
}

// --- visitors -----------------------------------------------------------------------------------------------------

void FrontDoor::ListenAgain() {
  listen_again_ = {};
  for (const Fd& fd : listeners_) {
    loop_.Watch(fd.get(), EPOLLIN, [this, listener = fd.get()](uint32_t) {
      while (AcceptOne(listener)) {
      }
    });
  }
}

void FrontDoor::AcceptAll() {
  for (const Fd& fd : listeners_) {
    while (AcceptOne(fd.get())) {
    }
  }
}

bool FrontDoor::AcceptOne(int listener) {
  SocketAddress peer;
  peer.length = sizeof peer.storage;
  Fd fd(accept4(listener, peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ECONNABORTED || errno == EINTR) return true;
    if (errno == EAGAIN || listen_again_ != EventLoop::TimerId{}) return false;
    // Out of descriptors or memory: the listener stays ready, and trying at once again would spin.
    events_.on_refused(Message(ErrnoStatus(errno, "the endpoint cannot accept connections")));
    for (const Fd& each : listeners_) loop_.Unwatch(each.get());
    listen_again_ = loop_.At(loop_.Now() + kAcceptPauseMs, [this] { ListenAgain(); });
    return false;
  }
  peer.Unmap();
  const uint64_t id = next_id_++;
  Visitor& visitor = visitors_[id];
  visitor.fd = std::move(fd);
  visitor.peer = peer;
  visitor.why_not = WhyNot(visitor);
  visitor.why_foreign = local_peers_.WhyForeign(peer, visitor.fd.get());
  visitor.turn = turn_;
  if (static_cast<uint64_t>(visitor.fd.get()) >= room_.files) {
    TurnAway(id, room_.why_full);
    return true;
  }
  visitor.timer = loop_.At(loop_.Now() + kFirstBytesMs, [this, id] {
    TurnAway(id, fmt::format("it did not say who it is for {} ms", kFirstBytesMs));
  });
  loop_.Watch(visitor.fd.get(), EPOLLIN | EPOLLRDHUP,
              [this, id](uint32_t events) { Look(id, (events & (EPOLLRDHUP | EPOLLHUP | EPOLLERR)) != 0); });
  Look(id, false);
  return true;
}

// Bytes are looked at and left where they are. Until more have come than were seen, the socket is not ready.
void FrontDoor::Look(uint64_t id, bool ended) {
  Visitor& visitor = visitors_.at(id);
  char bytes[kFirstBytes];
  const ssize_t n = recv(visitor.fd.get(), bytes, sizeof bytes, MSG_PEEK);
  if (n < 0 && (errno == EAGAIN || errno == EINTR) && !ended) return;
  if (n <= 0) return Drop(id);
  switch (WhoCalls({bytes, static_cast<size_t>(n)})) {
    case Caller::kStranger:
      return TurnAway(id, "it is neither an agent nor a client of the store");
    case Caller::kUnknown: {
      if (ended) return Drop(id);
      const int next = static_cast<int>(n) + 1;
      setsockopt(visitor.fd.get(), SOL_SOCKET, SO_RCVLOWAT, &next, sizeof next);
      return;
    }
    case Caller::kStore:
      return Admit(id);
    case Caller::kTls:
      if (!events_.on_tls) return TurnAway(id, "it speaks TLS, and this master has no credentials");
      AwaitProof(visitor.peer.Text());
      return events_.on_tls(TakeOver(id));
    case Caller::kPlain:
      if (!events_.on_plain) return SendAway(id, "it speaks in clear, and this job is closed");
      if (!visitor.why_foreign.empty()) return SendAway(id, visitor.why_foreign);
      return events_.on_plain(TakeOver(id));
  }
}

void FrontDoor::Admit(uint64_t id) {
  Visitor& visitor = visitors_.at(id);
  if (!visitor.why_not.empty()) return TurnAway(id, visitor.why_not);
  if (!visitor.why_foreign.empty()) return TurnAway(id, visitor.why_foreign);
  if (visitor.turn != turn_) return TurnAway(id, "the round that it came to is over");
  auto relay = std::make_unique<Relay>(loop_, TakeOver(id), [this, id] { relays_.erase(id); });
  if (relay->Start(store_, bound_to_)) relays_.emplace(id, std::move(relay));
}

Fd FrontDoor::TakeOver(uint64_t id) {
  Visitor& visitor = visitors_.at(id);
  const int one = 1;
  setsockopt(visitor.fd.get(), SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
  loop_.Unwatch(visitor.fd.get());
  Fd fd = std::move(visitor.fd);
  Drop(id);
  return fd;
}

void FrontDoor::TurnAway(uint64_t id, const std::string& why) {
  events_.on_refused(fmt::format("the endpoint refused {}: {}", visitors_.at(id).peer.Text(), why));
  Drop(id);
}

void FrontDoor::AwaitProof(const std::string& peer) {
  if (proving_.size() >= kProvingMax) return;
  const auto [at, is_new] = proving_.try_emplace(peer);
  if (!is_new) loop_.Cancel(at->second);
  // Behind what waits to be told: this machine may have stood still.
  at->second = loop_.At(loop_.Now() + kProofMs, [this, peer] { loop_.Post([this, peer] { NotProved(peer); }); });
}

void FrontDoor::NotProved(const std::string& peer) {
  if (proving_.erase(peer) == 0) return;
  events_.on_refused(
      fmt::format("the endpoint refused {}: it said nothing that proves that it belongs to the job", peer));
}

void FrontDoor::Proved(const std::string& peer) {
  Post([this, peer] {
    const auto at = proving_.find(peer);
    if (at == proving_.end()) return;
    loop_.Cancel(at->second);
    proving_.erase(at);
  });
}

void FrontDoor::SendAway(uint64_t id, const std::string& why) {
  Visitor& visitor = visitors_.at(id);
  events_.on_refused(fmt::format("the endpoint refused {}: {}", visitor.peer.Text(), why));
  const int fd = visitor.fd.get();
  const std::string words = wire::ClosedAnswer();
  const bool told = send(fd, words.data(), words.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(words.size());
  if (!told || shutdown(fd, SHUT_WR) != 0) return Drop(id);
  const int one = 1;
  setsockopt(fd, SOL_SOCKET, SO_RCVLOWAT, &one, sizeof one);
  loop_.Cancel(visitor.timer);
  visitor.timer = loop_.At(loop_.Now() + kFirstBytesMs, [this, id] { Drop(id); });
  // With bytes unread the kernel would reset the connection, and the words be lost.
  loop_.Unwatch(fd);
  loop_.Watch(fd, EPOLLIN | EPOLLRDHUP, [this, id, fd, left = kFarewellBytes](uint32_t) mutable {
    char bytes[4096];
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    if (n < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (n <= 0 || static_cast<size_t>(n) >= left) return Drop(id);
    left -= static_cast<size_t>(n);
  });
}

void FrontDoor::Drop(uint64_t id) {
  const auto at = visitors_.find(id);
  loop_.Cancel(at->second.timer);
  if (at->second.fd.valid()) loop_.Unwatch(at->second.fd.get());
  visitors_.erase(at);
}

}  // namespace phalanx::master
