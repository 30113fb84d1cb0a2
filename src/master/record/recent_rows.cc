#include "master/record/recent_rows.h"

#include <nlohmann/json.hpp>
#include <utility>

#include "master/record/detail.h"

namespace phalanx::master {

std::string SortOf(const RecordRow& row) {
  const bool departure = row.kind == "node-lost" || row.kind == "node-left";
  if (row.kind != "worker-exited" && !departure) return row.kind;
  const auto detail = nlohmann::ordered_json::parse(row.detail_json, nullptr, /*allow_exceptions=*/false);
  if (!detail.is_object()) return row.kind;
  if (departure) return NumberIn(detail, "broke_round") != 0 ? row.kind + ", broke the round" : row.kind;
  if (NumberIn(detail, "collateral") != 0) return row.kind + ", collateral";
  return NumberIn(detail, "exit_code") == 0 && NumberIn(detail, "signal") == 0 ? row.kind + ", well" : row.kind;
}

RowWeight RecentRows::WeightOf(const RecordRow& row) {
  const bool counted =
      counts_.contains(row.epoch) || counts_.size() < kRoundsCounted || row.epoch > counts_.begin()->first;
  if (!counted) return RowWeight::kFurther;
  const size_t before = counts_[row.epoch][SortOf(row)]++;
  if (counts_.size() > kRoundsCounted) counts_.erase(counts_.begin());
  return before < kTellingOfSort ? RowWeight::kTelling : RowWeight::kFurther;
}

RowWeight RecentRows::Add(RecordRow row) {
  const RowWeight weight = WeightOf(row);
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
