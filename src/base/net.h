// The network door: addresses, names, interfaces.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/host_port.h"
#include "base/status.h"

namespace phalanx {

// Textual IP addresses of `host` (a name or an address), by /etc/hosts and DNS; blocks for at most `timeout_ms`.
// c-ares, not getaddrinfo: a static binary resolves names without loading the machine's libraries.
StatusOr<std::vector<std::string>> Resolve(const std::string& host, int64_t timeout_ms);

// Addresses of this machine's interfaces that are up, loopback included, at most 256.
std::vector<std::string> InterfaceAddresses();

// Whether a socket of this machine can be bound to `address` (textual IP).
bool IsLocalAddress(const std::string& address);

// The local address that a connection to `address` (textual IP) leaves from; nothing is sent.
StatusOr<std::string> LocalAddressTowards(const std::string& address, uint16_t port);

// UTF-8, whatever bytes the kernel was given.
std::string Hostname();

}  // namespace phalanx
