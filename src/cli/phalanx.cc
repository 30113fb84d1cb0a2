// phalanx: asks about jobs, checkpoints, batch plans, datasets, replay logs and warm starts. Flags in, calls out.
#include <fmt/ranges.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cctype>
#include <chrono>
#include <cstdio>
#include <string>
#include <thread>
#include <vector>

#include "agent/flags/arg_parser.h"
#include "agent/flags/flag_values.h"
#include "base/clock.h"
#include "base/env.h"
#include "checkpoint/host/serve.h"
#include "checkpoint/memory/memory_reader.h"
#include "checkpoint/rank/memory_names.h"
#include "cli/check_command.h"
#include "cli/check_rows.h"
#include "cli/ckpt.h"
#include "cli/ckpt_discard.h"
#include "cli/ckpt_memory.h"
#include "cli/ckpt_rescue.h"
#include "cli/data.h"
#include "cli/elasticity_command.h"
#include "cli/job_view.h"
#include "cli/jobs.h"
#include "cli/ledger.h"
#include "cli/replay_command.h"
#include "cli/report.h"
#include "cli/state_dir.h"
#include "cli/warm_command.h"

namespace phalanx::cli {
namespace {

constexpr size_t kJobsListed = 20;
constexpr int kLooksUnheard = 30;
constexpr std::chrono::duration<double> kUnseenFor(60);

struct AskFlags {
  JobQuery query;
  bool json = false;
  std::string node;  // `let-in`
  std::optional<uint64_t> epoch;
  std::string watch_s;  // `status`: again each so often; empty: once
};

void AddJob(CLI::App* command, AskFlags& flags) {
  command->add_option("JOB", flags.query.job, "the job's id (--rdzv-id); not given: the most recent job");
  command->add_option("--state-dir", flags.query.state_dir, "where jobs keep their records, or one job's folder");
  command->add_option("--master", flags.query.master,
                      "HOST:PORT of a live master to ask, with PHALANX_TOKEN or PHALANX_TLS_CERT, _KEY and _CA");
  command->add_flag("--json", flags.json, "for programs");
}

CLI::App* Declare(CLI::App& app, AskFlags& flags, const std::string& name, const std::string& what) {
  CLI::App* command = app.add_subcommand(name, what);
  AddJob(command, flags);
  return command;
}

// That of `at` with this name; null: it has none.
const CLI::App* CommandOf(const CLI::App& at, const std::string& name) {
  const auto found = at.get_subcommands([&name](const CLI::App* command) { return command->get_name() == name; });
  return found.empty() ? nullptr : found.front();
}

// Why these words name no command; empty: they do, or CLI11 says why not.
std::string WrongCommand(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string before;
  for (const std::string& word : words) {
    const std::vector<const CLI::App*> commands = at->get_subcommands([](const CLI::App*) { return true; });
    if (commands.empty() || word.starts_with('-')) return "";
    std::vector<std::string> names;
    const CLI::App* found = CommandOf(*at, word);
    if (found == nullptr) {
      for (const CLI::App* command : commands) {
        if (!command->get_group().empty()) names.push_back(command->get_name());  // the others are for programs
      }
      std::string nearest = agent::Nearest(word, names);
      for (const CLI::App* command : commands) {
        if (nearest.empty() && CommandOf(*command, word) != nullptr) nearest = command->get_name() + " " + word;
      }
      const std::string hint = nearest.empty() ? "" : fmt::format("; did you mean {}?", nearest);
      return fmt::format("{}{}: no such command{} They are {}", before, word, hint.empty() ? "." : hint,
                         fmt::join(names, ", "));
    }
    at = found;
    before += word + " ";
  }
  return "";
}

CLI::App* DeclareStatus(CLI::App& app, AskFlags& flags) {
  CLI::App* status = Declare(app, flags, "status", "who trains, and how far they are");
  status->add_flag("--ranks", flags.query.ranks, "what each rank does: its process, step and memory");
  status->add_flag("--check", flags.query.check, "what the last check of the job's nodes has found, and measured");
  status->add_flag("--watch{1}", flags.watch_s, "until the job ends or Ctrl-C, again each second; --watch=S: each S")
      ->check(CLI::Range(0.1, 3'600.0));  // a text: CLI11 rounds the numbers of flags
  return status;
}

// The first word that is none of the flags of the command that `words` name; empty: they all are.
std::string WrongFlag(const CLI::App& app, const std::vector<std::string>& words) {
  const CLI::App* at = &app;
  std::string before;
  for (const std::string& word : words) {
    if (word == "--") return "";
    const bool is_flag = word.size() > 1 && word[0] == '-' && std::isdigit(static_cast<unsigned char>(word[1])) == 0;
    if (!is_flag) {
      const CLI::App* below = CommandOf(*at, word);
      if (below == nullptr) continue;
      at = below;
      before += word + " ";
      continue;
    }
    const std::string name = word.substr(0, word.find('='));
    if (at->get_allow_extras() || at->get_option_no_throw(name) != nullptr) continue;
    if (word[1] != '-' && at->get_option_no_throw(name.substr(0, 2)) != nullptr) continue;  // "-n5"
    std::vector<std::string> names;
    for (const CLI::Option* option : at->get_options([](const CLI::Option* o) { return o->nonpositional(); })) {
      for (const std::string& each : option->get_lnames()) names.push_back("--" + each);
    }
    const std::string nearest = agent::Nearest(name, names);
    const std::string hint = nearest.empty() ? "." : fmt::format("; did you mean {}?", nearest);
    return fmt::format("{}{}: no such flag{} They are {}", before, name, hint, fmt::join(names, ", "));
  }
  return "";
}

int Fail(const Status& why) {
  fmt::print(stderr, "phalanx: {}\n", Message(why));
  return 1;
}

std::string StatusOf(JobView view, const AskFlags& flags) {
  if (!view.MayTrain()) {
    const auto memories = checkpoint::ReadMemories(checkpoint::kMemoryRoot);
    if (memories.ok()) view.left = LeftSteps(*memories, view.status.job_id());
  }
  return flags.json ? StatusJson(view) : StatusText(view, UnixMs(), flags.query.ranks);
}

// By the clock that the times of its rows are of. A job that nobody serves stands still at its last row; a master of an
// older version does not tell its clock.
int64_t NowOf(const JobView& view) {
  if (!view.live) return view.ended.at_unix_ms;
  return view.status.now_unix_ms() > 0 ? view.status.now_unix_ms() : UnixMs();
}

int Answer(const std::string& command, AskFlags flags) {
  flags.query.rows = command != "status";
  if (command == "why") flags.query.ranks = true;  // of a job that hangs
  const StatusOr<JobView> view = ViewJob(flags.query, Environment::FromProcess());
  if (!view.ok()) return Fail(view.status());
  std::string out;
  const std::string missing = flags.query.rows ? MissingText(*view) : "";
  if (!missing.empty()) fmt::print(stderr, "phalanx: {}\n", missing);
  if (command == "status") {
    out = StatusOf(*view, flags);
  } else if (command == "events") {
    out = flags.json ? EventsJson(view->rows) : EventsText(view->rows);
  } else if (command == "ledger") {
    const Ledger ledger = MakeLedger(*view, NowOf(*view));
    out = flags.json ? LedgerJson(*view, ledger) : LedgerText(*view, ledger);
  } else {
    const StatusOr<Story> story = TellStory(view->rows, flags.epoch);
    if (!story.ok()) return Fail(story.status());
    out = flags.json ? StoryJson(*story, *view, NowOf(*view)) : StoryText(*story, *view, NowOf(*view));
  }
  fmt::print("{}", out);
  return std::fflush(stdout) == 0 ? 0 : 1;
}

// The screen anew each time; where the output is no terminal, one answer behind the other.
bool ShowLook(const JobView& view, const AskFlags& flags) {
  const bool terminal = isatty(STDOUT_FILENO) != 0;
  fmt::print("{}{}{}", terminal ? "\x1b[H\x1b[2J" : "", StatusOf(view, flags), terminal || flags.json ? "" : "\n");
  return std::fflush(stdout) == 0;
}

int Watch(const AskFlags& flags) {
  const Environment env = Environment::FromProcess();
  AskFlags asked = flags;
  asked.query.rows = false;
  const std::chrono::duration<double> pause(std::stod(flags.watch_s));
  std::chrono::duration<double> unseen(0);  // a job that is just being launched has no folder yet
  int unheard = 0;                          // a master that is started anew, or elected, is away for some seconds
  while (unheard < kLooksUnheard) {
    const StatusOr<JobView> view = ViewJob(asked.query, env);
    const bool is_unseen = absl::IsNotFound(view.status()) && unseen < kUnseenFor;
    if (is_unseen && unseen.count() == 0) {
      fmt::print(stderr, "phalanx: no job yet; waiting for one, for up to a minute\n");
    }
    if (is_unseen) unseen += pause;
    if (!is_unseen && !view.ok()) return Fail(view.status());
    if (view.ok() && !ShowLook(*view, flags)) return 1;
    if (view.ok() && view->status.phase() == "finished") return 0;
    if (view.ok()) unheard = view->MayTrain() ? 0 : unheard + 1;
    std::this_thread::sleep_for(pause);
  }
  return Fail(absl::UnavailableError("the job's master is gone, and has not recorded an end"));
}

CLI::App* DeclareLetIn(CLI::App& app, AskFlags& flags) {
  CLI::App* command = app.add_subcommand("let-in", "a node that is left out has been mended: it need not wait longer");
  command->add_option("NODE", flags.node, "its name as status has it, its host name or its address")->required();
  AddJob(command, flags);
  return command;
}

int AnswerLetIn(const AskFlags& flags) {
  const StatusOr<v1::LetInReply> reply = LetNodeIn(flags.query, flags.node, Environment::FromProcess());
  if (!reply.ok()) return Fail(reply.status());
  if (flags.json) {
    fmt::print("{}", LetInJson(*reply));
  } else {
    fmt::print(reply->nodes().empty() ? stderr : stdout, "{}", LetInText(*reply, flags.node));
  }
  return std::fflush(stdout) == 0 && !reply->nodes().empty() ? 0 : 1;
}

struct JobsFlags {
  std::string state_dir;
  bool all = false;
  bool json = false;
};

void DeclareJobs(CLI::App& app, JobsFlags& flags) {
  CLI::App* jobs = app.add_subcommand("jobs", "what jobs there are on this machine, those that have ended included");
  jobs->add_option("--state-dir", flags.state_dir, "where jobs keep their records");
  jobs->add_flag("--all", flags.all, fmt::format("not only the {} that changed last", kJobsListed));
  jobs->add_flag("--json", flags.json, "for programs");
}

int AnswerJobs(const JobsFlags& flags) {
  const Environment env = Environment::FromProcess();
  const std::vector<std::string> folders = JobFolders(env, flags.state_dir);
  std::vector<ListedJob> jobs;
  for (const std::string& folder : folders) {
    if (!flags.all && jobs.size() == kJobsListed) break;
    StatusOr<JobView> view = ViewFolder(folder, env);
    ListedJob job{folder, {}, view.ok() ? "" : Message(view.status())};
    if (view.ok()) job.view = *std::move(view);
    jobs.push_back(std::move(job));
  }
  fmt::print("{}", flags.json ? JobsJson(jobs) : JobsText(jobs, folders.size(), UnixMs()));
  if (jobs.empty() && !flags.json) {
    fmt::print(stderr, "phalanx: no job in {}\n", flags.state_dir.empty() ? DefaultStateRoot(env) : flags.state_dir);
  }
  return std::fflush(stdout) == 0 ? 0 : 1;
}

struct CkptFlags {
  std::string path;
  std::vector<std::string> paths;  // of rescue
  std::string other;
  std::optional<int64_t> step;
  bool without_lost = false;
  bool free = false;
  bool json = false;
  int memory_fd = -1;
  int storage_fd = -1;
  int64_t owner = 0;
};

CLI::App* DeclareCkpt(CLI::App& ckpt, CkptFlags& flags, const std::string& name, const std::string& what) {
  CLI::App* command = ckpt.add_subcommand(name, what);
  command->add_option(name == "diff" ? "A" : "PATH", flags.path)->required();
  command->add_flag("--json", flags.json, "for programs");
  return command;
}

void DeclareCkpts(CLI::App& app, CkptFlags& flags) {
  CLI::App* ckpt =
      app.add_subcommand("ckpt", "checkpoints on disk and in memory: what is there, and whether it is whole");
  ckpt->require_subcommand(1);
  DeclareCkpt(*ckpt, flags, "ls", "the steps of a directory; of /dev/shm or a folder of it, what nodes have in memory");
  DeclareCkpt(*ckpt, flags, "show", "a step's manifest, or the records of an image");
  DeclareCkpt(*ckpt, flags, "verify", "reads all of a directory, a step, an image or memory, and compares CRCs");
  CLI::App* diff = DeclareCkpt(*ckpt, flags, "diff", "the records in which two images or two steps differ");
  diff->add_option("B", flags.other)->required();
  CLI::App* exported = DeclareCkpt(*ckpt, flags, "export", "copies an image that is whole to a new file");
  exported->add_option("--to", flags.other, "the file")->required();
  CLI::App* rescue = ckpt->add_subcommand("rescue", "writes a step in a dead job's memory to disk");
  rescue->add_option("PATH", flags.paths, "/dev/shm, or folders of it; those of several nodes, or copies of them")
      ->required();
  rescue->add_flag("--json", flags.json, "for programs");
  rescue->add_option("--to", flags.other, "a checkpoint directory; it is made where it is missing")->required();
  rescue->add_option("--step", flags.step, "that one; else the newest that all ranks had")
      ->check(CLI::NonNegativeNumber);
  rescue->add_flag("--without-lost", flags.without_lost,
                   "DDP: what ranks of lost nodes had of their own is not needed");
  rescue->add_flag("--free", flags.free, "give the memory back when the step counts");
  CLI::App* memory = ckpt->add_subcommand("memory", "what saves take of memory, and what they would take, of each job");
  memory->add_option("PATH", flags.path, "/dev/shm, or a folder of it")->default_str(checkpoint::kMemoryRoot);
  memory->add_flag("--json", flags.json, "for programs");
  DeclareCkpt(*ckpt, flags, "rm", "removes a step's folder; or, as discard, memory");
  DeclareCkpt(*ckpt, flags, "discard", "removes a dead job's memory; of /dev/shm, that of all your dead jobs");
  for (const char* name : {"steps", "delete"}) {  // for phalanx.checkpoint
    CLI::App* command = ckpt->add_subcommand(name)->group("");
    command->add_option("DIRECTORY", flags.path)->required();
    CLI::Option* step = command->add_option("NAME", flags.other, "of a step's folder");
    if (command->get_name() == "delete") step->required();
  }
  CLI::App* host = ckpt->add_subcommand("host", "serves a rank without an agent, which starts it");
  host->group("");  // no people
  host->add_option("--memory-fd", flags.memory_fd)->required()->check(CLI::NonNegativeNumber);
  host->add_option("--storage-fd", flags.storage_fd)->required()->check(CLI::NonNegativeNumber);
  host->add_option("--owner", flags.owner)->required()->check(CLI::PositiveNumber);
}

StatusOr<CkptAnswer> AskCkpt(const std::string& command, const CkptFlags& flags) {
  if (command == "ls") return CkptList(flags.path, flags.json, UnixMs());
  if (command == "steps") return CkptSteps(flags.path, flags.other);
  if (command == "delete") return CkptDelete(flags.path, flags.other);
  if (command == "show") return CkptShow(flags.path, flags.json);
  if (command == "verify") return CkptVerify(flags.path, flags.json);
  if (command == "diff") return CkptDiff(flags.path, flags.other, flags.json);
  if (command == "export") return CkptExport(flags.path, flags.other, flags.json);
  if (command == "discard") return CkptDiscard(flags.path, flags.json);
  if (command == "rm") return CkptRemove(flags.path, flags.json);
  if (command == "memory") return CkptMemory(flags.path.empty() ? checkpoint::kMemoryRoot : flags.path, flags.json);
  const RescueOptions options{flags.other, flags.step, flags.without_lost, flags.json, flags.free};
  return CkptRescue(flags.paths, options, UnixMs());
}

int HostCkpt(const CkptFlags& flags) {
  checkpoint::HostSockets sockets{Fd(flags.memory_fd), Fd(flags.storage_fd)};
  return Fail(checkpoint::ServeHost(std::move(sockets), checkpoint::kMemoryRoot, flags.owner));
}

// 2 where there is no answer, so that 1 says what `diff` and `verify` have found.
int AnswerCkpt(const std::string& command, const CkptFlags& flags) {
  if (command == "host") return HostCkpt(flags);
  const StatusOr<CkptAnswer> answer = AskCkpt(command, flags);
  if (!answer.ok()) {
    Fail(answer.status());
    return 2;
  }
  fmt::print("{}", answer->text);
  return std::fflush(stdout) == 0 ? answer->exit_code : 2;
}

struct DataFlags {
  std::vector<std::string> prefixes;
  DataMerge merge;
  uint64_t documents = 5;
  bool json = false;
};

void DeclareDatas(CLI::App& app, DataFlags& flags) {
  CLI::App* data = app.add_subcommand("data", "token datasets, .bin and .idx: what they hold, and whether it is whole");
  data->require_subcommand(1);
  CLI::App* merge = data->add_subcommand("merge", "one dataset of several, or of the parts of one, in this order");
  merge->add_option("OUT", flags.merge.out, "the new dataset's prefix")->required();
  merge->add_option("INPUT", flags.merge.inputs, "prefixes of datasets; or part files, or a folder of them")
      ->required();
  merge->add_option("--dataset-impl", flags.merge.dataset_impl, "mmap, lazy or cached")->capture_default_str();
  merge->add_flag("--force", flags.merge.replace, "replace a dataset that is there");
  CLI::App* verify =
      data->add_subcommand("verify", "reads all of datasets, and compares it with what their sidecars say");
  CLI::App* info = data->add_subcommand("info", "how much there is of what, and which tokenizer made it");
  CLI::App* head = data->add_subcommand("head", "the tokens of the first documents");
  for (CLI::App* command : {verify, info}) command->add_option("PREFIX", flags.prefixes)->required();
  head->add_option("PREFIX", flags.prefixes)->required()->expected(1);
  head->add_option("-n", flags.documents, "how many documents")->capture_default_str();
  for (CLI::App* command : {merge, verify, info, head}) command->add_flag("--json", flags.json, "for programs");
}

StatusOr<DataAnswer> AskData(const std::string& command, const DataFlags& flags) {
  if (command == "merge") return DataMergeAll(flags.merge, flags.json, UnixMs());
  if (command == "verify") return DataVerify(flags.prefixes, flags.json);
  if (command == "info") return DataInfo(flags.prefixes, flags.json);
  return DataHead(flags.prefixes.front(), flags.documents, flags.json);
}

// As AnswerCkpt.
int AnswerData(const std::string& command, const DataFlags& flags) {
  const StatusOr<DataAnswer> answer = AskData(command, flags);
  if (!answer.ok()) {
    Fail(answer.status());
    return 2;
  }
  fmt::print("{}", answer->text);
  return std::fflush(stdout) == 0 ? answer->exit_code : 2;
}

}  // namespace
}  // namespace phalanx::cli

int main(int argc, char** argv) {
  phalanx::cli::AskFlags flags;
  phalanx::cli::JobsFlags jobs_flags;
  phalanx::cli::CkptFlags ckpt_flags;
  phalanx::cli::ElasticityFlags elasticity_flags;
  phalanx::cli::DataFlags data_flags;
  phalanx::cli::ReplayFlags replay_flags;
  phalanx::cli::WarmFlags warm_flags;
  CLI::App app(
      "Tells what a job does, what happened to it, and why; and of checkpoints, datasets, elastic batches, replay logs "
      "and warm starts.",
      "phalanx");
  app.set_version_flag("--version", "phalanx " PHALANX_VERSION);
  app.require_subcommand(1);
  CLI::App* status = phalanx::cli::DeclareStatus(app, flags);
  phalanx::cli::Declare(app, flags, "events", "everything that was recorded, with its reason");
  CLI::App* why = phalanx::cli::Declare(app, flags, "why", "the story of the last restart, or of the job's end");
  why->add_option("--epoch", flags.epoch, "tell how this round began instead");
  phalanx::cli::Declare(app, flags, "ledger", "where the job's time went, and what each incident cost");
  CLI::App* let_in = phalanx::cli::DeclareLetIn(app, flags);
  phalanx::cli::DeclareJobs(app, jobs_flags);
  phalanx::cli::DeclareCkpts(app, ckpt_flags);
  phalanx::cli::DeclareElasticity(app, elasticity_flags);
  phalanx::cli::DeclareDatas(app, data_flags);
  phalanx::cli::DeclareReplay(app, replay_flags);
  CLI::App* warm = phalanx::cli::DeclareWarm(app, warm_flags);
  CLI::App* check = phalanx::cli::DeclareCheck(app);
  const std::string wrong = phalanx::cli::WrongCommand(app, {argv + 1, argv + argc});
  if (!wrong.empty()) {
    fmt::print(stderr, "phalanx: {}\n", wrong);
    return 2;
  }
  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& error) {
    const bool failed = error.get_exit_code() != 0;
    const std::string flag = failed ? phalanx::cli::WrongFlag(app, {argv + 1, argv + argc}) : "";
    if (flag.empty()) app.exit(error);
    if (!flag.empty()) fmt::print(stderr, "phalanx: {}\n", flag);
    return failed ? 2 : 0;
  }
  CLI::App* command = app.get_subcommands().front();
  if (command->get_name() == "jobs") return phalanx::cli::AnswerJobs(jobs_flags);
  if (command->get_name() == "ckpt") {
    return phalanx::cli::AnswerCkpt(command->get_subcommands().front()->get_name(), ckpt_flags);
  }
  if (command->get_name() == "elasticity") {
    return phalanx::cli::AnswerElasticity(command->get_subcommands().front()->get_name(), elasticity_flags,
                                          phalanx::Environment::FromProcess());
  }
  if (command->get_name() == "data") {
    return phalanx::cli::AnswerData(command->get_subcommands().front()->get_name(), data_flags);
  }
  if (command->get_name() == "replay") return phalanx::cli::AnswerReplay(replay_flags);
  if (command == check) return phalanx::cli::AnswerCheck(check->remaining());
  if (command == warm) {
    return phalanx::cli::AnswerWarm(warm_flags, warm->remaining(), phalanx::Environment::FromProcess());
  }
  if (command == let_in) return phalanx::cli::AnswerLetIn(flags);
  if (command == status && !flags.watch_s.empty()) return phalanx::cli::Watch(flags);
  return phalanx::cli::Answer(command->get_name(), flags);
}
