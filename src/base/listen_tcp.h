// A listening TCP socket.
#pragma once

#include "base/fd.h"
#include "base/socket_address.h"

namespace phalanx {

// Listens on `address`, which gets the port where it had 0. The socket is non-blocking and closes on exec; what it
// accepts has TCP_NODELAY. `both_families`: one of IPv6 takes IPv4 as well. Invalid: *failed says what could not be
// done ("bind"), errno why.
Fd ListenTcp(SocketAddress* address, bool both_families, const char** failed);

}  // namespace phalanx
