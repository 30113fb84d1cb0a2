// Which command starts a worker or the zygote, and what is said to a worker of ours. Pure, but for the search of the
// bootstrap.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "agent/flags/config.h"
#include "agent/workers/learnt.h"
#include "agent/workers/supervisor.h"
#include "base/process/process.h"

namespace phalanx::agent {

// Directory of zygote.py and worker.py: `config.bootstrap_dir`, else where pip has put them for the command in
// `executable_dir`. With PREFIX the folder above that, these are
//   PREFIX/{lib,lib64,local/lib,local/lib64}/python*/{site,dist}-packages/phalanx/_bootstrap
// (virtual environments, conda, uv, --user, --prefix; lib64 on RHEL; dist-packages on Debian and in NVIDIA's images)
// and
//   PREFIX/phalanx/_bootstrap (--target). Of several, the one that was installed last.
// Empty where there is none, for a program, and where another interpreter was given without a `bootstrap_dir`.
std::string FindBootstrap(const LaunchConfig& config, const std::string& executable_dir);

// The script's name for that local rank: substituted, as by torchrun, unless it is a program.
std::string ScriptName(const LaunchConfig& config, int local_rank);

// A cold worker. With a bootstrap it expects its worker socket as descriptor 3 and the `run` message there; without, it
// is the plain command of torchrun.
SpawnSpec WorkerCommand(const LaunchConfig& config, const WorkerSpec& spec, const std::string& bootstrap);

// The zygote, with its socket as descriptor 3.
SpawnSpec ZygoteCommand(const LaunchConfig& config, const std::map<std::string, std::string>& env,
                        const std::string& bootstrap);

// Messages of docs/formats/worker-socket.md.
// `log_streams`: 1: stdout, 2: stderr, 3: both are log files of ours.
std::string RunMessage(const LaunchConfig& config, const WorkerSpec& spec, int log_streams, const std::string& cwd,
                       unsigned umask);
std::string CheckMessage(const std::map<std::string, std::string>& env);
// Of several scripts (`train_${local_rank}.py`) that of local rank 0; a spare that is given another one looks at it
// anew. `env`: what the zygote's command is given.
std::string PreloadMessage(const LaunchConfig& config, const std::map<std::string, std::string>& env,
                           const std::string& cwd, const Learnt& learnt);

}  // namespace phalanx::agent
