#include "base/reserved_port.h"

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>

#include "base/socket_address.h"

namespace phalanx {
namespace {

// No SO_REUSEADDR: a port that somebody listens on is not to be had.
StatusOr<Fd> Bind(SocketAddress& address) {
  Fd fd(socket(address.family(), SOCK_STREAM | SOCK_CLOEXEC, IPPROTO_TCP));
  if (!fd.valid()) return ErrnoStatus(errno, "socket");
  if (bind(fd.get(), address.get(), address.length) != 0) return ErrnoStatus(errno, address.Text());
  socklen_t length = address.length;
  if (getsockname(fd.get(), address.get(), &length) != 0) return ErrnoStatus(errno, "getsockname");
  return fd;
}

}  // namespace

StatusOr<ReservedPort> ReservedPort::Take(const std::string& address, uint16_t wanted, uint16_t first, uint16_t last) {
  PHX_ASSIGN_OR_RETURN(SocketAddress at, ParseIp(address));
  ReservedPort reserved;
  const auto take = [&at, &reserved](uint16_t port) -> Status {
    at.set_port(port);
    PHX_ASSIGN_OR_RETURN(reserved.socket_, Bind(at));
    reserved.port_ = at.port();
    return absl::OkStatus();
  };
  if (wanted != 0 && take(wanted).ok()) return reserved;
  Status taken = take(first);
  for (int port = first + 1; !taken.ok() && port <= last; ++port) taken = take(static_cast<uint16_t>(port));
  if (!taken.ok()) return taken;
  return reserved;
}

}  // namespace phalanx
