#include "checkpoint/rank/control.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cstring>

#include "base/crc/crc32.h"
#include "base/save_key.h"

namespace phalanx::checkpoint {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are stored as they are in memory");

constexpr char kMagic[8] = {'P', 'H', 'X', 'S', 'L', 'O', 'T', 'S'};
constexpr uint32_t kVersion = 3;
constexpr uint64_t kVersionAt = 8;
constexpr uint64_t kCountAt = 12;
constexpr uint64_t kSlotBytesAt = 16;
constexpr uint64_t kLiveEpochAt = 24;
constexpr uint64_t kChangesAt = 32;

constexpr uint64_t kSlotsAt = 256;
constexpr uint64_t kSlotStride = 256;
// Of a slot. The rank's:
constexpr uint64_t kWordAt = 0;
constexpr uint64_t kFieldsAt = 8;
constexpr uint64_t kFieldsBytes = 72;
constexpr uint64_t kFieldsCrcAt = kFieldsAt + kFieldsBytes;
// The agent's:
constexpr uint64_t kFileNumberAt = 128;
constexpr uint64_t kCommittedAt = 136;
constexpr uint64_t kHeldAt = 144;
constexpr uint64_t kDroppedAt = 152;

// Behind them the page says nothing.
constexpr uint64_t kSlotsEnd = kSlotsAt + kSlotStride * kSlotsMax;
static_assert(kSlotsEnd <= kControlBytes);

// What the rank writes of an image, as it lies in the page.
struct Fields {
  int64_t step;
  uint64_t epoch;
  uint64_t bytes;
  uint64_t layout_hash;
  uint32_t rank;
  uint32_t world_size;
  uint32_t crc32;
  uint32_t records;
  int64_t sealed_unix_ms;
  uint64_t generation;
  uint32_t branch;
  uint32_t form;
};
static_assert(sizeof(Fields) == kFieldsBytes);

template <typename T>
T Read(const uint8_t* at) {
  T value;
  std::memcpy(&value, at, sizeof value);
  return value;
}

std::atomic_ref<uint64_t> Atomic(uint8_t* at) { return std::atomic_ref<uint64_t>(*reinterpret_cast<uint64_t*>(at)); }

uint64_t SlotAt(int slot) { return kSlotsAt + kSlotStride * static_cast<uint64_t>(slot); }

uint64_t Word(uint64_t generation, SlotState state) { return generation << 8 | static_cast<uint64_t>(state); }

// Fills in the image, or says why there is none to believe.
std::string ParseFields(const uint8_t* at, Slot* slot) {
  const auto fields = Read<Fields>(at + kFieldsAt);
  if (Crc32(0, at + kFieldsAt, kFieldsBytes) != Read<uint32_t>(at + kFieldsCrcAt)) return "its fields have a wrong CRC";
  if (fields.generation != slot->generation) return "its fields are those of another image";
  if (fields.bytes == 0 || fields.bytes % kControlBytes != 0) return "its image has no whole number of pages";
  if (fields.step < 0) return "its step is below 0";
  if (fields.world_size == 0 || fields.rank >= fields.world_size) return "its rank is not within its world";
  const std::optional<SaveForm> form = FormOfNumber(fields.form);
  if (!form) return "who needs it is not known";
  slot->image = {fields.step,           fields.epoch,      fields.bytes, fields.layout_hash,
                 fields.rank,           fields.world_size, fields.crc32, fields.records,
                 fields.sealed_unix_ms, fields.branch,     *form};
  return {};
}

Slot ParseSlot(const uint8_t* at) {
  Slot slot;
  slot.word = Read<uint64_t>(at + kWordAt);
  slot.generation = slot.word >> 8;
  slot.file_number = Read<uint64_t>(at + kFileNumberAt);
  slot.committed = Read<uint64_t>(at + kCommittedAt);
  slot.held = Read<uint64_t>(at + kHeldAt);
  slot.dropped = Read<uint64_t>(at + kDroppedAt);
  const uint64_t state = slot.word & 0xFF;
  if (state > static_cast<uint64_t>(SlotState::kSealed)) {
    slot.state = SlotState::kSealed;
    slot.why = "its state is none there is";
    return slot;
  }
  slot.state = static_cast<SlotState>(state);
  if (slot.state == SlotState::kSealed) slot.why = ParseFields(at, &slot);
  return slot;
}

bool Older(const SlotImage& a, const SlotImage& b) { return KeyOf(a) < KeyOf(b); }

// Smaller: sooner begun. Nothing is lost with the first two; with the last goes an image to fall back upon.
enum class Rank { kEmpty, kTorn, kDropped, kOlder, kNever };

Rank RankOf(const ControlPage& page, int newest, int i, std::string* why) {
  const Slot& slot = page.slots[static_cast<size_t>(i)];
  if (slot.file_number == 0) {
    *why = "has no memory";
    return Rank::kNever;
  }
  if (slot.held != 0) {
    *why = "is being read";
    return Rank::kNever;
  }
  if (slot.state == SlotState::kEmpty) return Rank::kEmpty;
  if (!slot.sealed()) return Rank::kTorn;
  const std::string step = "holds step " + std::to_string(slot.image.step);
  if (i == newest) {
    *why = step + ", the newest that is committed";
    return Rank::kNever;
  }
  if (slot.is_dropped()) return Rank::kDropped;
  // Also one of the same step, which was saved twice: the other is the one that counts.
  if (newest >= 0 && !Older(page.slots[static_cast<size_t>(newest)].image, slot.image)) return Rank::kOlder;
  *why = step + ", which is not committed yet";
  return Rank::kNever;
}

}  // namespace

