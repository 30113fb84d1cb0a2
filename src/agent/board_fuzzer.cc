// Any bytes may lie in a slot.
#include <cstdint>

#include "agent/board.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr int64_t kNow = 1'000'000'000;
  const phalanx::agent::BoardSlot slot = phalanx::agent::ParseBoardSlot(data, size, kNow);
  PHX_CHECK(slot.pid >= 0 && slot.step >= -1, "out of range");
  PHX_CHECK(slot.changed_ns >= 0 && slot.changed_ns <= kNow, "a time that cannot be");
  return 0;
}
