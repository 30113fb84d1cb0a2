#include "store/server.h"

#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/process/process.h"
#include "base/signals_blocked.h"
#include "store/room.h"
#include "store/server_impl.h"
#include "store/transient.h"

namespace phalanx::store {
namespace {

constexpr size_t kReceiveBytes = 256 << 10;

}  // namespace

StoreServer::Impl::Impl(ListenSocket socket, StoreOptions options, std::set<IpBytes> allowed)
    : options_(std::move(options)),
      allowed_(std::move(allowed)),
      acceptor_(loop_, std::move(socket),
                {[this](Fd fd, const SocketAddress& peer) { OnAccepted(std::move(fd), peer); },
                 [this] { return RaiseFilesLimit(); },
                 [this](int error_number) {
                   accept_errors_.Add(1);
                   if (!options_.on_refused) return;
                   options_.on_refused(Message(ErrnoStatus(error_number, "the store cannot accept connections")));
                 }}),
      engine_(options_.engine),
      buffer_(kReceiveBytes) {}

Status StoreServer::Impl::Start() {
  const SignalsBlocked blocked;
  try {
    thread_ = std::thread([this] { Serve(); });
  } catch (const std::system_error& error) {
    return ErrnoStatus(error.code().value(), "cannot start the store's thread");
  }
  return absl::OkStatus();
}

StoreServer::Impl::~Impl() {
  if (!thread_.joinable()) return;
  loop_.Post([this] { loop_.Stop(); });
  thread_.join();
}

void StoreServer::Impl::Serve() {
  pthread_setname_np(pthread_self(), "phx-store");
  acceptor_.Listen();
  loop_.Run();
  for (Connection& c : connections_) c.fd.Reset();
  relays_.clear();
}

StoreStats StoreServer::Impl::stats() const {
  StoreStats stats;
  stats.connections = connections_now_.get();
  stats.relays = relays_now_.get();
  stats.accepted = accepted_.get();
  stats.refused_peers = refused_peers_.get();
  stats.violations = violations_.get();
  stats.slow_readers = slow_readers_.get();
  stats.silent_peers = silent_peers_.get();
  stats.accept_errors = accept_errors_.get();
  stats.requests = requests_.get();
  stats.keys = keys_.get();
  stats.waiting = waiting_.get();
  stats.store_bytes = store_bytes_.get();
  stats.buffer_bytes = buffer_bytes_.get();
  stats.received_bytes = received_bytes_.get();
  stats.sent_bytes = sent_bytes_.get();
  return stats;
}

void StoreServer::Impl::Publish() {
  const EngineStats stats = engine_.stats();
  connections_now_.Set(stats.connections);
  relays_now_.Set(relays_.size() - free_relays_.size());
  violations_.Set(stats.violations + broken_relays_);
  requests_.Set(stats.requests);
  keys_.Set(stats.keys);
  waiting_.Set(stats.waiting);
  store_bytes_.Set(stats.store_bytes);
  buffer_bytes_.Set(stats.buffer_bytes);
}

// ---- accepting

void StoreServer::Impl::OnAccepted(Fd fd, const SocketAddress& peer) {
  if (const std::string why = WhyRefuse(peer, fd.get()); !why.empty()) return Refuse(peer.Text(), why);
  accepted_.Add(1);
  ++sockets_;
  const ConnectionId id = engine_.Open();
  Connection& c = ConnectionOf(id);
  c.fd = std::move(fd);
  c.peer = peer;
  c.events = EPOLLIN;
  c.greeting = GreetingTimer(id);
  loop_.Watch(c.fd.get(), EPOLLIN, [this, id](uint32_t events) { OnEvents(id, events); });
  Publish();
}

StoreServer::Impl::Connection& StoreServer::Impl::ConnectionOf(ConnectionId id) {
  if (id >= connections_.size()) connections_.resize(id + 1);
  return connections_[id];
}

// The rest of the process has taken more than was kept back for it: an agent with many workers has many files of its
// own. True where the limit has grown.
bool StoreServer::Impl::RaiseFilesLimit() {
  const uint64_t before = OpenFilesLimit();
  if (RaiseOpenFilesLimit(std::max(2 * before, FilesFor(2 * sockets_))) <= before) return false;
  room_ = 0;
  return true;
}

std::string StoreServer::Impl::WhyRefuse(const SocketAddress& peer, int fd) {
  if (std::string why = WhyFull(); !why.empty()) return why;
  if (std::string why = local_peers_.WhyForeign(peer, fd); !why.empty()) return why;
  if (peer.loopback() || allowed_.contains(peer.ip())) return "";
  SocketAddress local;
  local.length = sizeof local.storage;
  if (getsockname(fd, local.get(), &local.length) == 0 && local.ip() == peer.ip()) return "";
  return "its address is not of this round";
}

// A full store asks for files for twice as many, so that the limit is looked at rarely and raised no further than is
// needed.
std::string StoreServer::Impl::WhyFull() {
  if (std::string why = WhyTooMany(); !why.empty()) return why;
  if (options_.max_connections || sockets_ < room_) return "";
  const uint64_t files_limit = RaiseOpenFilesLimit(FilesFor(2 * sockets_));
  room_ = ConnectionsFor(files_limit);
  return sockets_ < room_ ? "" : FullText(sockets_, files_limit);
}

// Clients of relays need no file, but memory.
std::string StoreServer::Impl::WhyTooMany() const {
  const uint64_t connections = engine_.stats().connections;
  if (!options_.max_connections) return connections < kConnectionsMax ? "" : FullText(connections, UINT64_MAX);
  if (connections < *options_.max_connections) return "";
  return fmt::format("{} connections are open, all that it may have", connections);
}

void StoreServer::Impl::Refuse(const std::string& who, const std::string& why) {
  refused_peers_.Add(1);
  if (options_.on_refused) options_.on_refused(fmt::format("store refused {}: {}", who, why));
  Publish();
}

// ---- serving

void StoreServer::Impl::OnEvents(ConnectionId id, uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0) {
    // One helping of what was kept back a turn, so that others are served in between.
    if (engine_.HasBacklog(id) && engine_.WantsInput(id)) engine_.Resume(id);
    Flush(id);
    FlushChanged();
  } else if ((epoll_events & EPOLLIN) != 0) {
    Receive(id);
  } else if ((epoll_events & (EPOLLERR | EPOLLHUP)) != 0) {
    Drop(id);
  }
  Publish();
}

