#include "agent/node/embedded_master.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <iterator>
#include <string_view>
#include <tuple>
#include <utility>

#include "agent/core/core.h"
#include "agent/core/joining.h"
#include "base/net.h"

namespace phalanx::agent {
namespace {

constexpr size_t kMaxReadyLine = 4096;
constexpr int kReadyFd = 3;  // the first of SpawnSpec::extra_fds

// The command of this name beside our own, else its name, for the PATH to find.
std::string OwnSibling(const std::string& name) {
  const std::string sibling = fmt::format("{}/{}", ExecutableDirectory(), name);
  return access(sibling.c_str(), X_OK) == 0 ? sibling : name;
}

bool ConsumePrefix(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) return false;
  text.remove_prefix(prefix.size());
  return true;
}

std::vector<std::string> MasterArgs(const LaunchConfig& config, const MasterPlace& place, const MasterBegin& begin,
                                    int ready_fd) {
  std::vector<std::string> args = {"phalanx-master",
                                   "--embedded",
                                   "--spec-from-hello",
                                   fmt::format("--host={}", place.bind_address),
                                   fmt::format("--port={}", place.port),
                                   fmt::format("--job-id={}", config.rdzv_id),
                                   fmt::format("--state-dir={}", config.state_dir),
                                   fmt::format("--ready-fd={}", ready_fd),
                                   fmt::format("--linger-ms={}", joining::MasterLingerMs(config.max_nodes))};
  if (begin.resume) args.push_back("--resume");
  if (begin.elected) args.push_back("--elected");
  if (begin.term > 0) args.push_back(fmt::format("--term={}", begin.term));
  if (begin.candidate_term > 0) args.push_back(fmt::format("--candidate-term={}", begin.candidate_term));
  if (begin.before_broke) args.push_back("--before-broke");
  if (!begin.before_id.empty()) args.push_back(fmt::format("--before-id={}", begin.before_id));
  if (config.rdzv_id_invented) args.push_back("--unnamed");
  if (!config.replay_log.empty()) args.push_back(fmt::format("--replay-log={}", config.replay_log));
  if (config.tls.given()) {
    args.push_back(fmt::format("--tls-cert={}", config.tls.certificate));
    args.push_back(fmt::format("--tls-key={}", config.tls.key));
    args.push_back(fmt::format("--tls-ca={}", config.tls.authority));
  }
  return args;
}

}  // namespace

bool OthersComeByName(const LaunchConfig& config) {
  return config.max_nodes > 1 && config.endpoint_host != "localhost" && !IsLoopback(config.endpoint_host);
}

std::string AdvertisedAddress(const LaunchConfig& config, const std::string& towards_master,
                              const std::vector<std::string>& interfaces) {
  if (!IsLoopback(towards_master) || !OthersComeByName(config)) return towards_master;
  const auto reachable = [](const std::string& address) {
    return !IsLoopback(address) && !address.starts_with("169.254.") && !address.starts_with("fe80:");
  };
  const auto found = std::find_if(interfaces.begin(), interfaces.end(), reachable);
  return found == interfaces.end() ? towards_master : *found;
}

std::string HostsAddress(const std::vector<std::string>& endpoint_addresses) {
  const auto place = [](const std::string& address) {
    unsigned char bytes[sizeof(in6_addr)] = {};
    const bool is_v4 = inet_pton(AF_INET, address.c_str(), bytes) == 1;
    if (!is_v4) inet_pton(AF_INET6, address.c_str(), bytes);
    return std::make_tuple(IsLoopback(address), !is_v4, std::string(std::begin(bytes), std::end(bytes)));
  };
  const auto lowest = std::min_element(
      endpoint_addresses.begin(), endpoint_addresses.end(),
      [&place](const std::string& one, const std::string& other) { return place(one) < place(other); });
  return lowest == endpoint_addresses.end() ? "" : *lowest;
}

