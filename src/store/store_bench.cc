// phalanx-store-bench: load from plain sockets for any c10d store server. One thread, one epoll loop, no torch. Prints
// one JSON object: {"barrier_s": ..., "add_1": requests a second, "add_50": ..., ...}. bench/store.py runs it against
// servers in turn.
//
// With --relays it is some nodes of a large world: so many relays, on one more thread, and their clients. It says
// "ready", waits for a line, and then joins a barrier that other processes of its kind join as well: {"begin_ns": ...,
// "end_ns": ...}, of the monotonic clock, which all processes share.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>

#include <CLI/CLI.hpp>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <iostream>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "base/clock.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"
#include "store/client_bytes.h"
#include "store/relay.h"

namespace phalanx::store {
namespace {

constexpr uint32_t kNonce = 4711;
constexpr size_t kValueBytes = 32;
// Connections from one address of 127/8: an address has 28,000 ports by default.
constexpr size_t kClientsPerAddress = 20'000;

[[noreturn]] void Die(const char* what) {
  fmt::print(stderr, "phalanx-store-bench: {}: {}\n", what, strerror(errno));
  std::exit(1);
}

// A connection with at most one request in flight, and what has been read of its reply.
struct Client {
  Fd fd;
  size_t have = 0;
  size_t want = 0;
  std::array<char, 64> reply{};
  int phase = 0;
  uint64_t done = 0;
};

class Load {
 public:
  Load() : epoll_(epoll_create1(EPOLL_CLOEXEC)) {}

  // Begins a connection; writable when it stands.
  void Connect(Client* client, const sockaddr_in& server) {
    client->fd = Fd(socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    if (!client->fd.valid()) Die("socket");
    if (connected_ >= kClientsPerAddress) BindTo(client->fd.get(), INADDR_LOOPBACK + connected_ / kClientsPerAddress);
    ++connected_;
    const int on = 1;
    setsockopt(client->fd.get(), IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    const int rc = connect(client->fd.get(), reinterpret_cast<const sockaddr*>(&server), sizeof server);
    if (rc != 0 && errno != EINPROGRESS) Die("connect");
    Watch(EPOLL_CTL_ADD, client, rc == 0 ? EPOLLIN : EPOLLOUT);
    if (rc == 0) Ask(client, Hello() + Ping(kNonce), sizeof kNonce);
  }

  void Ask(Client* client, const std::string& request, size_t reply_bytes) {
    client->have = 0;
    client->want = reply_bytes;
    if (send(client->fd.get(), request.data(), request.size(), MSG_NOSIGNAL) != static_cast<ssize_t>(request.size())) {
      Die("send");
    }
  }

  // Calls back for every complete reply until `stop` says so.
  void Run(const std::function<void(Client*)>& on_reply, const std::function<bool()>& stop) {
    std::array<epoll_event, 256> events;
    while (!stop()) {
      const int count = epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), -1);
      for (int i = 0; i < count; ++i) {
        auto* client = static_cast<Client*>(events[i].data.ptr);
        if ((events[i].events & EPOLLOUT) != 0) {
          Watch(EPOLL_CTL_MOD, client, EPOLLIN);
          Ask(client, Hello() + Ping(kNonce), sizeof kNonce);
        } else if (TakeReply(client)) {
          on_reply(client);
        }
      }
    }
  }

 private:
  void BindTo(int fd, size_t address) {
    sockaddr_in from{};
    from.sin_family = AF_INET;
    from.sin_addr.s_addr = htonl(static_cast<uint32_t>(address));
    const int on = 1;
    setsockopt(fd, IPPROTO_IP, IP_BIND_ADDRESS_NO_PORT, &on, sizeof on);
    if (bind(fd, reinterpret_cast<const sockaddr*>(&from), sizeof from) != 0) Die("bind");
  }

  void Watch(int operation, Client* client, uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.ptr = client;
    if (epoll_ctl(epoll_.get(), operation, client->fd.get(), &event) != 0) Die("epoll_ctl");
  }

