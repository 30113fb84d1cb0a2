#include "store/server.h"

#include <fcntl.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <system_error>
#include <thread>
#include <utility>

#include "base/event_loop.h"
#include "base/local_peer.h"
#include "base/process/process.h"
#include "base/signals_blocked.h"
#include "base/socket_address.h"
#include "store/room.h"

namespace phalanx::store {
namespace {

constexpr size_t kReceiveBytes = 256 << 10;
constexpr int kAcceptsPerTurn = 256;
constexpr int64_t kAcceptPauseMs = 100;

Fd SpareFd() { return Fd(open("/dev/null", O_RDONLY | O_CLOEXEC)); }

bool Transient(int error_number) { return error_number == EAGAIN || error_number == EINTR; }

// A counter with one writer, readable from other threads.
class Counter {
 public:
  void Add(uint64_t n) { Set(get() + n); }
  void Set(uint64_t n) { value_.store(n, std::memory_order_relaxed); }
  uint64_t get() const { return value_.load(std::memory_order_relaxed); }

 private:
  std::atomic<uint64_t> value_{0};
};

}  // namespace

class StoreServer::Impl {
 public:
  Impl(ListenSocket socket, StoreOptions options, std::set<IpBytes> allowed)
      : socket_(std::move(socket)),
        options_(std::move(options)),
        allowed_(std::move(allowed)),
        engine_(options_.engine),
        buffer_(kReceiveBytes) {}
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  Status Start();
  StoreStats stats() const;
  uint16_t port() const { return socket_.port(); }
  uint64_t epoch() const { return options_.epoch; }

 private:
  struct Connection {
    Fd fd;
    SocketAddress peer;
    uint32_t events = 0;             // watched
    EventLoop::TimerId greeting;     // runs once, from the start
    EventLoop::TimerId slow_reader;  // runs while output waits
  };

  void Serve();
  void ListenAgain();
  void OnAcceptable(int listener);
  // False: nothing more to accept now.
  bool AcceptOne(int listener);
  // True: accepting may go well now.
  bool OnAcceptError(int listener, int error_number);
  bool RaiseFilesLimit();
  // Empty: the peer is let in.
  std::string WhyRefuse(const SocketAddress& peer, int fd);
  std::string WhyFull();
  void Refuse(const SocketAddress& peer, const std::string& why);

  void OnEvents(ConnectionId id, uint32_t epoll_events);
  void Receive(ConnectionId id);
  void FlushChanged();
  void Flush(ConnectionId id);
  void UpdateInterest(ConnectionId id);
  void OnSlowReader(ConnectionId id);
  void OnGreetingDue(ConnectionId id);
  void Close(ConnectionId id, const std::string& why);
  void TellAndDrop(ConnectionId id, const std::string& why);
  void Drop(ConnectionId id);
  void Publish();

  // Constant once the thread runs.
  ListenSocket socket_;
  const StoreOptions options_;
  const std::set<IpBytes> allowed_;

  // Belong to the thread.
  EventLoop loop_;
  LocalPeers local_peers_;
  Engine engine_;
  std::vector<Connection> connections_;  // by ConnectionId
  uint64_t room_ = 0;                    // so many may be open, as far as is known; asked again when they are
  std::vector<char> buffer_;
  std::vector<ConnectionId> changed_;
  Fd spare_fd_ = SpareFd();
  EventLoop::TimerId listen_again_;

  Counter connections_now_, accepted_, refused_peers_, violations_, slow_readers_, silent_peers_, accept_errors_;
  Counter requests_, keys_, waiting_, store_bytes_, buffer_bytes_, received_bytes_, sent_bytes_;

  std::thread thread_;
};

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
  ListenAgain();
  loop_.Run();
  for (ConnectionId id = 0; id < connections_.size(); ++id) connections_[id].fd.Reset();
}

StoreStats StoreServer::Impl::stats() const {
  StoreStats stats;
  stats.connections = connections_now_.get();
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
  violations_.Set(stats.violations);
  requests_.Set(stats.requests);
  keys_.Set(stats.keys);
  waiting_.Set(stats.waiting);
  store_bytes_.Set(stats.store_bytes);
  buffer_bytes_.Set(stats.buffer_bytes);
}

// ---- accepting

void StoreServer::Impl::ListenAgain() {
  listen_again_ = {};
  for (const Fd& fd : socket_.fds_) {
    loop_.Watch(fd.get(), EPOLLIN, [this, listener = fd.get()](uint32_t) { OnAcceptable(listener); });
  }
}

void StoreServer::Impl::OnAcceptable(int listener) {
  for (int i = 0; i < kAcceptsPerTurn && AcceptOne(listener); ++i) {
  }
  Publish();
}

bool StoreServer::Impl::AcceptOne(int listener) {
  SocketAddress peer;
  peer.length = sizeof peer.storage;
  Fd fd(accept4(listener, peer.get(), &peer.length, SOCK_NONBLOCK | SOCK_CLOEXEC));
  if (!fd.valid()) {
    const int error_number = errno;
    if (error_number == ECONNABORTED || error_number == EINTR) return true;
    return error_number != EAGAIN && OnAcceptError(listener, error_number);
  }
  peer.Unmap();
  if (const std::string why = WhyRefuse(peer, fd.get()); !why.empty()) {
    Refuse(peer, why);
    return true;
  }
  accepted_.Add(1);
  const ConnectionId id = engine_.Open();
  if (id >= connections_.size()) connections_.resize(id + 1);
  Connection& c = connections_[id];
  c.fd = std::move(fd);
  c.peer = peer;
  c.events = EPOLLIN;
  c.greeting = loop_.At(loop_.Now() + options_.greeting_ms, [this, id] { OnGreetingDue(id); });
  loop_.Watch(c.fd.get(), EPOLLIN, [this, id](uint32_t events) { OnEvents(id, events); });
  return true;
}

