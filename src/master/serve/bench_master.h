// A phalanx-master as it is, for programs that measure one: in a process of its own, with a folder of its own.
#pragma once

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdio.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/env.h"
#include "base/fd.h"
#include "base/process/memory.h"
#include "base/process/process.h"

namespace phalanx::master {

class BenchMaster {
 public:
  // Returns when it serves the job "job" at a port of its own; killed with this. `program`: an absolute path. `token`:
  // empty where nodes come in clear. Its log is `folder` + ".log".
  BenchMaster(const std::string& program, const std::string& folder, const std::string& token,
              const std::vector<std::string>& flags) {
    constexpr int kReadyFd = 3;
    int fds[2];
    PHX_CHECK(pipe(fds) == 0, "pipe");
    const Fd ours(fds[0]);
    Fd theirs(fds[1]);
    SpawnSpec spec;
    spec.program = program;
    spec.args = {"phalanx-master", "--port=0", "--job-id=job", fmt::format("--state-dir={}", folder),
                 fmt::format("--ready-fd={}", kReadyFd)};
    spec.args.insert(spec.args.end(), flags.begin(), flags.end());
    spec.env = Environment::FromProcess().Without("PHALANX_TOKEN").values();
    if (!token.empty()) spec.env["PHALANX_TOKEN"] = token;
    spec.cwd.assign(1, '/');  // gcc 12 sees an overlap in the assignment of a literal here
    log_ = Fd(open((folder + ".log").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600));
    spec.stdin_fd = spec.stdout_fd = spec.stderr_fd = log_.get();
    spec.extra_fds = {theirs.get()};
    StatusOr<Child> child = Spawn(spec);
    PHX_CHECK(child.ok(), "the master could not be started: its path must be absolute");
    pid_ = child->pid;
    theirs.Reset();
    char line[64] = {};
    const ssize_t n = read(ours.get(), line, sizeof line - 1);
    PHX_CHECK(n > 0 && sscanf(line, "ready %hu", &port_) == 1, "the master is not ready");
    address_ = fmt::format("127.0.0.1:{}", port_);
  }
  BenchMaster(const BenchMaster&) = delete;
  BenchMaster& operator=(const BenchMaster&) = delete;
  ~BenchMaster() {
    kill(pid_, SIGKILL);
    waitpid(pid_, nullptr, 0);
  }

  const std::string& address() const { return address_; }
  uint16_t port() const { return port_; }

  // Of all its threads, since its start.
  int64_t CpuMs() const {
    std::ifstream file(fmt::format("/proc/{}/stat", pid_));
    std::string text(std::istreambuf_iterator<char>(file), {});
    std::istringstream fields(text.substr(text.rfind(')') + 2));
    std::string skipped;
    for (int i = 0; i < 11; ++i) fields >> skipped;
    int64_t user = 0;
    int64_t system = 0;
    fields >> user >> system;
    return (user + system) * 1'000 / sysconf(_SC_CLK_TCK);
  }
  int64_t RssMb() const { return ResidentBytes(pid_) >> 20; }

 private:
  Fd log_;
  pid_t pid_ = 0;
  uint16_t port_ = 0;
  std::string address_;
};

}  // namespace phalanx::master
