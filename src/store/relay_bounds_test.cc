// What a relay and a store do with others that do not keep to their word.
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <iterator>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "store/mux.h"
#include "store/test_client.h"

namespace phalanx::store {
namespace {

std::string Frame(uint8_t kind, ClientNumber client, uint32_t amount) {
  return std::string{static_cast<char>(kind), '\0'} + Bytes(client) + Bytes(amount);
}

std::string Greeting(uint64_t epoch = 0) { return std::string(Mux(Mux::End::kRelay, epoch).Output()); }

// A relay of one client, which has greeted.
std::string OneClient() { return Greeting() + Frame(1, 0, 0) + Frame(2, 0, 5) + Hello(); }

// Sends requests as long as they are taken, which must come to an end; `check` after each.
template <typename Check>
void AskWithoutReading(const Client& slow, const std::string& requests, Check check) {
  size_t asked_bytes = 0;
  for (pollfd p{slow.fd(), POLLOUT, 0}; poll(&p, 1, 100) == 1 && (p.revents & POLLOUT) != 0;) {
    const std::string_view rest = std::string_view(requests).substr(asked_bytes % requests.size());
    const ssize_t n = send(slow.fd(), rest.data(), rest.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n <= 0) break;
    asked_bytes += static_cast<size_t>(n);
    ASSERT_LT(asked_bytes, 64u << 20);
    check();
  }
}

std::string ManyGets() {
  std::string requests;
  for (int i = 0; i < 4000; ++i) requests += Get("/big");
  return requests;
}

TEST(StoreRelayBounds, AClientThatReadsNothingIsBoundedAndClosedAlone) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.slow_reader_ms = 2'000;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  const auto relay = MustRelay(server->port());
  Client good(*relay);
  good.Send(Set("/big", std::string(1 << 20, 'x')));
  ASSERT_TRUE(good.Alive());
  Client slow(*relay);
  AskWithoutReading(slow, ManyGets(), [&] {
    ASSERT_LT(server->stats().buffer_bytes, 10u << 20);
    ASSERT_LE(relay->stats().buffer_bytes, Mux::kWindowBytes + 2 * Mux::kOutputBytes);
    ASSERT_TRUE(good.Alive()) << "one that reads nothing holds nobody up";
  });
  // Large replies to others pass by it.
  EXPECT_EQ(good.Ask(Get("/big"), 8 + (1 << 20)).size(), 8u + (1 << 20));
  EXPECT_TRUE(refusals->Comes("client 1 of the relay at 127.0.0.1:"));
  EXPECT_NE(refusals->last().find("it read none of its replies for 2000 ms"), std::string::npos);
  EXPECT_TRUE(good.Alive());
  EXPECT_TRUE(slow.Closed());
  EXPECT_EQ(server->stats().slow_readers, 1u);
  EXPECT_TRUE(Eventually([&] { return relay->stats().clients == 1; }));
  EXPECT_EQ(server->stats().relays, 1u);
}

// What the relay holds for it is less than the store would notice.
TEST(StoreRelayBounds, TheRelayClosesAClientThatReadsNothing) {
  const auto server = MustOpen();
  auto refusals = std::make_shared<Refusals>();
  RelayOptions options;
  options.slow_reader_ms = 300;
  options.on_refused = AddTo(refusals);
  const auto relay = MustRelay(server->port(), options);
  Client good(*relay);
  good.Send(Set("/big", std::string(8 << 20, 'x')));
  ASSERT_TRUE(good.Alive());
  Client slow(*relay);
  slow.Send(Get("/big") + Get("/big"));
  EXPECT_TRUE(refusals->Comes("it read none of its replies for 300 ms"));
  EXPECT_TRUE(slow.Closed());
  EXPECT_TRUE(good.Alive());
  EXPECT_EQ(relay->stats().slow_readers, 1u);
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 1 && server->stats().buffer_bytes == 0; }));
}

TEST(StoreRelayBounds, AReaderThatIsSlowButReadsIsServed) {
  StoreOptions options;
  options.engine.output_pause_bytes = 1000;
  const auto server = MustOpen(options);
  const auto relay = MustRelay(server->port());
  Client client(*relay);
  ReadSlowly(client);
}

