#include "checkpoint/memory/pages.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>

namespace phalanx::checkpoint {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr uint64_t kBytes = 8192;
constexpr uint64_t kPlenty = uint64_t{1} << 40;

class PagesTest : public ::testing::Test {
 protected:
  PagesTest() { TakeUp(); }

  // As an agent does it that begins here.
  void TakeUp() {
    pages_ = NodePages();
    pages_.SetLiveEpoch(1);
    pages_.Add("/data", "0", "/shm", bytes_.data());
  }

  void Prepare(int slots) {
    const auto plan = pages_.Plan("/data", "0", {kBytes, slots, 0}, kPlenty, [](const std::string&) { return kBytes; });
    ASSERT_TRUE(plan.ok()) << plan.status();
    pages_.Install(*plan);
  }

  ControlPage Page() const {
    alignas(8) std::array<uint8_t, kControlBytes> copy{};
    Control(const_cast<uint8_t*>(bytes_.data())).Copy(copy.data());
    ControlPage page;
    EXPECT_EQ(ParseControl(copy.data(), copy.size(), &page), "");
    return page;
  }

  // A rank's save; the slot that it took, -1: there was none.
  int Save(int64_t step, uint64_t epoch = 1) {
    Control control(bytes_.data());
    const ControlPage page = Page();
    const SlotChoice choice = ChooseSlots(page);
    if (choice.slots.empty()) return -1;
    const int slot = choice.slots.front();
    uint64_t generation = 0;
    std::string why;
    if (!control.Begin(slot, page.slots[static_cast<size_t>(slot)], &generation, &why)) return -1;
    SlotImage image;
    image.step = step;
    image.epoch = epoch;
    image.bytes = kBytes;
    image.world_size = 1;
    return control.Seal(slot, generation, image) ? slot : -1;
  }

