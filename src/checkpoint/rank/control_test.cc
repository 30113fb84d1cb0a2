#include "checkpoint/rank/control.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <string>
#include <vector>

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr uint64_t kEpoch = 7;
constexpr uint64_t kBytes = 8192;

SlotImage ImageOf(int64_t step, uint64_t epoch = kEpoch) {
  return {step, epoch, kBytes, 99, 1, 2, 0xABCD, 3, 1234, 0, kDcpForm};
}

// A page in memory, with as many slots.
class Page {
 public:
  explicit Page(uint32_t slots) : control(bytes.data()) {
    control.Format(kEpoch);
    const std::array<uint64_t, 3> numbers = {11, 12, 13};
    control.SetSlots(slots, kBytes, numbers.data());
  }
  ControlPage Read() const {
    std::array<uint8_t, kControlBytes> copy;
    control.Copy(copy.data());
    ControlPage page;
    EXPECT_EQ(ParseControl(copy.data(), copy.size(), &page), "");
    return page;
  }
  Slot ReadSlot(int slot) const { return Read().slots[static_cast<size_t>(slot)]; }
  uint64_t Begin(int slot) {
    uint64_t generation = 0;
    std::string why;
    EXPECT_TRUE(control.Begin(slot, ReadSlot(slot), &generation, &why)) << why;
    return generation;
  }
  uint64_t Save(int slot, int64_t step, uint64_t epoch = kEpoch) {
    const uint64_t generation = Begin(slot);
    const uint64_t live = control.live_epoch();
    control.SetLiveEpoch(epoch);
    EXPECT_TRUE(control.Seal(slot, generation, ImageOf(step, epoch)));
    control.SetLiveEpoch(live);
    return generation;
  }

  alignas(64) std::array<uint8_t, kControlBytes> bytes{};
  Control control;
};

std::string Parse(const Page& page) {
  ControlPage parsed;
  return ParseControl(page.bytes.data(), page.bytes.size(), &parsed);
}

TEST(Control, TellsWhatWasSealed) {
  Page page(2);
  const uint64_t generation = page.Save(1, 40);
  const ControlPage read = page.Read();
  EXPECT_EQ(read.slot_bytes, kBytes);
  EXPECT_EQ(read.live_epoch, kEpoch);
  EXPECT_EQ(read.changes, 1U);
  ASSERT_EQ(read.slots.size(), 2U);
  EXPECT_EQ(read.slots[0].state, SlotState::kEmpty);
  const Slot& slot = read.slots[1];
  EXPECT_TRUE(slot.sealed());
  EXPECT_FALSE(slot.is_committed());
  EXPECT_EQ(slot.generation, generation);
  EXPECT_EQ(slot.file_number, 12U);
  EXPECT_EQ(slot.image.step, 40);
  EXPECT_EQ(slot.image.epoch, kEpoch);
  EXPECT_EQ(slot.image.bytes, kBytes);
  EXPECT_EQ(slot.image.layout_hash, 99U);
  EXPECT_EQ(slot.image.rank, 1U);
  EXPECT_EQ(slot.image.world_size, 2U);
  EXPECT_EQ(slot.image.crc32, 0xABCDU);
  EXPECT_EQ(slot.image.records, 3U);
  EXPECT_EQ(slot.image.sealed_unix_ms, 1234);
}

TEST(Control, RefusesPagesOfOthers) {
  Page page(2);
  ControlPage parsed;
  EXPECT_THAT(ParseControl(page.bytes.data(), 100, &parsed), HasSubstr("100 bytes"));
  page.bytes[8] = 1;
  EXPECT_THAT(Parse(page), HasSubstr("version 1"));
  page.bytes[8] = 3;
  page.bytes[12] = 4;
  EXPECT_THAT(Parse(page), HasSubstr("4 slots"));
  page.bytes[12] = 2;
  page.bytes[0] = 'Q';
  EXPECT_THAT(Parse(page), HasSubstr("not a control page"));
}

// Each byte that the rank wrote, with one bit turned: the image is not believed, or is as it was.
TEST(Control, BelievesNoFieldThatHasChanged) {
  Page page(1);
  page.Save(0, 40);
  for (size_t at = 256; at < 256 + 76; ++at) {
    page.bytes[at] ^= 1;
    const Slot slot = page.ReadSlot(0);
    EXPECT_FALSE(slot.sealed()) << at;
    page.bytes[at] ^= 1;
  }
  EXPECT_TRUE(page.ReadSlot(0).sealed());
}