std::string ParseControl(const void* page, uint64_t bytes, ControlPage* parsed) {
  const auto* at = static_cast<const uint8_t*>(page);
  *parsed = ControlPage();
  if (bytes < kControlBytes) return "a control page of " + std::to_string(bytes) + " bytes";
  if (std::memcmp(at, kMagic, sizeof kMagic) != 0) return "not a control page";
  const auto version = Read<uint32_t>(at + kVersionAt);
  if (version != kVersion) {
    return "a control page of version " + std::to_string(version) + ", and " + std::to_string(kVersion) +
           " is understood here";
  }
  const auto count = Read<uint32_t>(at + kCountAt);
  if (count > kSlotsMax) return "a control page of " + std::to_string(count) + " slots, and there may be 3";
  parsed->slot_bytes = Read<uint64_t>(at + kSlotBytesAt);
  parsed->live_epoch = Read<uint64_t>(at + kLiveEpochAt);
  parsed->changes = Read<uint64_t>(at + kChangesAt);
  parsed->slots.reserve(count);
  for (uint32_t i = 0; i < count; ++i) parsed->slots.push_back(ParseSlot(at + SlotAt(static_cast<int>(i))));
  return {};
}

int NewestCommitted(const ControlPage& page) {
  int newest = -1;
  for (int i = 0; i < static_cast<int>(page.slots.size()); ++i) {
    const Slot& slot = page.slots[static_cast<size_t>(i)];
    if (!slot.is_committed()) continue;
    if (newest < 0 || Older(page.slots[static_cast<size_t>(newest)].image, slot.image)) newest = i;
  }
  return newest;
}

SlotChoice ChooseSlots(const ControlPage& page) {
  const int newest = NewestCommitted(page);
  const int count = static_cast<int>(page.slots.size());
  SlotChoice choice;
  if (count == 0 || page.slot_bytes == 0) choice.why_not = "there are no slots yet";
  std::array<Rank, kSlotsMax> ranks{};
  for (int i = 0; i < count; ++i) {
    std::string why;
    ranks[static_cast<size_t>(i)] = RankOf(page, newest, i, &why);
    if (why.empty()) {
      choice.slots.push_back(i);
    } else {
      choice.why_not += (choice.why_not.empty() ? "slot " : "; slot ") + std::to_string(i) + " " + why;
    }
  }
  const auto sooner = [&](int a, int b) {
    const Rank first = ranks[static_cast<size_t>(a)];
    const Rank second = ranks[static_cast<size_t>(b)];
    if (first != second) return first < second;
    if (first != Rank::kOlder) return a < b;
    return Older(page.slots[static_cast<size_t>(a)].image, page.slots[static_cast<size_t>(b)].image);
  };
  std::sort(choice.slots.begin(), choice.slots.end(), sooner);
  return choice;
}

void Control::Format(uint64_t live_epoch) {
  std::memset(page_, 0, kControlBytes);
  std::memcpy(page_, kMagic, sizeof kMagic);
  std::memcpy(page_ + kVersionAt, &kVersion, sizeof kVersion);
  SetLiveEpoch(live_epoch);
}

