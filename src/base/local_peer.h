// Which user is at the other end of a TCP connection that comes from this machine, as the kernel tells
// (NETLINK_SOCK_DIAG, sock_diag(7)).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>

#include "base/fd.h"
#include "base/socket_address.h"

namespace phalanx {

// Belongs to one thread.
class LocalPeers {
 public:
  LocalPeers();

  struct Owner {
    uid_t user = 0;
    bool gone = false;  // no process has the socket any more; the user is not known
  };

  // Of the socket at `peer` that is connected to `local`. None: it is not of this machine, or not of this network
  // namespace, or the kernel does not tell.
  std::optional<Owner> OwnerOf(const SocketAddress& peer, const SocketAddress& local);

  // Why the caller at the other end of the accepted connection `fd` may not speak: it is on this machine, and neither
  // this process's user nor root. Empty: it may, or is elsewhere, or the kernel does not tell.
  std::string WhyForeign(const SocketAddress& peer, int fd);

 private:
  Fd socket_;
  uint32_t sequence_ = 0;
};

}  // namespace phalanx