void StoreServer::Impl::Receive(ConnectionId id) {
  Connection& c = connections_[id];
  const ssize_t n = recv(c.fd.get(), buffer_.data(), buffer_.size(), 0);
  if (n < 0 && Transient(errno)) return;
  if (n <= 0) {
    Drop(id);
    return FlushChanged();
  }
  received_bytes_.Add(static_cast<uint64_t>(n));
  const std::string_view bytes(buffer_.data(), static_cast<size_t>(n));
  if (!std::exchange(c.has_spoken, true) && bytes.front() == Mux::kFirstByte) return BecomeRelay(id, bytes);
  engine_.Receive(id, bytes);
  FlushChanged();
}

// Dropping one connection may release others, which are flushed in the next go. A relay's clients are flushed together.
void StoreServer::Impl::FlushChanged() {
  do {
    for (engine_.TakeChanged(&changed_); !changed_.empty(); engine_.TakeChanged(&changed_)) {
      for (const ConnectionId id : changed_) {
        if (!engine_.IsOpen(id)) continue;
        connections_[id].relay == kNoRelay ? Flush(id) : JoinLine(id);
      }
    }
    flushing_relays_.clear();
    flushing_relays_.swap(dirty_relays_);
    for (const RelayId id : flushing_relays_) FlushRelay(id);
  } while (!flushing_relays_.empty());
}

void StoreServer::Impl::Flush(ConnectionId id) {
  Connection& c = connections_[id];
  const std::string_view output = engine_.Output(id);
  ssize_t sent = 0;
  if (!output.empty()) {
    sent = send(c.fd.get(), output.data(), output.size(), MSG_NOSIGNAL);
    if (sent < 0 && !Transient(errno)) return Drop(id);
  }
  if (sent > 0) {
    sent_bytes_.Add(static_cast<uint64_t>(sent));
    engine_.Sent(id, static_cast<size_t>(sent));
  }
  if (const char* why = engine_.violation(id); why != nullptr) {
    return TellAndDrop(id, why);
  }
  if (sent > 0) OnProgress(id);
  UpdateInterest(id);
}

