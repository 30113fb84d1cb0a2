#include "master/core/pace.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "master/core/checks.h"
#include "master/core/messages.h"
#include "master/core/texts.h"

namespace phalanx::master {
namespace {

constexpr int64_t kUsPerMs = 1'000;
// Nodes of one window that the record tells of.
constexpr size_t kMostRows = 64;
// Ten times more than anybody has.
constexpr uint32_t kMostRanks = 1'000'000;

std::string StepText(int64_t us) {
  return us < 10 * kUsPerMs ? fmt::format("{}.{} ms", us / kUsPerMs, us % kUsPerMs / 100)
                            : fmt::format("{} ms", us / kUsPerMs);
}

size_t PlaceOfRank(const Round& round, size_t rank) {
  size_t first = 0;
  for (size_t end = round.slots.size(); end - first > 1;) {
    const size_t middle = first + (end - first) / 2;
    (round.slots[middle].rank_base <= rank ? first : end) = middle;
  }
  return first;
}

// Of one node, the slowest first.
using Laggards = std::vector<Laggard>;

// "rank 3 (node b)", "ranks 2, 3 (node b)".
std::string WhoText(const Laggards& ranks, const std::string& node) {
  std::vector<std::string> numbers;
  numbers.reserve(ranks.size());
  for (const Laggard& each : ranks) numbers.push_back(std::to_string(each.rank));
  return fmt::format("rank{} {} (node {})", ranks.size() > 1 ? "s" : "", ListText(numbers, "more"), node);
}

std::string WorkText(const Laggard& each) {
  return fmt::format("{} of its own in each step, the others {}", StepText(each.own_us), StepText(each.usual_us));
}

// "rank 3 (node b) holds the others up: ..."; of several nodes the first are named, and the slowest counts.
std::string HoldsUpText(const std::vector<std::string>& who, bool is_one, const Laggard& worst) {
  const std::string holds = fmt::format("{} {} the others up", ListText(who, "other nodes"), is_one ? "holds" : "hold");
  return worst.over ? holds + " no more" : fmt::format("{}: {}", holds, WorkText(worst));
}

// All members hear of them once, whatever their number; the record has a row for each of some nodes.
void Tell(Turn& turn, const std::map<size_t, Laggards>& by_node) {
  const Round& round = *turn.job.round;
  if (by_node.empty()) return;
  std::vector<std::string> who;
  const Laggard* worst = &by_node.begin()->second.front();
  size_t rows = 0;
  for (const auto& [place, ranks] : by_node) {
    const std::string& node = round.slots[place].node;
    const Laggard& slowest = ranks.front();
    if (slowest.own_us > worst->own_us) worst = &slowest;
    who.push_back(WhoText(ranks, node));
    if (++rows > kMostRows) continue;
    turn.Note(slowest.over ? "rank-slow-over" : "rank-slow", node,
              HoldsUpText({who.back()}, ranks.size() == 1, slowest), static_cast<int64_t>(slowest.rank),
              {{"own_us", slowest.own_us}, {"usual_us", slowest.usual_us}});
  }
  const std::string text = HoldsUpText(who, by_node.size() == 1 && by_node.begin()->second.size() == 1, *worst);
  const auto notice = std::make_shared<const v1::MasterMessage>(NoticeOf(text));
  for (const Slot& slot : round.slots) {
    if (slot.session != 0) turn.Send(slot.session, notice, text);
  }
}

// As many nodes as the job needs stay; what makes a world under an elastic config is not known here. A round that ends
// already goes without it soon enough.
bool MayLeaveOut(const JobState& job, const Slot& slot) {
  return job.spec->check().excludes_stragglers() && !job.sizes && slot.session != 0 &&
         job.round->rescale_by == kNever && job.round->ranks_ended == 0 &&
         // Those that can train now, of which this one is: who is to be checked yet may fail.
         UsableNodes(*job.spec, std::max<size_t>(1, job.census.ready()) - 1) >= job.spec->min_nodes();
}

}  // namespace

void OnPaces(Turn& turn, const Slot& slot, const v1::Beat& beat) {
  Round& round = *turn.job.round;
  // A round that was heard of from its members alone may claim any world; what its places have is known.
  if (round.world_size > kMostRanks) return;
  for (const v1::RankPace& pace : beat.paces()) {
    if (pace.local_rank() >= slot.local_world_size) continue;
    SawSplit(round.pace, round.world_size, slot.rank_base + pace.local_rank(),
             {pace.steps(), pace.own_us(), pace.waited_us()}, turn.now);
  }
  Laggards told = CloseWindow(round.pace, turn.now);
  std::ranges::stable_sort(told, std::ranges::greater(), &Laggard::own_us);
  std::map<size_t, Laggards> slow;
  std::map<size_t, Laggards> over;
  for (const Laggard& each : told) {
    if (!each.again) (each.over ? over : slow)[PlaceOfRank(round, each.rank)].push_back(each);
  }
  Tell(turn, slow);
  Tell(turn, over);
  // One at a time, the slowest first: without it the others may be as they should. Also one that was told before: there
  // may be a spare for it by now.
  for (const Laggard& each : told) {
    const Slot& place = round.slots[PlaceOfRank(round, each.rank)];
    if (each.over || !MayLeaveOut(turn.job, place)) continue;
    return LeaveOutMember(turn, place, fmt::format("slow: rank {}: {}", each.rank, WorkText(each)));
  }
}

}  // namespace phalanx::master
