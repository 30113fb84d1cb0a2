#include "cli/rows.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <map>

namespace phalanx::cli {

using nlohmann::ordered_json;

namespace {

constexpr const char* kRecordLost = "record-lost";

}  // namespace

std::string Clock(int64_t unix_ms, bool date) {
  const time_t seconds = unix_ms / 1'000;
  tm parts{};
  localtime_r(&seconds, &parts);
  const std::string day =
      date ? fmt::format("{:04}-{:02}-{:02} ", parts.tm_year + 1900, parts.tm_mon + 1, parts.tm_mday) : "";
  return fmt::format("{}{:02}:{:02}:{:02}.{:03}", day, parts.tm_hour, parts.tm_min, parts.tm_sec, unix_ms % 1'000);
}

std::string Span(int64_t ms) {
  const int64_t s = std::max<int64_t>(ms, 0) / 1'000;
  return fmt::format("{}:{:02}:{:02}", s / 3'600, s / 60 % 60, s % 60);
}

std::string Bytes(uint64_t bytes) {
  constexpr std::array kUnits = {"B", "KiB", "MiB", "GiB", "TiB"};
  size_t unit = 0;
  uint64_t tenths = bytes * 10;
  while (tenths >= 10'240 && unit + 1 < kUnits.size()) {
    tenths = tenths / 1'024 + (tenths % 1'024 >= 512 ? 1 : 0);
    ++unit;
  }
  return tenths % 10 == 0 ? fmt::format("{} {}", tenths / 10, kUnits[unit])
                          : fmt::format("{}.{} {}", tenths / 10, tenths % 10, kUnits[unit]);
}

std::string Table(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()), 0);
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string out;
  for (const auto& row : rows) {
    std::string line;
    for (size_t i = 0; i < row.size(); ++i) {
      line += i + 1 == row.size() ? row[i] : fmt::format("{:<{}}  ", row[i], widths[i]);
    }
    out += line.substr(0, line.find_last_not_of(' ') + 1) + "\n";
  }
  return out;
}

std::string Printable(std::string text) {
  std::replace_if(
      text.begin(), text.end(), [](unsigned char c) { return (c < 0x20 && c != '\n' && c != '\t') || c == 0x7f; }, '?');
  return text;
}

ordered_json Detail(const Row& row) {
  ordered_json detail = ordered_json::parse(row.detail_json, nullptr, /*allow_exceptions=*/false);
  return detail.is_object() ? detail : ordered_json::object();
}

int64_t NumberIn(const ordered_json& object, const char* key) {
  const auto it = object.find(key);
  return it != object.end() && it->is_number_integer() ? it->get<int64_t>() : 0;
}

std::string Dump(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int64_t MissingRows(const std::vector<Row>& rows) {
  if (rows.empty()) return 0;
  // A row that says what was lost stands in the place of the first that was, and may be the last.
  const auto told = std::count_if(rows.begin(), rows.end(), [](const Row& row) { return row.kind != kRecordLost; });
  const Row& last = rows.back();
  const int64_t behind = last.kind == kRecordLost ? NumberIn(Detail(last), "count") - 1 : 0;
  return last.id + std::max<int64_t>(0, behind) - told;
}

std::optional<std::vector<Row>> Merged(const std::vector<Row>& recorded, const std::vector<Row>& remembered) {
  std::map<int64_t, const Row*> by_id;
  for (const Row& row : recorded) by_id[row.id] = &row;
  for (const Row& row : remembered) {
    const Row*& there = by_id[row.id];
    const bool same =
        there == nullptr || there->kind == kRecordLost || (there->kind == row.kind && there->unix_ms == row.unix_ms);
    if (!same) return std::nullopt;
    there = &row;
  }
  std::vector<Row> merged;
  merged.reserve(by_id.size());
  for (const auto& [id, row] : by_id) merged.push_back(*row);
  return merged;
}

bool IsTurn(const Row& row) {
  return row.kind == "round-started" || row.kind == "round-held" || row.kind == "job-finished";
}

bool IsFailure(const Row& row) {
  if (row.kind != "worker-exited") return false;
  const ordered_json detail = Detail(row);
  return NumberIn(detail, "exit_code") != 0 || NumberIn(detail, "signal") != 0;
}

const Row* FirstCauseOf(const std::vector<const Row*>& rows, uint64_t ended_epoch) {
  const Row* collateral = nullptr;
  for (const Row* row : rows) {
    if (row->epoch != ended_epoch || !IsFailure(*row)) continue;
    if (NumberIn(Detail(*row), "collateral") == 0) return row;
    if (collateral == nullptr) collateral = row;
  }
  return collateral;
}

}  // namespace phalanx::cli
