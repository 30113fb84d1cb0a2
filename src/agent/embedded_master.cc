#include "agent/embedded_master.h"

#include <fmt/format.h>
#include <sys/epoll.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <string_view>
#include <utility>

namespace phalanx::agent {
namespace {

constexpr size_t kMaxReadyLine = 4096;

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::vector<std::string> MasterArgs(const LaunchConfig& config, const std::string& bind_address, int ready_fd) {
  // A job on one node ends with its node: nobody else could come.
  const bool alone = config.max_nodes == 1;
  return {"phalanx-master",
          "--embedded",
          "--spec-from-hello",
          fmt::format("--host={}", bind_address),
          fmt::format("--port={}", config.endpoint_port),
          fmt::format("--job-id={}", config.rdzv_id),
          fmt::format("--state-dir={}", config.state_dir),
          fmt::format("--ready-fd={}", ready_fd),
          fmt::format("--linger-ms={}", alone ? 0 : 10'000)};
}

}  // namespace

Hosting DecideHosting(const LaunchConfig& config, const std::vector<std::string>& endpoint_addresses,
                      const std::function<bool(const std::string&)>& is_local) {
  if (config.rendezvous == Rendezvous::kStandalone) return {true, "127.0.0.1", "127.0.0.1"};
  const auto mine = std::find_if(endpoint_addresses.begin(), endpoint_addresses.end(), is_local);
  const bool here = mine != endpoint_addresses.end();
  const bool by_rule = config.rendezvous == Rendezvous::kStatic ? config.node_rank == 0 : here;
  if (!config.is_host.value_or(by_rule)) return {};
  if (here) return {true, *mine, *mine};
  const bool v6 = !endpoint_addresses.empty() && endpoint_addresses.front().find(':') != std::string::npos;
  return v6 ? Hosting{true, "::", "::1"} : Hosting{true, "0.0.0.0", "127.0.0.1"};
}

std::variant<MasterReady, MasterNotReady> ParseReadyLine(const std::string& line) {
  std::string_view rest = line;
  if (ConsumePrefix(rest, "ready ")) {
    MasterReady ready;
    const auto [end, code] = std::from_chars(rest.data(), rest.data() + rest.size(), ready.port);
    if (code == std::errc() && end == rest.data() + rest.size() && ready.port != 0) return ready;
  } else if (ConsumePrefix(rest, "error ")) {
    const size_t space = std::min(rest.find(' '), rest.size());
    const std::string_view sentence = rest.substr(std::min(space + 1, rest.size()));
    return MasterNotReady{rest.substr(0, space) == "address-in-use", std::string(sentence)};
  }
  return MasterNotReady{false, line.empty() ? "it ended before it was ready" : fmt::format("it said '{}'", line)};
}

EmbeddedMaster::~EmbeddedMaster() {
  if (ready_.valid()) loop_.Unwatch(ready_.get());
  if (child_.pidfd.valid()) loop_.Unwatch(child_.pidfd.get());
  loop_.Cancel(done_timer_);
}

void EmbeddedMaster::ReadReady() {
  char buffer[512];
  const ssize_t n = read(ready_.get(), buffer, sizeof buffer);
  if (n > 0) line_.append(buffer, static_cast<size_t>(n));
  const size_t end = line_.find('\n');
  if (n > 0 && end == std::string::npos && line_.size() < kMaxReadyLine) return;
  loop_.Unwatch(ready_.get());
  ready_.Reset();
  const auto said = ParseReadyLine(line_.substr(0, end));
  if (const auto* ready = std::get_if<MasterReady>(&said)) {
    is_ready_ = true;
    return events_.on_ready(ready->port);
  }
  events_.on_not_ready(std::get<MasterNotReady>(said));
}

void EmbeddedMaster::AwaitEnd(int64_t timeout_ms, std::function<void()> done) {
  if (!running()) return done();
  done_ = std::move(done);
  done_timer_ = loop_.At(MonotonicMs() + timeout_ms, [this] { std::exchange(done_, nullptr)(); });
}

}  // namespace phalanx::agent
