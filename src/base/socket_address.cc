#include "base/socket_address.h"

#include <arpa/inet.h>
#include <net/if.h>

#include <cstddef>
#include <cstring>

namespace phalanx {
namespace {

sockaddr_in V4(const SocketAddress& address) {
  sockaddr_in v4;
  std::memcpy(&v4, &address.storage, sizeof v4);
  return v4;
}

sockaddr_in6 V6(const SocketAddress& address) {
  sockaddr_in6 v6;
  std::memcpy(&v6, &address.storage, sizeof v6);
  return v6;
}

SocketAddress FromV4(const in_addr& ip) {
  SocketAddress address;
  sockaddr_in v4{};
  v4.sin_family = AF_INET;
  v4.sin_addr = ip;
  std::memcpy(&address.storage, &v4, sizeof v4);
  address.length = sizeof v4;
  return address;
}

}  // namespace

IpBytes SocketAddress::ip() const {
  IpBytes bytes{};
  if (family() == AF_INET6) {
    const sockaddr_in6 v6 = V6(*this);
    std::memcpy(bytes.data(), &v6.sin6_addr, bytes.size());
    return bytes;
  }
  bytes[10] = bytes[11] = 0xff;
  const sockaddr_in v4 = V4(*this);
  std::memcpy(bytes.data() + 12, &v4.sin_addr, 4);
  return bytes;
}

bool SocketAddress::loopback() const {
  const IpBytes bytes = ip();
  IpBytes v4{};
  v4[10] = v4[11] = 0xff;
  v4[12] = 127;
  v4[15] = 1;
  IpBytes v6{};
  v6[15] = 1;
  return bytes == v4 || bytes == v6;
}

bool SocketAddress::wildcard() const {
  if (family() == AF_INET) return V4(*this).sin_addr.s_addr == htonl(INADDR_ANY);
  const in6_addr v6 = V6(*this).sin6_addr;
  return IN6_IS_ADDR_UNSPECIFIED(&v6);
}

uint32_t SocketAddress::scope() const { return family() == AF_INET6 ? V6(*this).sin6_scope_id : 0; }

void SocketAddress::Unmap() {
  if (family() != AF_INET6) return;
  const in6_addr v6 = V6(*this).sin6_addr;
  if (!IN6_IS_ADDR_V4MAPPED(&v6)) return;
  in_addr v4{};
  std::memcpy(&v4, v6.s6_addr + 12, sizeof v4);
  const uint16_t port_before = port();
  *this = FromV4(v4);
  set_port(port_before);
}

// The port is at the same place in both families.
static_assert(offsetof(sockaddr_in, sin_port) == offsetof(sockaddr_in6, sin6_port));

uint16_t SocketAddress::port() const { return ntohs(V4(*this).sin_port); }

void SocketAddress::set_port(uint16_t port) {
  const uint16_t wire = htons(port);
  std::memcpy(reinterpret_cast<char*>(&storage) + offsetof(sockaddr_in, sin_port), &wire, sizeof wire);
}

std::string SocketAddress::IpText() const {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const IpBytes bytes = ip();
  const bool v4 = family() == AF_INET;
  inet_ntop(family(), v4 ? bytes.data() + 12 : bytes.data(), text.data(), text.size());
  return text.data();
}

std::string SocketAddress::Text() const {
  return family() == AF_INET ? fmt::format("{}:{}", IpText(), port()) : fmt::format("[{}]:{}", IpText(), port());
}

StatusOr<SocketAddress> ParseIp(const std::string& text) {
  in_addr v4_ip{};
  if (inet_pton(AF_INET, text.c_str(), &v4_ip) == 1) return FromV4(v4_ip);

  const size_t percent = text.find('%');
  sockaddr_in6 v6{};
  v6.sin6_family = AF_INET6;
  if (inet_pton(AF_INET6, text.substr(0, percent).c_str(), &v6.sin6_addr) != 1) {
    return absl::InvalidArgumentError(fmt::format("\"{}\" is not an IP address", text));
  }
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    std::memcpy(&v4_ip, v6.sin6_addr.s6_addr + 12, sizeof v4_ip);
    return FromV4(v4_ip);
  }
  if (percent != std::string::npos) {
    v6.sin6_scope_id = if_nametoindex(text.substr(percent + 1).c_str());
    if (v6.sin6_scope_id == 0) {
      return absl::InvalidArgumentError(fmt::format("\"{}\" names no network interface of this machine", text));
    }
  }
  SocketAddress address;
  std::memcpy(&address.storage, &v6, sizeof v6);
  address.length = sizeof v6;
  return address;
}

}  // namespace phalanx
