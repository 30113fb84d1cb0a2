#include "agent/workers/launch.h"

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <system_error>

#include "agent/flags/worker_env.h"
#include "agent/workers/wire.h"

namespace phalanx::agent {
namespace {

namespace fs = std::filesystem;

// One argument of a command may have 128 KiB.
constexpr size_t kPaddingMax = 100 << 10;
constexpr size_t kPaddingSpare = 256;

const char* KindName(const LaunchConfig& config) { return config.kind == ScriptKind::kModule ? "module" : "script"; }

// Room in /proc/<pid>/cmdline for the line that the worker will show: `python -u [-m] script args...`.
std::string Padding(const LaunchConfig& config, const std::vector<std::string>& args) {
  size_t length = config.python.size() + config.script.size() + kPaddingSpare;
  for (const std::string& arg : args) length += arg.size() + 1;
  return std::string(std::min(length, kPaddingMax), ' ');
}

constexpr char kBootstrap[] = "phalanx/_bootstrap";

bool HoldsBootstrap(const fs::path& folder) {
  std::error_code error;
  return fs::exists(folder / "worker.py", error);
}

fs::file_time_type InstalledAt(const fs::path& folder) {
  std::error_code error;
  const fs::file_time_type time = fs::last_write_time(folder, error);
  return error ? fs::file_time_type::min() : time;
}

}  // namespace

std::string FindBootstrap(const LaunchConfig& config, const std::string& executable_dir) {
  if (config.kind == ScriptKind::kProgram) return "";
  if (!config.bootstrap_dir.empty()) return HoldsBootstrap(config.bootstrap_dir) ? config.bootstrap_dir : "";
  if (config.interpreter_given || executable_dir.empty()) return "";
  const fs::path prefix = fs::path(executable_dir).parent_path();
  std::vector<fs::path> found;
  for (const char* library : {"lib", "lib64", "local/lib", "local/lib64"}) {
    std::error_code error;
    for (fs::directory_iterator it(prefix / library, error), end; !error && it != end; it.increment(error)) {
      if (!it->path().filename().string().starts_with("python")) continue;
      for (const char* packages : {"site-packages", "dist-packages"}) {
        const fs::path candidate = it->path() / packages / kBootstrap;
        if (HoldsBootstrap(candidate)) found.push_back(candidate);
      }
    }
  }
  if (HoldsBootstrap(prefix / kBootstrap)) found.push_back(prefix / kBootstrap);
  // Of several, that which was installed last: phalanx-run itself is that one's, too.
  const auto newest = std::ranges::max_element(found, {}, InstalledAt);
  return newest == found.end() ? "" : newest->string();
}

std::string ScriptName(const LaunchConfig& config, int local_rank) {
  return config.kind == ScriptKind::kProgram ? config.script : SubstituteLocalRank(config.script, local_rank);
}

SpawnSpec WorkerCommand(const LaunchConfig& config, const WorkerSpec& spec, const std::string& bootstrap) {
  SpawnSpec command;
  command.env = spec.env;
  command.open_files_limit = config.open_files_limit;
  command.cpus = spec.cpus;
  if (config.kind == ScriptKind::kProgram) {
    command.program = config.script;
    command.args = {config.script};
  } else {
    command.program = config.python;
    command.args = {config.python, "-u"};
    if (!bootstrap.empty()) {
      command.args.insert(command.args.end(), {bootstrap + "/worker.py", "3", Padding(config, spec.args)});
      return command;
    }
    if (config.kind == ScriptKind::kModule) command.args.push_back("-m");
    command.args.push_back(ScriptName(config, spec.local_rank));
  }
  command.args.insert(command.args.end(), spec.args.begin(), spec.args.end());
  return command;
}

SpawnSpec ZygoteCommand(const LaunchConfig& config, const std::map<std::string, std::string>& env,
                        const std::string& bootstrap) {
  SpawnSpec command;
  command.program = config.python;
  command.args = {config.python, "-u", bootstrap + "/zygote.py", "3", Padding(config, config.script_args)};
  command.env = env;
  AddSameForAll(config, command.env);
  if (!config.preload.empty()) command.env["PHALANX_PRELOAD"] = config.preload;
  command.open_files_limit = config.open_files_limit;
  return command;
}

std::string RunMessage(const LaunchConfig& config, const WorkerSpec& spec, int log_streams, const std::string& cwd,
                       unsigned umask) {
  JsonObject message;
  message.Add("type", "run").Add("kind", KindName(config)).Add("script", ScriptName(config, spec.local_rank));
  message.Add("args", spec.args).Add("cwd", cwd).Add("env", spec.env).Add("umask", static_cast<int64_t>(umask));
  message.Add("counts_on", spec.counts_on)
      .Add("exact_steps", spec.exact_steps)
      .Add("splits_steps", spec.splits_steps)
      .Add("bound", !spec.cpus.empty())
      .Add("logs", log_streams);
  if (spec.board_path.empty()) {
    message.AddNull("board");
  } else {
    message.Add("board", JsonObject().Add("path", spec.board_path).Add("slot", spec.local_rank));
  }
  return message.Text();
}

std::string CheckMessage(const std::map<std::string, std::string>& env) {
  return JsonObject().Add("type", "check").Add("env", env).Text();
}

std::string PreloadMessage(const LaunchConfig& config, const std::map<std::string, std::string>& env,
                           const std::string& cwd, const Learnt& learnt) {
  JsonObject message;
  message.Add("type", "preload").Add("kind", KindName(config)).Add("script", ScriptName(config, 0));
  message.Add("args", config.script_args).Add("cwd", cwd).Add("env", env);
  message.Add("learnt", learnt.modules).Add("deny", learnt.deny);
  return message.Add("cache", config.state_root).Text();
}

}  // namespace phalanx::agent
