// Which user is at the other end of a TCP connection that comes from this machine, as the kernel tells
// (NETLINK_SOCK_DIAG, sock_diag(7)).
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "base/fd.h"
#include "base/socket_address.h"

namespace phalanx {

// Belongs to one thread.
class LocalPeers {
 public:
  LocalPeers();

  enum class Found {
    kOwned,    // `user` has it
    kGone,     // no process has it any more
    kNowhere,  // no such socket is in this network namespace
    kNotTold,  // by this kernel
  };
  struct Owner {
    Found found = Found::kNotTold;
    uid_t user = 0;
  };

  // Of the socket at `peer` that is connected to `local`, whatever interface it is bound to.
  Owner OwnerOf(const SocketAddress& peer, const SocketAddress& local);

  // Why the caller at the other end of the accepted connection `fd` may not speak: it is on this machine, and neither
  // this process's user nor root. Empty: it may, or is elsewhere, or the kernel does not tell.
  std::string WhyForeign(SocketAddress peer, int fd);

 private:
  // A socket that is bound to an interface is found by that alone; one that is not, by any.
  Owner Ask(const SocketAddress& peer, const SocketAddress& local, uint32_t interface);

  Fd socket_;
  uint32_t sequence_ = 0;
};

}  // namespace phalanx
