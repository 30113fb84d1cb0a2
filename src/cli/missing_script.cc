#include "cli/missing_script.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <poll.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <string_view>

#include "agent/flags/worker_env.h"
#include "base/clock.h"
#include "base/fd.h"
#include "base/pipe.h"
#include "base/process/process.h"

namespace phalanx::cli {
namespace {

// A Python on a slow file server; behind it the ranks' own Pythons tell.
constexpr int64_t kAskPythonMs = 10'000;
constexpr std::string_view kMissing = "phalanx-missing";

// A package's own lines are not run: only the first part of the name is looked for.
constexpr const char* kQuestion =
    "import importlib.util, sys\n"
    "if importlib.util.find_spec(sys.argv[1]) is None: print('phalanx-missing')\n";

bool IsThere(const std::string& path) {
  struct stat info {};
  return stat(path.c_str(), &info) == 0 || (errno != ENOENT && errno != ENOTDIR);
}

// "a.b" in `folder`, as a file or as a package.
bool HoldsModule(const std::string& folder, std::string module) {
  std::ranges::replace(module, '.', '/');
  const std::string path = fmt::format("{}/{}", folder.empty() ? "." : folder, module);
  return IsThere(path + ".py") || IsThere(path);
}

bool LiesNear(const std::string& module, const Environment& env) {
  if (HoldsModule(".", module)) return true;
  const std::string folders = env.NonEmptyOr("PYTHONPATH", "");
  for (size_t begin = 0; begin < folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    if (HoldsModule(folders.substr(begin, end - begin), module)) return true;
    begin = end + 1;
  }
  return false;
}

std::string ReadUntil(int fd, Instant deadline) {
  std::string text;
  std::array<char, 512> bytes{};
  while (true) {
    pollfd waits{fd, POLLIN, 0};
    const int64_t left_ms = std::max<int64_t>(0, deadline - MonotonicMs());
    const int ready = poll(&waits, 1, static_cast<int>(left_ms));
    if (ready < 0 && errno == EINTR) continue;
    if (ready <= 0) return text;
    const ssize_t got = read(fd, bytes.data(), bytes.size());
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) return text;
    text.append(bytes.data(), static_cast<size_t>(got));
  }
}

// What cannot be asked is not missing.
bool PythonMisses(const std::string& python, const std::string& top, const Environment& env) {
  StatusOr<Pipe> pipe = MakePipe();
  if (!pipe.ok()) return false;
  const Fd nowhere(open("/dev/null", O_RDWR | O_CLOEXEC));
  SpawnSpec spec;
  spec.program = python;
  spec.args = {python, "-c", kQuestion, top};
  spec.env = env.values();
  spec.stdin_fd = nowhere.get();
  spec.stdout_fd = pipe->writer.get();
  spec.stderr_fd = nowhere.get();
  const StatusOr<Child> child = Spawn(spec);
  if (!child.ok()) return false;
  pipe->writer.Reset();
  const std::string said = ReadUntil(pipe->reader.get(), MonotonicMs() + kAskPythonMs);
  kill(child->pid, SIGKILL);  // its answer is there, or comes too late
  while (waitpid(child->pid, nullptr, 0) < 0 && errno == EINTR) {
  }
  return said.find(kMissing) != std::string::npos;
}

}  // namespace

std::string MissingScript(const agent::LaunchConfig& config, const Environment& env) {
  if (config.kind == agent::ScriptKind::kProgram) return "";
  const std::string script = agent::SubstituteLocalRank(config.script, 0);  // that of the first rank
  if (config.kind == agent::ScriptKind::kScript) {
    if (IsThere(script)) return "";
    return fmt::format("{}: there is no such file: expected the script, a file or folder that Python can run",
                       config.script);
  }
  if (LiesNear(script, env)) return "";
  const std::string top = script.substr(0, script.find('.'));
  if (!PythonMisses(config.python, top, env)) return "";
  return fmt::format(
      "-m {}: there is no module {}: expected one in this folder, in one of PYTHONPATH, or installed for {}",
      config.script, top, config.python);
}

}  // namespace phalanx::cli
