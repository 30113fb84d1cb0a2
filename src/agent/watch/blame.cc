#include "agent/watch/blame.h"

#include <fmt/format.h>

#include <algorithm>
#include <tuple>

namespace phalanx::agent::watch {
namespace {

std::string SecondsText(int64_t ms) { return fmt::format("{}.{} s", ms / 1'000, ms % 1'000 / 100); }

}  // namespace

bool Recent::Explains(const Found& found, Instant ended_at) const {
  const int64_t explains_ms = found.stands ? stands_ms_ : kExplainsMs;
  return found.since <= ended_at + kBehindMs && found.until >= ended_at - explains_ms;
}

void Recent::Note(const Found& found) {
  if (!found.fact.grave()) return;
  std::pair<std::string, std::string> key(found.fact.kind(), found.fact.device());
  const auto same = facts_.find(key);
  if (found.over) {
    if (same != facts_.end()) same->second.stands = false;
    return;
  }
  if (same == facts_.end() && facts_.size() >= kMaxRecent) {
    facts_.erase(std::min_element(facts_.begin(), facts_.end(),
                                  [](const auto& a, const auto& b) { return a.second.at < b.second.at; }));
  }
  facts_[std::move(key)] = found;
}

std::string Recent::Explain(Instant ended_at) const {
  const Found* best = nullptr;
  const auto order = [](const Found& found) { return std::tuple(Weight(found.fact.kind()), -found.at); };
  for (const auto& [key, found] : facts_) {
    if (Explains(found, ended_at) && (best == nullptr || order(found) < order(*best))) best = &found;
  }
  if (best == nullptr) return "";
  const int64_t before_ms = std::max<int64_t>(0, ended_at - best->since);
  return fmt::format("{}, {}{} before", best->what, best->since == best->at ? "" : "at most ", SecondsText(before_ms));
}

}  // namespace phalanx::agent::watch
