// What server.cc, which has sockets and clients, and server_relays.cc, which has relays, share.
#pragma once

#include <deque>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/local_peer.h"
#include "base/socket_address.h"
#include "store/acceptor.h"
#include "store/counter.h"
#include "store/engine.h"
#include "store/mux.h"
#include "store/server.h"

namespace phalanx::store {

class StoreServer::Impl {
 public:
  Impl(ListenSocket socket, StoreOptions options, std::set<IpBytes> allowed);
  Impl(const Impl&) = delete;
  Impl& operator=(const Impl&) = delete;
  ~Impl();

  Status Start();
  StoreStats stats() const;
  uint16_t port() const { return acceptor_.port(); }
  uint64_t epoch() const { return options_.epoch; }

 private:
  // Index into relays_; given again when it is free.
  using RelayId = uint32_t;
  static constexpr RelayId kNoRelay = UINT32_MAX;
  static constexpr ConnectionId kNoClient = UINT32_MAX;

  // One client of the engine: with a socket of its own, or within a relay's.
  struct Connection {
    Fd fd;
    SocketAddress peer;  // of the socket
    bool has_spoken = false;
    uint32_t events = 0;             // watched
    EventLoop::TimerId greeting;     // runs once, from the start
    EventLoop::TimerId slow_reader;  // runs while output waits
    RelayId relay = kNoRelay;
    ClientNumber client = 0;  // there
    size_t untaken = 0;       // bytes that came by the relay and are not served
    bool ready = false;       // is in the relay's line
  };
  struct Relay {
    Relay(Fd its_fd, const SocketAddress& its_peer, uint64_t epoch)
        : fd(std::move(its_fd)), peer(its_peer), mux(Mux::End::kStore, epoch) {}

    Fd fd;
    SocketAddress peer;
    Mux mux;
    std::vector<ConnectionId> clients;  // by number
    std::deque<ConnectionId> line;      // clients with something to go, each once
    bool dirty = false;                 // is in dirty_relays_
    uint32_t events = 0;
    EventLoop::TimerId greeting;
    EventLoop::TimerId slow_reader;
  };

  void Serve();
  void Publish();

  void OnAccepted(Fd fd, const SocketAddress& peer);
  bool RaiseFilesLimit();
  // Empty: the peer is let in.
  std::string WhyRefuse(const SocketAddress& peer, int fd);
  std::string WhyFull();
  std::string WhyTooMany() const;
  void Refuse(const std::string& who, const std::string& why);

  void OnEvents(ConnectionId id, uint32_t epoll_events);
  void Receive(ConnectionId id);
  void FlushChanged();
  void Flush(ConnectionId id);
  void UpdateInterest(ConnectionId id);
  // A backlog without output waits too: for room in the socket's buffer.
  bool SomethingWaits(ConnectionId id) const { return !engine_.Output(id).empty() || engine_.HasBacklog(id); }
  void WatchSlowReader(ConnectionId id);
  void OnProgress(ConnectionId id);
  void OnSlowReader(ConnectionId id);
  void OnGreetingDue(ConnectionId id);
  EventLoop::TimerId GreetingTimer(ConnectionId id);
  void Close(ConnectionId id, const std::string& why);
  void TellAndDrop(ConnectionId id, const std::string& why);
  void Drop(ConnectionId id);
  std::string Who(const Connection& c) const;
  Connection& ConnectionOf(ConnectionId id);

  // Relays (server_relays.cc).
  void BecomeRelay(ConnectionId id, std::string_view bytes);
  void OnRelayEvents(RelayId id, uint32_t epoll_events);
  void ReceiveOfRelay(RelayId id);
  void TakeOfRelay(RelayId id, std::string_view bytes);
  void OpenClient(RelayId id, ClientNumber client);
  void ServeClient(ConnectionId id, std::string_view bytes);
  void TellTaken(ConnectionId id);
  void JoinLine(ConnectionId id);
  void MarkDirty(RelayId id);
  void FlushRelay(RelayId id);
  // Fills the connection's output from its clients, a frame of each in turn.
  void Pump(Relay& relay);
  void PumpClient(Relay& relay, ConnectionId id);
  void UpdateRelayInterest(RelayId id);
  void OnRelaySlow(RelayId id);
  void OnRelayGreetingDue(RelayId id);
  void CloseRelay(RelayId id, const std::string& why);
  void TellAndDropRelay(RelayId id, const std::string& why);
  void DropRelay(RelayId id);

  // Constant once the thread runs.
  const StoreOptions options_;
  const std::set<IpBytes> allowed_;

  // Belong to the thread.
  EventLoop loop_;
  Acceptor acceptor_;
  LocalPeers local_peers_;
  Engine engine_;
  std::vector<Connection> connections_;         // by ConnectionId
  std::vector<std::unique_ptr<Relay>> relays_;  // by RelayId; null: free
  std::vector<RelayId> free_relays_;
  std::vector<RelayId> dirty_relays_;  // they may have something to send
  std::vector<RelayId> flushing_relays_;
  uint64_t sockets_ = 0;  // of connections_ and relays_
  uint64_t room_ = 0;     // so many may be open, as far as is known; asked again when they are
  std::vector<char> buffer_;
  std::vector<ConnectionId> changed_;

  Counter connections_now_, relays_now_, accepted_, refused_peers_, violations_, slow_readers_, silent_peers_;
  Counter accept_errors_, requests_, keys_, waiting_, store_bytes_, buffer_bytes_, received_bytes_, sent_bytes_;
  uint64_t broken_relays_ = 0;  // closed for what they sent

  std::thread thread_;
};

}  // namespace phalanx::store