// Requests wait in the client's own socket when the store serves it no further.
TEST(StoreRelayBounds, RequestsThatAreNotServedAreBounded) {
  StoreOptions options;
  options.engine.output_pause_bytes = 1000;
  const auto server = MustOpen(options);
  const auto relay = MustRelay(server->port());
  Client slow(*relay);
  slow.Send(Set("/big", std::string(1 << 20, 'x')));
  AskWithoutReading(slow, Set("/other", std::string(1 << 20, 'y')) + Get("/big"),
                    [&] { ASSERT_LT(server->stats().buffer_bytes, 5u << 20); });
  Client good(*relay);
  EXPECT_TRUE(good.Alive());
}

TEST(StoreRelayBounds, MoreClientsThanTheStoreTakesAreClosedAlone) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.max_connections = 2;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  const auto relay = MustRelay(server->port());
  Client a(*relay);
  EXPECT_TRUE(a.Alive());
  {
    Client b(*relay);
    EXPECT_TRUE(b.Alive());
    EXPECT_TRUE(Client(*relay).Closed());
    EXPECT_TRUE(refusals->Comes("store refused client 2 of the relay at 127.0.0.1:"));
    EXPECT_TRUE(a.Alive() && b.Alive());
  }
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 1; }));
  EXPECT_TRUE(Client(*relay).Alive());
}

// ---- a relay that is none of ours, at the store

TEST(StoreRelayBounds, GarbageFramesCloseTheirConnectionAlone) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  const auto relay = MustRelay(server->port());
  Client good(*relay);
  EXPECT_TRUE(good.Alive());
  Client direct(*server);
  const std::pair<std::string, const char*> cases[] = {
      {Greeting(1), "another round"},
      {"\xf0http", "greets otherwise"},
      {OneClient() + Frame(9, 0, 0), "unknown kind"},
      {OneClient() + Frame(2, 0, UINT32_MAX) + std::string(100'000, 'x'), "amount"},
      {OneClient() + Frame(2, 65'535, 1) + "x", "not open"},
      {OneClient() + Frame(1, 40'000, 0), "not the next one"},
      {OneClient() + Frame(3, 0, 1), "more taken than was sent"},
  };
  for (const auto& [bytes, why] : cases) {
    Client stranger("127.0.0.1", server->port());
    stranger.Send(bytes);
    EXPECT_TRUE(stranger.Closed()) << why;
    EXPECT_TRUE(refusals->Comes(why)) << why << ": " << refusals->last();
    EXPECT_NE(refusals->last().find("store closed the relay at 127.0.0.1:"), std::string::npos) << refusals->last();
  }
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 2 && server->stats().relays == 1; }));
  EXPECT_EQ(server->stats().violations, std::size(cases));
  EXPECT_TRUE(good.Alive());
  EXPECT_TRUE(direct.Alive());
}

TEST(StoreRelayBounds, ARelayThatReadsNothingIsBoundedAndClosedWithItsClients) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.slow_reader_ms = 2'000;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  Client good(*server);
  good.Send(Set("/big", std::string(1 << 20, 'x')));
  ASSERT_TRUE(good.Alive());
  Client relay("127.0.0.1", server->port());
  // A hundred clients, whose replies the connection's own buffers cannot take.
  std::string bytes = Greeting();
  for (ClientNumber client = 0; client < 100; ++client) {
    const std::string asked = Hello() + Get("/big");
    bytes += Frame(1, client, 0) + Frame(2, client, static_cast<uint32_t>(asked.size())) + asked;
  }
  relay.Send(bytes);
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 101; }));
  EXPECT_LT(server->stats().buffer_bytes, 110u << 20);
  EXPECT_TRUE(good.Alive());
  EXPECT_TRUE(refusals->Comes("for 2000 ms"));
  EXPECT_TRUE(good.Alive());
  EXPECT_TRUE(Eventually([&] { return server->stats().relays == 0 && server->stats().connections == 1; }));
  EXPECT_EQ(server->stats().buffer_bytes, 0u);
}

TEST(StoreRelayBounds, WhoGreetsByHalfIsClosed) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.greeting_ms = 1'000;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  Client half("127.0.0.1", server->port());
  half.Send(Greeting().substr(0, 15));
  EXPECT_TRUE(half.Closed());
  EXPECT_TRUE(refusals->Comes("the relay at 127.0.0.1:"));
  EXPECT_NE(refusals->last().find("did not introduce itself for 1000 ms"), std::string::npos) << refusals->last();
  // A client that says nothing is closed for itself, within a relay that stays.
  Client relay("127.0.0.1", server->port());
  relay.Send(Greeting() + Frame(1, 0, 0));
  EXPECT_EQ(relay.Read(24), Greeting() + Frame(4, 0, 0));
  EXPECT_TRUE(refusals->Comes("client 0 of the relay at 127.0.0.1:"));
  EXPECT_EQ(server->stats().relays, 1u);
  EXPECT_EQ(server->stats().silent_peers, 2u);
}

