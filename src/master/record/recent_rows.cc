#include "master/record/recent_rows.h"

#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "master/record/detail.h"

namespace phalanx::master {

std::string SortOf(const std::string& kind, const std::function<int64_t(const char*)>& number) {
  if (kind == "node-lost" || kind == "node-left") return number("broke_round") != 0 ? kind + ", broke the round" : kind;
  if (kind != "worker-exited") return kind;
  if (number("collateral") != 0) return kind + ", collateral";
  return number("exit_code") == 0 && number("signal") == 0 ? kind + ", well" : kind;
}

std::string SortOf(const RecordRow& row) {
  std::optional<nlohmann::ordered_json> detail;  // parsed where it is asked for
  const std::string sort = SortOf(row.kind, [&](const char* key) {
    if (!detail) detail = nlohmann::ordered_json::parse(row.detail_json, nullptr, /*allow_exceptions=*/false);
    return detail->is_object() ? NumberIn(*detail, key) : 0;
  });
  return detail && !detail->is_object() ? row.kind : sort;
}

RowWeight RecentRows::WeightOf(const RecordRow& row, const std::string& sort) {
  const bool counted =
      counts_.contains(row.epoch) || counts_.size() < kRoundsCounted || row.epoch > counts_.begin()->first;
  if (!counted) return RowWeight::kFurther;
  const size_t before = counts_[row.epoch][sort]++;
  if (counts_.size() > kRoundsCounted) counts_.erase(counts_.begin());
  return before < kTellingOfSort ? RowWeight::kTelling : RowWeight::kFurther;
}

RowWeight RecentRows::Add(RecordRow row, const std::string& sort) {
  const RowWeight weight = WeightOf(row, sort);
  std::deque<int64_t>& ids = ids_[weight];
  ids.push_back(row.id);
  rows_[row.id] = std::move(row);
  if (ids.size() > kHeldOfWeight) {
    rows_.erase(ids.front());
    ids.pop_front();
  }
  return weight;
}

std::vector<const RecordRow*> RecentRows::After(int64_t after_id, size_t limit) const {
  std::vector<const RecordRow*> found;
  for (auto row = rows_.upper_bound(after_id); row != rows_.end() && found.size() < limit; ++row) {
    found.push_back(&row->second);
  }
  return found;
}

}  // namespace phalanx::master