// Reading stops while too much output waits; writability is of interest while output or requests kept back wait.
void StoreServer::Impl::UpdateInterest(ConnectionId id) {
  Connection& c = connections_[id];
  WatchSlowReader(id);
  const uint32_t events =
      (engine_.WantsInput(id) && !engine_.HasBacklog(id) ? EPOLLIN : 0u) | (SomethingWaits(id) ? EPOLLOUT : 0u);
  if (events == c.events) return;
  c.events = events;
  loop_.Watch(c.fd.get(), events, [this, id](uint32_t now) { OnEvents(id, now); });
}

void StoreServer::Impl::WatchSlowReader(ConnectionId id) {
  Connection& c = connections_[id];
  if (!SomethingWaits(id) || c.slow_reader != EventLoop::TimerId{}) return;
  c.slow_reader = loop_.At(loop_.Now() + options_.slow_reader_ms, [this, id] { OnSlowReader(id); });
}

void StoreServer::Impl::OnProgress(ConnectionId id) {
  Connection& c = connections_[id];
  if (c.slow_reader == EventLoop::TimerId{}) return;
  loop_.Cancel(c.slow_reader);
  c.slow_reader = {};
}

void StoreServer::Impl::OnSlowReader(ConnectionId id) {
  slow_readers_.Add(1);
  connections_[id].slow_reader = {};
  Close(id, fmt::format("it read none of its replies for {} ms", options_.slow_reader_ms));
}

EventLoop::TimerId StoreServer::Impl::GreetingTimer(ConnectionId id) {
  return loop_.At(loop_.Now() + options_.greeting_ms, [this, id] { OnGreetingDue(id); });
}

// Whoever connects and says nothing (a scanner, half a client) holds a descriptor and a place among the connections.
void StoreServer::Impl::OnGreetingDue(ConnectionId id) {
  connections_[id].greeting = {};
  if (engine_.validated(id)) return;
  silent_peers_.Add(1);
  Close(id, fmt::format("it did not introduce itself for {} ms", options_.greeting_ms));
}

std::string StoreServer::Impl::Who(const Connection& c) const {
  if (c.relay == kNoRelay) return c.peer.Text();
  return fmt::format("client {} of the relay at {}", c.client, relays_[c.relay]->peer.Text());
}

void StoreServer::Impl::Close(ConnectionId id, const std::string& why) {
  TellAndDrop(id, why);
  FlushChanged();
  Publish();
}

void StoreServer::Impl::TellAndDrop(ConnectionId id, const std::string& why) {
  if (options_.on_refused) options_.on_refused(fmt::format("store closed {}: {}", Who(connections_[id]), why));
  Drop(id);
}

void StoreServer::Impl::Drop(ConnectionId id) {
  Connection c = std::exchange(connections_[id], {});
  loop_.Cancel(c.greeting);
  loop_.Cancel(c.slow_reader);
  if (c.relay == kNoRelay) {
    loop_.Unwatch(c.fd.get());
    --sockets_;
  } else {
    Relay& relay = *relays_[c.relay];
    relay.clients[c.client] = kNoClient;
    relay.mux.Close(c.client);
    MarkDirty(c.relay);
  }
  engine_.Close(id);
}

// ---- the face

StoreServer::StoreServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
StoreServer::~StoreServer() = default;

StatusOr<std::unique_ptr<StoreServer>> StoreServer::Open(ListenSocket socket, StoreOptions options) {
  if (!socket.valid()) return absl::InvalidArgumentError("the store's socket is not reserved");
  std::set<IpBytes> allowed;
  for (const std::string& text : options.allowed_peers) {
    PHX_ASSIGN_OR_RETURN(const SocketAddress address, ParseIp(text));
    allowed.insert(address.ip());
  }
  auto impl = std::make_unique<Impl>(std::move(socket), std::move(options), std::move(allowed));
  PHX_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<StoreServer>(new StoreServer(std::move(impl)));
}

uint16_t StoreServer::port() const { return impl_->port(); }
uint64_t StoreServer::epoch() const { return impl_->epoch(); }
StoreStats StoreServer::stats() const { return impl_->stats(); }

}  // namespace phalanx::store
