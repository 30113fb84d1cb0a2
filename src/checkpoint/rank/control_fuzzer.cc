// A control page as a rank may have left it: what is believed of it is within its bounds, and a save that may begin a
// slot never takes the newest committed image.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/rank/control.h"

namespace {

void Require(bool holds) {
  if (!holds) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace phalanx::checkpoint;
  alignas(64) static uint8_t bytes[kControlBytes];
  std::memset(bytes, 0, sizeof bytes);
  if (size != 0) std::memcpy(bytes, data, std::min<size_t>(size, sizeof bytes));  // data may be null then
  ControlPage page;
  if (!ParseControl(bytes, sizeof bytes, &page).empty()) return 0;
  Require(page.slots.size() <= kSlotsMax);
  const int newest = NewestCommitted(page);
  const SlotChoice choice = ChooseSlots(page);
  for (const Slot& slot : page.slots) {
    if (!slot.sealed()) continue;
    Require(slot.image.step >= 0 && slot.image.rank < slot.image.world_size);
    Require(slot.image.bytes != 0 && slot.image.bytes % 4096 == 0);
  }
  for (const int i : choice.slots) {
    const Slot& slot = page.slots.at(static_cast<size_t>(i));
    Require(i != newest && slot.held == 0 && slot.file_number != 0);
    Control control(bytes);
    uint64_t generation = 0;
    std::string why;
    Require(control.Begin(i, slot, &generation, &why));
    control.SetLiveEpoch(1);
    Require(control.Seal(i, generation, {1, 1, page.slot_bytes, 1, 0, 1, 1, 1, 1, 0, phalanx::kDdpForm}));
  }
  return 0;
}
