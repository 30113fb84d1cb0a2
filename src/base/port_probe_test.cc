#include "base/port_probe.h"

#include <gtest/gtest.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <optional>
#include <string>

#include "base/listen_tcp.h"
#include "base/reserved_port.h"
#include "base/socket_address.h"

namespace phalanx {
namespace {

struct Said {
  Reach reach = Reach::kSilent;
  std::string bytes;
};

Said Ask(EventLoop& loop, uint16_t port, const std::string& hello, int64_t wait_ms = 20'000) {
  Said said;
  ProbePort(loop, "127.0.0.1", port, hello, wait_ms, [&](Reach reach, const std::string& bytes) {
    said = {reach, bytes};
    loop.Stop();
  });
  loop.Run();
  return said;
}

TEST(PortProbe, APortThatNobodyListensOnIsRefused) {
  StatusOr<ReservedPort> kept = ReservedPort::Take("127.0.0.1", 0, 0, 0);
  ASSERT_TRUE(kept.ok());
  EventLoop loop;
  EXPECT_EQ(Ask(loop, kept->port(), "").reach, Reach::kRefused) << "it is kept, and not listened on";
}

TEST(PortProbe, WhoTakesConnectionsAndStandsStillIsSilent) {
  SocketAddress address = *ParseIp("127.0.0.1");
  const char* failed = "";
  const Fd listening = ListenTcp(&address, false, &failed);
  ASSERT_TRUE(listening.valid());
  EventLoop loop;
  EXPECT_EQ(Ask(loop, address.port(), "hello", 200).reach, Reach::kSilent);
}

TEST(PortProbe, WhoAnswersIsHeard) {
  SocketAddress address = *ParseIp("127.0.0.1");
  const char* failed = "";
  const Fd listening = ListenTcp(&address, false, &failed);
  ASSERT_TRUE(listening.valid());
  EventLoop loop;
  loop.Watch(listening.get(), EPOLLIN, [&](uint32_t) {
    const Fd caller(accept(listening.get(), nullptr, nullptr));
    EXPECT_EQ(send(caller.get(), "me", 2, MSG_NOSIGNAL), 2);
  });
  const Said said = Ask(loop, address.port(), "");
  EXPECT_EQ(said.reach, Reach::kAnswered);
  EXPECT_EQ(said.bytes, "me");
}

TEST(ReservedPort, TheWantedOneIsTakenWhereItIsFree) {
  StatusOr<ReservedPort> first = ReservedPort::Take("127.0.0.1", 0, 0, 0);
  ASSERT_TRUE(first.ok());
  const uint16_t port = first->port();
  StatusOr<ReservedPort> other = ReservedPort::Take("127.0.0.1", port, 0, 0);
  ASSERT_TRUE(other.ok());
  EXPECT_NE(other->port(), port);
  first->Release();
  StatusOr<ReservedPort> again = ReservedPort::Take("127.0.0.1", port, 0, 0);
  ASSERT_TRUE(again.ok());
  EXPECT_EQ(again->port(), port);
}

}  // namespace
}  // namespace phalanx
