// Where a store, or a relay to one, listens.
//
// The port is reserved before it is needed: clients that come early wait in the backlog instead of being refused (and
// backing off for half a second). Whoever reserves must open or drop soon: to a waiting client a silent server is one
// that hangs.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/fd.h"
#include "base/status.h"

namespace phalanx::store {

// Ports to try, both ends included. {}: any free port. `start`, if inside, is tried first and the rest in a circle.
struct PortRange {
  uint16_t first = 0;
  uint16_t last = 0;
  uint16_t start = 0;

  static PortRange Single(uint16_t port) { return {port, port, 0}; }
  // The same ports, with the search beginning behind `port`: it is the last one to be tried.
  PortRange Behind(uint16_t port) const {
    return {first, last, port == last ? first : static_cast<uint16_t>(port + 1)};
  }
};

// Bound and listening sockets on one port of several addresses. Nothing is accepted; dropping it refuses who waits.
class ListenSocket {
 public:
  ListenSocket() = default;

  // `addresses`: IPs as text, at least one ("10.0.0.7", "fd00::7", "fe80::1%eth0"); a wildcard is taken as such, for
  // its family alone. 127.0.0.1 and ::1 are added where they exist. Any free port (or the first of a range) is one that
  // is free on the loopbacks as well; where the range has none, loopbacks whose port is taken are left out.
  // InvalidArgument: no address, a name, an empty range. Unavailable and others: the system's word on the last port
  // tried.
  static StatusOr<ListenSocket> Reserve(const std::vector<std::string>& addresses, const PortRange& ports);

  bool valid() const { return !fds_.empty(); }
  uint16_t port() const { return port_; }
  // What is listened on, the addresses asked for first.
  const std::vector<std::string>& addresses() const { return addresses_; }
  const std::vector<Fd>& fds() const { return fds_; }

 private:
  uint16_t port_ = 0;
  std::vector<std::string> addresses_;
  std::vector<Fd> fds_;
};

}  // namespace phalanx::store
