#include "master/record/lost_rows.h"

#include <fmt/format.h>

#include <algorithm>

#include "master/record/detail.h"

namespace phalanx::master {
namespace {

constexpr const char* kRecordLost = "record-lost";

}  // namespace

RecordRow LostRow(int64_t id, int64_t count, int64_t unix_ms) {
  RecordRow row;
  row.id = id;
  row.unix_ms = unix_ms;
  row.kind = kRecordLost;
  row.reason = fmt::format("{} rows of this record were lost, from here on", count);
  row.detail_json = fmt::format("{{\"count\":{}}}", count);
  return row;
}

bool IsLostRow(const RecordRow& row) { return row.kind == kRecordLost; }

int64_t LostCount(const RecordRow& row) { return std::max<int64_t>(1, NumberIn(Detail(row), "count")); }

// All ids from the last such row on are either of a row behind it or of one that it counts.
int64_t NextRowId(const std::vector<RecordRow>& rows) {
  if (rows.empty()) return 1;
  const int64_t behind_last = rows.back().id + 1;
  const auto lost = std::find_if(rows.rbegin(), rows.rend(), IsLostRow);
  if (lost == rows.rend()) return behind_last;
  return std::max(behind_last, lost->id + LostCount(*lost) + (lost - rows.rbegin()));
}

}  // namespace phalanx::master
