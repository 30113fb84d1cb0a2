// A slot as a rank may have left it: any bytes must come out within the ranges that board.h promises.
#include <cstddef>
#include <cstdint>

#include "agent/workers/board.h"
#include "base/check.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::agent;
  constexpr int64_t kNowNs = 1'000'000'000'000;
  const BoardSlot slot = ParseBoardSlot(data, size, kNowNs);
  PHX_CHECK(slot.pid >= 0 && slot.step >= -1 && slot.from_step >= -1, "a number out of its range");
  PHX_CHECK(slot.optimizer_steps <= static_cast<uint64_t>(INT64_MAX), "too many steps");
  for (const int64_t ns : {slot.changed_ns, slot.started_ns, slot.first_step_ns, slot.saving_ns, slot.saving_since_ns,
                           slot.caught_up_ns}) {
    PHX_CHECK(ns >= 0 && ns <= kNowNs, "a time that has not been yet");
  }
  PHX_CHECK(static_cast<int>(slot.phase) >= 0 && slot.phase <= RankPhase::kExiting, "an unknown phase");
  return 0;
}