Hosting DecideHosting(const LaunchConfig& config, const std::vector<std::string>& endpoint_addresses,
                      const std::function<bool(const std::string&)>& is_local) {
  if (config.rendezvous == Rendezvous::kStandalone) return {true, "127.0.0.1", "127.0.0.1"};
  auto mine = std::find_if(endpoint_addresses.begin(), endpoint_addresses.end(),
                           [&](const std::string& address) { return is_local(address) && !IsLoopback(address); });
  if (mine == endpoint_addresses.end())
    mine = std::find_if(endpoint_addresses.begin(), endpoint_addresses.end(), is_local);
  const bool here = mine != endpoint_addresses.end();
  const bool is_the_host = here && is_local(HostsAddress(endpoint_addresses));
  const bool by_rule = config.rendezvous == Rendezvous::kStatic ? config.node_rank == 0 : is_the_host;
  if (!config.is_host.value_or(by_rule)) return {};
  if (here && IsLoopback(*mine) && OthersComeByName(config)) {
    return {true, mine->find(':') == std::string::npos ? "0.0.0.0" : "::", *mine};
  }
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
  if (line.empty()) return MasterNotReady{false, "it ended before it was ready"};
  return MasterNotReady{false, fmt::format("it said '{}'", line)};
}

EmbeddedMaster::~EmbeddedMaster() {
  if (ready_.valid()) loop_.Unwatch(ready_.get());
  if (running()) reaper_.Forget(pid_);
  loop_.Cancel(done_timer_);
}

Status EmbeddedMaster::Start(const LaunchConfig& config, const Environment& env, const MasterPlace& place,
                             const MasterBegin& begin) {
  is_ready_ = false;
  is_held_ = begin.candidate_term > 0;
  line_.clear();
  int fds[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds) != 0) return ErrnoStatus(errno, "socketpair");
  ready_.Reset(fds[0]);
  const Fd child_end(fds[1]);
  // Not our stderr: a reader of it would wait for the master's end.
  const std::string log_path = fmt::format("{}/master.log", config.state_dir);
  Fd log(open(log_path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
  if (!log.valid()) return ErrnoStatus(errno, log_path);
  const Fd null(open("/dev/null", O_RDONLY | O_CLOEXEC));

  SpawnSpec spec;
  spec.program = OwnSibling("phalanx-master");
  spec.args = MasterArgs(config, place, begin, kReadyFd);
  spec.env = env.values();
  for (const char* name : {"PHALANX_TLS_CERT", "PHALANX_TLS_KEY", "PHALANX_TLS_CA"}) spec.env.erase(name);
  if (!config.token.empty()) spec.env[kTokenVariable] = config.token;
  spec.cwd = std::string("/");  // GCC 12 warns wrongly of the plain literal
  spec.stdin_fd = null.get();
  spec.stdout_fd = spec.stderr_fd = log.get();
  spec.extra_fds = {child_end.get()};
  PHX_ASSIGN_OR_RETURN(Child child, Spawn(spec));
  pid_ = child.pid;
  was_killed_ = false;
  reaper_.Await(std::move(child), [this](const ProcessEnd& end) { OnEnded(end); });
  loop_.Watch(ready_.get(), EPOLLIN, [this](uint32_t) { ReadReady(); });
  return absl::OkStatus();
}

void EmbeddedMaster::ReadReady() {
  char buffer[512];
  const ssize_t n = read(ready_.get(), buffer, sizeof buffer);
  if (n > 0) line_.append(buffer, static_cast<size_t>(n));
  const size_t end = line_.find('\n');
  if (n > 0 && end == std::string::npos && line_.size() < kMaxReadyLine) return;
  loop_.Unwatch(ready_.get());
  const auto said = ParseReadyLine(line_.substr(0, end));
  const auto* ready = std::get_if<MasterReady>(&said);
  if (ready == nullptr || !is_held_) ready_.Reset();
  if (ready != nullptr) {
    is_ready_ = true;
    return events_.on_ready(ready->port);
  }
  events_.on_not_ready(std::get<MasterNotReady>(said));
}

void EmbeddedMaster::LetGo() {
  is_held_ = false;
  if (is_ready_) ready_.Reset();
}

void EmbeddedMaster::OnEnded(const ProcessEnd& end) {
  if (end.pid != pid_) return;  // it said that it was not ready, and the next one was started before it was gone
  pid_ = 0;
  was_killed_ = end.signal != 0;
  if (done_) {
    loop_.Cancel(done_timer_);
    return std::exchange(done_, nullptr)();
  }
  if (is_ready_) events_.on_ended(DescribeEnd(end.exit_code, end.signal));
}

void EmbeddedMaster::AwaitEnd(int64_t timeout_ms, std::function<void()> done) {
  if (!running()) return done();
  done_ = std::move(done);
  done_timer_ = loop_.At(MonotonicMs() + timeout_ms, [this] { std::exchange(done_, nullptr)(); });
}

}  // namespace phalanx::agent
