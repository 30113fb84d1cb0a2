// IP addresses as comparable values.
#pragma once

#include <netinet/in.h>
#include <sys/socket.h>

#include <array>
#include <cstdint>
#include <string>

#include "base/status.h"

namespace phalanx {

// IPv6 bytes, IPv4 as ::ffff:a.b.c.d. Scopes are not part of it.
using IpBytes = std::array<uint8_t, 16>;

// A socket address with its length. `::ffff:a.b.c.d` is made an IPv4 address.
struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;

  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
  int family() const { return storage.ss_family; }
  IpBytes ip() const;
  // 127.0.0.1 or ::1, which this machine's own processes leave from. The rest of 127.0.0.0/8 may be other nodes in a
  // test.
  bool loopback() const;
  bool wildcard() const;
  // The interface that a link-local IPv6 address is of; 0: none.
  uint32_t scope() const;
  // The kernel calls IPv4 peers of a socket of both families ::ffff:a.b.c.d: this makes them a.b.c.d.
  void Unmap();
  uint16_t port() const;
  void set_port(uint16_t port);
  // "10.0.0.7", "fd00::7"; with the port: "10.0.0.7:80", "[fd00::7]:80".
  std::string IpText() const;
  std::string Text() const;
};

// From "10.0.0.7", "fd00::7" or "fe80::1%eth0"; no names. Port 0.
StatusOr<SocketAddress> ParseIp(const std::string& text);

}  // namespace phalanx
