#include "cli/replay_command.h"

#include <fmt/format.h>

#include <cstdio>

#include "cli/input.h"
#include "replay/log.h"

namespace phalanx::cli {

void DeclareReplay(CLI::App& app, ReplayFlags& flags) {
  CLI::App* replay = app.add_subcommand("replay", "a log of --replay-log, decided anew: are the decisions the same?");
  replay->add_option("FILE", flags.file, "of an agent or a master; -: standard input")->required();
  replay->add_flag("--all", flags.view.all, "also events without a decision, and long texts whole");
  replay->add_flag("--json", flags.view.json, "for programs: an object a line");
}

int AnswerReplay(const ReplayFlags& flags) {
  const StatusOr<std::string> log = ReadInput(flags.file, replay::kMaxLogBytes);
  const auto print = [](const std::string& text) { fmt::print("{}", text); };
  const StatusOr<bool> same = log.ok() ? ReplayLog(*log, flags.view, print) : StatusOr<bool>(log.status());
  const bool written = std::fflush(stdout) == 0;
  if (!same.ok()) {
    const Status why = log.ok() ? WithContext(same.status(), flags.file) : same.status();
    fmt::print(stderr, "phalanx: {}\n", Message(why));
    return 2;
  }
  if (!written) return 2;
  return *same ? 0 : 1;
}

}  // namespace phalanx::cli
