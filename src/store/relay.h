// Ranks of one node within one connection to the round's store: docs/formats/store-relay.md. To the ranks' TCPStore
// clients it is the store; it parses nothing of what they say.
//
//   PHX_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::Reserve({"127.0.0.1"}, {}));
//   PHX_ASSIGN_OR_RETURN(auto relay, StoreRelay::Open(std::move(socket), {store_address, store_port, epoch}));
//   tell_workers(relay->port());
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "base/event_loop.h"
#include "base/status.h"
#include "store/listen.h"

namespace phalanx::store {

struct RelayOptions {
  std::string store_address;  // an IP
  uint16_t store_port = 0;
  // Of the round. A store of another one takes nothing from here.
  uint64_t epoch = 0;
  // A store that has not greeted so long after the connection to it was begun is given up.
  int64_t greeting_ms = 60'000;
  // A client, or the store, that takes none of what waits for it for so long is closed.
  int64_t slow_reader_ms = 60'000;
  // One sentence on each connection refused, closed or not made by the relay. Called on the relay's thread, so it must
  // not block and must outlive the relay.
  std::function<void(const std::string&)> on_refused;
};

struct RelayStats {
  uint64_t clients = 0;        // now
  uint64_t accepted = 0;       // the rest but bytes: since the start
  uint64_t refused = 0;        // of another user, or too many
  uint64_t slow_readers = 0;   // clients closed for what they did not read
  uint64_t store_calls = 0;    // connections to the store begun
  uint64_t accept_errors = 0;  // no descriptors, no memory
  uint64_t buffer_bytes = 0;   // kept for clients and for the store
};

// On a loop, and its thread's; several may share one. Serves from construction to destruction.
class RelayOnLoop {
 public:
  // InvalidArgument: the store's address is none.
  static StatusOr<std::unique_ptr<RelayOnLoop>> Open(EventLoop& loop, ListenSocket socket, RelayOptions options);
  RelayOnLoop(const RelayOnLoop&) = delete;
  RelayOnLoop& operator=(const RelayOnLoop&) = delete;
  // Closes every connection.
  ~RelayOnLoop();

  uint16_t port() const;
  // Any thread; each number is right for itself, and at most one turn of the loop old.
  RelayStats stats() const;

 private:
  class Impl;
  explicit RelayOnLoop(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

// On a thread of its own.
class StoreRelay {
 public:
  // As RelayOnLoop, and what the system says about a new thread.
  static StatusOr<std::unique_ptr<StoreRelay>> Open(ListenSocket socket, RelayOptions options);
  StoreRelay(const StoreRelay&) = delete;
  StoreRelay& operator=(const StoreRelay&) = delete;
  ~StoreRelay();

  uint16_t port() const;
  RelayStats stats() const;

 private:
  StoreRelay() = default;

  EventLoop loop_;
  std::unique_ptr<RelayOnLoop> relay_;
  std::thread thread_;
};

}  // namespace phalanx::store
