#include "cli/hang.h"

#include <fmt/format.h>

#include <algorithm>
#include <span>
#include <utility>

namespace phalanx::cli {
namespace {

using nlohmann::ordered_json;

struct PlacedRank {
  const v1::NodeStatus* node;
  const v1::RankStatus* rank;
};

bool IsUnderWay(const v1::RankStatus& rank) {
  return rank.doing() != v1::RankStatus::EXITING && rank.doing() != v1::RankStatus::ENDED;
}

// Those that could make the next step, by rank.
std::vector<PlacedRank> RanksUnderWay(const v1::StatusReply& status) {
  std::vector<PlacedRank> ranks;
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.group_rank() < 0) continue;
    for (const v1::RankStatus& rank : node.ranks()) {
      if (IsUnderWay(rank)) ranks.push_back({&node, &rank});
    }
  }
  const auto number = [](const PlacedRank& each) { return each.node->rank_base() + each.rank->local_rank(); };
  std::sort(ranks.begin(), ranks.end(), [&](const auto& a, const auto& b) { return number(a) < number(b); });
  return ranks;
}

int64_t StepOf(const v1::RankStatus& rank, bool by_optimizer) {
  return by_optimizer ? rank.optimizer_steps() : rank.step();
}

// As the master compares them (src/master/core/stalls.cc).
bool ByOptimizer(const std::vector<PlacedRank>& ranks) {
  const auto tells = [](const PlacedRank& each) { return each.rank->step_told(); };
  const auto steps = [](const PlacedRank& each) { return each.rank->optimizer_steps() > 0; };
  return std::ranges::any_of(ranks, tells) && !std::ranges::all_of(ranks, tells) && std::ranges::any_of(ranks, steps);
}

std::vector<PlacedRank> RanksBehind(const v1::StatusReply& status, const StepsMade& made) {
  std::vector<PlacedRank> ranks = RanksUnderWay(status);
  std::erase_if(ranks, [&](const PlacedRank& each) { return StepOf(*each.rank, made.by_optimizer) >= made.most; });
  return ranks;
}

}  // namespace

std::optional<Hang> HangOf(const std::vector<Row>& rows) {
  const auto last = std::find_if(rows.rbegin(), rows.rend(), [](const Row& row) {
    return IsTurn(row) || row.kind == "stalled" || row.kind == "stalled-behind-end" || row.kind == "stall-over";
  });
  if (last == rows.rend() || IsTurn(*last) || last->kind == "stall-over") return std::nullopt;
  return Hang{&*last, last->unix_ms - NumberIn(Detail(*last), "silent_ms")};
}

StepsMade StepsMadeIn(const v1::StatusReply& status) {
  const std::vector<PlacedRank> ranks = RanksUnderWay(status);
  if (ranks.empty()) return {};
  const bool by_optimizer = ByOptimizer(ranks);
  const auto step = [=](const PlacedRank& each) { return StepOf(*each.rank, by_optimizer); };
  const auto [least, most] = std::ranges::minmax(ranks, {}, step);
  return {step(least), step(most), by_optimizer};
}

std::string PlaceText(const v1::RankStatus& rank, const StepsMade& made) {
  if (!IsUnderWay(rank) || made.least == made.most) return "";
  const int64_t step = StepOf(rank, made.by_optimizer);
  return step < made.most ? fmt::format("{} behind", made.most - step) : "waiting";
}

std::string HangText(const Hang& hang, const v1::StatusReply& status, int64_t now_unix_ms) {
  std::string out = fmt::format("no step since {}, for {}: {}\n", Clock(hang.since_unix_ms, true),
                                Span(now_unix_ms - hang.since_unix_ms), Printable(hang.told->reason));
  const StepsMade made = StepsMadeIn(status);
  const std::vector<PlacedRank> behind = RanksBehind(status, made);
  for (const auto& [node, rank] : std::span(behind).first(std::min(behind.size(), kRanksBehindTold))) {
    out += fmt::format("rank {} (local rank {} of node {}, pid {}) is at {} {}, {}\n",
                       node->rank_base() + rank->local_rank(), rank->local_rank(), Printable(node->hostname()),
                       rank->pid(), made.by_optimizer ? "its optimizer's step" : "step",
                       StepOf(*rank, made.by_optimizer), PlaceText(*rank, made));
  }
  if (behind.size() > kRanksBehindTold) {
    out += fmt::format("and {} more ranks: `phalanx status --ranks` has them\n", behind.size() - kRanksBehindTold);
  }
  return out;
}

ordered_json HangJson(const Hang& hang, const v1::StatusReply& status, int64_t now_unix_ms) {
  const StepsMade made = StepsMadeIn(status);
  ordered_json behind = ordered_json::array();
  for (const auto& [node, rank] : RanksBehind(status, made)) {
    behind.push_back({{"rank", node->rank_base() + rank->local_rank()},
                      {"node", node->hostname()},
                      {"pid", rank->pid()},
                      {"step", rank->step()},
                      {"behind", made.most - StepOf(*rank, made.by_optimizer)}});
  }
  return {{"since_unix_ms", hang.since_unix_ms},
          {"silent_ms", now_unix_ms - hang.since_unix_ms},
          {"reason", hang.told->reason},
          {"ranks_behind", std::move(behind)}};
}

}  // namespace phalanx::cli
