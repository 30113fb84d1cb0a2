#include "master/rules/pace.h"

#include <algorithm>
#include <utility>

namespace phalanx::master {
namespace {

constexpr int64_t kTimesDeviation = 6;

// The lower of the two in the middle: of two ranks the quicker one is what is usual.
int64_t LowerMedian(std::vector<int64_t> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>((values.size() - 1) / 2);
  std::nth_element(values.begin(), middle, values.end());
  return *middle;
}

uint64_t StepsOf(const PaceWatch::Rank& rank) { return rank.latest.steps - rank.before.steps; }

bool Counts(const PaceWatch::Rank& rank) { return StepsOf(rank) >= kPaceSteps; }

int64_t OwnUs(const PaceWatch::Rank& rank) {
  return (rank.latest.own_us - rank.before.own_us) / static_cast<int64_t>(StepsOf(rank));
}

bool IsOver(const PaceWatch& watch, Instant now) {
  if (watch.began_at == kNever || now - watch.began_at < kPaceWindowMs) return false;
  return watch.too_few == 0 || now - watch.began_at >= kPaceLongestMs;
}

// Whether something is to be told of the rank.
bool Count(PaceWatch::Rank& rank, bool is_slow) {
  rank.slow = is_slow ? rank.slow + 1 : 0;
  rank.quick = is_slow ? 0 : rank.quick + 1;
  const bool changes = rank.is_told ? rank.quick >= kPaceWindows : rank.slow >= kPaceWindows;
  if (changes) rank.is_told = !rank.is_told;
  return changes;
}

}  // namespace

void SawSplit(PaceWatch& watch, size_t world_size, size_t rank, const RankSplit& split, Instant now) {
  if (rank >= world_size) return;
  watch.ranks.resize(world_size);
  if (watch.began_at == kNever) watch.began_at = now;
  PaceWatch::Rank& known = watch.ranks[rank];
  const bool was_short = known.is_heard && !Counts(known);
  const bool goes_on =
      known.latest.steps > 0 && split.steps >= known.latest.steps && split.own_us >= known.latest.own_us;
  if (!goes_on) known = PaceWatch::Rank{split, split};
  known.latest = split;
  known.is_heard = true;
  watch.too_few += Counts(known) ? 0 : 1;
  watch.too_few -= was_short ? 1 : 0;
}

std::vector<Laggard> CloseWindow(PaceWatch& watch, Instant now) {
  if (!IsOver(watch, now)) return {};
  std::vector<int64_t> own;
  for (const PaceWatch::Rank& rank : watch.ranks) {
    if (Counts(rank)) own.push_back(OwnUs(rank));
  }
  std::vector<Laggard> told;
  const int64_t usual = own.empty() ? 0 : LowerMedian(own);
  for (int64_t& value : own) value = value > usual ? value - usual : usual - value;
  const int64_t deviation = own.empty() ? 0 : LowerMedian(std::move(own));
  for (size_t i = 0; i < watch.ranks.size(); ++i) {
    PaceWatch::Rank& rank = watch.ranks[i];
    if (!Counts(rank)) continue;
    const int64_t lag = OwnUs(rank) - usual;
    const bool is_slow = lag * 2 > usual && lag > kTimesDeviation * deviation && lag >= kPaceFloorUs;
    if (Count(rank, is_slow)) {
      told.push_back({i, OwnUs(rank), usual, !rank.is_told, false});
    } else if (rank.is_told && is_slow) {
      told.push_back({i, OwnUs(rank), usual, false, true});
    }
  }
  for (PaceWatch::Rank& rank : watch.ranks) {
    rank.before = rank.latest;
    rank.is_heard = false;
  }
  watch.too_few = 0;
  watch.began_at = now;
  return told;
}

}  // namespace phalanx::master
