// The real front door and real sockets. What stands behind it says again what it hears; tests/test_endpoint.py has the
// store there.
#include "master/endpoint/front_door.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>

#include <future>
#include <memory>
#include <mutex>
#include <string_view>
#include <thread>
#include <vector>

#include "base/socket_address.h"
#include "wire/closed_door.h"

namespace phalanx::master {
namespace {

using testing::HasSubstr;

constexpr int kAnswerMs = 20'000;
constexpr int kKnocks = 10'000;
const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kValidate("\x00\xce\xf7\x85\x3c", 5);

class Client {
 public:
  explicit Client(uint16_t port) {
    SocketAddress address = *ParseIp("127.0.0.1");
    address.set_port(port);
    fd_.Reset(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    EXPECT_EQ(connect(fd_.get(), address.get(), address.length), 0);
  }
  void Send(std::string_view bytes) {
    EXPECT_EQ(send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL), static_cast<ssize_t>(bytes.size()));
  }
  std::string Name() const {
    SocketAddress address;
    address.length = sizeof address.storage;
    EXPECT_EQ(getsockname(fd_.get(), address.get(), &address.length), 0);
    return address.Text();
  }
  bool TrySend(std::string_view bytes) {
    return send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  }
  // What comes next; "" where the connection ends.
  std::string Next() { return NextOf(fd_.get()); }
  // Says something and tells whether it has come back.
  bool Answered() {
    Send(kValidate);
    return Next() == kValidate;
  }

  static std::string NextOf(int fd) {
    pollfd ready{fd, POLLIN, 0};
    EXPECT_EQ(poll(&ready, 1, kAnswerMs), 1) << "neither an answer nor an end";
    char bytes[4096];
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    return {bytes, static_cast<size_t>(n > 0 ? n : 0)};
  }

 private:
  Fd fd_;
};

// Says again what it hears, to each of its clients.
class Echo {
 public:
  Echo() : listener_(socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)), wake_(eventfd(0, EFD_CLOEXEC)) {
    SocketAddress address = *ParseIp("127.0.0.1");
    EXPECT_EQ(bind(listener_.get(), address.get(), address.length), 0);
    EXPECT_EQ(listen(listener_.get(), 128), 0);
    EXPECT_EQ(getsockname(listener_.get(), address.get(), &address.length), 0);
    port_ = address.port();
    thread_ = std::thread([this] { Serve(); });
  }
  ~Echo() {
    const uint64_t one = 1;
    EXPECT_EQ(write(wake_.get(), &one, sizeof one), static_cast<ssize_t>(sizeof one));
    thread_.join();
  }
  uint16_t port() const { return port_; }

 private:
  void Serve() {
    std::vector<Fd> clients;
    for (;;) {
      std::vector<pollfd> ready = {{wake_.get(), POLLIN, 0}, {listener_.get(), POLLIN, 0}};
      for (const Fd& client : clients) ready.push_back({client.get(), POLLIN, 0});
      poll(ready.data(), ready.size(), -1);
      if (ready[0].revents != 0) return;
      for (size_t i = clients.size(); i-- > 0;) {
        if (ready[i + 2].revents != 0 && !EchoOnce(clients[i].get())) {
          clients.erase(clients.begin() + static_cast<std::ptrdiff_t>(i));
        }
      }
      if (ready[1].revents != 0) clients.emplace_back(accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
    }
  }
  static bool EchoOnce(int fd) {
    char bytes[64 << 10];
    const ssize_t n = recv(fd, bytes, sizeof bytes, 0);
    return n > 0 && send(fd, bytes, static_cast<size_t>(n), MSG_NOSIGNAL) == n;
  }

  Fd listener_;
  Fd wake_;
  uint16_t port_ = 0;
  std::thread thread_;
};

class FrontDoorTest : public testing::Test {
 protected:
  void SetUp() override {
    auto door = FrontDoor::Listen({"127.0.0.1"}, 0);
    ASSERT_TRUE(door.ok()) << door.status();
    door_ = *std::move(door);
    FrontDoor::Events events;
    if (takes_plain_) events.on_plain = [this](Fd fd) { handed_over_.set_value(std::move(fd)); };
    events.on_tls = [this](Fd fd) { handed_over_.set_value(std::move(fd)); };
    events.on_refused = [this](const std::string& why) {
      const std::lock_guard<std::mutex> lock(mutex_);
      refusals_ += why + "\n";
    };
    ASSERT_TRUE(door_->Start(std::move(events)).ok());
  }

