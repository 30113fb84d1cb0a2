#include "base/local_peer.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <unistd.h>

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

// Two ends on this machine.
class LocalPeersTest : public ::testing::TestWithParam<const char*> {
 protected:
  void SetUp() override {
    SocketAddress where = *ParseIp(GetParam());
    listener_ = Fd(socket(where.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    ASSERT_TRUE(listener_.valid());
    ASSERT_EQ(bind(listener_.get(), where.get(), where.length), 0);
    ASSERT_EQ(listen(listener_.get(), 8), 0);
    where_ = NameOf(listener_.get(), false);
  }
  // `user`: who the client is for the kernel; sockets are their maker's.
  void Connect(uid_t user) {
    const int before = setfsuid(user);
    client_ = Fd(socket(where_.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    setfsuid(static_cast<uid_t>(before));
    ASSERT_EQ(connect(client_.get(), where_.get(), where_.length), 0);
    accepted_ = Fd(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    peer_ = NameOf(client_.get(), false);
  }
  std::string WhyForeign() { return peers_.WhyForeign(peer_, accepted_.get()); }

  Fd listener_;
  Fd client_;
  Fd accepted_;
  SocketAddress where_;
  SocketAddress peer_;
  LocalPeers peers_;
};

TEST_P(LocalPeersTest, ItsOwnUserIsKnown) {
  Connect(geteuid());
  const auto owner = peers_.OwnerOf(peer_, where_);
  ASSERT_TRUE(owner.has_value());
  EXPECT_EQ(owner->user, geteuid());
  EXPECT_FALSE(owner->gone);
  EXPECT_EQ(WhyForeign(), "");
  EXPECT_FALSE(peers_.OwnerOf(where_, where_).has_value()) << "there is no such connection";
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

INSTANTIATE_TEST_SUITE_P(, LocalPeersTest, ::testing::Values("127.0.0.1", "127.0.0.9", "::1"));

}  // namespace
}  // namespace phalanx
