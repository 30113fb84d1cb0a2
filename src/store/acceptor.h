// Takes connections from a reserved port. Where the process has no descriptor left the caller is told by a close rather
// than left in silence, and accepting rests for a moment: the listener stays ready, so that trying at once again would
// spin.
#pragma once

#include <functional>

#include "base/event_loop.h"
#include "base/fd.h"
#include "base/socket_address.h"
#include "store/listen.h"

namespace phalanx::store {

// On a loop, and its thread's.
class Acceptor {
 public:
  struct Calls {
    // A connection that does not block, and who is at its other end.
    std::function<void(Fd, const SocketAddress&)> accepted;
    // No descriptor is left: whether the limit has been raised.
    std::function<bool()> raise_limit;
    std::function<void(int error_number)> failed;
  };

  Acceptor(EventLoop& loop, ListenSocket socket, Calls calls);
  Acceptor(const Acceptor&) = delete;
  Acceptor& operator=(const Acceptor&) = delete;
  ~Acceptor();

  // From now on: who waits already comes first.
  void Listen();
  uint16_t port() const { return socket_.port(); }

 private:
  void OnAcceptable(int listener);
  // False: nothing more to accept now.
  bool AcceptOne(int listener);
  // True: accepting may go well now.
  bool OnError(int listener, int error_number);

  EventLoop& loop_;
  const ListenSocket socket_;
  const Calls calls_;
  Fd spare_fd_;
  EventLoop::TimerId listen_again_;
};

}  // namespace phalanx::store