  // All that comes for gRPC of one connection, until it has as many bytes.
  std::string HandedOver(size_t bytes) {
    auto future = handed_over_.get_future();
    if (future.wait_for(std::chrono::milliseconds(kAnswerMs)) != std::future_status::ready) return "nothing came";
    const Fd fd = future.get();
    std::string got;
    for (std::string more = "x"; got.size() < bytes && !more.empty(); got += more) more = Client::NextOf(fd.get());
    return got;
  }

  std::string refusals() {
    const std::lock_guard<std::mutex> lock(mutex_);
    return refusals_;
  }

  // Knocks, as ranks do, until the door has carried out what it was told.
  std::unique_ptr<Client> Enter() {
    for (int i = 0; i < kKnocks; ++i) {
      auto client = std::make_unique<Client>(door_->port());
      if (client->Answered()) return client;
    }
    ADD_FAILURE() << "never let in:\n" << refusals();
    return nullptr;
  }
  void ExpectRefused(const std::string& why) {
    for (int i = 0; i < kKnocks; ++i) {
      if (!Client(door_->port()).Answered() && refusals().find(why) != std::string::npos) return;
    }
    ADD_FAILURE() << "never refused as '" << why << "':\n" << refusals();
  }

  bool takes_plain_ = true;
  std::promise<Fd> handed_over_;
  std::mutex mutex_;
  std::string refusals_;
  std::unique_ptr<FrontDoor> door_;  // last: its thread uses the rest
};

TEST_F(FrontDoorTest, GrpcGetsItsConnectionUntouched) {
  Client client(door_->port());
  client.Send(kPreface.substr(0, 3));  // by pieces, as a network may cut it
  client.Send(kPreface.substr(3, 15));
  client.Send(kPreface.substr(18) + "frame");
  EXPECT_EQ(HandedOver(kPreface.size() + 5), kPreface + "frame");
}

TEST_F(FrontDoorTest, SoDoesTls) {
  Client client(door_->port());
  const std::string hello("\x16\x03\x01\x00\x05hello", 10);
  client.Send(hello.substr(0, 1));
  client.Send(hello.substr(1));
  EXPECT_EQ(HandedOver(hello.size()), hello);
}

// What TLS makes of a caller the door is told; of who says nothing more it is told nothing.
TEST_F(FrontDoorTest, WhoIsToldToBelongIsNotCounted) {
  Client client(door_->port());
  client.Send("\x16\x03\x01");
  ASSERT_EQ(HandedOver(3).size(), 3U);
  door_->Proved(client.Name());
  door_->Proved("127.0.0.1:1");
  EXPECT_EQ(refusals(), "");
}

class ClosedDoorTest : public FrontDoorTest {
 protected:
  ClosedDoorTest() { takes_plain_ = false; }
};

TEST_F(ClosedDoorTest, WhoSpeaksInClearIsToldInItsOwnWords) {
  Client client(door_->port());
  client.Send(kPreface + std::string(40'000, 'x'));  // what is unread must not cost it the answer
  std::string got;
  for (std::string more = "x"; !more.empty(); got += more) more = client.Next();
  EXPECT_EQ(got, wire::ClosedAnswer());
  EXPECT_THAT(refusals(), HasSubstr("it speaks in clear, and this job is closed"));
}

TEST_F(ClosedDoorTest, WhoNeverGoesIsClosedBehindSoManyBytes) {
  Client client(door_->port());
  client.Send(kPreface);
  for (int sent = 0; sent < 10'000 && client.TrySend(std::string(4'096, 'x')); ++sent) {
  }
  EXPECT_FALSE(client.TrySend("x"));
}

TEST_F(FrontDoorTest, ARankIsLetInWhenItsNodeHasBegun) {
  const Echo store;
  ExpectRefused("no round lives");
  door_->ServeStore("127.0.0.1", store.port());
  ExpectRefused("its older ranks are not known to be gone");
  door_->LetIn({"127.0.0.1"}, true);
  Enter();
  door_->LetIn({"127.0.0.1"}, false);
  door_->LetInLocal();
  Enter();
}

// Its node's older ranks are gone, and this is what one of them has left in the socket.
TEST_F(FrontDoorTest, WhoCameBeforeIsJudgedByWhatCountedThen) {
  const Echo store;
  door_->ServeStore("127.0.0.1", store.port());
  Client before(door_->port());
  door_->LetIn({"127.0.0.1"}, true);
  Enter();
  EXPECT_FALSE(before.Answered());
  Client of_this_round(door_->port());
  const Echo next_store;
  door_->ServeStore("127.0.0.1", next_store.port());
  door_->LetIn({"127.0.0.1"}, true);
  Enter();
  EXPECT_FALSE(of_this_round.Answered());
}

TEST_F(FrontDoorTest, ClientsOfARoundGoWithIt) {
  const Echo store;
  door_->ServeStore("127.0.0.1", store.port());
  door_->LetIn({"127.0.0.1"}, true);
  const auto client = Enter();
  ASSERT_NE(client, nullptr);
  door_->ServeNoStore();
  EXPECT_EQ(client->Next(), "");
}

TEST_F(FrontDoorTest, MuchPassesBothWays) {
  const Echo store;
  door_->ServeStore("127.0.0.1", store.port());
  door_->LetIn({"127.0.0.1"}, true);
  const auto client = Enter();
  ASSERT_NE(client, nullptr);
  constexpr size_t kSize = 6 << 20;  // more than all buffers on the way hold
  std::thread sender([&client] { client->Send(std::string(kSize, 'x')); });
  size_t got = 0;
  for (size_t n = 1; n > 0 && got < kSize; got += n) n = client->Next().size();
  sender.join();
  EXPECT_EQ(got, kSize);
}

TEST_F(FrontDoorTest, StrangersAreTurnedAway) {
  Client client(door_->port());
  client.Send("GET / HTTP/1.1\r\n\r\n");
  EXPECT_EQ(client.Next(), "");
  EXPECT_THAT(refusals(), HasSubstr("it is neither an agent nor a client of the store"));
}

// Whatever they are: descriptors are counted.
TEST_F(FrontDoorTest, WhoComesBehindSoManyIsTurnedAway) {
  const Echo store;
  door_->ServeStore("127.0.0.1", store.port());
  door_->LetIn({"127.0.0.1"}, true);
  const auto early = Enter();
  ASSERT_NE(early, nullptr);
  constexpr int kMore = 20;
  const Fd lowest(open("/dev/null", O_RDONLY | O_CLOEXEC));
  door_->SetRoom({static_cast<uint64_t>(lowest.get() + kMore), "so many files are open"});
  ASSERT_NE(Enter(), nullptr) << "what the door was told before is carried out by then";
  std::vector<std::unique_ptr<Client>> held;  // they say nothing; each has two files here, its own end and the door's
  for (int i = 0; i < kMore; ++i) held.push_back(std::make_unique<Client>(door_->port()));
  EXPECT_EQ(held.back()->Next(), "");
  EXPECT_THAT(refusals(), HasSubstr("so many files are open"));
  EXPECT_TRUE(early->Answered()) << "who is in stays";
  held.clear();
  EXPECT_NE(Enter(), nullptr) << "there is room again";
}

TEST_F(FrontDoorTest, AStoreThatIsNotThereEndsItsClient) {
  const uint16_t port = Echo().port();  // closed again
  door_->ServeStore("127.0.0.1", port);
  door_->LetIn({"127.0.0.1"}, true);
  for (int i = 0; i < 3; ++i) EXPECT_FALSE(Client(door_->port()).Answered());
}

TEST(FrontDoor, APortThatIsTaken) {
  const auto first = FrontDoor::Listen({"127.0.0.1"}, 0);
  ASSERT_TRUE(first.ok());
  const auto second = FrontDoor::Listen({"127.0.0.1"}, (*first)->port());
  EXPECT_EQ(second.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_THAT(std::string(second.status().message()), HasSubstr("is in use by another program"));
  const auto everywhere = FrontDoor::Listen({"0.0.0.0"}, (*first)->port());
  EXPECT_EQ(everywhere.status().code(), absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(FrontDoor::Listen({"localhost"}, 0).status().code(), absl::StatusCode::kInvalidArgument);
}

}  // namespace
}  // namespace phalanx::master
