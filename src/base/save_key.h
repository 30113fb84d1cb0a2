// Which save of a checkpoint directory is meant: by the round and the step it was made in.
#pragma once

#include <compare>
#include <cstdint>

namespace phalanx {

// Ordered by age: a later round's save is newer, whatever its step.
struct SaveKey {
  uint64_t epoch = 0;
  int64_t step = 0;
  auto operator<=>(const SaveKey&) const = default;
};

// Of a message that has both: v1::SaveId, or the SlotImage of a control page.
template <typename Wire>
SaveKey KeyOf(const Wire& wire) {
  if constexpr (requires { wire.epoch(); }) {
    return {wire.epoch(), wire.step()};
  } else {
    return {wire.epoch, wire.step};
  }
}

// And back, into a v1::SaveId.
template <typename Wire>
void SetKey(Wire& wire, const SaveKey& save) {
  wire.set_epoch(save.epoch);
  wire.set_step(save.step);
}

}  // namespace phalanx
