#include "base/port_probe.h"

#include <linux/tcp.h>
#include <netinet/in.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>

#include "base/fd.h"
#include "base/socket_address.h"

namespace phalanx {
namespace {

// One connection that is being made.
struct Attempt {
  Fd socket;
  EventLoop::TimerId timer;
  std::string hello;
  std::function<void(Reach, const std::string&)> done;
};

// A firewall on the way may say "port unreachable" of a machine that it keeps from answering, and the kernel gives that
// the same error. But then no segment of the other machine has come on this connection.
bool HasHeard(int socket) {
  tcp_info info{};
  socklen_t length = sizeof info;
  if (getsockopt(socket, IPPROTO_TCP, TCP_INFO, &info, &length) != 0) return false;
  if (length < offsetof(tcp_info, tcpi_segs_in) + sizeof info.tcpi_segs_in) return true;  // a kernel before 4.2
  return info.tcpi_segs_in > 0;
}

Reach ReachOf(int error, int socket) {
  return error == ECONNREFUSED && HasHeard(socket) ? Reach::kRefused : Reach::kSilent;
}

void End(EventLoop& loop, const std::shared_ptr<Attempt>& attempt, Reach reach, const std::string& said = "") {
  loop.Cancel(attempt->timer);
  loop.Unwatch(attempt->socket.get());
  attempt->socket.Reset();
  attempt->done(reach, said);
}

// It is connected, or never will be.
void Speak(EventLoop& loop, const std::shared_ptr<Attempt>& attempt) {
  int error = 0;
  socklen_t length = sizeof error;
  if (getsockopt(attempt->socket.get(), SOL_SOCKET, SO_ERROR, &error, &length) != 0) error = errno;
  if (error != 0) return End(loop, attempt, ReachOf(error, attempt->socket.get()));
  const std::string& hello = attempt->hello;
  if (!hello.empty() && send(attempt->socket.get(), hello.data(), hello.size(), MSG_NOSIGNAL) < 0) {
    return End(loop, attempt, Reach::kAnswered);  // it has been closed already
  }
  loop.Watch(attempt->socket.get(), EPOLLIN, [&loop, attempt](uint32_t) {
    char bytes[512];
    const ssize_t n = recv(attempt->socket.get(), bytes, sizeof bytes, 0);
    End(loop, attempt, Reach::kAnswered, std::string(bytes, static_cast<size_t>(std::max<ssize_t>(n, 0))));
  });
}

}  // namespace

void ProbePort(EventLoop& loop, const std::string& address, uint16_t port, const std::string& hello, int64_t timeout_ms,
               std::function<void(Reach, const std::string&)> done) {
  const auto say = [&loop, &done](Reach reach) { loop.Post([done = std::move(done), reach] { done(reach, ""); }); };
  StatusOr<SocketAddress> to = ParseIp(address);
  if (!to.ok()) return say(Reach::kSilent);
  to->set_port(port);
  auto attempt = std::make_shared<Attempt>();
  attempt->socket.Reset(socket(to->family(), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
  if (!attempt->socket.valid()) return say(Reach::kSilent);
  const int error = connect(attempt->socket.get(), to->get(), to->length) == 0 ? 0 : errno;
  if (error != EINPROGRESS && error != 0) return say(ReachOf(error, attempt->socket.get()));
  attempt->hello = hello;
  attempt->done = std::move(done);
  attempt->timer = loop.At(MonotonicMs() + timeout_ms, [&loop, attempt] { End(loop, attempt, Reach::kSilent); });
  loop.Watch(attempt->socket.get(), EPOLLOUT, [&loop, attempt](uint32_t) { Speak(loop, attempt); });
}

}  // namespace phalanx
