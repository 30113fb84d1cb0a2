#include "master/core/texts.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <vector>

#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

// What the record keeps of a worker's last words; all of it is in the agent's output.
constexpr size_t kRecordedTextBytes = 4'096;

std::string Tail(const std::string& text) {
  return text.size() <= kRecordedTextBytes ? text : text.substr(text.size() - kRecordedTextBytes);
}

}  // namespace

std::string SecondsText(int64_t ms) {
  if (ms % 1'000 == 0 || ms >= 60'000) return fmt::format("{} s", ms / 1'000);
  return fmt::format("{}.{} s", ms / 1'000, ms % 1'000 / 100);
}

std::string MissingText(size_t there, const v1::JobSpec& spec) {
  const size_t missing = spec.min_nodes() - std::min<size_t>(there, spec.min_nodes());
  return fmt::format("waiting for {}: {} of {}{} {} there", Plural(missing, "more node"), there,
                     spec.min_nodes() == spec.max_nodes() ? "" : "at least ", spec.min_nodes(),
                     there == 1 ? "is" : "are");
}

std::string ThereText(size_t there, const v1::JobSpec& spec) {
  if (there == spec.max_nodes())
    return there == 1 ? "the job's node is there" : fmt::format("all {} nodes are there", there);
  return fmt::format("{} of {}:{} nodes {} there", there, spec.min_nodes(), spec.max_nodes(),
                     there == 1 ? "is" : "are");
}

std::string VerdictText(Charge charge, const Budget& budget) {
  if (charge == Charge::kSameError) {
    const std::string place = budget.last_error.substr(budget.last_error.rfind(", at ") + 2);
    return fmt::format("the same error twice, {}: not restarting (--retry-same-error tries on)", place);
  }
  if (charge == Charge::kCrashLoop)
    return fmt::format("crash loop: {} lives in a row ended without a step", budget.lives_without_step);
  if (!budget.given) return fmt::format("all {} restarts are used up", kDefaultRestarts);
  if (*budget.given == 0) return "--max-restarts=0 allows no restart";
  return fmt::format("--max-restarts={} is used up", *budget.given);
}

std::vector<std::pair<std::string, Record::Value>> ExitDetail(const v1::WorkerExited& exit, bool collateral) {
  std::vector<std::pair<std::string, Record::Value>> detail = {{"local_rank", int64_t{exit.local_rank()}},
                                                               {"pid", exit.pid()},
                                                               {"exit_code", int64_t{exit.exit_code()}},
                                                               {"signal", int64_t{exit.signal()}},
                                                               {"steps", exit.steps()},
                                                               {"script_started", int64_t{exit.script_started()}},
                                                               {"unix_ms", exit.unix_ms()}};
  if (collateral) detail.push_back({"collateral", int64_t{1}});
  if (exit.core_dumped()) detail.push_back({"core_dumped", int64_t{1}});
  if (exit.peak_resident_bytes() > 0) detail.push_back({"peak_resident_bytes", exit.peak_resident_bytes()});
  if (!exit.killed_by().empty()) detail.push_back({"killed_by", exit.killed_by()});
  if (!exit.end_note().empty()) detail.push_back({"end_note", exit.end_note()});
  if (!exit.blamed_on().empty()) detail.push_back({"blamed_on", exit.blamed_on()});
  if (!exit.last_words().empty()) detail.push_back({"last_words", Tail(exit.last_words())});
  if (!exit.error_json().empty() && exit.error_json().size() <= kRecordedTextBytes) {
    detail.push_back({"error_json", exit.error_json()});
  }
  return detail;
}

std::string NodeStateText(const JobState& state, const Node& node) {
  if (node.leaving) return "done";
  if (!node.left_out.empty()) return "left out";
  if (node.group_rank >= 0 && state.round) {
    return state.round->slots[static_cast<size_t>(node.group_rank)].AllDone() ? "done" : "member";
  }
  const bool is_full = state.round && state.round->slots.size() >= state.spec->max_nodes();
  if (state.phase == Phase::kRunning && (is_full || !state.left_over.empty())) return "spare";
  return "waiting";
}

std::string PhaseText(Phase phase) {
  switch (phase) {
    case Phase::kGathering:
      return "gathering";
    case Phase::kRunning:
    case Phase::kBlaming:
      return "running";
    case Phase::kFinished:
      return "finished";
  }
  return "";
}

std::string NodeName(const JobState& state, const v1::Hello& hello) {
  const auto host = state.hosts.find(hello.hostname());
  const bool several = host != state.hosts.end() && host->second.addresses.size() > 1;
  // Nodes that reach each other by loopback share a host.
  const bool loopback = hello.address().starts_with("127.") && state.spec && state.spec->max_nodes() > 1;
  return several || loopback ? hello.address() : hello.hostname();
}

namespace {

std::string RuleText(const v1::CheckSpec& check) {
  return check.straggler_rule() == v1::CheckSpec::MEDIAN_DEVIATION ? "median" : "mean";
}

std::string YesNo(bool given) { return given ? "given" : "not given"; }

}  // namespace

std::string SpecDifferenceText(const v1::JobSpec& job, const v1::JobSpec& asked) {
  std::vector<std::string> parts;
  auto compare = [&parts](const char* flag, const std::string& of_job, const std::string& of_node) {
    if (of_job != of_node) parts.push_back(fmt::format("{} ({} there, {} here)", flag, of_job, of_node));
  };
  auto restarts = [](const v1::JobSpec& spec) {
    return spec.has_max_restarts() ? fmt::format("{}", spec.max_restarts()) : std::string("not given");
  };
  compare("--max-restarts", restarts(job), restarts(asked));
  compare("--restart-window", SecondsText(job.restart_window_ms()), SecondsText(asked.restart_window_ms()));
  compare("--rdzv-conf join_timeout", SecondsText(job.join_timeout_ms()), SecondsText(asked.join_timeout_ms()));
  compare("--rdzv-conf last_call_timeout", fmt::format("{} ms", job.last_call_ms()),
          fmt::format("{} ms", asked.last_call_ms()));
  compare("--older-save-after", fmt::format("{}", job.older_save_after_lives()),
          fmt::format("{}", asked.older_save_after_lives()));
  compare("--hang-timeout", SecondsText(job.hang_timeout_ms()), SecondsText(asked.hang_timeout_ms()));
  compare("--rdzv-conf keep_alive_interval times keep_alive_max_attempt", SecondsText(LeaseMs(1, job.lease_ms())),
          SecondsText(LeaseMs(1, asked.lease_ms())));
  compare("--precheck", fmt::format("{}", job.check().level()), fmt::format("{}", asked.check().level()));
  compare("--straggler-rule", RuleText(job.check()), RuleText(asked.check()));
  auto limit = [](const v1::CheckSpec& check) {
    return check.level() == 0 ? std::string("not given") : SecondsText(check.limit_ms());
  };
  compare("--check-timeout", limit(job.check()), limit(asked.check()));
  compare("--exclude-straggler", YesNo(job.check().excludes_stragglers()), YesNo(asked.check().excludes_stragglers()));
  compare("--retry-same-error", YesNo(job.retries_same_error()), YesNo(asked.retries_same_error()));
  if (parts.empty()) return "";
  return fmt::format("what the job's first node was given counts: {}", fmt::join(parts, ", "));
}

}  // namespace phalanx::master