void Control::Copy(uint8_t* to) const {
  std::array<uint64_t, kSlotsMax> words;
  for (int i = 0; i < static_cast<int>(kSlotsMax); ++i) {
    words[static_cast<size_t>(i)] = Atomic(page_ + SlotAt(i) + kWordAt).load(std::memory_order_seq_cst);
  }
  const uint64_t changes = Atomic(page_ + kChangesAt).load(std::memory_order_acquire);
  std::memcpy(to, page_, kSlotsEnd);
  std::memcpy(to + kChangesAt, &changes, sizeof changes);
  for (int i = 0; i < static_cast<int>(kSlotsMax); ++i) {
    std::memcpy(to + SlotAt(i) + kWordAt, &words[static_cast<size_t>(i)], sizeof words[0]);
  }
}

bool Control::Begin(int slot, const Slot& seen, uint64_t* generation, std::string* why) {
  uint8_t* at = page_ + SlotAt(slot);
  uint64_t expected = seen.word;
  *generation = seen.generation + 1;
  if (!Atomic(at + kWordAt).compare_exchange_strong(expected, Word(*generation, SlotState::kWriting))) {
    *why = "slot " + std::to_string(slot) + " was begun by somebody else";
    return false;
  }
  if (Atomic(at + kHeldAt).load(std::memory_order_seq_cst) == 0) return true;
  Abandon(slot, *generation);
  *why = "slot " + std::to_string(slot) + " is being read";
  return false;
}

bool Control::Seal(int slot, uint64_t generation, const SlotImage& image) {
  uint8_t* at = page_ + SlotAt(slot);
  const Fields fields = {image.step,           image.epoch,      image.bytes,  image.layout_hash,
                         image.rank,           image.world_size, image.crc32,  image.records,
                         image.sealed_unix_ms, generation,       image.branch, NumberOf(image.form)};
  uint64_t expected = Word(generation, SlotState::kWriting);
  if (live_epoch() != image.epoch || Atomic(at + kWordAt).load() != expected) return false;
  const uint32_t crc32 = Crc32(0, &fields, sizeof fields);
  std::memcpy(at + kFieldsAt, &fields, sizeof fields);
  std::memcpy(at + kFieldsCrcAt, &crc32, sizeof crc32);
  if (live_epoch() != image.epoch) return false;
  return Atomic(at + kWordAt).compare_exchange_strong(expected, Word(generation, SlotState::kSealed));
}

void Control::Abandon(int slot, uint64_t generation) {
  uint64_t expected = Word(generation, SlotState::kWriting);
  Atomic(page_ + SlotAt(slot) + kWordAt).compare_exchange_strong(expected, Word(generation, SlotState::kEmpty));
}

uint64_t Control::live_epoch() const { return Atomic(page_ + kLiveEpochAt).load(); }

uint64_t Control::changes() const { return Atomic(page_ + kChangesAt).load(); }

uint64_t Control::file_number(int slot) const { return Atomic(page_ + SlotAt(slot) + kFileNumberAt).load(); }

void Control::SetLiveEpoch(uint64_t epoch) { Atomic(page_ + kLiveEpochAt).store(epoch); }

void Control::SetSlots(uint32_t count, uint64_t slot_bytes, const uint64_t* file_numbers) {
  for (uint32_t i = 0; i < count; ++i) {
    uint8_t* at = page_ + SlotAt(static_cast<int>(i));
    if (Atomic(at + kFileNumberAt).load() == file_numbers[i]) continue;
    const uint64_t word = Atomic(at + kWordAt).load();
    Atomic(at + kWordAt).store(Word((word >> 8) + 1, SlotState::kEmpty));
    Atomic(at + kFileNumberAt).store(file_numbers[i]);
  }
  std::atomic_ref<uint32_t>(*reinterpret_cast<uint32_t*>(page_ + kCountAt)).store(count);
  Atomic(page_ + kSlotBytesAt).store(slot_bytes);
  Atomic(page_ + kChangesAt).fetch_add(1);
}

void Control::SetCommitted(int slot, uint64_t generation) {
  Atomic(page_ + SlotAt(slot) + kCommittedAt).store(generation);
}

void Control::SetDropped(int slot, uint64_t generation) { Atomic(page_ + SlotAt(slot) + kDroppedAt).store(generation); }

bool Control::Hold(int slot, uint64_t generation) {
  uint8_t* at = page_ + SlotAt(slot);
  Atomic(at + kHeldAt).store(generation);
  if (Atomic(at + kWordAt).load() == Word(generation, SlotState::kSealed)) return true;
  Release(slot);
  return false;
}

void Control::Release(int slot) { Atomic(page_ + SlotAt(slot) + kHeldAt).store(0); }

}  // namespace phalanx::checkpoint
