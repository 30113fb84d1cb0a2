// phalanx-run: flags in, one node of a job out.
#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <filesystem>
#include <string>
#include <variant>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "agent/flags/config.h"
#include "agent/flags/flags.h"
#include "agent/flags/worker_env.h"
#include "agent/node/shell.h"
#include "agent/report/say.h"
#include "agent/workers/guard.h"
#include "base/clock.h"
#include "base/env.h"
#include "base/event_loop.h"
#include "base/fd.h"
#include "base/net.h"
#include "base/process/process.h"
#include "base/process/signals.h"
#include "cli/host.h"
#include "cli/missing_script.h"
#include "wire/node_key.h"

namespace phalanx {
namespace {

namespace fs = std::filesystem;

// 0700: what lies there is this user's alone.
Status PrepareStateDir(const agent::LaunchConfig& config) {
  std::error_code error;
  fs::create_directories(fs::path(config.state_root).parent_path(), error);
  for (const std::string& dir : {config.state_root, config.state_dir}) {
    if (mkdir(dir.c_str(), 0700) != 0 && errno != EEXIST) {
      return ErrnoStatus(errno, fmt::format("state directory {} (--state-dir gives another)", dir));
    }
  }
  return absl::OkStatus();
}

// Two runs of one id on one machine would write over each other's files: the second one gets an id of its own. The lock
// ends with this program. Where the file system has none, both keep the id, and the second one's master is refused.
StatusOr<Fd> ClaimId(agent::LaunchConfig& config) {
  if (config.other_rdzv_id.empty()) return Fd();
  PHX_RETURN_IF_ERROR(PrepareStateDir(config));
  const std::string path = config.state_dir + "/run.lock";
  Fd lock(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600));
  if (!lock.valid()) return ErrnoStatus(errno, path);
  if (flock(lock.get(), LOCK_EX | LOCK_NB) == 0) return lock;
  if (errno != EWOULDBLOCK) return Fd();
  config.notices.push_back(
      fmt::format("--rdzv-id={}: a run of that id lives (state directory {}); this one gets an id of its own, {}",
                  config.rdzv_id, config.state_dir, config.other_rdzv_id));
  config.rdzv_id = config.other_rdzv_id;
  config.rdzv_id_invented = true;
  config.state_dir = fmt::format("{}/{}", config.state_root, config.rdzv_id);
  return Fd();
}

int Launch(agent::LaunchConfig config, Environment env) {
  const StatusOr<Fd> claim = ClaimId(config);
  const agent::Speaker speaker{config.log_format, config.rdzv_id, Hostname()};
  const auto say = [&speaker](agent::Level level, const std::string& text) {
    fmt::print(stderr, "{}", agent::SayLine(speaker, level, text, UnixMs()));
  };
  if (config.parent_pid != 0 && !DieWithParent(static_cast<pid_t>(config.parent_pid))) {
    say(agent::Level::kError,
        fmt::format("--parent-pid={}: expected the process that started phalanx-run, which has ended",
                    config.parent_pid));
    return 1;
  }
  for (const std::string& notice : config.notices) say(agent::Level::kWarning, notice);
  const Status state = claim.ok() ? PrepareStateDir(config) : claim.status();
  if (!state.ok()) {
    say(agent::Level::kError, Message(state));
    return 1;
  }
  const std::string node_key = cli::RandomBytes(wire::kNodeKeyBytes);
  StatusOr<agent::Guard> guard = agent::Guard::Start(wire::NodeIdOf(node_key));  // before any thread
  if (!guard.ok()) {
    say(agent::Level::kError, fmt::format("the guard process could not be started: {}", Message(guard.status())));
    return 1;
  }
  EventLoop loop;
  Reaper reaper(loop);
  agent::NodeAgent node(loop, reaper, std::move(config), std::move(env), node_key, *guard);
  return node.Run();
}

// Before libraries set themselves up: where stdin is closed, gRPC would be given its number, and ranks inherit that.
[[gnu::constructor(101)]] void HoldStandardFds() { EnsureStandardFds(); }

int Main(int argc, char** argv) {
  absl::SetMutexDeadlockDetectionMode(absl::OnDeadlockCycle::kIgnore);
  Environment env = Environment::FromProcess();
  const std::vector<std::string> args(argv + 1, argv + argc);
  agent::ParseResult parsed = agent::ParseFlags(args, env, cli::AskHost());
  if (const auto* print = std::get_if<agent::PrintAndExit>(&parsed)) {
    fmt::print(print->exit_code == 0 ? stdout : stderr, "{}", print->text);
    return print->exit_code;
  }
  auto config = std::get<agent::LaunchConfig>(std::move(parsed));
  const std::string missing = cli::MissingScript(config, env);
  if (!missing.empty()) {
    fmt::print(stderr, "phalanx-run: error: {}\n", missing);
    return 2;
  }
  config.open_files_limit = OpenFilesLimit();
  return Launch(std::move(config), env.Without(agent::kTokenVariable));
}

}  // namespace
}  // namespace phalanx

int main(int argc, char** argv) { return phalanx::Main(argc, argv); }
