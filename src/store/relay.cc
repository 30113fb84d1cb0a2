#include "store/relay.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <pthread.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "base/fd.h"
#include "base/local_peer.h"
#include "base/process/process.h"
#include "base/socket_address.h"
#include "base/thread.h"
#include "store/acceptor.h"
#include "store/counter.h"
#include "store/mux.h"
#include "store/transient.h"

namespace phalanx::store {
namespace {

constexpr size_t kReceiveBytes = 64 << 10;

}  // namespace

class RelayOnLoop::Impl {
 public:
  Impl(EventLoop& loop, ListenSocket socket, const SocketAddress& store_address, RelayOptions options);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl() {
    LoseStore("");
    loop_.Cancel(flush_);
  }

  uint16_t port() const { return acceptor_.port(); }
  RelayStats stats() const;

 private:
  struct Client {
    Fd fd;
    SocketAddress peer;
    std::string pending;  // what of the store it has not taken; at most its window
    size_t pending_sent = 0;
    bool ending = false;             // the store has closed it: it still gets what is pending
    std::optional<uint32_t> events;  // watched
    EventLoop::TimerId slow_reader;  // runs while something is pending
  };
  struct Store {
    Store(Fd its_fd, uint64_t epoch) : fd(std::move(its_fd)), mux(Mux::End::kRelay, epoch) {}

    Fd fd;
    Mux mux;
    bool connected = false;
    uint32_t events = EPOLLOUT;
    EventLoop::TimerId greeting;
    EventLoop::TimerId slow_reader;
  };

  void OnAccepted(Fd fd, const SocketAddress& peer);
  bool CallStore();
  void OnStoreEvents(uint32_t epoll_events);
  bool FinishCall();
  void ReceiveOfStore();
  void TakeOfStore(std::string_view bytes);
  // When all that the loop has for now is served: clients that speak at the same time go in one piece.
  void FlushSoon();
  void FlushStore();
  void UpdateStoreInterest();
  void LoseStore(const std::string& why);

  void OnClientEvents(ClientNumber number, uint32_t epoll_events);
  void ReadClient(ClientNumber number);
  void WriteClient(ClientNumber number);
  void Deliver(ClientNumber number, std::string_view bytes);
  void UpdateClient(ClientNumber number);
  void OnSlowReader(ClientNumber number);
  // The store is told at the next flush.
  void CloseClient(ClientNumber number);

  void Tell(const std::string& text) const;
  void Publish();