  bool TakeReply(Client* client) {
    const ssize_t n = recv(client->fd.get(), client->reply.data() + client->have, client->want - client->have, 0);
    if (n < 0 && errno == EAGAIN) return false;
    if (n <= 0) Die("the server closed a connection");
    client->have += static_cast<size_t>(n);
    return client->have == client->want;
  }

  const Fd epoll_;
  size_t connected_ = 0;
};

struct Span {
  int64_t begin_ns = 0;
  int64_t end_ns = 0;
  double seconds() const { return static_cast<double>(end_ns - begin_ns) / 1e9; }
};

// Connects clients, one to each of `servers`, that join a barrier of ADD and WAIT of `world` clients in all; until all
// of them are released.
Span Barrier(const std::vector<sockaddr_in>& servers, size_t world, const std::string& name) {
  Load load;
  std::vector<Client> clients(servers.size());
  size_t released = 0;
  const int64_t begin_ns = MonotonicNs();
  for (size_t i = 0; i < clients.size(); ++i) load.Connect(&clients[i], servers[i]);
  load.Run(
      [&](Client* client) {
        int64_t arrived = 0;
        switch (client->phase++) {
          case 0:
            return load.Ask(client, Add("/" + name, 1), sizeof(int64_t));
          case 1:
            std::memcpy(&arrived, client->reply.data(), sizeof arrived);
            if (arrived == static_cast<int64_t>(world)) {
              return load.Ask(client, Set("/" + name + "_done", "1") + Wait({"/" + name + "_done"}), 1);
            }
            return load.Ask(client, Wait({"/" + name + "_done"}), 1);
          default:
            ++released;
        }
      },
      [&] { return released == clients.size(); });
  return {begin_ns, MonotonicNs()};
}

struct Step {
  std::string request;
  size_t reply_bytes;
};

// `clients` connections that go through `steps` again and again; rounds of steps a second.
double Throughput(const sockaddr_in& server, size_t count, double seconds, const std::vector<Step>& steps) {
  Load load;
  std::vector<Client> clients(count);
  for (Client& client : clients) load.Connect(&client, server);
  const size_t step_count = steps.size();
  uint64_t rounds = 0;
  size_t connected = 0;
  int64_t begin_ns = 0;
  int64_t end_ns = INT64_MAX;
  int64_t now_ns = 0;
  load.Run(
      [&](Client* client) {
        // Nobody begins before all are there.
        if (client->done++ == 0) {
          if (++connected < count) return;
          begin_ns = MonotonicNs();
          end_ns = begin_ns + static_cast<int64_t>(seconds * 1e9);
          for (Client& ready : clients) load.Ask(&ready, steps[0].request, steps[0].reply_bytes);
          return;
        }
        client->phase = (client->phase + 1) % static_cast<int>(step_count);
        if (client->phase == 0 && ++rounds % 16 == 0) now_ns = MonotonicNs();
        const Step& step = steps[static_cast<size_t>(client->phase)];
        load.Ask(client, step.request, step.reply_bytes);
      },
      [&] { return now_ns >= end_ns; });
  return static_cast<double>(rounds) / (static_cast<double>(now_ns - begin_ns) / 1e9);
}

struct Workload {
  const char* name;
  std::vector<Step> steps;
};

std::vector<Workload> Workloads() {
  const std::string value(kValueBytes, 'v');
  const size_t blob_bytes = sizeof(uint64_t) + kValueBytes;
  return {
      {"add", {{Add("/counter", 1), sizeof(int64_t)}}},
      {"get", {{Get("/value"), blob_bytes}}},
      {"set_ping", {{Set("/value", value) + Ping(kNonce), sizeof kNonce}}},
      {"wait_get", {{Wait({"/value"}), 1}, {Get("/value"), blob_bytes}}},
  };
}

void Measure(const sockaddr_in& server, size_t barrier_clients, double seconds, const std::string& name) {
  const std::vector<sockaddr_in> servers(barrier_clients, server);
  fmt::print("{{\"barrier_s\": {:.4f}", Barrier(servers, barrier_clients, name).seconds());
  for (const Workload& workload : Workloads()) {
    for (const size_t count : {size_t{1}, size_t{50}}) {
      // A value to read, whatever came before.
      Throughput(server, 1, 0.001, {{Set("/value", std::string(kValueBytes, 'v')) + Ping(kNonce), sizeof kNonce}});
      fmt::print(", \"{}_{}\": {:.0f}", workload.name, count, Throughput(server, count, seconds, workload.steps));
    }
  }
  fmt::print("}}\n");
}

sockaddr_in LoopbackAt(uint16_t port) {
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  address.sin_port = htons(port);
  return address;
}

// Relays to one store, as those of so many nodes.
class Nodes {
 public:
  Nodes(uint16_t store_port, size_t count) {
    for (size_t i = 0; i < count; ++i) {
      auto socket = ListenSocket::Reserve({"127.0.0.1"}, {});
      RelayOptions options;
      options.store_address = "127.0.0.1";
      options.store_port = store_port;
      options.on_refused = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
      auto relay = socket.ok() ? RelayOnLoop::Open(loop_, *std::move(socket), std::move(options)) : socket.status();
      if (!relay.ok()) Die(Message(relay.status()).c_str());
      relays_.push_back(*std::move(relay));
    }
    thread_ = std::thread([this] { loop_.Run(); });
  }
  Nodes(const Nodes&) = delete;
  Nodes& operator=(const Nodes&) = delete;
  ~Nodes() {
    loop_.Post([this] { loop_.Stop(); });
    thread_.join();
  }

