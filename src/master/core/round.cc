#include "master/core/round.h"

#include <algorithm>
#include <numeric>
#include <utility>

namespace phalanx::master {

void Round::Occupy(Slot& slot, uint64_t session) {
  Vacate(slot);
  slot.session = session;
  if (!slot.safe) ++unsafe;
  if (!slot.answered) ++unanswered;
}

void Round::Vacate(Slot& slot) {
  if (std::exchange(slot.session, 0) == 0) return;
  if (!slot.safe) --unsafe;
  if (!slot.answered) --unanswered;
}

void Round::SetSafe(Slot& slot, bool safe) {
  if (std::exchange(slot.safe, safe) == safe || slot.session == 0) return;
  unsafe += safe ? static_cast<size_t>(-1) : 1;
}

void Round::SetAnswered(Slot& slot, bool answered) {
  if (std::exchange(slot.answered, answered) == answered || slot.session == 0) return;
  unanswered += answered ? static_cast<size_t>(-1) : 1;
}

Slot* Round::SlotOfNode(const std::string& node_id) {
  const auto id = [this](uint32_t rank) -> const std::string& { return slots[rank].node_id; };
  if (by_node_id.empty()) {
    by_node_id.resize(slots.size());
    std::iota(by_node_id.begin(), by_node_id.end(), 0U);
    std::stable_sort(by_node_id.begin(), by_node_id.end(), [&id](uint32_t a, uint32_t b) { return id(a) < id(b); });
  }
  const auto rank = std::lower_bound(by_node_id.begin(), by_node_id.end(), node_id,
                                     [&id](uint32_t a, const std::string& wanted) { return id(a) < wanted; });
  return rank == by_node_id.end() || id(*rank) != node_id ? nullptr : &slots[*rank];
}

}  // namespace phalanx::master
