// phalanx: asks about jobs. Flags in, calls out.
#include <CLI/CLI.hpp>
#include <cstdio>

#include "agent/flag_values.h"
#include "base/clock.h"
#include "base/env.h"
#include "cli/job_view.h"
#include "cli/ledger.h"
#include "cli/report.h"

namespace phalanx::cli {
namespace {

struct AskFlags {
  JobQuery query;
  bool json = false;
  std::optional<uint64_t> epoch;
};

CLI::App* Declare(CLI::App& app, AskFlags& flags, const std::string& name, const std::string& what) {
  CLI::App* command = app.add_subcommand(name, what);
  command->add_option("JOB", flags.query.job, "the job's id (--rdzv-id); not given: the most recent job");
  command->add_option("--state-dir", flags.query.state_dir, "where jobs keep their records, or one job's folder");
  command->add_option("--master", flags.query.master, "HOST:PORT of a live master to ask, with PHALANX_TOKEN");
  command->add_flag("--json", flags.json, "for programs");
  return command;
}

int Fail(const Status& why) {
  fmt::print(stderr, "phalanx: {}\n", Message(why));
  return 1;
}

int Answer(const std::string& command, const AskFlags& flags) {
  const StatusOr<JobView> view = ViewJob(flags.query, Environment::FromProcess());
  if (!view.ok()) return Fail(view.status());
  std::string out;
  if (command == "status") {
    out = flags.json ? StatusJson(*view) : StatusText(*view, UnixMs());
  } else if (command == "events") {
    out = flags.json ? EventsJson(view->rows) : EventsText(view->rows);
  } else if (command == "ledger") {
    // A master of an older version does not tell its clock.
    const int64_t now = view->status.now_unix_ms() > 0 ? view->status.now_unix_ms() : UnixMs();
    const Ledger ledger = MakeLedger(*view, now);
    out = flags.json ? LedgerJson(*view, ledger) : LedgerText(*view, ledger);
  } else {
    const StatusOr<Story> story = TellStory(view->rows, flags.epoch);
    if (!story.ok()) return Fail(story.status());
    out = flags.json ? StoryJson(*story) : StoryText(*story);
  }
  fmt::print("{}", out);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

}  // namespace
}  // namespace phalanx::cli

int main(int argc, char** argv) {
  phalanx::cli::AskFlags flags;
  CLI::App app("Tells what a job does, what happened to it, and why.", "phalanx");
  app.set_version_flag("--version", "phalanx " PHALANX_VERSION);
  app.require_subcommand(1);
  phalanx::cli::Declare(app, flags, "status", "who trains, and how far they are");
  phalanx::cli::Declare(app, flags, "events", "everything that was recorded, with its reason");
  CLI::App* why = phalanx::cli::Declare(app, flags, "why", "the story of the last restart, or of the job's end");
  why->add_option("--epoch", flags.epoch, "tell how this round began instead");
  phalanx::cli::Declare(app, flags, "ledger", "where the job's time went, and what each incident cost");
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const int code = app.exit(error);
    return code == 0 ? 0 : 2;
  }
  return phalanx::cli::Answer(app.get_subcommands().front()->get_name(), flags);
}
