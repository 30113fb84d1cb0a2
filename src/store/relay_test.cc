#include "store/relay.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "store/mux.h"
#include "store/test_client.h"

namespace phalanx::store {
namespace {

TEST(StoreRelayTest, IsTheStoreToItsClients) {
  const auto server = MustOpen();
  const auto relay = MustRelay(server->port());
  Client direct(*server);
  Client a(*relay);
  Client b(*relay);
  EXPECT_TRUE(a.Alive());
  a.Send(Wait({"/k"}));
  EXPECT_EQ(b.Ask(Add("/n", 2), 8), Bytes<int64_t>(2));
  EXPECT_EQ(direct.Ask(Add("/n", 3), 8), Bytes<int64_t>(5));
  direct.Send(Set("/k", "v"));
  EXPECT_EQ(a.Read(1), kGo);
  EXPECT_EQ(b.Ask(Get("/k"), 9), Blob("v"));
  EXPECT_TRUE(Eventually([&] { return server->stats().relays == 1 && server->stats().connections == 3; }));
}

TEST(StoreRelayTest, HundredsShareOneConnection) {
  const auto server = MustOpen();
  const auto relay = MustRelay(server->port());
  std::vector<Client> clients;
  constexpr int kClients = 300;
  for (int i = 0; i < kClients; ++i) clients.emplace_back(*relay).Send(Barrier("/all", kClients));
  for (Client& client : clients) EXPECT_EQ(client.Read(1), kGo);
  // Counted behind the answers.
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == kClients && server->stats().relays == 1; }));
  EXPECT_EQ(relay->stats().clients, static_cast<uint64_t>(kClients));
  EXPECT_EQ(relay->stats().store_calls, 1u);
  clients.clear();
  EXPECT_TRUE(Eventually([&] { return server->stats().connections == 0 && relay->stats().clients == 0; }));
  EXPECT_EQ(server->stats().relays, 1u);
  // Numbers are used again.
  for (int i = 0; i < kClients; ++i) clients.emplace_back(*relay);
  for (Client& client : clients) EXPECT_TRUE(client.Alive());
}

