#include "master/rules/mixed_world.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace phalanx::master {
namespace {

// All pairs of counts that make the world, in whole units: `first` falls and `second` rises with each step along them.
struct Line {
  int64_t first = 0;
  int64_t second = 0;
  int64_t fall = 0;
  int64_t rise = 0;

  int64_t FirstAt(int64_t step) const { return first - step * fall; }
  int64_t SecondAt(int64_t step) const { return second + step * rise; }
  int64_t NodesAt(int64_t step) const { return FirstAt(step) + SecondAt(step); }
};

// Of divisors above 0.
int64_t FloorOf(int64_t value, int64_t divisor) { return value / divisor - (value % divisor < 0 ? 1 : 0); }
int64_t CeilOf(int64_t value, int64_t divisor) { return -FloorOf(-value, divisor); }

// From the pair with the fewest nodes of the second kind on.
std::optional<Line> LineOf(int64_t ranks_first, int64_t ranks_second, int64_t world_size, int64_t unit) {
  const int64_t common = std::gcd(ranks_first, ranks_second);
  Line line;
  line.fall = ranks_second / common;
  line.rise = ranks_first / common;
  const auto rest = [&] { return world_size - line.second * ranks_second; };
  while (line.second < line.rise && rest() >= 0 && rest() % ranks_first != 0) ++line.second;
  if (line.second == line.rise || rest() < 0) return std::nullopt;
  line.first = rest() / ranks_first;
  const int64_t period = unit / std::gcd(unit, line.rise - line.fall);  // of what is left over of a unit
  for (int64_t tried = 0; line.NodesAt(0) % unit != 0; ++tried) {
    if (tried == period || line.first < line.fall) return std::nullopt;
    line.first -= line.fall;
    line.second += line.rise;
  }
  line.fall *= period;
  line.rise *= period;
  return line;
}

// The steps between which so many nodes are there, and no more than may be; the second is the smaller where none is.
std::pair<int64_t, int64_t> StepsWithin(const Line& line, const NodeKinds& kinds, const NodeLimits& limits) {
  const auto there_first = static_cast<int64_t>(kinds[0].nodes);
  const auto there_second = static_cast<int64_t>(kinds[1].nodes);
  int64_t from = std::max<int64_t>(0, CeilOf(line.first - there_first, line.fall));
  int64_t to = std::min(FloorOf(there_second - line.second, line.rise), FloorOf(line.first, line.fall));
  const int64_t more = line.rise - line.fall;  // nodes with each step; 0 for one kind alone
  const int64_t to_min = static_cast<int64_t>(limits.min) - line.NodesAt(0);
  const int64_t to_max = static_cast<int64_t>(limits.max) - line.NodesAt(0);
  if (more > 0) {
    from = std::max(from, CeilOf(to_min, more));
    to = std::min(to, FloorOf(to_max, more));
  } else if (more < 0) {
    from = std::max(from, CeilOf(-to_max, -more));
    to = std::min(to, FloorOf(-to_min, -more));
  } else if (to_min > 0 || to_max < 0) {
    return {0, -1};
  }
  return {from, to};
}

std::optional<NodeCounts> CountsOfOneKind(const NodeKind& kind, uint64_t world_size, const NodeLimits& limits) {
  const size_t nodes = world_size / kind.ranks;
  const bool fits = world_size % kind.ranks == 0 && nodes <= kind.nodes && nodes >= limits.min && nodes <= limits.max;
  if (!fits || nodes % limits.unit != 0) return std::nullopt;
  return NodeCounts{nodes, 0};
}

}  // namespace

std::optional<NodeCounts> CountsFor(const NodeKinds& kinds, uint64_t world_size, const NodeLimits& limits) {
  if (kinds[1].nodes == 0) return CountsOfOneKind(kinds[0], world_size, limits);
  const std::optional<Line> line = LineOf(static_cast<int64_t>(kinds[0].ranks), static_cast<int64_t>(kinds[1].ranks),
                                          static_cast<int64_t>(world_size), static_cast<int64_t>(limits.unit));
  if (!line) return std::nullopt;
  const auto [from, to] = StepsWithin(*line, kinds, limits);
  if (from > to) return std::nullopt;
  const auto members_first = static_cast<int64_t>(kinds[0].members);
  const auto members_second = static_cast<int64_t>(kinds[1].members);
  const auto kept = [&](int64_t step) {
    return std::min(line->FirstAt(step), members_first) + std::min(line->SecondAt(step), members_second);
  };
  // Who is kept changes its slope twice along the line and bends down each time: the most are kept at one of its ends,
  // or beside where it bends.
  const int64_t bend_first = FloorOf(line->first - members_first, line->fall);
  const int64_t bend_second = FloorOf(members_second - line->second, line->rise);
  int64_t best = from;
  for (const int64_t at : {to, bend_first, bend_first + 1, bend_second, bend_second + 1}) {
    const int64_t step = std::clamp(at, from, to);
    const bool better =
        kept(step) > kept(best) || (kept(step) == kept(best) && line->NodesAt(step) < line->NodesAt(best));
    if (better) best = step;
  }
  return NodeCounts{static_cast<size_t>(line->FirstAt(best)), static_cast<size_t>(line->SecondAt(best))};
}

}  // namespace phalanx::master