  EventLoop& loop_;
  const SocketAddress store_address_;
  const RelayOptions options_;
  LocalPeers local_peers_;
  std::unique_ptr<Store> store_;  // null: none was called yet, or it is lost
  std::vector<Client> clients_;   // by number; without a descriptor: free
  const std::unique_ptr<char[]> buffer_ = std::make_unique_for_overwrite<char[]>(kReceiveBytes);
  EventLoop::TimerId flush_;
  uint64_t open_clients_ = 0;
  uint64_t pending_bytes_ = 0;
  Counter clients_now_, accepted_, refused_, slow_readers_, store_calls_, accept_errors_, buffer_bytes_;
  Acceptor acceptor_;
};

RelayOnLoop::Impl::Impl(EventLoop& loop, ListenSocket socket, const SocketAddress& store_address, RelayOptions options)
    : loop_(loop),
      store_address_(store_address),
      options_(std::move(options)),
      acceptor_(loop, std::move(socket),
                {[this](Fd fd, const SocketAddress& peer) { OnAccepted(std::move(fd), peer); },
                 [] { return RaiseOpenFilesLimit(2 * OpenFilesLimit()) > OpenFilesLimit(); },
                 [this](int error_number) {
                   accept_errors_.Add(1);
                   Tell(Message(ErrnoStatus(error_number, "the store's relay cannot accept connections")));
                 }}) {
  acceptor_.Listen();
}

RelayStats RelayOnLoop::Impl::stats() const {
  RelayStats stats;
  stats.clients = clients_now_.get();
  stats.accepted = accepted_.get();
  stats.refused = refused_.get();
  stats.slow_readers = slow_readers_.get();
  stats.store_calls = store_calls_.get();
  stats.accept_errors = accept_errors_.get();
  stats.buffer_bytes = buffer_bytes_.get();
  return stats;
}

void RelayOnLoop::Impl::Publish() {
  clients_now_.Set(open_clients_);
  buffer_bytes_.Set(pending_bytes_ + (store_ ? store_->mux.Output().size() : 0));
}

void RelayOnLoop::Impl::Tell(const std::string& text) const {
  if (options_.on_refused) options_.on_refused(text);
}

// ---- clients come

void RelayOnLoop::Impl::OnAccepted(Fd fd, const SocketAddress& peer) {
  std::string why = local_peers_.WhyForeign(peer, fd.get());
  if (why.empty() && open_clients_ == Mux::kClientsMax) why = fmt::format("{} clients are open", open_clients_);
  if (!why.empty()) {
    refused_.Add(1);
    return Tell(fmt::format("the store's relay refused {}: {}", peer.Text(), why));
  }
  if (!store_ && !CallStore()) return;
  const std::optional<ClientNumber> number = store_->mux.Open();
  if (!number) return;  // closed ones whose close the store has not answered
  accepted_.Add(1);
  ++open_clients_;
  if (*number >= clients_.size()) clients_.resize(*number + 1);
  clients_[*number].fd = std::move(fd);
  clients_[*number].peer = peer;
  UpdateClient(*number);
  FlushSoon();
}

// ---- the store

// False: it cannot be reached, which whoever asks for it learns by a close, and asks again.
bool RelayOnLoop::Impl::CallStore() {
  store_calls_.Add(1);
  Fd fd(socket(store_address_.family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  const int on = 1;
  const bool called = fd.valid() && setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on) == 0 &&
                      (connect(fd.get(), store_address_.get(), store_address_.length) == 0 || errno == EINPROGRESS);
  if (!called) {
    const Status failed = ErrnoStatus(errno, fmt::format("cannot connect to the store at {}", store_address_.Text()));
    Tell(Message(failed));
    return false;
  }
  store_ = std::make_unique<Store>(std::move(fd), options_.epoch);
  loop_.Watch(store_->fd.get(), store_->events, [this](uint32_t events) { OnStoreEvents(events); });
  store_->greeting = loop_.At(loop_.Now() + options_.greeting_ms, [this] {
    store_->greeting = {};
    LoseStore(fmt::format("it did not greet for {} ms", options_.greeting_ms));
  });
  return true;
}

void RelayOnLoop::Impl::OnStoreEvents(uint32_t epoll_events) {
  if (!store_->connected && !FinishCall()) return;
  if ((epoll_events & (EPOLLIN | EPOLLERR | EPOLLHUP)) != 0) ReceiveOfStore();
  FlushSoon();
}

bool RelayOnLoop::Impl::FinishCall() {
  int error_number = 0;
  socklen_t length = sizeof error_number;
  getsockopt(store_->fd.get(), SOL_SOCKET, SO_ERROR, &error_number, &length);
  store_->connected = error_number == 0;
  if (!store_->connected) LoseStore(Message(ErrnoStatus(error_number, "cannot connect")));
  return store_ != nullptr;
}

void RelayOnLoop::Impl::ReceiveOfStore() {
  const ssize_t n = recv(store_->fd.get(), buffer_.get(), kReceiveBytes, 0);
  if (n < 0 && Transient(errno)) return;
  // A store ends with its round, which is no news; one that does not greet is another round's, or none.
  if (n <= 0) return LoseStore(store_->mux.greeted() ? "" : "it closed the connection before it greeted");
  TakeOfStore(std::string_view(buffer_.get(), static_cast<size_t>(n)));
}

void RelayOnLoop::Impl::TakeOfStore(std::string_view bytes) {
  using Kind = Mux::Event::Kind;
  Mux& mux = store_->mux;
  for (Mux::Event event = mux.Take(bytes); event.kind != Kind::kMore; event = mux.Take(bytes)) {
    switch (event.kind) {
      case Kind::kGreeted:
        loop_.Cancel(std::exchange(store_->greeting, {}));
        break;
      case Kind::kBytes:
        Deliver(event.client, event.bytes);
        break;
      case Kind::kTaken:
        UpdateClient(event.client);
        break;
      case Kind::kClosed:
        clients_[event.client].ending = true;
        if (clients_[event.client].pending.empty()) {
          CloseClient(event.client);
        } else {
          UpdateClient(event.client);
        }
        break;
      default:
        return LoseStore(mux.violation());
    }
  }
}

void RelayOnLoop::Impl::FlushSoon() {
  if (flush_ != EventLoop::TimerId{}) return;
  flush_ = loop_.At(loop_.Now(), [this] {
    flush_ = {};
    if (store_ && store_->connected) FlushStore();
    Publish();
  });
}

void RelayOnLoop::Impl::FlushStore() {
  Store& store = *store_;
  const std::string_view output = store.mux.Output();
  const bool had_room = store.mux.HasRoom();
  if (!output.empty()) {
    const ssize_t sent = send(store.fd.get(), output.data(), output.size(), MSG_NOSIGNAL);
    if (sent < 0 && !Transient(errno)) return LoseStore("");
    if (sent > 0) {
      store.mux.Sent(static_cast<size_t>(sent));
      loop_.Cancel(std::exchange(store.slow_reader, {}));
    }
  }
  UpdateStoreInterest();
  if (had_room || !store.mux.HasRoom()) return;
  for (size_t number = 0; number < clients_.size(); ++number) {
    if (clients_[number].fd.valid()) UpdateClient(static_cast<ClientNumber>(number));
  }
}

void RelayOnLoop::Impl::UpdateStoreInterest() {
  Store& store = *store_;
  const bool output_waits = !store.mux.Output().empty();
  if (output_waits && store.slow_reader == EventLoop::TimerId{}) {
    store.slow_reader = loop_.At(loop_.Now() + options_.slow_reader_ms, [this] {
      store_->slow_reader = {};
      LoseStore(fmt::format("it took nothing for {} ms", options_.slow_reader_ms));
    });
  }
  const uint32_t events = (store.mux.WantsInput() ? EPOLLIN : 0u) | (output_waits ? EPOLLOUT : 0u);
  if (events == store.events) return;
  store.events = events;
  loop_.Watch(store.fd.get(), events, [this](uint32_t now) { OnStoreEvents(now); });
}

// With it go all clients, as with a store that ends.
void RelayOnLoop::Impl::LoseStore(const std::string& why) {
  if (!store_) return;
  if (!why.empty()) Tell(fmt::format("the store's relay gave up the store at {}: {}", store_address_.Text(), why));
  const std::unique_ptr<Store> store = std::move(store_);
  loop_.Cancel(store->greeting);
  loop_.Cancel(store->slow_reader);
  loop_.Unwatch(store->fd.get());
  const std::vector<Client> clients = std::exchange(clients_, {});
  for (const Client& c : clients) {
    loop_.Cancel(c.slow_reader);
    if (c.fd.valid()) loop_.Unwatch(c.fd.get());
  }
  open_clients_ = pending_bytes_ = 0;
  Publish();
}

// ---- a client

void RelayOnLoop::Impl::OnClientEvents(ClientNumber number, uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0) {
    WriteClient(number);
  } else if ((epoll_events & EPOLLIN) != 0) {
    ReadClient(number);
  } else if ((epoll_events & (EPOLLERR | EPOLLHUP)) != 0) {
    CloseClient(number);
  }
  FlushSoon();
}

void RelayOnLoop::Impl::ReadClient(ClientNumber number) {
  const size_t room = std::min(store_->mux.Room(number), kReceiveBytes);
  // None: the turn of another client has taken it.
  if (room > 0) {
    const ssize_t n = recv(clients_[number].fd.get(), buffer_.get(), room, 0);
    if (n < 0 && Transient(errno)) return;
    if (n <= 0) return CloseClient(number);
    store_->mux.Send(number, std::string_view(buffer_.get(), static_cast<size_t>(n)));
  }
  UpdateClient(number);
}

void RelayOnLoop::Impl::Deliver(ClientNumber number, std::string_view bytes) {
  Client& c = clients_[number];
  if (c.pending.empty()) {
    const ssize_t sent = send(c.fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
    if (sent < 0 && !Transient(errno)) return CloseClient(number);
    if (sent > 0) {
      bytes.remove_prefix(static_cast<size_t>(sent));
      store_->mux.Taken(number, static_cast<size_t>(sent));
    }
  }
  if (bytes.empty()) return;
  c.pending.append(bytes);
  pending_bytes_ += bytes.size();
  UpdateClient(number);
}

void RelayOnLoop::Impl::WriteClient(ClientNumber number) {
  Client& c = clients_[number];
  const std::string_view output = std::string_view(c.pending).substr(c.pending_sent);
  const ssize_t sent = send(c.fd.get(), output.data(), output.size(), MSG_NOSIGNAL);
  if (sent < 0 && Transient(errno)) return;
  if (sent < 0) return CloseClient(number);
  loop_.Cancel(std::exchange(c.slow_reader, {}));
  store_->mux.Taken(number, static_cast<size_t>(sent));
  c.pending_sent += static_cast<size_t>(sent);
  pending_bytes_ -= static_cast<size_t>(sent);
  if (c.pending_sent == c.pending.size()) {
    c.pending = std::string();
    c.pending_sent = 0;
    if (c.ending) return CloseClient(number);
  }
  UpdateClient(number);
}

void RelayOnLoop::Impl::UpdateClient(ClientNumber number) {
  Client& c = clients_[number];
  const bool output_waits = !c.pending.empty();
  if (output_waits && c.slow_reader == EventLoop::TimerId{}) {
    c.slow_reader = loop_.At(loop_.Now() + options_.slow_reader_ms, [this, number] { OnSlowReader(number); });
  }
  const uint32_t events = (store_->mux.Room(number) > 0 ? EPOLLIN : 0u) | (output_waits ? EPOLLOUT : 0u);
  if (c.events == events) return;
  c.events = events;
  loop_.Watch(c.fd.get(), events, [this, number](uint32_t now) { OnClientEvents(number, now); });
}

void RelayOnLoop::Impl::OnSlowReader(ClientNumber number) {
  slow_readers_.Add(1);
  clients_[number].slow_reader = {};
  Tell(fmt::format("the store's relay closed {}: it read none of its replies for {} ms", clients_[number].peer.Text(),
                   options_.slow_reader_ms));
  CloseClient(number);
  FlushSoon();
}

void RelayOnLoop::Impl::CloseClient(ClientNumber number) {
  const Client c = std::exchange(clients_[number], {});
  loop_.Cancel(c.slow_reader);
  loop_.Unwatch(c.fd.get());
  pending_bytes_ -= c.pending.size() - c.pending_sent;
  --open_clients_;
  store_->mux.Close(number);
}

// ---- the faces

RelayOnLoop::RelayOnLoop(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
RelayOnLoop::~RelayOnLoop() = default;

StatusOr<std::unique_ptr<RelayOnLoop>> RelayOnLoop::Open(EventLoop& loop, ListenSocket socket, RelayOptions options) {
  if (!socket.valid()) return absl::InvalidArgumentError("the relay's socket is not reserved");
  PHX_ASSIGN_OR_RETURN(SocketAddress store_address, ParseIp(options.store_address));
  store_address.set_port(options.store_port);
  auto impl = std::make_unique<Impl>(loop, std::move(socket), store_address, std::move(options));
  return std::unique_ptr<RelayOnLoop>(new RelayOnLoop(std::move(impl)));
}

uint16_t RelayOnLoop::port() const { return impl_->port(); }
RelayStats RelayOnLoop::stats() const { return impl_->stats(); }

StatusOr<std::unique_ptr<StoreRelay>> StoreRelay::Open(ListenSocket socket, RelayOptions options) {
  std::unique_ptr<StoreRelay> relay(new StoreRelay());
  PHX_ASSIGN_OR_RETURN(relay->relay_, RelayOnLoop::Open(relay->loop_, std::move(socket), std::move(options)));
  PHX_ASSIGN_OR_RETURN(relay->thread_, StartThread([loop = &relay->loop_] {
                         pthread_setname_np(pthread_self(), "phx-relay");
                         loop->Run();
                       }));
  return relay;
}

StoreRelay::~StoreRelay() {
  if (!thread_.joinable()) return;
  loop_.Post([this] { loop_.Stop(); });
  thread_.join();
}

uint16_t StoreRelay::port() const { return relay_->port(); }
RelayStats StoreRelay::stats() const { return relay_->stats(); }

}  // namespace phalanx::store
