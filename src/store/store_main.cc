// phalanx-store: the store alone, or a relay to one, for tests and benchmarks. Prints its port and serves until its
// stdin closes.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdint>
#include <cstdio>
#include <string>
#include <utility>

#include "base/process/process.h"
#include "store/relay.h"
#include "store/server.h"

namespace {

using phalanx::store::ListenSocket;
using phalanx::store::PortRange;
using phalanx::store::RelayOptions;
using phalanx::store::StoreOptions;
using phalanx::store::StoreRelay;
using phalanx::store::StoreServer;
using phalanx::store::StoreStats;

int Fail(const phalanx::Status& status) {
  fmt::print(stderr, "phalanx-store: {}\n", phalanx::Message(status));
  return 1;
}

void WaitForEndOfStdin() {
  char buffer[256];
  while (read(STDIN_FILENO, buffer, sizeof buffer) > 0) {
  }
}

void PrintStats(const StoreStats& s) {
  fmt::print(stderr, "accepted {} refused {} violations {} slow readers {} requests {} keys {} store bytes {}\n",
             s.accepted, s.refused_peers, s.violations, s.slow_readers, s.requests, s.keys, s.store_bytes);
}

void Announce(uint16_t port) {
  fmt::print("{}\n", port);
  std::fflush(stdout);
  WaitForEndOfStdin();
}

int Serve(ListenSocket socket, StoreOptions options, bool print_stats) {
  auto server = StoreServer::Open(std::move(socket), std::move(options));
  if (!server.ok()) return Fail(server.status());
  Announce((*server)->port());
  if (print_stats) PrintStats((*server)->stats());
  return 0;
}

int Relay(ListenSocket socket, RelayOptions options) {
  auto relay = StoreRelay::Open(std::move(socket), std::move(options));
  if (!relay.ok()) return Fail(relay.status());
  Announce((*relay)->port());
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app("c10d store server for tests and benchmarks: prints its port, serves until its stdin closes.");
  std::vector<std::string> addresses = {"127.0.0.1"};
  uint16_t port = 0;
  bool print_stats = false;
  StoreOptions options;
  RelayOptions relay;
  app.add_option("--address", addresses, "IP to listen on, beside 127.0.0.1 and ::1");
  app.add_option("--port", port, "port; 0: any free one");
  app.add_option("--allow", options.allowed_peers, "IP that may connect, beside this machine's own");
  app.add_option("--epoch", options.epoch, "the round's number, the same for a store and its relays");
  app.add_option("--relay-to", relay.store_port, "be a relay to the store at this port");
  app.add_option("--store-address", relay.store_address, "... of this IP")->default_val("127.0.0.1");
  app.add_flag("--stats", print_stats, "print counters to stderr at the end, and each connection closed");
  CLI11_PARSE(app, argc, argv);

  phalanx::RaiseOpenFilesLimit(UINT64_MAX);  // as many connections as the system lets it have
  if (print_stats) options.on_refused = [](const std::string& text) { fmt::print(stderr, "{}\n", text); };
  relay.on_refused = options.on_refused;
  relay.epoch = options.epoch;
  auto socket = ListenSocket::Reserve(addresses, PortRange::Single(port));
  if (!socket.ok()) return Fail(socket.status());
  if (relay.store_port != 0) return Relay(*std::move(socket), std::move(relay));
  return Serve(*std::move(socket), std::move(options), print_stats);
}
