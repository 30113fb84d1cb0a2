// The c10d store on the network: what torch's TCPStore clients (2.2 to 2.15) find at MASTER_ADDR:MASTER_PORT, be it
// here or at a relay (relay.h) that carries them to here.
//
//   PHX_ASSIGN_OR_RETURN(ListenSocket socket, ListenSocket::Reserve({"10.0.0.7"}, {}));
//   tell_everybody(socket.port());
//   PHX_ASSIGN_OR_RETURN(auto server, StoreServer::Open(std::move(socket), options));
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>

#include "base/status.h"
#include "store/engine.h"
#include "store/listen.h"

namespace phalanx::store {

struct StoreOptions {
  // IPs that may connect beside this machine's own (the members of the round). IPv4 in either notation. From this
  // machine, by whatever address, only this process's user and root may.
  std::set<std::string> allowed_peers;
  EngineOptions engine;
  // Absent: as many as the process may have files open for (room.h); its soft limit is raised where that is too few.
  std::optional<size_t> max_connections;
  // A connection that has not introduced itself (VALIDATE, or a relay's greeting) after so long is closed.
  int64_t greeting_ms = 60'000;
  // A client, or a relay, that takes none of what waits for it for so long is closed.
  int64_t slow_reader_ms = 60'000;
  // The round this store belongs to. Relays of another one are closed.
  uint64_t epoch = 0;
  // One sentence on each connection refused or closed by the store. Called on the store's thread, so it must not block
  // and must outlive the server.
  std::function<void(const std::string&)> on_refused;
};

struct StoreStats {
  uint64_t connections = 0;    // now, those of relays included
  uint64_t relays = 0;         // now
  uint64_t accepted = 0;       // clients; the rest but keys and bytes: since the start
  uint64_t refused_peers = 0;  // address not allowed, or too many connections
  uint64_t violations = 0;     // connections closed for what they sent
  uint64_t slow_readers = 0;   // connections closed for what they did not read
  uint64_t silent_peers = 0;   // connections closed because they never introduced themselves
  uint64_t accept_errors = 0;  // no descriptors, no memory
  uint64_t requests = 0;
  uint64_t keys = 0;
  uint64_t waiting = 0;
  uint64_t store_bytes = 0;
  uint64_t buffer_bytes = 0;
  uint64_t received_bytes = 0;
  uint64_t sent_bytes = 0;
};

// Serves from construction to destruction, on a thread of its own.
class StoreServer {
 public:
  // Accepts who waits already. InvalidArgument: an address that is none; else what the system says about a new thread.
  static StatusOr<std::unique_ptr<StoreServer>> Open(ListenSocket socket, StoreOptions options);
  StoreServer(const StoreServer&) = delete;
  StoreServer& operator=(const StoreServer&) = delete;
  // Ends the thread and closes every connection; data goes with them. Takes no longer than the request being served.
  ~StoreServer();

  uint16_t port() const;
  uint64_t epoch() const;
  // Any thread; each number is right for itself, and at most one turn of the loop old.
  StoreStats stats() const;

 private:
  class Impl;
  explicit StoreServer(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace phalanx::store
