#include "base/net.h"

#include <ares.h>
#include <arpa/inet.h>
#include <fmt/format.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>
#include <poll.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <memory>
#include <optional>

#include "base/clock.h"
#include "base/fd.h"
#include "base/utf8.h"

namespace phalanx {
namespace {

struct SocketAddress {
  sockaddr_storage storage{};
  socklen_t length = 0;
  const sockaddr* get() const { return reinterpret_cast<const sockaddr*>(&storage); }
  sockaddr* get() { return reinterpret_cast<sockaddr*>(&storage); }
};

std::optional<SocketAddress> ParseAddress(const std::string& text, uint16_t port) {
  SocketAddress address;
  auto* v4 = reinterpret_cast<sockaddr_in*>(&address.storage);
  if (inet_pton(AF_INET, text.c_str(), &v4->sin_addr) == 1) {
    v4->sin_family = AF_INET;
    v4->sin_port = htons(port);
    address.length = sizeof *v4;
    return address;
  }
  auto* v6 = reinterpret_cast<sockaddr_in6*>(&address.storage);
  if (inet_pton(AF_INET6, text.c_str(), &v6->sin6_addr) == 1) {
    v6->sin6_family = AF_INET6;
    v6->sin6_port = htons(port);
    address.length = sizeof *v6;
    return address;
  }
  return std::nullopt;
}

std::string FormatAddress(const sockaddr* address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  const void* bytes = address->sa_family == AF_INET
                          ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                          : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, bytes, text.data(), text.size()) != nullptr ? text.data() : "";
}

struct Lookup {
  int status = ARES_ENODATA;
  bool done = false;
  std::vector<std::string> addresses;
};

void OnLookup(void* arg, int status, int /*timeouts*/, ares_addrinfo* result) {
  auto* lookup = static_cast<Lookup*>(arg);
  lookup->done = true;
  lookup->status = status;
  if (result == nullptr) return;
  for (const ares_addrinfo_node* node = result->nodes; node != nullptr; node = node->ai_next) {
    std::string text = FormatAddress(node->ai_addr);
    if (!text.empty() &&
        std::find(lookup->addresses.begin(), lookup->addresses.end(), text) == lookup->addresses.end()) {
      lookup->addresses.push_back(std::move(text));
    }
  }
  ares_freeaddrinfo(result);
}

// Serves the lookup's sockets until it is done or time is up.
void ServeLookup(ares_channel channel, const Lookup& lookup, Instant deadline) {
  while (!lookup.done) {
    std::array<ares_socket_t, ARES_GETSOCK_MAXNUM> sockets{};
    const int mask = ares_getsock(channel, sockets.data(), static_cast<int>(sockets.size()));
    std::vector<pollfd> polled;
    for (int i = 0; i < ARES_GETSOCK_MAXNUM; ++i) {
      short events = 0;
      if (ARES_GETSOCK_READABLE(mask, i)) events |= POLLIN;
      if (ARES_GETSOCK_WRITABLE(mask, i)) events |= POLLOUT;
      if (events != 0) polled.push_back({sockets[i], events, 0});
    }
    const int64_t left_ms = deadline - MonotonicMs();
    if (left_ms <= 0) return ares_cancel(channel);
    timeval max_wait{left_ms / 1000, (left_ms % 1000) * 1000};
    timeval wait{};
    ares_timeout(channel, &max_wait, &wait);
    poll(polled.data(), polled.size(), static_cast<int>(wait.tv_sec * 1000 + wait.tv_usec / 1000 + 1));
    for (const pollfd& p : polled) {
      ares_process_fd(channel, (p.revents & (POLLIN | POLLERR | POLLHUP)) ? p.fd : ARES_SOCKET_BAD,
                      (p.revents & POLLOUT) ? p.fd : ARES_SOCKET_BAD);
    }
    ares_process_fd(channel, ARES_SOCKET_BAD, ARES_SOCKET_BAD);  // its time-outs
  }
}

}  // namespace

StatusOr<std::vector<std::string>> Resolve(const std::string& host, int64_t timeout_ms) {
  if (ParseAddress(host, 0)) return std::vector<std::string>{host};
  if (host == "localhost") return std::vector<std::string>{"127.0.0.1", "::1"};
  ares_channel channel = nullptr;
  if (const int rc = ares_init(&channel); rc != ARES_SUCCESS) {
    return absl::UnavailableError(fmt::format("cannot resolve '{}': {}", host, ares_strerror(rc)));
  }
  Lookup lookup;
  ares_addrinfo_hints hints{};
  hints.ai_family = AF_UNSPEC;
  ares_getaddrinfo(channel, host.c_str(), nullptr, &hints, OnLookup, &lookup);
  ServeLookup(channel, lookup, MonotonicMs() + timeout_ms);
  ares_destroy(channel);  // calls back what is still under way
  if (lookup.addresses.empty()) {
    const std::string why = lookup.status == ARES_SUCCESS ? "it has no address" : ares_strerror(lookup.status);
    return absl::UnavailableError(fmt::format("cannot resolve '{}': {}", host, why));
  }
  return lookup.addresses;
}

std::vector<std::string> InterfaceAddresses() {
  constexpr size_t kMax = 256;
  std::vector<std::string> addresses;
  ifaddrs* list = nullptr;
  if (getifaddrs(&list) != 0) return addresses;
  for (const ifaddrs* it = list; it != nullptr && addresses.size() < kMax; it = it->ifa_next) {
    if (it->ifa_addr == nullptr || (it->ifa_flags & IFF_UP) == 0) continue;
    if (it->ifa_addr->sa_family != AF_INET && it->ifa_addr->sa_family != AF_INET6) continue;
    std::string text = FormatAddress(it->ifa_addr);
    if (!text.empty()) addresses.push_back(std::move(text));
  }
  freeifaddrs(list);
  return addresses;
}

bool IsLocalAddress(const std::string& address) {
  const std::optional<SocketAddress> parsed = ParseAddress(address, 0);
  if (!parsed) return false;
  const Fd socket_fd(socket(parsed->storage.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0));
  return socket_fd.valid() && bind(socket_fd.get(), parsed->get(), parsed->length) == 0;
}

StatusOr<std::string> LocalAddressTowards(const std::string& address, uint16_t port) {
  const std::optional<SocketAddress> parsed = ParseAddress(address, port);
  if (!parsed) return absl::InvalidArgumentError(fmt::format("'{}' is not an IP address", address));
  // Connecting a datagram socket only chooses the route.
  const Fd socket_fd(socket(parsed->storage.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!socket_fd.valid() || connect(socket_fd.get(), parsed->get(), parsed->length) != 0) {
    return ErrnoStatus(errno, fmt::format("no route to {}", address));
  }
  SocketAddress local;
  local.length = sizeof local.storage;
  if (getsockname(socket_fd.get(), local.get(), &local.length) != 0) return ErrnoStatus(errno, "getsockname");
  return FormatAddress(local.get());
}

std::string Hostname() {
  std::array<char, 256> name{};
  if (gethostname(name.data(), name.size() - 1) != 0) return "unknown";
  return ToUtf8(name.data());
}

}  // namespace phalanx
