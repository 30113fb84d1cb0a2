#include "base/local_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <unistd.h>

#include <string>

#include "base/net.h"

namespace phalanx {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kNobody = 65'534;

SocketAddress NameOf(int fd, bool peer) {
  SocketAddress address;
  address.length = sizeof address.storage;
  EXPECT_EQ((peer ? getpeername : getsockname)(fd, address.get(), &address.length), 0);
  return address;
}

struct Ways {
  const char* listener;
  const char* from;  // an address of this machine
  const char* to;
  const char* device;  // the client's socket is bound to it; empty: to none
};

SocketAddress Address(const char* ip, uint16_t port) {
  SocketAddress address = *ParseIp(ip);
  address.set_port(port);
  return address;
}

// Two ends on this machine.
class LocalPeersTest : public ::testing::TestWithParam<Ways> {
 protected:
  void SetUp() override {
    const SocketAddress where = *ParseIp(GetParam().listener);
    listener_ = Fd(socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    const int off = 0;
    if (where.family() == AF_INET6) setsockopt(listener_.get(), IPPROTO_IPV6, IPV6_V6ONLY, &off, sizeof off);
    ASSERT_EQ(bind(listener_.get(), where.get(), where.length), 0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
    port_ = NameOf(listener_.get(), false).port();
  }
  // `user`: who the client is for the kernel; sockets are their maker's.
  void Connect(uid_t user) {
    const SocketAddress from = Address(GetParam().from, 0);
    const SocketAddress to = Address(GetParam().to, port_);
    const int before = setfsuid(user);
    client_ = Fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    setfsuid(static_cast<uid_t>(before));
    const std::string device = GetParam().device;
    if (!device.empty()) {
      ASSERT_EQ(setsockopt(client_.get(), SOL_SOCKET, SO_BINDTODEVICE, device.data(), device.size()), 0);
    }
    ASSERT_EQ(bind(client_.get(), from.get(), from.length), 0);
    ASSERT_EQ(connect(client_.get(), to.get(), to.length), 0);
    accepted_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  }
  std::string WhyForeign() { return peers_.WhyForeign(NameOf(accepted_.get(), true), accepted_.get()); }

  Fd listener_;
  Fd client_;
  Fd accepted_;
  uint16_t port_ = 0;
  LocalPeers peers_;
};

TEST_P(LocalPeersTest, ItsOwnUserIsKnown) {
  Connect(geteuid());
  SocketAddress peer = NameOf(accepted_.get(), true);
  SocketAddress local = NameOf(accepted_.get(), false);
  peer.Unmap();
  local.Unmap();
  const LocalPeers::Owner owner = peers_.OwnerOf(peer, local);
  EXPECT_EQ(owner.found, LocalPeers::Found::kOwned);
  EXPECT_EQ(owner.user, geteuid());
  EXPECT_EQ(WhyForeign(), "");
  EXPECT_EQ(peers_.OwnerOf(local, local).found, LocalPeers::Found::kNowhere) << "there is no such connection";
}

TEST_P(LocalPeersTest, AnotherUserIsForeign) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can play another user";
  Connect(kNobody);
  EXPECT_THAT(WhyForeign(), HasSubstr("it is user 65534's, and this job is user 0's"));
  EXPECT_THAT(WhyForeign(), HasSubstr("user 65534's")) << "asked again";
}

// The kernel calls a socket without a process root's.
TEST_P(LocalPeersTest, WhoHasGoneIsNobody) {
  Connect(geteuid());
  client_.Reset();
  EXPECT_THAT(WhyForeign(), HasSubstr("it has gone"));
}

INSTANTIATE_TEST_SUITE_P(
    , LocalPeersTest,
    ::testing::Values(Ways{"127.0.0.1", "127.0.0.1", "127.0.0.1", ""}, Ways{"127.0.0.1", "127.0.0.9", "127.0.0.1", ""},
                      Ways{"0.0.0.0", "127.0.0.9", "127.0.0.2", ""}, Ways{"::", "127.0.0.9", "127.0.0.1", ""},
                      Ways{"::", "::1", "::1", ""}, Ways{"::1", "::1", "::1", "lo"},
                      Ways{"127.0.0.1", "127.0.0.1", "127.0.0.1", "lo"}, Ways{"::", "127.0.0.9", "127.0.0.1", "lo"}));

// Any user may leave from any address of the machine.
TEST(LocalPeers, AnotherAddressOfTheMachineIsOfTheMachine) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can play another user";
  int tried = 0;
  for (const std::string& own : InterfaceAddresses()) {
    const StatusOr<SocketAddress> from = ParseIp(own);
    if (!from.ok() || from->family() != AF_INET || IsLoopback(own)) continue;
    ++tried;
    const Fd listener(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    SocketAddress where = *ParseIp("127.0.0.1");
    ASSERT_EQ(bind(listener.get(), where.get(), where.length), 0);
    ASSERT_EQ(listen(listener.get(), 8), 0);
    where = NameOf(listener.get(), false);
    const int before = setfsuid(kNobody);
    const Fd client(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    setfsuid(static_cast<uid_t>(before));
    ASSERT_EQ(bind(client.get(), from->get(), from->length), 0);
    ASSERT_EQ(connect(client.get(), where.get(), where.length), 0);
    const Fd accepted(accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC));
    LocalPeers peers;
    EXPECT_THAT(peers.WhyForeign(NameOf(accepted.get(), true), accepted.get()), HasSubstr("user 65534's")) << own;
  }
  if (tried == 0) GTEST_SKIP() << "no address but the loopbacks";
}

}  // namespace
}  // namespace phalanx
