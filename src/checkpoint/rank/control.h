// The control page of a rank's slots: which image is in which, and who may touch it. Shared by a rank and its agent;
// docs/formats/checkpoint-image.md. A slot belongs to the rank while its word says "writing", and what the agent writes
// lies apart from what the rank writes, so that no lock is needed and either may be killed at any moment.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/save_form.h"

namespace phalanx::checkpoint {

constexpr uint64_t kControlBytes = 4096;
constexpr uint32_t kSlotsMax = 3;

enum class SlotState : uint8_t { kEmpty = 0, kWriting = 1, kSealed = 2 };

// What the rank says of an image when it seals it.
struct SlotImage {
  int64_t step = 0;
  uint64_t epoch = 0;
  uint64_t bytes = 0;
  uint64_t layout_hash = 0;
  uint32_t rank = 0;
  uint32_t world_size = 0;
  uint32_t crc32 = 0;  // of the whole image
  uint32_t records = 0;
  int64_t sealed_unix_ms = 0;
  uint32_t branch = 0;
  SaveForm form = {};
};

// A slot as it was when the page was copied.
struct Slot {
  uint64_t word = 0;  // generation and state as they stand in the page
  uint64_t generation = 0;
  SlotState state = SlotState::kEmpty;
  SlotImage image;  // only where it is sealed and `why` is empty
  std::string why;  // it says sealed, and this is why it is not believed
  uint64_t file_number = 0;
  uint64_t committed = 0;
  uint64_t held = 0;
  uint64_t dropped = 0;

  bool sealed() const { return state == SlotState::kSealed && why.empty(); }
  bool is_committed() const { return sealed() && committed == generation; }
  bool is_dropped() const { return generation <= dropped; }
};

struct ControlPage {
  uint64_t slot_bytes = 0;  // 0: there are no slots yet
  uint64_t live_epoch = 0;
  uint64_t changes = 0;
  std::vector<Slot> slots;
};

// What the page says, from a copy of it. The reason where it is none, else empty. Pure.
std::string ParseControl(const void* page, uint64_t bytes, ControlPage* parsed);

// The committed image that a restart would take: the newest by SaveKey. -1: there is none. Pure.
int NewestCommitted(const ControlPage& page);

// The slots that a save may begin, best first, and, for each other, a sentence with the reason. Pure.
struct SlotChoice {
  std::vector<int> slots;
  std::string why_not;
};
SlotChoice ChooseSlots(const ControlPage& page);

// A page that both sides have mapped. Does not own it. The rank calls Begin, Seal and Abandon, the agent the others;
// each is one owner's word, so that nothing is lost wherever the caller dies.
class Control {
 public:
  explicit Control(uint8_t* page) : page_(page) {}

  // A new page without slots.
  void Format(uint64_t live_epoch);
  // A copy of all that ParseControl reads, each slot's word before what it speaks of.
  void Copy(uint8_t* to) const;

  // The slot's word goes from what `seen` says to "writing", one generation on. False, with the reason, where another
  // was faster or somebody has taken hold of the slot meanwhile, which is then empty.
  bool Begin(int slot, const Slot& seen, uint64_t* generation, std::string* why);
  // Publishes the image. False where the slot is no longer this generation's or another epoch lives: nothing changes.
  bool Seal(int slot, uint64_t generation, const SlotImage& image);
  // The slot is empty; nothing where it is no longer this generation's.
  void Abandon(int slot, uint64_t generation);

  uint64_t live_epoch() const;
  uint64_t changes() const;
  // Of the file that is the slot's now. What the slot's writer reads behind Begin stays so until it seals, or it
  // cannot.
  uint64_t file_number(int slot) const;
  void SetLiveEpoch(uint64_t epoch);
  // These slots have other files now, or files of another size: what they held is gone. `file_numbers`: of `count`
  // slots, 0: none. A slot that keeps its number keeps its image. A copy that is under way in another cannot be sealed.
  void SetSlots(uint32_t count, uint64_t slot_bytes, const uint64_t* file_numbers);
  void SetCommitted(int slot, uint64_t generation);
  void SetDropped(int slot, uint64_t generation);
  // From now until Release the slot keeps its image. False, and not held, where it is not sealed in that generation.
  bool Hold(int slot, uint64_t generation);
  void Release(int slot);

 private:
  uint8_t* page_;
};

}  // namespace phalanx::checkpoint
