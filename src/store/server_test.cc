#include "store/server.h"

#include <arpa/inet.h>
#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/socket_address.h"
#include "store/client_bytes.h"
#include "store/test_client.h"

namespace phalanx::store {
namespace {

bool HasIpv6Loopback() {
  const SocketAddress address = *ParseIp("::1");
  Fd fd(socket(AF_INET6, SOCK_STREAM, 0));
  return fd.valid() && bind(fd.get(), address.get(), address.length) == 0;
}

// A non-loopback address of this machine, found by where a datagram would leave from.
std::optional<std::string> OwnAddress() {
  SocketAddress to = *ParseIp("192.0.2.1");
  to.set_port(9);
  Fd fd(socket(AF_INET, SOCK_DGRAM, 0));
  SocketAddress own;
  own.length = sizeof own.storage;
  if (connect(fd.get(), to.get(), to.length) != 0) return {};
  if (getsockname(fd.get(), own.get(), &own.length) != 0 || own.loopback()) return {};
  return own.IpText();
}

// ---- addresses

TEST(AddressTest, TextAndBytes) {
  EXPECT_EQ(ParseIp("10.0.0.7")->IpText(), "10.0.0.7");
  EXPECT_EQ(ParseIp("::ffff:10.0.0.7")->IpText(), "10.0.0.7");
  EXPECT_EQ(ParseIp("::ffff:10.0.0.7")->ip(), ParseIp("10.0.0.7")->ip());
  EXPECT_EQ(ParseIp("FD00::0:7")->IpText(), "fd00::7");
  SocketAddress address = *ParseIp("fd00::7");
  address.set_port(80);
  EXPECT_EQ(address.Text(), "[fd00::7]:80");
  for (const char* text : {"127.0.0.1", "::1", "::ffff:127.0.0.1"}) EXPECT_TRUE(ParseIp(text)->loopback());
  for (const char* text : {"128.0.0.1", "127.0.0.2", "::2", "0.0.0.0", "::"}) EXPECT_FALSE(ParseIp(text)->loopback());
  for (const char* text : {"", "localhost", "10.0.0", "10.0.0.7:80", "[::1]", "fe80::1%nowhere"}) {
    EXPECT_FALSE(ParseIp(text).ok()) << text;
  }
}

// ---- reserving

TEST(ReserveTest, ListensOnTheAddressAndBothLoopbacks) {
  const ListenSocket socket = MustReserve({"127.0.0.3"});
  std::vector<std::string> expected = {"127.0.0.3", "127.0.0.1"};
  if (HasIpv6Loopback()) expected.push_back("::1");
  EXPECT_EQ(socket.addresses(), expected);
  for (const std::string& ip : expected) EXPECT_TRUE(Client(ip, socket.port()).connected()) << ip;
  EXPECT_FALSE(Client("127.0.0.4", socket.port()).connected());
}

TEST(ReserveTest, NothingIsBoundTwice) {
  EXPECT_EQ(MustReserve({"127.0.0.1", "127.0.0.1"}).addresses()[0], "127.0.0.1");
  EXPECT_LE(MustReserve({"127.0.0.1", "127.0.0.1"}).addresses().size(), 2u);
  EXPECT_LE(MustReserve({"::ffff:127.0.0.1"}).addresses().size(), 2u);
  const ListenSocket any = MustReserve({"0.0.0.0"});
  EXPECT_EQ(any.addresses()[0], "0.0.0.0");
  EXPECT_TRUE(Client("127.0.0.1", any.port()).connected());
  if (!HasIpv6Loopback()) return;
  EXPECT_EQ(MustReserve({"::1"}).addresses(), (std::vector<std::string>{"::1", "127.0.0.1"}));
}

TEST(ReserveTest, DroppingRefuses) {
  uint16_t port = 0;
  std::optional<Client> early;
  {
    const ListenSocket socket = MustReserve();
    port = socket.port();
    early.emplace("127.0.0.1", port);
    EXPECT_TRUE(early->connected());
  }
  EXPECT_TRUE(early->Closed());
  EXPECT_FALSE(Client("127.0.0.1", port).connected());
}

TEST(ReserveTest, RangeSkipsTakenPorts) {
  const ListenSocket taken = MustReserve();
  const uint16_t port = taken.port();
  EXPECT_FALSE(ListenSocket::Reserve({"127.0.0.1"}, PortRange::Single(port)).ok());
  const auto last = static_cast<uint16_t>(std::min(port + 20, 65535));
  const auto first = static_cast<uint16_t>(last - 20);
  const ListenSocket next = MustReserve({"127.0.0.1"}, PortRange{first, last, port});
  EXPECT_NE(next.port(), port);
  EXPECT_GE(next.port(), first);
  EXPECT_LE(next.port(), last);
}

TEST(ReserveTest, TheSearchBehindAPortTriesThatOneLast) {
  for (const auto& [port, start] : {std::pair{5, 6}, {6, 7}, {7, 5}}) {
    const PortRange range = PortRange{5, 7, 0}.Behind(static_cast<uint16_t>(port));
    EXPECT_EQ(std::tuple(range.first, range.last, range.start), std::tuple(5, 7, start));
  }
  const PortRange any = PortRange{}.Behind(4711);
  EXPECT_EQ(std::tuple(any.first, any.last), std::tuple(0, 0)) << "any free port";
}

// As a node takes them: the next round's port is reserved when the store of the last round has let go of its own.
TEST(ReserveTest, PortsOfSuccessiveRoundsGoRound) {
  const auto last = static_cast<uint16_t>(std::min(MustReserve().port() + 20, 65535));
  const PortRange range{static_cast<uint16_t>(last - 20), last, 0};
  ListenSocket open = MustReserve({"127.0.0.1"}, range);
  ListenSocket next = MustReserve({"127.0.0.1"}, range.Behind(open.port()));
  for (int round = 0; round < 4; ++round) {
    const uint16_t closed = open.port();
    open = std::move(next);
    next = MustReserve({"127.0.0.1"}, range.Behind(open.port()));
    EXPECT_NE(next.port(), closed) << "a process of the round before may still knock there";
  }
}

TEST(ReserveTest, AFreePortIsFreeEverywhereAndATakenLoopbackIsNoError) {
  const ListenSocket taken = MustReserve({"127.0.0.1"});
  // A single port was asked for: its loopback is somebody else's, the address itself is free.
  const ListenSocket other = MustReserve({"127.0.0.5"}, PortRange::Single(taken.port()));
  EXPECT_EQ(other.addresses(), (std::vector<std::string>{"127.0.0.5"}));
}

TEST(ReserveTest, Errors) {
  EXPECT_EQ(ListenSocket::Reserve({}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ListenSocket::Reserve({"localhost"}, {}).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(ListenSocket::Reserve({"127.0.0.1"}, PortRange{9, 8, 0}).status().code(),
            absl::StatusCode::kInvalidArgument);
  const Status elsewhere = ListenSocket::Reserve({"203.0.113.9"}, {}).status();
  EXPECT_FALSE(elsewhere.ok());
  EXPECT_NE(elsewhere.message().find("203.0.113.9"), std::string::npos) << elsewhere;
  EXPECT_FALSE(StoreServer::Open(ListenSocket(), {}).ok());
  StoreOptions options;
  options.allowed_peers = {"node7"};
  EXPECT_EQ(StoreServer::Open(MustReserve(), options).status().code(), absl::StatusCode::kInvalidArgument);
}

// ---- serving

TEST(StoreServerTest, ServesWhoCameBeforeItOpened) {
  ListenSocket socket = MustReserve();
  Client early("127.0.0.1", socket.port());
  early.Send(Hello() + Ping(5));
  const auto server = MustOpen({}, std::move(socket));
  EXPECT_EQ(early.Read(4), Bytes<uint32_t>(5));
  EXPECT_EQ(server->stats().accepted, 1u);
}

TEST(StoreServerTest, ServesOnEveryAddress) {
  ListenSocket socket = MustReserve();
  const std::vector<std::string> addresses = socket.addresses();
  const auto server = MustOpen({}, std::move(socket));
  int64_t n = 0;
  for (const std::string& ip : addresses) {
    Client client(ip, server->port());
    client.Send(Hello());
    EXPECT_EQ(client.Ask(Add("/n", 1), 8), Bytes(++n)) << ip;
  }
}

TEST(StoreServerTest, ReleasesWaitersOfOtherConnections) {
  const auto server = MustOpen();
  Client a(*server);
  Client b(*server);
  a.Send(Wait({"/k"}));
  EXPECT_TRUE(b.Alive());
  b.Send(Set("/k", "v"));
  EXPECT_EQ(a.Read(1), kGo);
  EXPECT_EQ(a.Ask(Get("/k"), 9), Blob("v"));
}

TEST(StoreServerTest, SendsWithoutDelay) {
  const auto server = MustOpen();
  Client client(*server);
  EXPECT_TRUE(client.Alive());
  // The server's end of the connection is a descriptor of this process: the one whose peer is the client.
  SocketAddress client_address;
  client_address.length = sizeof client_address.storage;
  ASSERT_EQ(getsockname(client.fd(), client_address.get(), &client_address.length), 0);
  int found = 0;
  for (int fd = 0; fd < 1024; ++fd) {
    SocketAddress peer;
    peer.length = sizeof peer.storage;
    if (getpeername(fd, peer.get(), &peer.length) != 0 || peer.Text() != client_address.Text()) continue;
    int no_delay = 0;
    socklen_t length = sizeof no_delay;
    ASSERT_EQ(getsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &no_delay, &length), 0);
    EXPECT_NE(no_delay, 0);
    ++found;
  }
  EXPECT_EQ(found, 1);
}

TEST(StoreServerTest, ABrokenClientDisturbsNobody) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  Client good(*server);
  EXPECT_TRUE(good.Alive());
  Client http("127.0.0.1", server->port());
  http.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(http.Closed());
  Client bad(*server);
  bad.Send("\x7f");
  EXPECT_TRUE(bad.Closed());
  EXPECT_NE(refusals->last().find("127.0.0.1"), std::string::npos);
  EXPECT_NE(refusals->last().find("unknown opcode"), std::string::npos);
  {
    Client leaver(*server);
    leaver.Send(Wait({"/never"}) + Ping(1));
    leaver.Read(4);
  }
  EXPECT_TRUE(good.Alive());
  EXPECT_EQ(server->stats().violations, 2u);
}

TEST(StoreServerTest, LargeValuesPass) {
  const auto server = MustOpen();
  Client client(*server);
  std::string value(8 << 20, 'x');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 131 >> 3);
  std::thread writer([&] { client.Send(Set("/big", value) + MultiGet({"/big", "/big"})); });
  EXPECT_EQ(client.Read(2 * (8 + value.size())), Blob(value) + Blob(value));
  writer.join();
}

TEST(StoreServerTest, PeersThatAreNotMembersAreClosed) {
  const std::optional<std::string> own = OwnAddress();
  if (!own) GTEST_SKIP() << "no address but the loopbacks";
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.on_refused = AddTo(refusals);
  ListenSocket socket = MustReserve({"0.0.0.0"});
  const uint16_t port = socket.port();
  {
    const auto server = MustOpen(options, std::move(socket));
    // To its own address from its own address: this machine.
    Client self(*own, port, *own);
    self.Send(Hello());
    EXPECT_TRUE(self.Alive());
    // From another address than the one it arrives at: for all the server can know another machine's.
    Client stranger("127.0.0.1", port, *own);
    stranger.Send(Hello() + Ping(1));
    EXPECT_TRUE(stranger.Closed());
    EXPECT_EQ(server->stats().refused_peers, 1u);
    EXPECT_NE(refusals->last().find(*own), std::string::npos) << refusals->last();
  }
  options.allowed_peers = {"::ffff:" + *own};
  const auto server = MustOpen(options, MustReserve({"0.0.0.0"}));
  Client member("127.0.0.1", server->port(), *own);
  member.Send(Hello());
  EXPECT_TRUE(member.Alive());
}

TEST(StoreServerTest, ASlowReaderIsBoundedAndClosed) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.slow_reader_ms = 300;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  Client good(*server);
  good.Send(Set("/big", std::string(1 << 20, 'x')));
  ASSERT_TRUE(good.Alive());
  Client slow(*server);
  std::string requests;
  for (int i = 0; i < 4000; ++i) requests += Get("/big");
  // It asks on as long as its requests are taken, which must come to an end.
  int64_t asked_bytes = 0;
  for (pollfd p{slow.fd(), POLLOUT, 0}; poll(&p, 1, 100) == 1 && (p.revents & POLLOUT) != 0;) {
    const ssize_t n = send(slow.fd(), requests.data(), requests.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) break;
    asked_bytes += n;
    ASSERT_LT(asked_bytes, 64 << 20);
    ASSERT_LT(server->stats().buffer_bytes, 10u << 20);
  }
  const int64_t begin_ms = MonotonicMs();
  while (server->stats().slow_readers == 0 && MonotonicMs() - begin_ms < kPatienceMs) {
    ASSERT_TRUE(good.Alive());
    ASSERT_LT(server->stats().buffer_bytes, 10u << 20);
  }
  EXPECT_TRUE(slow.Closed());
  EXPECT_EQ(server->stats().slow_readers, 1u);
  EXPECT_NE(refusals->last().find("300 ms"), std::string::npos);
}