  alignas(8) std::array<uint8_t, kControlBytes> bytes_{};
  NodePages pages_;
};

TEST_F(PagesTest, TheNewestCommittedImageIsNeverWrittenOver) {
  Prepare(2);
  const int first = Save(10);
  pages_.Commit("/data", {1, 10});
  const int second = Save(20);
  EXPECT_NE(first, second);
  EXPECT_EQ(Save(30), -1) << "one is committed, the other may still be";
  pages_.Drop("/data", {1, 20});
  EXPECT_EQ(Save(30), second);
  EXPECT_THAT(pages_.Images("/data", {1, 10}), SizeIs(1));
}

TEST_F(PagesTest, WhatIsHandedOutGetsAFreshFileWhenANewerSaveIsCommitted) {
  Prepare(3);
  const int handed = Save(10);
  pages_.Commit("/data", {1, 10});
  const MemoryImage image = pages_.Images().at(0);
  EXPECT_TRUE(pages_.HandOut(image, kPlenty));
  EXPECT_FALSE(pages_.HandOut(image, kBytes - 1)) << "a second file does not fit";
  Save(20);
  EXPECT_THAT(pages_.Replacements(), IsEmpty()) << "it is the newest";
  pages_.Commit("/data", {1, 20});
  const auto plans = pages_.Replacements();
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_NE(Save(30), handed) << "somebody may have it mapped";
  EXPECT_THAT(pages_.Install(plans[0]), ElementsAre(image.path));
  EXPECT_EQ(Save(40), handed);
}

// Of a smaller world, say, that went on from less while a node was away.
TEST_F(PagesTest, AnOlderSaveThatTheJobGoesOnFromIsNotWrittenOver) {
  Prepare(2);
  const int older = Save(130, 1);
  pages_.Commit("/data", {1, 130});
  pages_.SetLiveEpoch(2);
  Save(91, 2);
  pages_.Commit("/data", {2, 91});
  pages_.SetLiveEpoch(3);
  EXPECT_TRUE(pages_.HandOut(pages_.Images("/data", {1, 130}).at(0), kPlenty));
  EXPECT_THAT(pages_.Images("/data", {2, 91}), IsEmpty()) << "it leads nowhere";
  const int next = Save(140, 3);
  EXPECT_GE(next, 0);
  EXPECT_NE(next, older);
}

TEST_F(PagesTest, WhatIsHandedOutLateIsReplacedAtOnce) {
  Prepare(3);
  const int late = Save(10);
  pages_.Commit("/data", {1, 10});
  Save(20);
  pages_.Commit("/data", {1, 20});
  EXPECT_TRUE(pages_.HandOut(pages_.Images("/data", {1, 10}).at(0), kPlenty));
  EXPECT_THAT(pages_.Images("/data", {1, 20}), SizeIs(1)) << "it is of the round that lives";
  EXPECT_NE(Save(30), late);
  EXPECT_EQ(Save(40), -1);
  EXPECT_THAT(pages_.Replacements(), SizeIs(1));
}

// The file would be gone before its reader has opened it.
TEST_F(PagesTest, WhatStorageReadsIsReplacedWhenThatIsOver) {
  Prepare(3);
  const int handed = Save(10);
  pages_.Commit("/data", {1, 10});
  const MemoryImage image = pages_.Images().at(0);
  EXPECT_TRUE(pages_.HandOut(image, kPlenty));
  EXPECT_TRUE(pages_.Hold(image));
  Save(20);
  pages_.Commit("/data", {1, 20});
  EXPECT_THAT(pages_.Replacements(), IsEmpty());
  pages_.Release(image);
  EXPECT_NE(Save(30), handed) << "a rank may have it mapped";
  const auto plans = pages_.Replacements();
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_THAT(pages_.Install(plans[0]), ElementsAre(image.path));
}

TEST_F(PagesTest, WhatTheNextRoundMayRestoreIsNotReplaced) {
  Prepare(3);
  Save(10);
  pages_.Commit("/data", {1, 10});
  const MemoryImage image = pages_.Images().at(0);
  pages_.HandOut(image, kPlenty);
  EXPECT_TRUE(pages_.Hold(image));
  Save(20);
  pages_.Commit("/data", {1, 20});
  pages_.SetLiveEpoch(2);
  pages_.Release(image);
  EXPECT_THAT(pages_.Replacements(), IsEmpty());
  EXPECT_THAT(pages_.Images("/data", {1, 10}), SizeIs(1));
}

TEST_F(PagesTest, WhatIsAboutToBeReplacedIsNoImageAnyMore) {
  Prepare(3);
  Save(10);
  pages_.Commit("/data", {1, 10});
  pages_.HandOut(pages_.Images().at(0), kPlenty);
  Save(20);
  pages_.Commit("/data", {1, 20});
  EXPECT_THAT(pages_.Images("/data", {1, 10}), IsEmpty());
}

TEST_F(PagesTest, ASlotIsHeldUntilItsLastReaderIsDone) {
  Prepare(2);
  const int first = Save(10);
  pages_.Commit("/data", {1, 10});
  const MemoryImage image = pages_.Images().at(0);
  EXPECT_TRUE(pages_.Hold(image));
  EXPECT_TRUE(pages_.Hold(image));
  pages_.Release(image);
  Save(20);
  pages_.Commit("/data", {1, 20});
  EXPECT_EQ(Save(30), -1) << "it is being read";
  pages_.Release(image);
  EXPECT_EQ(Save(30), first);
}

TEST_F(PagesTest, ANewAgentReleasesWhatTheLastOneHeld) {
  Prepare(2);
  Save(10, 1);
  EXPECT_TRUE(pages_.Hold(pages_.Images().at(0)));
  TakeUp();
  EXPECT_EQ(pages_.highest_epoch(), 1U);
  for (const Slot& slot : Page().slots) EXPECT_EQ(slot.held, 0U);
}

TEST_F(PagesTest, AnOldRoundsRankSealsNothing) {
  Prepare(2);
  pages_.SetLiveEpoch(2);
  EXPECT_EQ(Save(10, 1), -1);
  EXPECT_THAT(pages_.Images(), IsEmpty());
}

// Of a rank that the node has no more, and of what all shared before the kind of saves was another.
TEST_F(PagesTest, PagesOfFormerRanksGoWhenASaveOfTheRoundIsCommitted) {
  std::array<std::array<uint8_t, kControlBytes>, 2> others{};
  pages_.Add("/data", "1", "/shm", others[0].data());
  pages_.Add("/data", "main", "/shm", others[1].data());
  pages_.MarkOpened("/data", "1");  // in this round, and not in the next
  pages_.SetLiveEpoch(2);
  Prepare(3);
  pages_.MarkOpened("/data", "0");
  Save(10, 2);
  EXPECT_THAT(pages_.Unneeded("/data", {.epoch = 1, .step = 10}), IsEmpty());  // the next world may have ranks again
  EXPECT_THAT(pages_.Unneeded("/other", {.epoch = 2, .step = 10}), IsEmpty());
  EXPECT_THAT(pages_.Unneeded("/data", {.epoch = 2, .step = 10}), ElementsAre("1", "main"));
  pages_.Forget("/data", "1");
  EXPECT_FALSE(pages_.Has("/data", "1"));
  EXPECT_TRUE(pages_.Has("/data", "0"));
}

TEST_F(PagesTest, APageThatIsReadStays) {
  Prepare(2);
  Save(10);
  pages_.SetLiveEpoch(2);
  const MemoryImage image = pages_.Images().front();
  ASSERT_TRUE(pages_.Hold(image));
  EXPECT_THAT(pages_.Unneeded("/data", {.epoch = 2, .step = 20}), IsEmpty());
  pages_.Release(image);
  EXPECT_THAT(pages_.Unneeded("/data", {.epoch = 2, .step = 20}), ElementsAre("0"));
}

TEST_F(PagesTest, FilesHaveNumbersThatNoneHadBefore) {
  pages_.SkipNumber("/data", "0", 7);
  Prepare(2);
  EXPECT_THAT(pages_.Files("/data", "0"), ElementsAre("/shm/slot-0-0.8", "/shm/slot-0-1.9"));
}

}  // namespace
}  // namespace phalanx::checkpoint