TEST(StoreRelayTest, LargeValuesPass) {
  const auto server = MustOpen();
  const auto relay = MustRelay(server->port());
  std::string value(8 << 20, 'x');
  for (size_t i = 0; i < value.size(); ++i) value[i] = static_cast<char>(i * 131 >> 3);
  std::vector<std::thread> clients;
  for (const char* key : {"/big1", "/big2", "/big3"}) {
    clients.emplace_back([&, key] {
      Client client(*relay);
      std::thread writer([&] { client.Send(Set(key, value) + MultiGet({key, key})); });
      EXPECT_TRUE(client.Read(2 * (8 + value.size())) == Blob(value) + Blob(value)) << key;
      writer.join();
      EXPECT_TRUE(client.Alive());
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_EQ(relay->stats().buffer_bytes, 0u);
}

TEST(StoreRelayTest, ServesWhoCameBeforeTheStoreOpened) {
  ListenSocket socket = MustReserve();
  const auto relay = MustRelay(socket.port());
  Client early(*relay);
  early.Send(Ping(5));
  const auto server = MustOpen({}, std::move(socket));
  EXPECT_EQ(early.Read(4), Bytes<uint32_t>(5));
}

TEST(StoreRelayTest, AClientThatGoesTakesItsWaitBack) {
  const auto server = MustOpen();
  const auto relay = MustRelay(server->port());
  Client good(*relay);
  {
    Client leaver(*relay);
    leaver.Send(Ping(1) + Wait({"/never"}));
    EXPECT_EQ(leaver.Read(4), Bytes<uint32_t>(1));
    EXPECT_TRUE(Eventually([&] { return server->stats().waiting == 1; }));
  }
  EXPECT_TRUE(Eventually([&] { return server->stats().waiting == 0 && server->stats().connections == 1; }));
  EXPECT_TRUE(good.Alive());
}

TEST(StoreRelayTest, ABrokenClientDisturbsNobody) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  const auto relay = MustRelay(server->port());
  Client good(*relay);
  EXPECT_TRUE(good.Alive());
  Client http("127.0.0.1", relay->port());
  http.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_TRUE(http.Closed());
  Client bad(*relay);
  bad.Send(Ping(7) + "\x7f");
  EXPECT_EQ(bad.Read(4), Bytes<uint32_t>(7)) << "what came before it is answered";
  EXPECT_TRUE(bad.Closed());
  EXPECT_NE(refusals->last().find("of the relay at 127.0.0.1:"), std::string::npos) << refusals->last();
  EXPECT_NE(refusals->last().find("unknown opcode"), std::string::npos) << refusals->last();
  // A relay is none of a relay's clients.
  Client relays_client("127.0.0.1", relay->port());
  relays_client.Send(Mux(Mux::End::kRelay, 0).Output());
  EXPECT_TRUE(relays_client.Closed());
  EXPECT_TRUE(good.Alive());
  EXPECT_EQ(server->stats().violations, 3u);
  EXPECT_EQ(server->stats().relays, 1u);
}

// ---- ends

TEST(StoreRelayTest, AStoreThatEndsClosesEverybodyAtOnce) {
  auto server = MustOpen();
  const uint16_t port = server->port();
  const auto relay = MustRelay(port);
  Client waiter(*relay);
  waiter.Send(Ping(1) + Wait({"/never"}));
  EXPECT_EQ(waiter.Read(4), Bytes<uint32_t>(1));
  Client idle(*relay);
  EXPECT_TRUE(idle.Alive());
  server.reset();
  EXPECT_TRUE(waiter.Closed());
  EXPECT_TRUE(idle.Closed());
  // Nobody is there: told by a close, again and again, as nobody would be at the store's own port.
  EXPECT_TRUE(Client(*relay).Closed());
  EXPECT_TRUE(Client(*relay).Closed());
  server = MustOpen({}, MustReserve({"127.0.0.1"}, PortRange::Single(port)));
  Client again(*relay);
  EXPECT_TRUE(again.Alive());
  EXPECT_EQ(relay->stats().clients, 1u);
  EXPECT_EQ(relay->stats().store_calls, 4u);
}

TEST(StoreRelayTest, ARelayThatEndsClosesBothSides) {
  const auto server = MustOpen();
  auto relay = MustRelay(server->port());
  Client waiter(*relay);
  waiter.Send(Ping(1) + Wait({"/never"}));
  EXPECT_EQ(waiter.Read(4), Bytes<uint32_t>(1));
  Client direct(*server);
  EXPECT_TRUE(direct.Alive());
  const uint16_t port = relay->port();
  relay.reset();
  EXPECT_TRUE(waiter.Closed());
  EXPECT_TRUE(Eventually([&] { return server->stats().relays == 0 && server->stats().waiting == 0; }));
  EXPECT_EQ(server->stats().connections, 1u);
  EXPECT_TRUE(direct.Alive());
  EXPECT_FALSE(Client("127.0.0.1", port).connected());
}

TEST(StoreRelayTest, ReachesNoStoreOfAnotherRound) {
  auto refusals = std::make_shared<Refusals>();
  StoreOptions options;
  options.epoch = 8;
  options.on_refused = AddTo(refusals);
  const auto server = MustOpen(options);
  RelayOptions old;
  old.epoch = 7;
  auto told = std::make_shared<Refusals>();
  old.on_refused = [told](const std::string& text) { told->Add(text); };
  const auto older = MustRelay(server->port(), old);
  Client rank(*older);
  rank.Send(Set("/k", "of an older round"));
  EXPECT_TRUE(rank.Closed());
  EXPECT_TRUE(refusals->Comes("it is of another round"));
  EXPECT_TRUE(told->Comes("closed the connection before it greeted"));
  EXPECT_EQ(server->stats().keys, 0u);
  RelayOptions now;
  now.epoch = 8;
  EXPECT_TRUE(Client(*MustRelay(server->port(), now)).Alive());
}

TEST(StoreRelayTest, SaysThatTheStoreCannotBeReached) {
  uint16_t nobody = 0;
  {
    const ListenSocket socket = MustReserve();
    nobody = socket.port();
  }
  auto refusals = std::make_shared<Refusals>();
  RelayOptions options;
  options.on_refused = AddTo(refusals);
  const auto relay = MustRelay(nobody, options);
  EXPECT_TRUE(Client(*relay).Closed());
  EXPECT_TRUE(refusals->Comes("Connection refused")) << refusals->last();
  EXPECT_NE(refusals->last().find("127.0.0.1:" + std::to_string(nobody)), std::string::npos) << refusals->last();
}

TEST(StoreRelayTest, Errors) {
  RelayOptions options;
  options.store_address = "127.0.0.1";
  EXPECT_EQ(StoreRelay::Open(ListenSocket(), options).status().code(), absl::StatusCode::kInvalidArgument);
  options.store_address = "node7";
  EXPECT_EQ(StoreRelay::Open(MustReserve(), options).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace phalanx::store