  std::vector<sockaddr_in> ServersOf(size_t clients_of_each) const {
    std::vector<sockaddr_in> servers;
    for (const auto& relay : relays_) servers.insert(servers.end(), clients_of_each, LoopbackAt(relay->port()));
    return servers;
  }

 private:
  EventLoop loop_;
  std::vector<std::unique_ptr<RelayOnLoop>> relays_;
  std::thread thread_;
};

void JoinByRelays(uint16_t store_port, size_t relays, size_t clients_of_each, size_t world, const std::string& name) {
  const Nodes nodes(store_port, relays);
  fmt::print("ready\n");
  std::fflush(stdout);
  std::string go;
  std::getline(std::cin, go);
  const Span span = Barrier(nodes.ServersOf(clients_of_each), world, name);
  fmt::print("{{\"begin_ns\": {}, \"end_ns\": {}}}\n", span.begin_ns, span.end_ns);
  std::fflush(stdout);
}

}  // namespace
}  // namespace phalanx::store

int main(int argc, char** argv) {
  CLI::App app("Load for a c10d store on 127.0.0.1; prints JSON.");
  uint16_t port = 0;
  size_t barrier_clients = 2048;
  double seconds = 0.5;
  std::string name = "barrier";
  size_t relays = 0;
  size_t clients_of_each = 8;
  size_t world = 0;
  app.add_option("--port", port, "port of the server")->required();
  app.add_option("--clients", barrier_clients, "connections of the barrier");
  app.add_option("--seconds", seconds, "duration of each throughput");
  app.add_option("--name", name, "name of the barrier; a fresh one for every run");
  app.add_option("--relays", relays, "be so many relays, and their clients, in a barrier of --world");
  app.add_option("--clients-of-each", clients_of_each, "clients of a relay");
  app.add_option("--world", world, "clients of that barrier, of all processes together");
  CLI11_PARSE(app, argc, argv);

  phalanx::RaiseOpenFilesLimit(UINT64_MAX);
  if (relays > 0) {
    phalanx::store::JoinByRelays(port, relays, clients_of_each, world, name);
  } else {
    phalanx::store::Measure(phalanx::store::LoopbackAt(port), barrier_clients, seconds, name);
  }
  return 0;
}