TEST(StoreServerTest, WhoNeverIntroducesItselfIsClosed) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.greeting_ms = 2'000;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  Client known(*server);  // says VALIDATE
  ASSERT_TRUE(known.Alive());
  const int64_t begin_ms = MonotonicMs();
  Client silent("127.0.0.1", server->port());
  EXPECT_TRUE(silent.Closed());
  EXPECT_GE(MonotonicMs() - begin_ms, 1'990);
  EXPECT_EQ(server->stats().silent_peers, 1u);
  EXPECT_NE(refusals->last().find("did not introduce itself for 2000 ms"), std::string::npos);
  EXPECT_TRUE(known.Alive());
}

TEST(StoreServerTest, AReaderThatIsSlowButReadsIsServed) {
  StoreOptions options;
  options.slow_reader_ms = 60'000;
  options.engine.output_pause_bytes = 1000;
  const auto server = MustOpen(options);
  Client client(*server);
  ReadSlowly(client);
}

TEST(StoreServerTest, DestructionClosesEverybodyAtOnce) {
  auto server = MustOpen();
  const uint16_t port = server->port();
  Client waiter(*server);
  waiter.Send(Wait({"/never"}) + Ping(1));
  EXPECT_EQ(waiter.Read(4), Bytes<uint32_t>(1));
  const int64_t begin_ms = MonotonicMs();
  server.reset();
  EXPECT_LT(MonotonicMs() - begin_ms, 10'000);  // not for ever
  EXPECT_TRUE(waiter.Closed());
  EXPECT_FALSE(Client("127.0.0.1", port).connected());
  // SO_REUSEADDR: the port is free again although connections on it were closed by this side.
  EXPECT_TRUE(ListenSocket::Reserve({"127.0.0.1"}, PortRange::Single(port)).ok());
}

TEST(StoreServerTest, BarrierOfHundreds) {
  const auto server = MustOpen();
  std::vector<Client> clients;
  constexpr int kClients = 300;
  for (int i = 0; i < kClients; ++i) clients.emplace_back(*server).Send(Barrier("/all", kClients));
  for (Client& client : clients) EXPECT_EQ(client.Read(1), kGo);
  EXPECT_EQ(server->stats().connections, static_cast<uint64_t>(kClients));
}

}  // namespace
}  // namespace phalanx::store
