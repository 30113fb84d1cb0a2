#include "master/rules/suspects.h"

#include <algorithm>

namespace phalanx::master {

std::vector<size_t> Suspects::All(Standing standing) const {
  std::vector<size_t> found;
  for (size_t i = 0; i < nodes_.size(); ++i) {
    if (nodes_[i].standing == standing) found.push_back(i);
  }
  return found;
}

// Who has failed with so many good nodes is bad.
void Suspects::Convict(size_t enough) {
  for (Node& node : nodes_) {
    if (node.standing != Standing::kUnclear) continue;
    const auto witnesses =
        static_cast<size_t>(std::count_if(node.failed_with.begin(), node.failed_with.end(),
                                          [this](size_t other) { return nodes_[other].standing == Standing::kGood; }));
    if (witnesses >= enough) node.standing = Standing::kBad;
  }
}

void Suspects::PairNeighbours(const std::vector<size_t>& unclear, std::vector<Pair>& pairs) const {
  for (size_t i = 0; i + 1 < unclear.size(); i += 2) pairs.emplace_back(unclear[i], unclear[i + 1]);
}

// Each with the first good one that it has not met; who is taken is out of `good`.
void Suspects::PairWithGood(const std::vector<size_t>& unclear, std::vector<size_t>& good,
                            std::vector<Pair>& pairs) const {
  for (const size_t node : unclear) {
    const auto partner =
        std::find_if(good.begin(), good.end(), [&](size_t other) { return !nodes_[node].met.contains(other); });
    if (partner == good.end()) continue;
    pairs.emplace_back(*partner, node);
    good.erase(partner);
  }
}

void Suspects::PairBlindly(const std::vector<size_t>& unclear, std::vector<Pair>& pairs) const {
  std::vector<size_t> left = unclear;
  while (left.size() > 1) {
    const size_t node = left.back();
    left.pop_back();
    const auto partner =
        std::find_if(left.begin(), left.end(), [&](size_t other) { return !nodes_[node].met.contains(other); });
    if (partner == left.end()) continue;
    pairs.emplace_back(*partner, node);
    left.erase(partner);
  }
}

// `good`: the fastest first. Each slow one meets the fastest that it has not met.
void Suspects::PairSlowWithFast(std::vector<size_t> good, std::vector<Pair>& pairs) const {
  while (good.size() > 1) {
    const size_t slow = good.back();
    good.pop_back();
    const auto fast =
        std::find_if(good.begin(), good.end(), [&](size_t other) { return !nodes_[slow].met.contains(other); });
    if (fast == good.end()) continue;
    pairs.emplace_back(*fast, slow);
    good.erase(fast);
  }
}

std::vector<Suspects::Pair> Suspects::Next(const std::vector<int64_t>& cost_us, bool compare) {
  std::vector<Pair> pairs;
  if (parts_ >= kMaxParts) return pairs;
  Convict(kWitnesses);
  std::vector<size_t> unclear = All(Standing::kUnclear);
  std::vector<size_t> good = All(Standing::kGood);
  const auto by_cost = [&cost_us](size_t a, size_t b) { return cost_us[a] < cost_us[b]; };
  std::stable_sort(good.begin(), good.end(), by_cost);
  if (parts_ == 0) {
    PairNeighbours(unclear, pairs);
  } else if (!good.empty()) {
    std::vector<size_t> askable = good;
    PairWithGood(unclear, askable, pairs);
    if (compare && !compared_) {
      compared_ = true;
      PairSlowWithFast(std::move(askable), pairs);
    }
  } else if (blind_ < kBlindParts) {
    ++blind_;
    PairBlindly(unclear, pairs);
  }
  if (pairs.empty()) {
    // There are too few to ask, and whoever is unclear has failed with all that there are.
    if (!good.empty()) Convict(std::min(kWitnesses, good.size()));
    return pairs;
  }
  ++parts_;
  for (const auto& [a, b] : pairs) {
    nodes_[a].met.insert(b);
    nodes_[b].met.insert(a);
  }
  return pairs;
}

void Suspects::Note(const Pair& pair, bool passed) {
  Node& first = nodes_[pair.first];
  Node& second = nodes_[pair.second];
  if (first.standing == Standing::kGone || second.standing == Standing::kGone) return;
  if (!passed) {
    first.failed_with.insert(pair.second);
    second.failed_with.insert(pair.first);
    return;
  }
  for (Node* node : {&first, &second}) {
    if (node->standing == Standing::kUnclear) node->standing = Standing::kGood;
  }
}

std::vector<Suspects::Pair> Suspects::BadLinks() const {
  std::vector<Pair> links;
  for (size_t a = 0; a < nodes_.size(); ++a) {
    if (nodes_[a].standing != Standing::kGood) continue;
    for (const size_t b : nodes_[a].failed_with) {
      if (a < b && nodes_[b].standing == Standing::kGood) links.emplace_back(a, b);
    }
  }
  return links;
}

}  // namespace phalanx::master
