#include "cli/warm_command.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <map>
#include <utility>
#include <variant>

#include "agent/flags/config.h"
#include "agent/flags/flags.h"
#include "agent/workers/guard.h"
#include "agent/workers/launch.h"
#include "agent/workers/learnt.h"
#include "agent/workers/lives.h"
#include "agent/workers/wire.h"
#include "base/fd.h"
#include "base/process/process.h"
#include "base/status.h"
#include "checkpoint/files/files.h"
#include "cli/host.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

constexpr const char* kJson = "--json";

int Fail(const std::string& why) {
  fmt::print(stderr, "phalanx: {}\n", Printable(why));
  return 1;
}

// Why no zygote would be started at all, as Workers::Start decides; empty: one would.
std::string WhyCold(const agent::LaunchConfig& config, const std::string& bootstrap) {
  if (config.kind == agent::ScriptKind::kProgram) return "a program (--no-python) is not forked from a Python";
  if (!config.warm) return config.why_cold.empty() ? "--no-warm asks for a cold start" : config.why_cold;
  return bootstrap.empty() ? agent::WhyNoBootstrap(config) : "";
}

int TellCold(const agent::LaunchConfig& config, const std::string& bootstrap, const std::string& why, bool json) {
  if (json) {
    nlohmann::ordered_json told = {{"script", config.script},
                                   {"warm", false},
                                   {"why", why},
                                   {"interpreter", config.python},
                                   {"bootstrap", bootstrap}};
    fmt::print("{}", Dump(told, 2));
  } else {
    const auto shown = [](const std::string& path) { return path.empty() ? "none" : path; };
    fmt::print("{} starts cold: {}\n\n{}", Printable(config.script), Printable(why),
               Printable(Table({{"  interpreter", shown(config.python)}, {"  bootstrap", shown(bootstrap)}})));
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// The request of explain.py.
std::string Request(const agent::LaunchConfig& config, const agent::HostFacts& host, const Environment& environment,
                    const std::string& bootstrap, const WarmFlags& flags) {
  std::map<std::string, std::string> env = environment.values();
  env[agent::kNodeMark] = host.fresh_uuid;
  const SpawnSpec zygote = agent::ZygoteCommand(config, env, bootstrap);
  const agent::Learnt learnt = flags.anew ? agent::Learnt{} : agent::ReadLearnt(agent::LearntPath(config, host.cwd));
  agent::JsonObject request;
  request.Add("interpreter", config.python).Add("bootstrap", bootstrap);
  request.Add("command", zygote.args).Add("env", zygote.env);
  request.Add("preload_text", agent::PreloadMessage(config, zygote.env, host.cwd, learnt));
  if (flags.json) request.AddTrue("json");
  return request.Text();
}

// A file without a name that is read from its beginning.
StatusOr<Fd> FileOf(const std::string& text) {
  const char* const name = "phalanx-request";
  Fd file(memfd_create(name, MFD_CLOEXEC));
  if (!file.valid()) return ErrnoStatus(errno, name);
  PHX_RETURN_IF_ERROR(checkpoint::WriteFully(file.get(), name, text));
  lseek(file.get(), 0, SEEK_SET);
  return file;
}

// Returns only where it fails.
int BecomePython(const agent::LaunchConfig& config, const std::string& bootstrap, const std::string& request) {
  const StatusOr<Fd> file = FileOf(request);
  if (!file.ok()) return Fail(fmt::format("no memory for the question: {}", Message(file.status())));
  if (dup2(file->get(), STDIN_FILENO) < 0) return Fail(fmt::format("no question: {}", std::strerror(errno)));
  const std::string script = bootstrap + "/explain.py";
  const char* const args[] = {config.python.c_str(), "-I", "-u", script.c_str(), nullptr};
  execv(args[0], const_cast<char* const*>(args));
  return Fail(fmt::format("{} cannot be started: {}", config.python, std::strerror(errno)));
}

}  // namespace

CLI::App* DeclareWarm(CLI::App& app, WarmFlags& flags) {
  CLI::App* command = app.add_subcommand(
      "warm", "what is imported ahead of time for a script, what is not, and why: no line of it runs");
  command->add_flag("--anew", flags.anew, "as if no earlier launch had learnt anything");
  command->add_flag(kJson, flags.json, "for programs; also as the last word");
  command->prefix_command();
  command->footer("Then the words of phalanx-run: [FLAGS] [-m] SCRIPT [ARGUMENTS...]");
  return command;
}

int AnswerWarm(WarmFlags flags, std::vector<std::string> words, const Environment& environment) {
  if (!flags.json && words.size() > 1 && words.back() == kJson) {
    flags.json = true;
    words.pop_back();
  }
  const agent::HostFacts host = AskHost();
  agent::ParseResult parsed = agent::ParseFlags(words, environment, host);
  if (const auto* print = std::get_if<agent::PrintAndExit>(&parsed)) {
    fmt::print(print->exit_code == 0 ? stdout : stderr, "{}", print->text);
    return print->exit_code;
  }
  const auto config = std::get<agent::LaunchConfig>(std::move(parsed));
  const std::string name = agent::ScriptName(config, 0);
  const Fd script(config.kind == agent::ScriptKind::kScript ? open(name.c_str(), O_RDONLY | O_CLOEXEC) : -1);
  if (config.kind == agent::ScriptKind::kScript && !script.valid()) {
    return Fail(fmt::format("the script cannot be read: {}: {}", name, std::strerror(errno)));
  }
  const std::string bootstrap = agent::FindBootstrap(config, ExecutableDirectory());
  const std::string cold = WhyCold(config, bootstrap);
  if (!cold.empty()) return TellCold(config, bootstrap, cold, flags.json);
  return BecomePython(config, bootstrap, Request(config, host, environment, bootstrap, flags));
}

}  // namespace phalanx::cli
