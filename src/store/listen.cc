#include "store/listen.h"

#include <algorithm>
#include <cerrno>
#include <utility>

#include "base/listen_tcp.h"

namespace phalanx::store {
namespace {

constexpr int kFreePortTries = 64;

struct Target {
  SocketAddress address;
  bool required;  // asked for by the caller
};

StatusOr<std::vector<Target>> MakeTargets(const std::vector<std::string>& addresses) {
  std::vector<Target> targets;
  const auto add = [&targets](const SocketAddress& address, bool required) {
    const bool covered = std::any_of(targets.begin(), targets.end(), [&](const Target& t) {
      return t.address.family() == address.family() && (t.address.ip() == address.ip() || t.address.wildcard());
    });
    if (!covered) targets.push_back(Target{address, required});
  };
  for (const std::string& text : addresses) {
    PHX_ASSIGN_OR_RETURN(const SocketAddress address, ParseIp(text));
    add(address, true);
  }
  if (targets.empty()) return absl::InvalidArgumentError("no address to listen on");
  for (const char* text : {"127.0.0.1", "::1"}) {
    PHX_ASSIGN_OR_RETURN(const SocketAddress address, ParseIp(text));
    add(address, false);
  }
  return targets;
}

struct Bound {
  uint16_t port = 0;
  std::vector<std::string> addresses;
  std::vector<Fd> fds;
};

// Listens on `port` (0: any) of all targets. Loopbacks that this machine does not have are left out; those whose port
// is taken only if `loopback_optional`.
StatusOr<Bound> ListenOnAll(std::vector<Target> targets, uint16_t port, bool loopback_optional) {
  Bound bound;
  bound.port = port;
  for (Target& target : targets) {
    target.address.set_port(bound.port);
    const char* failed = "";
    Fd fd = ListenTcp(&target.address, false, &failed);
    if (!fd.valid()) {
      const int error_number = errno;
      if (!target.required && (loopback_optional || error_number != EADDRINUSE)) continue;
      return ErrnoStatus(error_number, fmt::format("cannot {} for the store on {}", failed, target.address.Text()));
    }
    bound.port = target.address.port();
    bound.addresses.push_back(target.address.IpText());
    bound.fds.push_back(std::move(fd));
  }
  return bound;
}

// Only another port could help.
bool PortTaken(const Status& status) { return status.code() == absl::ErrnoToStatusCode(EADDRINUSE); }

StatusOr<Bound> ListenOnFreePort(const std::vector<Target>& targets) {
  Status last;
  for (int i = 0; i < kFreePortTries; ++i) {
    StatusOr<Bound> bound = ListenOnAll(targets, 0, false);
    if (bound.ok() || !PortTaken(bound.status())) return bound;
    last = bound.status();
  }
  return last;
}

StatusOr<Bound> ListenInRange(const std::vector<Target>& targets, const PortRange& ports) {
  const int count = ports.last - ports.first + 1;
  const int offset = ports.start >= ports.first && ports.start <= ports.last ? ports.start - ports.first : 0;
  Status last;
  for (const bool loopback_optional : {false, true}) {
    for (int i = 0; i < count; ++i) {
      const auto port = static_cast<uint16_t>(ports.first + (offset + i) % count);
      StatusOr<Bound> bound = ListenOnAll(targets, port, loopback_optional);
      if (bound.ok() || !PortTaken(bound.status())) return bound;
      last = bound.status();
    }
  }
  return count == 1 ? last : WithContext(last, fmt::format("no port of {}-{} is free", ports.first, ports.last));
}

}  // namespace

StatusOr<ListenSocket> ListenSocket::Reserve(const std::vector<std::string>& addresses, const PortRange& ports) {
  if ((ports.first == 0) != (ports.last == 0) || ports.first > ports.last) {
    return absl::InvalidArgumentError(fmt::format("{}-{} is not a range of ports", ports.first, ports.last));
  }
  PHX_ASSIGN_OR_RETURN(const std::vector<Target> targets, MakeTargets(addresses));
  StatusOr<Bound> bound = ports.first == 0 ? ListenOnFreePort(targets) : ListenInRange(targets, ports);
  if (!bound.ok()) return bound.status();
  ListenSocket socket;
  socket.port_ = bound->port;
  socket.addresses_ = std::move(bound->addresses);
  socket.fds_ = std::move(bound->fds);
  return socket;
}

}  // namespace phalanx::store
