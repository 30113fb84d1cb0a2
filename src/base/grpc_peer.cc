#include "base/grpc_peer.h"

#include <fmt/format.h>

#include <algorithm>

#include "base/socket_address.h"

namespace phalanx {

std::string PeerAddress(const std::string& peer) {
  const size_t colon = peer.rfind(':');
  if (colon == std::string::npos) return "";
  std::string address;
  if (peer.starts_with("ipv4:")) address = peer.substr(5, colon - std::min<size_t>(colon, 5));
  if (peer.starts_with("ipv6:")) {
    // Brackets and the scope's percent sign are escaped.
    const size_t begin = peer.starts_with("ipv6:%5B") ? 8 : peer.starts_with("ipv6:[") ? 6 : 5;
    const size_t end = std::min({peer.find("%5D"), peer.find(']'), peer.find("%25"), colon});
    if (end > begin) address = peer.substr(begin, end - begin);
    if (address.starts_with("::ffff:") && address.find('.') != std::string::npos) address = address.substr(7);
  }
  return ParseIp(address).ok() ? address : "";
}

std::string PeerHostPort(const std::string& peer) {
  const std::string address = PeerAddress(peer);
  if (address.empty()) return "";
  const std::string port = peer.substr(peer.rfind(':') + 1);
  return address.find(':') == std::string::npos ? fmt::format("{}:{}", address, port)
                                                : fmt::format("[{}]:{}", address, port);
}

}  // namespace phalanx