TEST(Control, BelievesNoImageThatCannotBe) {
  struct Case {
    SlotImage image;
    const char* why;
  };
  std::vector<Case> cases(4, {ImageOf(1), ""});
  cases[0].image.step = -1;
  cases[0].why = "below 0";
  cases[1].image.bytes = kBytes + 1;
  cases[1].why = "whole number of pages";
  cases[2].image.rank = 2;
  cases[2].why = "within its world";
  cases[3].image.world_size = 0;
  cases[3].why = "within its world";
  for (const Case& one : cases) {
    Page page(1);
    ASSERT_TRUE(page.control.Seal(0, page.Begin(0), one.image));
    EXPECT_THAT(page.ReadSlot(0).why, HasSubstr(one.why));
  }
}

// What a save may take in one state of three slots, best first, and what it says of the others.
struct Choice {
  const char* name;
  void (*arrange)(Page&);
  std::vector<int> slots;
  const char* why_not;
};

void ExpectChoices(const std::vector<Choice>& choices) {
  for (const Choice& one : choices) {
    Page page(3);
    one.arrange(page);
    const SlotChoice choice = ChooseSlots(page.Read());
    EXPECT_EQ(choice.slots, one.slots) << one.name;
    EXPECT_THAT(choice.why_not, HasSubstr(one.why_not)) << one.name;
  }
}

TEST(Control, KeepsWhatARestartMayNeed) {
  ExpectChoices({
      {"all empty", [](Page&) {}, {0, 1, 2}, ""},
      {"the newest committed stays",
       [](Page& p) { p.control.SetCommitted(0, p.Save(0, 10)); },
       {1, 2},
       "slot 0 holds step 10, the newest that is committed"},
      {"an older committed one goes, when nothing else is there",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 10));
         p.control.SetCommitted(1, p.Save(1, 20));
       },
       {2, 0},
       "slot 1 holds step 20"},
      {"the oldest goes first",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 20));
         p.control.SetCommitted(1, p.Save(1, 10));
         p.control.SetCommitted(2, p.Save(2, 30));
       },
       {1, 0},
       "slot 2 holds step 30"},
      {"a sealed one that may be committed yet stays",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 10));
         p.Save(1, 20);
       },
       {2},
       "slot 1 holds step 20, which is not committed yet"},
      {"without a committed one, all that are sealed stay",
       [](Page& p) {
         p.Save(0, 10);
         p.Save(1, 20);
         p.Save(2, 30);
       },
       {},
       "slot 0 holds step 10, which is not committed yet; slot 1"},
  });
}

TEST(Control, ChoosesWhatNobodyNeeds) {
  ExpectChoices({
      {"a dropped one goes",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 10));
         p.control.SetDropped(1, p.Save(1, 20));
         p.Save(2, 30);
       },
       {1},
       "slot 2 holds step 30"},
      {"only the generations up to the dropped one",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 10));
         p.control.SetDropped(1, p.Save(1, 20));
         p.Save(1, 30);
       },
       {2},
       "slot 1 holds step 30"},
      {"a committed mark of an earlier generation protects nothing",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 10));
         p.control.SetCommitted(1, p.Save(1, 20));
         p.control.SetDropped(0, p.Save(0, 30));
       },
       {2, 0},
       "slot 1 holds step 20, the newest that is committed"},
      {"an epoch is newer than any step of an earlier one",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 100, 6));
         p.control.SetCommitted(1, p.Save(1, 50, 7));
       },
       {2, 0},
       "slot 1 holds step 50, the newest"},
      {"one that was left while writing goes before an older image",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 10));
         p.control.SetCommitted(1, p.Save(1, 20));
         p.Begin(2);
       },
       {2, 0},
       "slot 1"},
      {"one that is held stays, whatever it is",
       [](Page& p) { EXPECT_TRUE(p.control.Hold(1, p.Save(1, 10))); },
       {0, 2},
       "slot 1 is being read"},
      {"one whose fields are torn goes",
       [](Page& p) {
         p.control.SetCommitted(0, p.Save(0, 10));
         p.bytes[256 + 8] ^= 1;
       },
       {1, 2, 0},
       ""},
      {"one of a state there is not goes", [](Page& p) { p.bytes[256] = 9; }, {1, 2, 0}, ""},
  });
}

