// How gRPC names who is at the other end of a connection. Pure.
#pragma once

#include <string>

namespace phalanx {

// The address in gRPC's "ipv4:10.0.0.1:4711" or "ipv6:%5Bfe80::1%25eth0%5D:4711"; empty for other kinds.
std::string PeerAddress(const std::string& peer);
// The same with its port, as texts have it: "127.0.0.1:4711", "[::1]:4711"; empty where it is none. Pure.
std::string PeerHostPort(const std::string& peer);

}  // namespace phalanx
