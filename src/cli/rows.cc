#include "cli/rows.h"

#include <fmt/format.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <map>
#include <utility>

#include "master/record/lost_rows.h"
#include "master/rules/blame.h"

namespace phalanx::cli {

using nlohmann::ordered_json;

namespace {

// What `note` counts lies before the id `end`. Some of it may be among these rows now: the note goes to the first row
// that is not, and counts those that are not; where all are, it goes.
void TellWhatIsStillLost(const Row& note, int64_t end, std::map<int64_t, Row>& by_id) {
  const auto there = by_id.find(note.id);
  if (there != by_id.end() && master::IsLostRow(there->second)) by_id.erase(there);
  int64_t first_lost = note.id;
  while (by_id.contains(first_lost)) ++first_lost;
  const auto told = std::distance(by_id.lower_bound(note.id), by_id.lower_bound(end));
  const int64_t lost = end - note.id - told;
  if (lost > 0) by_id[first_lost] = master::LostRow(first_lost, lost, note.unix_ms);
}

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

std::string Dump(const ordered_json& json, int indent) {
  return json.dump(indent, ' ', false, ordered_json::error_handler_t::replace) + "\n";
}

int64_t ToldRows(const std::vector<Row>& rows) {
  return static_cast<int64_t>(rows.size()) - std::count_if(rows.begin(), rows.end(), master::IsLostRow);
}

int64_t MissingRows(const std::vector<Row>& rows) { return master::NextRowId(rows) - 1 - ToldRows(rows); }

std::optional<std::vector<Row>> Merged(const std::vector<Row>& recorded, const std::vector<Row>& remembered) {
  std::map<int64_t, Row> by_id;
  for (const Row& row : recorded) by_id[row.id] = row;
  for (const Row& row : remembered) {
    const auto there = by_id.find(row.id);
    const bool same = there == by_id.end() || master::IsLostRow(there->second) ||
                      (there->second.kind == row.kind && there->second.unix_ms == row.unix_ms);
    if (!same) return std::nullopt;
    by_id.insert_or_assign(row.id, row);
  }
  for (auto note = recorded.begin(); note != recorded.end(); ++note) {
    if (!master::IsLostRow(*note)) continue;
    const auto next = std::find_if(note + 1, recorded.end(), master::IsLostRow);
    TellWhatIsStillLost(*note, next == recorded.end() ? master::NextRowId(recorded) : next->id, by_id);
  }
  std::vector<Row> merged;
  merged.reserve(by_id.size());
  for (auto& [id, row] : by_id) merged.push_back(std::move(row));
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
  const Row* early = nullptr;
  for (const Row* row : rows) {
    if (row->epoch != ended_epoch || row->kind != "worker-exited") continue;
    if (!IsFailure(*row)) {
      const bool ended_well = row->reason.find(" ended well ") != std::string::npos;  // and not for a rescale
      if (ended_well && early == nullptr && collateral == nullptr) early = row;
      continue;
    }
    if (NumberIn(Detail(*row), "collateral") == 0) return row;
    if (collateral == nullptr) collateral = row;
  }
  return collateral != nullptr && early != nullptr ? early : collateral;
}

std::string CauseText(const Row& cause) {
  if (IsFailure(cause)) return cause.reason;
  return fmt::format("{} on node {}", master::EarlyEndText(cause.rank, NumberIn(Detail(cause), "steps")), cause.node);
}

}  // namespace phalanx::cli