TEST(Control, ChoosesAmongSlotsThatAreThere) {
  Page none(0);
  EXPECT_THAT(ChooseSlots(none.Read()).slots, IsEmpty());
  EXPECT_THAT(ChooseSlots(none.Read()).why_not, HasSubstr("no slots yet"));
  Page two(2);
  const std::array<uint64_t, 2> numbers = {0, 12};
  two.control.SetSlots(2, kBytes, numbers.data());
  EXPECT_THAT(ChooseSlots(two.Read()).slots, ElementsAre(1));
  EXPECT_THAT(ChooseSlots(two.Read()).why_not, HasSubstr("slot 0 has no memory"));
}

TEST(Control, BeginsAlsoWhatHasAStateThereIsNot) {
  Page page(1);
  page.bytes[256] = 9;
  page.Begin(0);
  EXPECT_EQ(page.ReadSlot(0).state, SlotState::kWriting);
}

TEST(Control, LetsOneOfTwoBegin) {
  Page page(1);
  const Slot seen = page.ReadSlot(0);
  page.Begin(0);
  uint64_t generation = 0;
  std::string why;
  EXPECT_FALSE(page.control.Begin(0, seen, &generation, &why));
  EXPECT_THAT(why, HasSubstr("somebody else"));
}

TEST(Control, GivesUpWhatIsHeldMeanwhile) {
  Page page(1);
  const uint64_t sealed = page.Save(0, 10);
  const Slot seen = page.ReadSlot(0);
  EXPECT_TRUE(page.control.Hold(0, sealed));
  uint64_t generation = 0;
  std::string why;
  EXPECT_FALSE(page.control.Begin(0, seen, &generation, &why));
  EXPECT_THAT(why, HasSubstr("being read"));
  EXPECT_EQ(page.ReadSlot(0).state, SlotState::kEmpty);
  EXPECT_EQ(page.ReadSlot(0).generation, sealed + 1) << "generations are not used again";
}

TEST(Control, HoldsOnlyWhatIsThere) {
  Page page(1);
  const uint64_t sealed = page.Save(0, 10);
  EXPECT_FALSE(page.control.Hold(0, sealed + 1));
  EXPECT_EQ(page.ReadSlot(0).held, 0U);
  page.Begin(0);
  EXPECT_FALSE(page.control.Hold(0, sealed));
  EXPECT_EQ(page.ReadSlot(0).held, 0U);
}

TEST(Control, SealsNothingForAnOldEpoch) {
  Page page(1);
  const uint64_t generation = page.Begin(0);
  page.control.SetLiveEpoch(kEpoch + 1);
  EXPECT_FALSE(page.control.Seal(0, generation, ImageOf(10)));
  EXPECT_EQ(page.ReadSlot(0).state, SlotState::kWriting);
}

TEST(Control, SealsNothingThatAnotherHasBegun) {
  Page page(1);
  const uint64_t old = page.Begin(0);
  const uint64_t next = page.Begin(0);
  EXPECT_FALSE(page.control.Seal(0, old, ImageOf(10)));
  page.control.Abandon(0, old);
  EXPECT_EQ(page.ReadSlot(0).state, SlotState::kWriting);
  EXPECT_TRUE(page.control.Seal(0, next, ImageOf(20)));
  EXPECT_FALSE(page.control.Seal(0, old, ImageOf(10)));
  EXPECT_TRUE(page.ReadSlot(0).sealed()) << "not a byte of it is written by who is too late";
  EXPECT_EQ(page.ReadSlot(0).image.step, 20);
}

TEST(Control, NewFilesEndACopyThatIsUnderWay) {
  Page page(2);
  page.Save(0, 10);
  const uint64_t generation = page.Begin(1);
  const std::array<uint64_t, 2> numbers = {11, 14};
  page.control.SetSlots(2, kBytes, numbers.data());
  EXPECT_FALSE(page.control.Seal(1, generation, ImageOf(20)));
  EXPECT_EQ(page.ReadSlot(1).state, SlotState::kEmpty);
  EXPECT_TRUE(page.ReadSlot(0).sealed()) << "a slot that keeps its file keeps its image";
  EXPECT_EQ(page.Read().changes, 2U);
}

TEST(Control, FindsTheNewestCommitted) {
  Page page(3);
  EXPECT_EQ(NewestCommitted(page.Read()), -1);
  page.Save(0, 90);
  EXPECT_EQ(NewestCommitted(page.Read()), -1);
  page.control.SetCommitted(1, page.Save(1, 30));
  page.control.SetCommitted(2, page.Save(2, 20));
  EXPECT_EQ(NewestCommitted(page.Read()), 1);
}

}  // namespace
}  // namespace phalanx::checkpoint
