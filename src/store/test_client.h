// For tests of the server: blocking clients, and what it says of those that it refuses.
#pragma once

#include <gtest/gtest.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/fd.h"
#include "base/socket_address.h"
#include "store/client_bytes.h"
#include "store/relay.h"
#include "store/server.h"

namespace phalanx::store {

inline constexpr int kPatienceMs = 10'000;
inline const std::string kGo(1, '\0');

// A blocking client. Whatever should have come and does not within kPatienceMs fails the test.
class Client {
 public:
  explicit Client(const std::string& ip, uint16_t port, const std::string& from = "") {
    SocketAddress to = *ParseIp(ip);
    to.set_port(port);
    fd_ = Fd(socket(to.family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!from.empty()) {
      const SocketAddress source = *ParseIp(from);
      EXPECT_EQ(bind(fd_.get(), source.get(), source.length), 0);
    }
    const int on = 1;
    setsockopt(fd_.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    connected_ = connect(fd_.get(), to.get(), to.length) == 0;
  }
  explicit Client(const StoreServer& server) : Client(server.port()) {}
  explicit Client(const StoreRelay& relay) : Client(relay.port()) {}

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  void Send(std::string_view bytes) {
    while (!bytes.empty()) {
      const ssize_t n = send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
      if (n <= 0) return;  // closed by the server: the next read shows it
      bytes.remove_prefix(static_cast<size_t>(n));
    }
  }
  std::string Read(size_t count) {
    std::string bytes(count, '\0');
    size_t have = 0;
    while (have < count && Readable()) {
      const ssize_t n = recv(fd_.get(), bytes.data() + have, count - have, 0);
      if (n <= 0) break;
      have += static_cast<size_t>(n);
    }
    return bytes.substr(0, have);
  }
  std::string Ask(std::string_view bytes, size_t reply_bytes) {
    Send(bytes);
    return Read(reply_bytes);
  }
  // Reads on until the server closes; false if it does not.
  bool Closed() {
    char buffer[4096];
    while (Readable()) {
      if (recv(fd_.get(), buffer, sizeof buffer, 0) <= 0) return true;
    }
    return false;
  }
  bool Alive() { return Ask(Ping(99), 4) == Bytes<uint32_t>(99); }

 private:
  explicit Client(uint16_t port) : Client("127.0.0.1", port) {
    EXPECT_TRUE(connected_);
    Send(Hello());
  }

  bool Readable() const {
    pollfd p{fd_.get(), POLLIN, 0};
    return poll(&p, 1, kPatienceMs) == 1;
  }

  Fd fd_;
  bool connected_ = false;
};

// Asks for 30 MB, and reads them in pieces of 10 kB. What is asked waits meanwhile.
inline void ReadSlowly(Client& client) {
  client.Send(Set("/k", std::string(100'000, 'x')));
  std::string requests;
  for (int i = 0; i < 300; ++i) requests += Get("/k");
  std::jthread writer([&] { client.Send(requests + Ping(8)); });
  size_t got = 0;
  while (got < 300u * 100'008) {
    const size_t n = client.Read(std::min<size_t>(10'000, 300 * 100'008 - got)).size();
    ASSERT_GT(n, 0u);
    got += n;
  }
  EXPECT_EQ(client.Read(4), Bytes<uint32_t>(8));
}

// What the server, or a relay, said of refused connections.
struct Refusals {
  std::mutex mutex;
  std::condition_variable news;
  std::vector<std::string> texts;

  void Add(const std::string& text) {
    std::lock_guard lock(mutex);
    texts.push_back(text);
    news.notify_all();
  }
  std::string last() {
    std::lock_guard lock(mutex);
    return texts.empty() ? "" : texts.back();
  }
  // Whether one with `part` in it has come, or does so in time.
  bool Comes(const std::string& part) {
    std::unique_lock lock(mutex);
    return news.wait_for(lock, std::chrono::milliseconds(kPatienceMs), [&] {
      return std::any_of(texts.begin(), texts.end(), [&](const auto& text) { return text.find(part) != text.npos; });
    });
  }
};

// For `on_refused`.
inline std::function<void(const std::string&)> AddTo(std::shared_ptr<Refusals> refusals) {
  return [refusals = std::move(refusals)](const std::string& text) { refusals->Add(text); };
}

inline ListenSocket MustReserve(const std::vector<std::string>& addresses = {"127.0.0.1"}, PortRange ports = {}) {
  StatusOr<ListenSocket> socket = ListenSocket::Reserve(addresses, ports);
  EXPECT_TRUE(socket.ok()) << socket.status();
  return *std::move(socket);
}

inline std::unique_ptr<StoreServer> MustOpen(StoreOptions options = {}, ListenSocket socket = MustReserve()) {
  StatusOr<std::unique_ptr<StoreServer>> server = StoreServer::Open(std::move(socket), std::move(options));
  EXPECT_TRUE(server.ok()) << server.status();
  return *std::move(server);
}

inline std::unique_ptr<StoreRelay> MustRelay(uint16_t store_port, RelayOptions options = {}) {
  if (options.store_address.empty()) options.store_address = "127.0.0.1";
  options.store_port = store_port;
  StatusOr<std::unique_ptr<StoreRelay>> relay = StoreRelay::Open(MustReserve(), std::move(options));
  EXPECT_TRUE(relay.ok()) << relay.status();
  return *std::move(relay);
}

// Asks again until `done` says so; false if it does not in time. What other threads count is not told by an event.
template <typename Done>
bool Eventually(Done done) {
  for (const int64_t begin_ms = MonotonicMs(); !done();) {
    if (MonotonicMs() - begin_ms > kPatienceMs) return false;
    std::this_thread::yield();
  }
  return true;
}

}  // namespace phalanx::store
