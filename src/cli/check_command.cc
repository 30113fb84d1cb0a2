#include "cli/check_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

#include "base/process/process.h"

namespace phalanx::cli {
namespace {

// Whether the words say how nodes meet, with either spelling of a flag.
bool NamesRendezvous(const std::vector<std::string>& words) {
  return std::any_of(words.begin(), words.end(), [](std::string word) {
    std::replace(word.begin(), word.end(), '_', '-');
    for (const char* flag : {"--rdzv-backend", "--node-rank", "--master-", "--standalone"}) {
      if (word.starts_with(flag)) return true;
    }
    return false;
  });
}

}  // namespace

CLI::App* DeclareCheck(CLI::App& app) {
  CLI::App* command = app.add_subcommand("check", "checks nodes, each alone and in pairs, without a job");
  command->prefix_command();
  command->footer(
      "Then flags of phalanx-run, on each node: phalanx check --nnodes=8 --rdzv-endpoint=node1:29400\n"
      "Ends with 1, on all nodes, where one was left out. docs/node-health.md");
  return command;
}

int AnswerCheck(const std::vector<std::string>& words) {
  const std::string program = ExecutableDirectory() + "/phalanx-run";
  std::vector<std::string> args = {program, "--check-only"};
  // Nodes of a check need no places: whoever comes first may have any.
  if (!NamesRendezvous(words)) args.emplace_back("--rdzv-backend=c10d");
  args.insert(args.end(), words.begin(), words.end());
  // What phalanx-run would start; nothing is.
  args.insert(args.end(), {"--module", "phalanx.node_check"});
  std::vector<char*> argv;
  argv.reserve(args.size() + 1);
  for (std::string& arg : args) argv.push_back(arg.data());
  argv.push_back(nullptr);
  execv(program.c_str(), argv.data());
  fmt::print(stderr, "phalanx: {}: {}\n", program, std::strerror(errno));
  return 1;
}

}  // namespace phalanx::cli
