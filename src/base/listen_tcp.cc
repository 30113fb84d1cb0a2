#include "base/listen_tcp.h"

#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>

#include <climits>

namespace phalanx {

Fd ListenTcp(SocketAddress* address, bool both_families, const char** failed) {
  *failed = "make a socket";
  Fd fd(socket(address->family(), SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, IPPROTO_TCP));
  if (!fd.valid()) return {};
  const int on = 1;
  const int v6_only = both_families ? 0 : 1;
  setsockopt(fd.get(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  setsockopt(fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  if (address->family() == AF_INET6) setsockopt(fd.get(), IPPROTO_IPV6, IPV6_V6ONLY, &v6_only, sizeof v6_only);
  *failed = "bind";
  if (bind(fd.get(), address->get(), address->length) != 0) return {};
  // The kernel lowers the backlog to net.core.somaxconn. With SO_REUSEADDR two sockets may bind one port; only one of
  // them can listen.
  *failed = "listen";
  if (listen(fd.get(), INT_MAX) != 0) return {};
  *failed = "ask for the port";
  socklen_t length = address->length;
  if (getsockname(fd.get(), address->get(), &length) != 0) return {};
  return fd;
}

}  // namespace phalanx