// Out of descriptors that no limit could be raised for, or of memory: the listener stays ready, so that trying at once
// again would spin. The spare descriptor lets one client be told by a close rather than left in silence; then all
// listeners rest for a moment.
bool StoreServer::Impl::OnAcceptError(int listener, int error_number) {
  if (error_number == EMFILE && RaiseFilesLimit()) return true;
  accept_errors_.Add(1);
  if (error_number == EMFILE || error_number == ENFILE) {
    spare_fd_.Reset();
    Fd refused(accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    refused.Reset();
    spare_fd_ = SpareFd();
  }
  if (options_.on_refused) {
    options_.on_refused(Message(ErrnoStatus(error_number, "the store cannot accept connections")));
  }
  if (listen_again_ != EventLoop::TimerId{}) return false;
  for (const Fd& fd : socket_.fds_) loop_.Unwatch(fd.get());
  listen_again_ = loop_.At(loop_.Now() + kAcceptPauseMs, [this] { ListenAgain(); });
  return false;
}

// The rest of the process has taken more than was kept back for it: an agent with many workers has many files of its
// own. True where the limit has grown.
bool StoreServer::Impl::RaiseFilesLimit() {
  const uint64_t before = OpenFilesLimit();
  if (RaiseOpenFilesLimit(std::max(2 * before, FilesFor(2 * engine_.stats().connections))) <= before) return false;
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
  const uint64_t connections = engine_.stats().connections;
  if (connections < room_) return "";
  if (options_.max_connections) {
    room_ = *options_.max_connections;
    return connections < room_ ? "" : fmt::format("{} connections are open, all that it may have", connections);
  }
  const uint64_t files_limit = RaiseOpenFilesLimit(FilesFor(2 * connections));
  room_ = ConnectionsFor(files_limit);
  return connections < room_ ? "" : FullText(connections, files_limit);
}

void StoreServer::Impl::Refuse(const SocketAddress& peer, const std::string& why) {
  refused_peers_.Add(1);
  if (options_.on_refused) options_.on_refused(fmt::format("store refused {}: {}", peer.Text(), why));
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
  const ssize_t n = recv(connections_[id].fd.get(), buffer_.data(), buffer_.size(), 0);
  if (n < 0 && Transient(errno)) return;
  if (n <= 0) {
    Drop(id);
  } else {
    received_bytes_.Add(static_cast<uint64_t>(n));
    engine_.Receive(id, std::string_view(buffer_.data(), static_cast<size_t>(n)));
  }
  FlushChanged();
}

// Dropping one connection may release others, which are flushed in the next go.
void StoreServer::Impl::FlushChanged() {
  for (engine_.TakeChanged(&changed_); !changed_.empty(); engine_.TakeChanged(&changed_)) {
    for (const ConnectionId id : changed_) {
      if (engine_.IsOpen(id)) Flush(id);
    }
  }
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
  if (sent > 0 && c.slow_reader != EventLoop::TimerId{}) {
    loop_.Cancel(c.slow_reader);
    c.slow_reader = {};
  }
  UpdateInterest(id);
}

// Reading stops while too much output waits; writability is of interest while output or requests kept back wait.
void StoreServer::Impl::UpdateInterest(ConnectionId id) {
  Connection& c = connections_[id];
  const bool output_waits = !engine_.Output(id).empty();
  const bool backlog = engine_.HasBacklog(id);
  // A backlog without output waits too: for room in the socket's buffer.
  if ((output_waits || backlog) && c.slow_reader == EventLoop::TimerId{}) {
    c.slow_reader = loop_.At(loop_.Now() + options_.slow_reader_ms, [this, id] { OnSlowReader(id); });
  }
  const uint32_t events =
      (engine_.WantsInput(id) && !backlog ? EPOLLIN : 0u) | (output_waits || backlog ? EPOLLOUT : 0u);
  if (events == c.events) return;
  c.events = events;
  loop_.Watch(c.fd.get(), events, [this, id](uint32_t now) { OnEvents(id, now); });
}

void StoreServer::Impl::OnSlowReader(ConnectionId id) {
  slow_readers_.Add(1);
  connections_[id].slow_reader = {};
  Close(id, fmt::format("it read none of its replies for {} ms", options_.slow_reader_ms));
}

// Whoever connects and says nothing (a scanner, half a client) holds a descriptor and a place among the connections.
void StoreServer::Impl::OnGreetingDue(ConnectionId id) {
  connections_[id].greeting = {};
  if (engine_.validated(id)) return;
  silent_peers_.Add(1);
  Close(id, fmt::format("it did not introduce itself for {} ms", options_.greeting_ms));
}

void StoreServer::Impl::Close(ConnectionId id, const std::string& why) {
  TellAndDrop(id, why);
  FlushChanged();
  Publish();
}

void StoreServer::Impl::TellAndDrop(ConnectionId id, const std::string& why) {
  if (options_.on_refused) options_.on_refused(fmt::format("store closed {}: {}", connections_[id].peer.Text(), why));
  Drop(id);
}

void StoreServer::Impl::Drop(ConnectionId id) {
  Connection& c = connections_[id];
  loop_.Cancel(c.greeting);
  loop_.Cancel(c.slow_reader);
  c.greeting = c.slow_reader = {};
  loop_.Unwatch(c.fd.get());
  c.fd.Reset();
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