// Its clients' bytes, said without a pause for the store's greeting, cut anywhere.
TEST(StoreRelayBounds, FramesMayBeCutAnywhere) {
  const auto server = MustOpen();
  Client relay("127.0.0.1", server->port());
  const std::string ping = Ping(3);
  for (const char byte : OneClient() + Frame(2, 0, static_cast<uint32_t>(ping.size())) + ping) {
    relay.Send(std::string(1, byte));
  }
  EXPECT_EQ(relay.Read(28), Greeting() + Frame(2, 0, 4) + Bytes<uint32_t>(3));
}

// ---- a store that is none of ours, at the relay

// One connection of a relay, at a port of the test's own.
class FalseStore {
 public:
  FalseStore() : socket_(MustReserve()) {}

  uint16_t port() const { return socket_.port(); }
  Fd Accept() const {
    pollfd p{socket_.fds().front().get(), POLLIN, 0};
    EXPECT_EQ(poll(&p, 1, kPatienceMs), 1);
    return Fd(accept4(p.fd, nullptr, nullptr, SOCK_CLOEXEC));
  }

 private:
  ListenSocket socket_;
};

TEST(StoreRelayBounds, AStoreThatIsNoneClosesTheClients) {
  const std::pair<std::string, const char*> cases[] = {
      {"HTTP/1.1 400 Bad Request\r\n\r\n", "greets otherwise"},
      {Greeting() + Frame(2, 9, 1) + "x", "not open"},
      {Greeting() + Frame(2, 0, 1 << 30), "amount"},
      {Greeting() + Frame(1, 1, 0), "a store that opens"},
  };
  for (const auto& [bytes, why] : cases) {
    const FalseStore store;
    auto refusals = std::make_shared<Refusals>();
    RelayOptions options;
    options.on_refused = AddTo(refusals);
    const auto relay = MustRelay(store.port(), options);
    Client rank(*relay);
    const Fd connection = store.Accept();
    EXPECT_EQ(send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
    EXPECT_TRUE(rank.Closed()) << why;
    EXPECT_TRUE(refusals->Comes(why)) << why << ": " << refusals->last();
  }
}

TEST(StoreRelayBounds, AStoreThatSaysNothingIsGivenUp) {
  const FalseStore store;
  auto refusals = std::make_shared<Refusals>();
  RelayOptions options;
  options.greeting_ms = 300;
  options.on_refused = AddTo(refusals);
  const auto relay = MustRelay(store.port(), options);
  Client rank(*relay);
  const Fd connection = store.Accept();
  EXPECT_TRUE(rank.Closed()) << "to a waiting client a silent server is one that hangs";
  EXPECT_TRUE(refusals->Comes("it did not greet for 300 ms"));
}

// Its clients' requests wait in their sockets; then it is given up.
TEST(StoreRelayBounds, AStoreThatTakesNothingIsBoundedAndGivenUp) {
  const FalseStore store;
  auto refusals = std::make_shared<Refusals>();
  RelayOptions options;
  options.slow_reader_ms = 1'000;
  options.on_refused = AddTo(refusals);
  const auto relay = MustRelay(store.port(), options);
  std::vector<Client> ranks;
  for (int i = 0; i < 64; ++i) ranks.emplace_back(*relay);
  const Fd connection = store.Accept();
  const std::string greeting = Greeting();
  EXPECT_EQ(send(connection.get(), greeting.data(), greeting.size(), MSG_NOSIGNAL), 16);
  const std::string much = Set("/k", std::string(1 << 20, 'x'));
  for (const Client& rank : ranks) {
    send(rank.fd(), much.data(), much.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
    ASSERT_LE(relay->stats().buffer_bytes, 4 * Mux::kOutputBytes);
  }
  EXPECT_TRUE(refusals->Comes("it took nothing for 1000 ms"));
  for (Client& rank : ranks) EXPECT_TRUE(rank.Closed());
}

}  // namespace
}  // namespace phalanx::store
