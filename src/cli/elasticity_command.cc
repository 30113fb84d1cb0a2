#include "cli/elasticity_command.h"

#include <fmt/format.h>

#include <cstdio>
#include <string_view>

#include "base/status.h"
#include "cli/elasticity.h"
#include "cli/elasticity_rows.h"
#include "cli/input.h"
#include "cli/rows.h"

namespace phalanx::cli {
namespace {

constexpr size_t kInputBytesMax = 64 << 20;  // a config, or a row, that is longer is a mistake
constexpr int kNoAnswer = 2;
constexpr const char* kLastVersion = "0.19.7";  // and the other is 0.16.5

CLI::App* Declare(CLI::App& elasticity, ElasticityFlags& flags, const std::string& name, const std::string& what) {
  CLI::App* command = elasticity.add_subcommand(name, what);
  command->add_option("CONFIG", flags.config, "a DeepSpeed config with an elasticity block, JSON; - is standard input");
  command->add_option("--deepspeed-version", flags.deepspeed_version, "whose answers: 0.16.5 or 0.19.7")
      ->check(CLI::IsMember({"0.16.5", kLastVersion}))
      ->capture_default_str();
  command->add_option("--target-version", flags.target_version,
                      "the DeepSpeed that is to run, which the rules look at; not given: --deepspeed-version");
  command->add_flag("--json", flags.json, "for programs");
  return command;
}

int Fail(const std::string& why) {
  fmt::print(stderr, "phalanx: {}\n", Printable(why));
  return kNoAnswer;
}

int AnswerRows(elasticity::Behaviour behaviour) {
  const Status answered =
      AnswerLines([&](std::string_view line) { return AnswerRow(line, behaviour); }, kInputBytesMax);
  return answered.ok() ? 0 : Fail(Message(answered));
}

}  // namespace

void DeclareElasticity(CLI::App& app, ElasticityFlags& flags) {
  CLI::App* elasticity =
      app.add_subcommand("elasticity", "batch sizes and world sizes that go together, by DeepSpeed's rules");
  elasticity->require_subcommand(1);
  CLI::App* plan =
      Declare(*elasticity, flags, "plan", "the final batch, the valid world sizes, and what one of them does");
  plan->add_option("--world-size", flags.world_size,
                   "GPUs to split the batch for; version 0.2 of the rules wants it, or WORLD_SIZE in the environment")
      ->check(CLI::Range(int64_t{1}, elasticity::kWorldSizeMax));
  plan->add_flag(
      "--jsonl", flags.rows,
      "instead of CONFIG, rows from standard input: {\"id\":..,\"ds_config\":..,\"world_size\":..}, one a line; "
      "a line of answer for each");
  Declare(*elasticity, flags, "explain",
          "what each number of GPUs from min_gpus to max_gpus does, and how many are idle");
}

int AnswerElasticity(const std::string& command, const ElasticityFlags& flags, const Environment& environment) {
  const elasticity::Behaviour behaviour = flags.deepspeed_version == kLastVersion
                                              ? elasticity::Behaviour::kDeepSpeed0197
                                              : elasticity::Behaviour::kDeepSpeed0165;
  if (flags.rows != flags.config.empty()) {
    return Fail(flags.rows ? "elasticity plan: CONFIG and --jsonl: only one of them may be given"
                           : fmt::format("elasticity {}: CONFIG is missing: the file to read, or - for standard input",
                                         command));
  }
  if (flags.rows) return AnswerRows(behaviour);
  StatusOr<std::string> text = ReadInput(flags.config, kInputBytesMax);
  if (!text.ok()) return Fail(Message(text.status()));
  ElasticityQuery query;
  query.config = *std::move(text);
  query.world_size = flags.world_size;
  query.target_version = flags.target_version.empty() ? flags.deepspeed_version : flags.target_version;
  query.world_size_variable = environment.Get("WORLD_SIZE");
  query.behaviour = behaviour;
  query.json = flags.json;
  const ElasticityAnswer answer = command == "plan" ? TellPlan(query) : ExplainSizes(query);
  if (!answer.complaint.empty()) {
    Fail(fmt::format("{}: {}", flags.config == "-" ? "standard input" : flags.config, answer.complaint));
  }
  std::fwrite(answer.text.data(), 1, answer.text.size(), stdout);
  return std::fflush(stdout) == 0 ? answer.exit_code : kNoAnswer;
}

}  // namespace phalanx::cli
