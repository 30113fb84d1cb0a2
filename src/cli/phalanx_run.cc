// phalanx-run: flags in, one node of a job out.
#include <fmt/format.h>
#include <pwd.h>
#include <signal.h>
#include <stdio.h>
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
#include "base/net.h"
#include "base/process/process.h"
#include "base/process/signals.h"
#include "cli/host.h"

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

int Launch(agent::LaunchConfig config, Environment env) {
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
  const Status state = PrepareStateDir(config);
  if (!state.ok()) {
    say(agent::Level::kError, Message(state));
    return 1;
  }
  const std::string node_id = cli::RandomHex(16);
  StatusOr<agent::Guard> guard = agent::Guard::Start(node_id);  // before any thread
  if (!guard.ok()) {
    say(agent::Level::kError, fmt::format("the guard process could not be started: {}", Message(guard.status())));
    return 1;
  }
  EventLoop loop;
  Reaper reaper(loop);
  agent::NodeAgent node(loop, reaper, std::move(config), std::move(env), node_id, *guard);
  return node.Run();
}

// Before libraries set themselves up: where stdin is closed, gRPC would be given its number, and ranks inherit that.
[[gnu::constructor(101)]] void HoldStandardFds() { EnsureStandardFds(); }

// That of the first rank. What is there and cannot be read, Python tells of.
bool HasScript(const agent::LaunchConfig& config) {
  struct stat info {};
  if (config.kind != agent::ScriptKind::kScript) return true;
  const std::string script = agent::SubstituteLocalRank(config.script, 0);
  return stat(script.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

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
  if (!HasScript(config)) {
    fmt::print(stderr,
               "phalanx-run: error: {}: there is no such file: expected the script, a file or folder that Python "
               "can run\n",
               config.script);
    return 2;
  }
  config.open_files_limit = OpenFilesLimit();
  return Launch(std::move(config), env.Without(agent::kTokenVariable));
}

}  // namespace
}  // namespace phalanx

int main(int argc, char** argv) { return phalanx::Main(argc, argv); }
