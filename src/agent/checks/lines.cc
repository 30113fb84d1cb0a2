#include "agent/checks/lines.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "base/utf8.h"

namespace phalanx::agent::checks {
namespace {

using Json = nlohmann::ordered_json;

constexpr size_t kMaxNameBytes = 255;
constexpr size_t kMaxSentenceBytes = 512;
constexpr size_t kMaxUnitBytes = 32;
constexpr size_t kMaxValues = 256;

const char* KindWord(v1::CheckOrder::Kind kind) {
  switch (kind) {
    case v1::CheckOrder::PAIR:
      return "pair";
    case v1::CheckOrder::ALL:
      return "all";
    default:
      return "alone";
  }
}

Json SwitchboxJson(const Switchbox& box) {
  Json json;
  json["source"] = box.source;
  json["pairs"] = Json::array();
  for (const auto& [a, b] : box.pairs) json["pairs"].push_back(Json::array({a, b}));
  json["min_bandwidth_mb_s"] = box.min_bandwidth_mb_s;
  json["min_channels"] = box.min_channels;
  return json;
}

Status Bad(const std::string& what) { return absl::InvalidArgumentError(what); }

// Absent counts as empty; anything but a text is an error.
StatusOr<std::string> TextAt(const Json& json, const char* key, size_t max_bytes) {
  const auto found = json.find(key);
  if (found == json.end() || found->is_null()) return std::string();
  if (!found->is_string()) return Bad(fmt::format("\"{}\": expected a text", key));
  return std::string(CutUtf8(found->get_ref<const std::string&>(), max_bytes));
}

StatusOr<int64_t> IntegerAt(const Json& json, const char* key, int64_t otherwise) {
  const auto found = json.find(key);
  if (found == json.end()) return otherwise;
  const bool fits =
      found->is_number_unsigned() ? found->get<uint64_t>() <= uint64_t{INT64_MAX} : found->is_number_integer();
  if (!fits) return Bad(fmt::format("\"{}\": expected an integer", key));
  return found->get<int64_t>();
}

StatusOr<v1::CheckValue> ValueOf(const Json& json) {
  if (!json.is_object()) return Bad("\"values\": expected objects");
  v1::CheckValue value;
  PHX_ASSIGN_OR_RETURN(*value.mutable_name(), TextAt(json, "name", kMaxNameBytes));
  PHX_ASSIGN_OR_RETURN(*value.mutable_unit(), TextAt(json, "unit", kMaxUnitBytes));
  PHX_ASSIGN_OR_RETURN(const int64_t number, IntegerAt(json, "value", 0));
  PHX_ASSIGN_OR_RETURN(const std::string better, TextAt(json, "better", kMaxUnitBytes));
  value.set_value(number);
  if (better == "less") value.set_better(v1::CheckValue::LESS);
  if (better == "more") value.set_better(v1::CheckValue::MORE);
  return value;
}

StatusOr<v1::CheckResult::Outcome> OutcomeOf(const std::string& word) {
  if (word == "passed") return v1::CheckResult::PASSED;
  if (word == "failed") return v1::CheckResult::FAILED;
  if (word == "skipped") return v1::CheckResult::SKIPPED;
  return Bad("\"outcome\": expected passed, failed or skipped");
}

StatusOr<checking::Event> ResultOf(const Json& json, uint64_t id) {
  checking::CheckTold told;
  told.id = id;
  PHX_ASSIGN_OR_RETURN(*told.result.mutable_check(), TextAt(json, "check", kMaxNameBytes));
  PHX_ASSIGN_OR_RETURN(const std::string word, TextAt(json, "outcome", kMaxUnitBytes));
  PHX_ASSIGN_OR_RETURN(const v1::CheckResult::Outcome outcome, OutcomeOf(word));
  told.result.set_outcome(outcome);
  PHX_ASSIGN_OR_RETURN(*told.result.mutable_sentence(), TextAt(json, "sentence", kMaxSentenceBytes));
  PHX_ASSIGN_OR_RETURN(const int64_t took_us, IntegerAt(json, "took_us", 0));
  told.result.set_took_us(took_us);
  const auto values = json.find("values");
  if (values == json.end()) return checking::Event(std::move(told));
  if (!values->is_array() || values->size() > kMaxValues) return Bad("\"values\": expected a list of at most 256");
  for (const Json& each : *values) {
    PHX_ASSIGN_OR_RETURN(*told.result.add_values(), ValueOf(each));
  }
  return checking::Event(std::move(told));
}

}  // namespace

std::string OrderLine(uint64_t id, const v1::CheckOrder& order, const NodeSetup& setup) {
  Json json;
  json["type"] = "order";
  json["id"] = id;
  json["kind"] = KindWord(order.kind());
  json["group_rank"] = order.group_rank();
  json["group_size"] = order.group_size();
  json["store"] = nullptr;
  if (!order.store_address().empty()) json["store"] = Json::array({order.store_address(), order.store_port()});
  json["address"] = setup.address;
  json["peers"] = Json::array();
  // Of many nodes only some are named, and the helper wants all or none.
  const bool all_named = static_cast<uint32_t>(order.names_size()) == order.group_size();
  for (int i = 0; all_named && i < order.names_size(); ++i) json["peers"].push_back(order.names(i));
  json["limit_ms"] = order.limit_ms();
  json["directory"] = setup.directory;
  // What a node finds by itself it finds alone: beside another one it would accuse that, too.
  const bool alone = order.kind() == v1::CheckOrder::ALONE;
  json["programs"] = alone ? setup.programs : std::vector<std::string>();
  json["nics"] = setup.nics;
  json["switchbox"] = alone && setup.has_switchbox ? SwitchboxJson(setup.switchbox) : Json(nullptr);
  return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

StatusOr<checking::Event> ParseLine(std::string_view line) {
  if (line.size() > kMaxLineBytes) return Bad(fmt::format("a line of more than {} bytes", kMaxLineBytes));
  const Json json = Json::parse(line, nullptr, /*allow_exceptions=*/false);
  if (!json.is_object()) return Bad("expected a JSON object");
  PHX_ASSIGN_OR_RETURN(const std::string type, TextAt(json, "type", kMaxUnitBytes));
  if (type == "ready") return checking::Event(checking::HelperReady{});
  PHX_ASSIGN_OR_RETURN(const int64_t id, IntegerAt(json, "id", 0));
  if (type == "begun") {
    PHX_ASSIGN_OR_RETURN(std::string check, TextAt(json, "check", kMaxNameBytes));
    return checking::Event(checking::CheckBegun{static_cast<uint64_t>(id), std::move(check)});
  }
  if (type == "result") return ResultOf(json, static_cast<uint64_t>(id));
  if (type == "done") {
    PHX_ASSIGN_OR_RETURN(std::string ended, TextAt(json, "ended", kMaxSentenceBytes));
    return checking::Event(checking::CheckDone{static_cast<uint64_t>(id), std::move(ended)});
  }
  return Bad("\"type\": expected ready, begun, result or done");
}

}  // namespace phalanx::agent::checks
