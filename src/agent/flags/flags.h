// The door of phalanx-run: command line, PET_* variables and the rest of the environment, checked and resolved into a
// LaunchConfig. Everything wrong is refused here, with a sentence that names the flag, the value and what would be
// right.
//
// Pure: no I/O, no clock, no randomness. What must be asked of the machine comes in as HostFacts.
// One table (flags.cc) holds every flag of torchrun 2.15 and of dlrover-run 0.6.1 and our own; parsing, --help and the
// table in docs/flags.md all come from it. How words are split: agent/flags/arg_parser.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "agent/flags/config.h"
#include "base/env.h"
#include "base/status.h"

namespace phalanx::agent {

// What parsing needs to know of this machine and this start.
struct HostFacts {
  uint32_t cpu_count = 1;  // CPUs this process may run on (sched_getaffinity)
  uint32_t uid = 0;
  std::string hostname;
  std::string home;         // of the user's passwd entry; used where HOME is not set
  std::string cwd;          // absolute
  std::string own_dir;      // absolute directory of the running phalanx-run, links resolved or not, without a last '/'
  std::string fresh_uuid;   // job id of a standalone run
  std::string fresh_token;  // token of a standalone run without PHALANX_TOKEN
  // Whether `path` is a file that this user may execute.
  std::function<bool(const std::string& path)> is_executable;
  // The whole of a file; the error names no path. elastic_config.h has it.
  std::function<StatusOr<std::string>(const std::string& path)> read_file;
  // The first line of a file that this user alone may read. NotFound: it is not there; the error names the path.
  std::function<StatusOr<std::string>(const std::string& path)> read_secret;
};

// Nothing is to be launched: print `text` (it ends with a newline) and exit.
struct PrintAndExit {
  int exit_code = 0;  // 0: to stdout; 2, wrong usage: to stderr
  std::string text;
};

using ParseResult = std::variant<LaunchConfig, PrintAndExit>;

// `args` without the program's name.
//
// Precedence: command line, then PET_<FLAG>, then the default. Of a flag that is given twice the last counts.
// nproc_kind kCpu is resolved here (kCount, host.cpu_count). For kGpu, kXpu and kAuto the caller asks a short-lived
// Python, writes the count to nproc_per_node and sets kCount; omp_num_threads_unset is true for them whenever
// OMP_NUM_THREADS is not set, and counts only where nproc_per_node turns out greater than 1.
[[nodiscard]] ParseResult ParseFlags(const std::vector<std::string>& args, const Environment& env,
                                     const HostFacts& host);

// The flag tables of docs/flags.md, as Markdown; a test keeps that page equal to it. Hidden flag --help-table.
std::string HelpTable();

}  // namespace phalanx::agent
