#include "cli/check_rows.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <vector>

#include "cli/rows.h"
#include "master/rules/stragglers.h"

namespace phalanx::cli {
namespace {

using nlohmann::ordered_json;

const char* VerdictText(v1::CheckedNode::Verdict verdict) {
  switch (verdict) {
    case v1::CheckedNode::GOOD:
      return "good";
    case v1::CheckedNode::FAILED:
      return "failed";
    case v1::CheckedNode::SLOW:
      return "slow, left out";
    case v1::CheckedNode::NAMED:
      return "slow";
    case v1::CheckedNode::UNCLEAR:
      return "unclear";
    case v1::CheckedNode::GONE:
      return "gone";
    default:  // of a newer master
      return "?";
  }
}

const char* OutcomeText(v1::CheckResult::Outcome outcome) {
  switch (outcome) {
    case v1::CheckResult::PASSED:
      return "passed";
    case v1::CheckResult::FAILED:
      return "failed";
    case v1::CheckResult::SKIPPED:
      return "skipped";
    default:
      return "?";
  }
}

// The better of what a node has measured several times, by name in the order of the checks.
std::vector<std::pair<std::string, v1::CheckValue>> BestOf(const v1::CheckedNode& node) {
  std::vector<std::pair<std::string, v1::CheckValue>> best;
  for (const v1::CheckResult& result : node.results()) {
    for (const v1::CheckValue& value : result.values()) {
      auto known = std::find_if(best.begin(), best.end(), [&](const auto& b) { return b.first == value.name(); });
      if (known == best.end()) {
        best.emplace_back(value.name(), value);
        continue;
      }
      if (value.better() == v1::CheckValue::NEITHER) continue;
      if (master::IsBetter(value, known->second)) known->second = value;
    }
  }
  return best;
}

std::string NodeTable(const v1::CheckSummary& check) {
  std::vector<std::string> names;
  std::vector<std::map<std::string, std::string>> values;
  for (const v1::CheckedNode& node : check.nodes()) {
    auto& row = values.emplace_back();
    for (const auto& [name, value] : BestOf(node)) {
      row[name] = master::ValueText(value);
      if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
    }
  }
  std::vector<std::vector<std::string>> table = {{"NODE", "ADDRESS", "VERDICT"}};
  for (const std::string& name : names) table[0].push_back(name);
  table[0].emplace_back("WHY");
  for (int i = 0; i < check.nodes_size(); ++i) {
    const v1::CheckedNode& node = check.nodes(i);
    std::vector<std::string>& row = table.emplace_back();
    row = {Printable(node.node()), Printable(node.address()), check.done() ? VerdictText(node.verdict()) : "..."};
    for (const std::string& name : names) {
      const auto found = values[static_cast<size_t>(i)].find(name);
      row.push_back(found == values[static_cast<size_t>(i)].end() ? "-" : Printable(found->second));
    }
    row.push_back(Printable(node.sentence()));
  }
  return Table(table);
}

std::string NameOf(const v1::CheckSummary& check, uint32_t node) {
  return node < static_cast<uint32_t>(check.nodes_size()) ? Printable(check.nodes(static_cast<int>(node)).node()) : "?";
}

std::string PairTable(const v1::CheckSummary& check) {
  if (check.pairs().empty()) return "";
  std::vector<std::vector<std::string>> table = {{"ROUND", "PAIR", "", "MEASURED", "WHY"}};
  uint32_t first_part = check.pairs(0).part();
  for (const v1::CheckedPair& pair : check.pairs()) {
    std::string measured;
    for (const v1::CheckValue& value : pair.values()) {
      measured += fmt::format("{}{} {}", measured.empty() ? "" : ", ", value.name(), master::ValueText(value));
    }
    table.push_back({fmt::format("{}", pair.part() - first_part + 1),
                     fmt::format("{} - {}", NameOf(check, pair.first()), NameOf(check, pair.second())),
                     pair.passed() ? "passed" : "failed", measured.empty() ? "-" : Printable(measured),
                     Printable(pair.sentence())});
  }
  return fmt::format("\n{}", Table(table));
}

ordered_json ValuesJson(const google::protobuf::RepeatedPtrField<v1::CheckValue>& values) {
  ordered_json list = ordered_json::array();
  for (const v1::CheckValue& value : values) {
    list.push_back({{"name", value.name()}, {"unit", value.unit()}, {"value", value.value()}});
  }
  return list;
}

}  // namespace

std::string CheckText(const v1::CheckSummary& check) {
  if (check.run() == 0) return "no node of this job has been checked (--network-check)\n";
  const std::string head = check.done() ? Printable(check.sentence()) : "node check: under way";
  return fmt::format("{}\n\n{}{}", head, NodeTable(check), PairTable(check));
}

ordered_json CheckJson(const v1::CheckSummary& check) {
  if (check.run() == 0) return nullptr;
  ordered_json json = {{"run", check.run()},
                       {"done", check.done()},
                       {"took_ms", check.took_ms()},
                       {"rounds", check.rounds()},
                       {"sentence", check.sentence()},
                       {"nodes", ordered_json::array()},
                       {"pairs", ordered_json::array()}};
  for (const v1::CheckedNode& node : check.nodes()) {
    ordered_json results = ordered_json::array();
    for (const v1::CheckResult& result : node.results()) {
      results.push_back({{"check", result.check()},
                         {"outcome", OutcomeText(result.outcome())},
                         {"sentence", result.sentence()},
                         {"took_us", result.took_us()},
                         {"values", ValuesJson(result.values())}});
    }
    json["nodes"].push_back({{"node", node.node()},
                             {"address", node.address()},
                             {"verdict", check.done() ? VerdictText(node.verdict()) : ""},
                             {"sentence", node.sentence()},
                             {"results", std::move(results)}});
  }
  for (const v1::CheckedPair& pair : check.pairs()) {
    json["pairs"].push_back({{"first", NameOf(check, pair.first())},
                             {"second", NameOf(check, pair.second())},
                             {"part", pair.part()},
                             {"passed", pair.passed()},
                             {"sentence", pair.sentence()},
                             {"values", ValuesJson(pair.values())}});
  }
  return json;
}

std::string LeftOutText(const google::protobuf::RepeatedPtrField<v1::LeftOut>& left_out) {
  std::string text;
  for (const v1::LeftOut& each : left_out) {
    if (each.rest_ms() == 0) continue;  // it may be checked again
    text += fmt::format("node {} is left out for another {}{}: {}\n", Printable(each.node()), Span(each.rest_ms()),
                        each.times() > 1 ? fmt::format(" (time {})", each.times()) : "", Printable(each.reason()));
  }
  return text;
}

ordered_json LeftOutJson(const google::protobuf::RepeatedPtrField<v1::LeftOut>& left_out) {
  ordered_json list = ordered_json::array();
  for (const v1::LeftOut& each : left_out) {
    list.push_back({{"node", each.node()},
                    {"hostname", each.hostname()},
                    {"address", each.address()},
                    {"reason", each.reason()},
                    {"rest_ms", each.rest_ms()},
                    {"times", each.times()}});
  }
  return list;
}

std::string LetInText(const v1::LetInReply& reply, const std::string& node) {
  std::string text;
  for (const std::string& each : reply.nodes()) {
    text += fmt::format("node {} may come in: it is checked first where the job checks its nodes\n", Printable(each));
  }
  if (!text.empty()) return text;
  text = fmt::format("phalanx: no node {} is left out\n", Printable(node));
  return text + LeftOutText(reply.left_out());
}

std::string LetInJson(const v1::LetInReply& reply) {
  ordered_json let_in = ordered_json::array();
  for (const std::string& each : reply.nodes()) let_in.push_back(each);
  return Dump({{"let_in", std::move(let_in)}, {"left_out", LeftOutJson(reply.left_out())}}, 2);
}

}  // namespace phalanx::cli
