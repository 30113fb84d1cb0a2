// Clients that come within the connections of relays: docs/formats/store-relay.md.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "store/server_impl.h"
#include "store/transient.h"

namespace phalanx::store {
namespace {

constexpr size_t kFrameBytes = 16 << 10;  // of one client at a time, so that others come between
constexpr int kSendsPerTurn = 16;         // of one relay

}  // namespace

// What came first was no client, but a relay's greeting.
void StoreServer::Impl::BecomeRelay(ConnectionId id, std::string_view bytes) {
  Connection c = std::exchange(connections_[id], {});
  loop_.Cancel(c.greeting);
  engine_.Close(id);
  RelayId relay_id = static_cast<RelayId>(relays_.size());
  if (free_relays_.empty()) {
    relays_.emplace_back();
  } else {
    relay_id = free_relays_.back();
    free_relays_.pop_back();
  }
  relays_[relay_id] = std::make_unique<Relay>(std::move(c.fd), c.peer, options_.epoch);
  Relay& relay = *relays_[relay_id];
  relay.events = EPOLLIN;
  relay.greeting = loop_.At(loop_.Now() + options_.greeting_ms, [this, relay_id] { OnRelayGreetingDue(relay_id); });
  loop_.Watch(relay.fd.get(), EPOLLIN, [this, relay_id](uint32_t events) { OnRelayEvents(relay_id, events); });
  TakeOfRelay(relay_id, bytes);
}

// ---- what comes

void StoreServer::Impl::OnRelayEvents(RelayId id, uint32_t epoll_events) {
  if ((epoll_events & EPOLLOUT) != 0) {
    MarkDirty(id);
    FlushChanged();
  } else if ((epoll_events & EPOLLIN) != 0) {
    ReceiveOfRelay(id);
  } else if ((epoll_events & (EPOLLERR | EPOLLHUP)) != 0) {
    DropRelay(id);
    FlushChanged();
  }
  Publish();
}

void StoreServer::Impl::ReceiveOfRelay(RelayId id) {
  const ssize_t n = recv(relays_[id]->fd.get(), buffer_.data(), buffer_.size(), 0);
  if (n < 0 && Transient(errno)) return;
  if (n <= 0) {
    DropRelay(id);
    return FlushChanged();
  }
  received_bytes_.Add(static_cast<uint64_t>(n));
  TakeOfRelay(id, std::string_view(buffer_.data(), static_cast<size_t>(n)));
}

void StoreServer::Impl::TakeOfRelay(RelayId id, std::string_view bytes) {
  using Kind = Mux::Event::Kind;
  Relay& relay = *relays_[id];
  for (Mux::Event event = relay.mux.Take(bytes); event.kind != Kind::kMore; event = relay.mux.Take(bytes)) {
    switch (event.kind) {
      case Kind::kOpened:
        OpenClient(id, event.client);
        break;
      case Kind::kBytes:
        ServeClient(relay.clients[event.client], event.bytes);
        break;
      case Kind::kTaken:
        JoinLine(relay.clients[event.client]);
        break;
      case Kind::kClosed:
        Drop(relay.clients[event.client]);
        break;
      default:  // greeted, which its timer looks at, and a violation, which is the last
        break;
    }
  }
  MarkDirty(id);
  FlushChanged();
}

void StoreServer::Impl::OpenClient(RelayId id, ClientNumber client) {
  Relay& relay = *relays_[id];
  if (client >= relay.clients.size()) relay.clients.resize(client + 1, kNoClient);
  if (const std::string why = WhyTooMany(); !why.empty()) {
    relay.mux.Close(client);
    return Refuse(fmt::format("client {} of the relay at {}", client, relay.peer.Text()), why);
  }
  accepted_.Add(1);
  const ConnectionId connection_id = engine_.Open();
  Connection& c = ConnectionOf(connection_id);
  c.relay = id;
  c.client = client;
  c.greeting = GreetingTimer(connection_id);
  relay.clients[client] = connection_id;
}

// What is kept back while its replies wait is the engine's to count, and not told as taken: so no more comes of it than
// its window.
void StoreServer::Impl::ServeClient(ConnectionId id, std::string_view bytes) {
  connections_[id].untaken += bytes.size();
  engine_.Receive(id, bytes);
  TellTaken(id);
}

void StoreServer::Impl::TellTaken(ConnectionId id) {
  Connection& c = connections_[id];
  if (engine_.HasBacklog(id)) return;
  relays_[c.relay]->mux.Taken(c.client, std::exchange(c.untaken, 0));
}

// ---- what goes

void StoreServer::Impl::JoinLine(ConnectionId id) {
  Connection& c = connections_[id];
  if (!std::exchange(c.ready, true)) relays_[c.relay]->line.push_back(id);
  MarkDirty(c.relay);
}

void StoreServer::Impl::MarkDirty(RelayId id) {
  if (!std::exchange(relays_[id]->dirty, true)) dirty_relays_.push_back(id);
}

void StoreServer::Impl::FlushRelay(RelayId id) {
  if (relays_[id] == nullptr) return;  // it has ended since
  Relay& relay = *relays_[id];
  relay.dirty = false;
  for (int i = 0; i < kSendsPerTurn; ++i) {
    Pump(relay);
    const std::string_view output = relay.mux.Output();
    if (output.empty()) break;
    const ssize_t sent = send(relay.fd.get(), output.data(), output.size(), MSG_NOSIGNAL);
    if (sent < 0 && Transient(errno)) break;
    if (sent < 0) return DropRelay(id);
    sent_bytes_.Add(static_cast<uint64_t>(sent));
    loop_.Cancel(std::exchange(relay.slow_reader, {}));
    const bool all = static_cast<size_t>(sent) == output.size();
    relay.mux.Sent(static_cast<size_t>(sent));
    if (!all) break;
  }
  if (const char* why = relay.mux.violation(); why != nullptr) {
    ++broken_relays_;
    return TellAndDropRelay(id, why);
  }
  UpdateRelayInterest(id);
}

void StoreServer::Impl::Pump(Relay& relay) {
  while (relay.mux.HasRoom() && !relay.line.empty()) {
    const ConnectionId id = relay.line.front();
    relay.line.pop_front();
    // One that has left may still stand in the line, and its number be another's.
    const Connection& c = connections_[id];
    if (c.ready && c.relay != kNoRelay && relays_[c.relay].get() == &relay) PumpClient(relay, id);
  }
}

void StoreServer::Impl::PumpClient(Relay& relay, ConnectionId id) {
  Connection& c = connections_[id];
  c.ready = false;
  const std::string_view output = engine_.Output(id);
  const size_t count = std::min({output.size(), relay.mux.Room(c.client), kFrameBytes});
  if (count > 0) {
    relay.mux.Send(c.client, output.substr(0, count));
    engine_.Sent(id, count);
    OnProgress(id);
  }
  const bool more = !engine_.Output(id).empty() && relay.mux.Room(c.client) > 0;
  // Replies to what came before a violation go first, as far as its window lets them.
  if (const char* why = engine_.violation(id); why != nullptr && !more && relay.mux.HasRoom()) {
    return TellAndDrop(id, why);
  }
  // One helping of what was kept back a turn.
  if (engine_.HasBacklog(id) && engine_.WantsInput(id)) {
    engine_.Resume(id);
    TellTaken(id);
  }
  WatchSlowReader(id);
  // Where its window is used up it comes again when some of that is told as taken.
  const bool waits_for_room = !relay.mux.HasRoom() && SomethingWaits(id);
  if (!more && !waits_for_room && engine_.violation(id) == nullptr) return;
  c.ready = true;
  relay.line.push_back(id);
}

void StoreServer::Impl::UpdateRelayInterest(RelayId id) {
  Relay& relay = *relays_[id];
  const bool output_waits = !relay.mux.Output().empty();
  if (output_waits && relay.slow_reader == EventLoop::TimerId{}) {
    relay.slow_reader = loop_.At(loop_.Now() + options_.slow_reader_ms, [this, id] { OnRelaySlow(id); });
  }
  const uint32_t events =
      (relay.mux.WantsInput() ? EPOLLIN : 0u) | (output_waits || !relay.line.empty() ? EPOLLOUT : 0u);
  if (events == relay.events) return;
  relay.events = events;
  loop_.Watch(relay.fd.get(), events, [this, id](uint32_t now) { OnRelayEvents(id, now); });
}

// ---- its end

void StoreServer::Impl::OnRelaySlow(RelayId id) {
  relays_[id]->slow_reader = {};
  slow_readers_.Add(1);
  CloseRelay(id, fmt::format("it read nothing for {} ms", options_.slow_reader_ms));
}

void StoreServer::Impl::OnRelayGreetingDue(RelayId id) {
  relays_[id]->greeting = {};
  if (relays_[id]->mux.greeted()) return;
  silent_peers_.Add(1);
  CloseRelay(id, fmt::format("it did not introduce itself for {} ms", options_.greeting_ms));
}

void StoreServer::Impl::CloseRelay(RelayId id, const std::string& why) {
  TellAndDropRelay(id, why);
  FlushChanged();
  Publish();
}

void StoreServer::Impl::TellAndDropRelay(RelayId id, const std::string& why) {
  const std::string peer = relays_[id]->peer.Text();
  if (options_.on_refused) options_.on_refused(fmt::format("store closed the relay at {}: {}", peer, why));
  DropRelay(id);
}

void StoreServer::Impl::DropRelay(RelayId id) {
  const std::unique_ptr<Relay> relay = std::move(relays_[id]);
  loop_.Cancel(relay->greeting);
  loop_.Cancel(relay->slow_reader);
  loop_.Unwatch(relay->fd.get());
  --sockets_;
  free_relays_.push_back(id);
  for (const ConnectionId client : relay->clients) {
    if (client == kNoClient) continue;
    const Connection c = std::exchange(connections_[client], {});
    loop_.Cancel(c.greeting);
    loop_.Cancel(c.slow_reader);
    engine_.Close(client);
  }
}

}  // namespace phalanx::store
