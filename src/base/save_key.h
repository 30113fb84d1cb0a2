// Which save of a checkpoint directory is meant: by the round in which it was made, how often the ranks had gone back
// in that round by then (load() of a job that trains), and the step.
#pragma once

#include <compare>
#include <cstdint>
#include <tuple>

namespace phalanx {

// Ordered by age: a later round's save is newer, and one of a later branch, whatever its step.
struct SaveKey {
  uint64_t epoch = 0;
  int64_t step = 0;
  uint32_t branch = 0;
  bool operator==(const SaveKey&) const = default;
  auto operator<=>(const SaveKey& other) const {
    return std::tie(epoch, branch, step) <=> std::tie(other.epoch, other.branch, other.step);
  }
};

// Of a message that has both: v1::SaveId, or the SlotImage of a control page.
template <typename Wire>
SaveKey KeyOf(const Wire& wire) {
  if constexpr (requires { wire.epoch(); }) {
    return {wire.epoch(), wire.step(), wire.branch()};
  } else {
    return {wire.epoch, wire.step, wire.branch};
  }
}

// And back, into a v1::SaveId.
template <typename Wire>
void SetKey(Wire& wire, const SaveKey& save) {
  wire.set_epoch(save.epoch);
  wire.set_step(save.step);
  wire.set_branch(save.branch);
}

}  // namespace phalanx
