#include "base/port_probe.h"

#include <gtest/gtest.h>
#include <linux/if_ether.h>
#include <net/if.h>
#include <net/route.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/epoll.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <string>
#include <string_view>
#include <thread>

#include "base/clock.h"
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

// --- a firewall on the way ----------------------------------------------------------------------------------------

// A network of this thread alone, in which all that is sent to 10.9.9.2 comes to nobody.
bool MakeNetwork() {
  if (unshare(CLONE_NEWNET) != 0) return false;
  const Fd control(socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  char name[IFNAMSIZ] = "lo";
  ifreq up{};
  std::memcpy(up.ifr_name, name, sizeof name);
  up.ifr_flags = IFF_UP;
  rtentry route{};
  route.rt_dev = name;
  route.rt_flags = RTF_UP | RTF_HOST;
  route.rt_dst = *ParseIp("10.9.9.2")->get();
  return ioctl(control.get(), SIOCSIFFLAGS, &up) == 0 && ioctl(control.get(), SIOCADDRT, &route) == 0;
}

uint16_t InternetChecksum(std::string_view bytes) {
  uint32_t sum = 0;
  for (size_t i = 0; i + 1 < bytes.size(); i += 2) {
    sum += static_cast<uint32_t>(static_cast<uint8_t>(bytes[i])) << 8 | static_cast<uint8_t>(bytes[i + 1]);
  }
  while (sum > 0xffff) sum = (sum & 0xffff) + (sum >> 16);
  return static_cast<uint16_t>(~sum);
}

// What such a firewall answers to an IPv4 packet (RFC 792): type 3, code 3, and the first bytes of the packet.
std::string PortUnreachable(std::string_view packet) {
  std::string message("\x03\x03\0\0\0\0\0\0", 8);
  message += packet.substr(0, 28);
  const uint16_t sum = InternetChecksum(message);
  message[2] = static_cast<char>(sum >> 8);
  message[3] = static_cast<char>(sum);
  std::string header(packet.substr(0, 20));
  header[9] = IPPROTO_ICMP;
  std::swap_ranges(header.begin() + 12, header.begin() + 16, header.begin() + 16);
  return header + message;
}

// Whoever is behind it may live.
TEST(PortProbe, AFirewallThatRefusesForAMachineProvesNothing) {
  bool allowed = false;
  std::thread([&allowed] {
    allowed = MakeNetwork();
    if (!allowed) return;
    const Fd wire(socket(AF_PACKET, SOCK_DGRAM | SOCK_CLOEXEC, htons(ETH_P_ALL)));
    const Fd firewall(socket(AF_INET, SOCK_RAW | SOCK_CLOEXEC, IPPROTO_RAW));
    ASSERT_TRUE(wire.valid() && firewall.valid());
    EventLoop loop;
    int refused = 0;
    loop.Watch(wire.get(), EPOLLIN, [&](uint32_t) {
      char bytes[256];
      const ssize_t n = recv(wire.get(), bytes, sizeof bytes, 0);
      const std::string_view packet(bytes, static_cast<size_t>(std::max<ssize_t>(n, 0)));
      if (packet.size() < 40 || packet[9] != IPPROTO_TCP) return;
      const std::string answer = PortUnreachable(packet);
      const SocketAddress to = *ParseIp("127.0.0.1");
      if (sendto(firewall.get(), answer.data(), answer.size(), 0, to.get(), to.length) > 0) ++refused;
    });
    Reach reach = Reach::kAnswered;
    const int64_t begin_ms = MonotonicMs();
    ProbePort(loop, "10.9.9.2", 4711, "", 20'000, [&](Reach found, const std::string&) {
      reach = found;
      loop.Stop();
    });
    loop.Run();
    EXPECT_GT(refused, 0);
    EXPECT_EQ(reach, Reach::kSilent);
    EXPECT_LT(MonotonicMs() - begin_ms, 20'000) << "the kernel took it for a refusal";
  }).join();
  if (!allowed) GTEST_SKIP() << "no networks can be made here: unshare is not allowed";
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
