#include "checkpoint/memory/memory.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/crc/crc32.h"
#include "checkpoint/memory/memory_reader.h"

namespace phalanx::checkpoint {
namespace {

namespace fs = std::filesystem;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr uint64_t kBytes = 8192;

class MemoryTest : public ::testing::Test {
 protected:
  MemoryTest() {
    char root[] = "/dev/shm/phx-memory-test-XXXXXX";
    root_ = mkdtemp(root);
    dir_ = root_ + "/data";
    fs::create_directory(dir_);
    Open();
  }
  ~MemoryTest() override { fs::remove_all(root_); }

  void Open(const std::string& job = "job", const std::string& address = "127.0.0.1") {
    auto memory = NodeMemory::Open(root_, job, address);
    ASSERT_TRUE(memory.ok()) << memory.status();
    memory_ = *std::move(memory);
  }

  void OpenAgain() {
    memory_.reset();
    Open();
  }

  void Prepare(int slots = 3, uint64_t bytes = kBytes) {
    const auto control = memory_->OpenPage(dir_, "0");
    ASSERT_TRUE(control.ok()) << control.status();
    control_path_ = *control;
    const auto plan = memory_->Plan(dir_, "0", bytes, slots, 0);
    ASSERT_TRUE(plan.ok()) << plan.status();
    ASSERT_TRUE(MakeSlotFiles(plan->files).ok());
    memory_->Install(*plan);
  }

  // Two images, of which the first is committed; saves of twice the size are to come.
  void OutgrowTwo() {
    memory_->SetLiveEpoch(1);
    Prepare(2);
    Save(10);
    memory_->Commit(dir_, {1, 10});
    Save(20);
    Prepare(2, 2 * kBytes);
  }

  // As a rank does it, whose control page is mapped for that long.
  template <typename Use>
  void WithControl(Use use) {
    const Fd file(open(control_path_.c_str(), O_RDWR));
    void* const page = mmap(nullptr, kControlBytes, PROT_READ | PROT_WRITE, MAP_SHARED, file.get(), 0);
    ASSERT_NE(page, MAP_FAILED);
    use(Control(static_cast<uint8_t*>(page)));
    munmap(page, kControlBytes);
  }

  ControlPage Page() {
    ControlPage parsed;
    WithControl([&](Control control) {
      alignas(8) uint8_t copy[kControlBytes];
      control.Copy(copy);
      EXPECT_EQ(ParseControl(copy, sizeof copy, &parsed), "");
    });
    return parsed;
  }

  std::string PathOf(int slot) {
    return fmt::format("{}/slot-0-{}.{}", fs::path(control_path_).parent_path().string(), slot,
                       Page().slots.at(static_cast<size_t>(slot)).file_number);
  }

  // A save by a rank into the slot that it would choose; that slot, or -1.
  int Save(int64_t step, uint64_t epoch = 1) {
    const ControlPage page = Page();
    const SlotChoice choice = ChooseSlots(page);
    if (choice.slots.empty()) return -1;
    const int slot = choice.slots.front();
    std::string bytes(page.slot_bytes, static_cast<char>('a' + step % 26));
    std::ofstream(PathOf(slot), std::ios::in | std::ios::out | std::ios::binary) << bytes;
    WithControl([&](Control control) {
      control.SetLiveEpoch(epoch);
      uint64_t generation = 0;
      std::string why;
      ASSERT_TRUE(control.Begin(slot, page.slots.at(static_cast<size_t>(slot)), &generation, &why)) << why;
      SlotImage image;
      image.step = step;
      image.epoch = epoch;
      image.bytes = bytes.size();
      image.world_size = 1;
      image.crc32 = Crc32(0, bytes.data(), bytes.size());
      ASSERT_TRUE(control.Seal(slot, generation, image));
    });
    return slot;
  }

  std::string root_;
  std::string dir_;
  std::string control_path_;
  std::unique_ptr<NodeMemory> memory_;
};

TEST_F(MemoryTest, SlotsAreMadeWithTheirMemory) {
  Prepare();
  EXPECT_THAT(Page().slots, SizeIs(3));
  for (int slot = 0; slot < 3; ++slot) {
    struct stat info {};
    ASSERT_EQ(stat(PathOf(slot).c_str(), &info), 0);
    EXPECT_EQ(info.st_size, static_cast<off_t>(kBytes));
    EXPECT_EQ(info.st_blocks * 512, static_cast<blkcnt_t>(kBytes)) << "memory is not reserved";
    EXPECT_EQ(info.st_mode & 0777, 0600U);
  }
}

TEST_F(MemoryTest, WhatDoesNotFitIsRefusedAndLeavesNothing) {
  ASSERT_TRUE(memory_->OpenPage(dir_, "0").ok());
  const auto plan = memory_->Plan(dir_, "0", uint64_t{1} << 44, 3, 0);
  ASSERT_FALSE(plan.ok());
  EXPECT_THAT(Message(plan.status()), HasSubstr("are free"));
  const Status made = MakeSlotFiles({{0, 1, root_ + "/a", kBytes}, {1, 1, root_ + "/b", uint64_t{1} << 44}});
  EXPECT_THAT(Message(made), HasSubstr("there is no memory for 17592186044416 bytes")) << "before any is taken";
  EXPECT_FALSE(fs::exists(root_ + "/a"));
  EXPECT_FALSE(fs::exists(root_ + "/b"));
}

TEST_F(MemoryTest, ABudgetLeavesTwoSlotsWithTheReason) {
  ASSERT_TRUE(memory_->OpenPage(dir_, "0").ok());
  const auto two = memory_->Plan(dir_, "0", kBytes, 3, 2 * kBytes);
  ASSERT_TRUE(two.ok());
  EXPECT_EQ(two->slots, 2);
  EXPECT_THAT(two->why, HasSubstr("memory_budget"));
  EXPECT_FALSE(memory_->Plan(dir_, "0", kBytes, 3, kBytes).ok());
}

TEST_F(MemoryTest, TheNextAgentTakesUpWhatIsThere) {
  Prepare();
  Save(10, 4);
  memory_->Commit(dir_, {4, 10});
  OpenAgain();
  EXPECT_EQ(memory_->highest_epoch(), 4U);
  const auto images = memory_->Images();
  ASSERT_THAT(images, SizeIs(1));
  EXPECT_EQ(images[0].image.step, 10);
  EXPECT_EQ(images[0].dir, dir_);
  EXPECT_TRUE(images[0].committed);
  EXPECT_EQ(CheckMemoryImage(images[0]).why, "");
}

TEST_F(MemoryTest, WhatCannotBeOpenedForNowIsNotThrownAway) {
  Prepare();
  Save(10, 4);
  memory_.reset();
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  Fd free(open("/dev/null", O_RDONLY | O_CLOEXEC));
  const auto first = static_cast<rlim_t>(free.get());
  free.Reset();
  for (const rlim_t files : {0, 1, 2}) {
    const rlimit few{first + files, before.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &few), 0);
    const auto opened = NodeMemory::Open(root_, "job", "127.0.0.1");
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
    EXPECT_THAT(Message(opened.status()), HasSubstr("Too many open files")) << files;
  }
  Open();
  EXPECT_THAT(memory_->Images(), SizeIs(1));
}

TEST_F(MemoryTest, AnImageThatWasTouchedIsFound) {
  Prepare();
  const int slot = Save(10);
  std::ofstream(PathOf(slot), std::ios::in | std::ios::out | std::ios::binary) << "X";
  EXPECT_THAT(CheckMemoryImage(memory_->Images().at(0)).why, HasSubstr("CRC"));
}

TEST_F(MemoryTest, WhatWasGivenUpIsNoneAnyMore) {
  Prepare(2);
  const int older = Save(10);
  memory_->Commit(dir_, {1, 10});
  const int newer = Save(20);
  memory_->Commit(dir_, {1, 20});
  EXPECT_TRUE(memory_->GiveUp(memory_->Images(dir_, {1, 20}).at(0)));
  EXPECT_THAT(memory_->Images(dir_, {1, 20}), SizeIs(0));
  ASSERT_THAT(memory_->Images(), SizeIs(1));
  EXPECT_EQ(memory_->Images()[0].slot, older);
  EXPECT_EQ(Save(30), newer) << "not over the one that is left";
  EXPECT_THAT(memory_->Images(), SizeIs(2));
}

TEST_F(MemoryTest, TwoAgentsOfOneAddressHaveAFolderEach) {
  auto second = NodeMemory::Open(root_, "job", "127.0.0.1");
  ASSERT_TRUE(second.ok());
  EXPECT_NE((*second)->path(), memory_->path());
}

TEST_F(MemoryTest, JobIdsMayBeAnything) {
  const std::string odd = "../a b/\xff\n";
  Open(odd);
  Prepare();
  EXPECT_TRUE(NodeMemory::IsLeft(root_, odd, "127.0.0.1"));
  EXPECT_FALSE(NodeMemory::IsLeft(root_, odd, "127.0.0.2"));
}

TEST_F(MemoryTest, AForeignFolderIsPassedOver) {
  const std::string base = memory_->path();
  memory_.reset();
  fs::remove_all(base);
  fs::create_directory(base);
  chmod(base.c_str(), 0777);
  Open();
  EXPECT_NE(memory_->path(), base);
}

TEST_F(MemoryTest, TheNewestCommittedImageIsNeverWrittenOver) {
  Prepare();
  const int first = Save(10);
  memory_->Commit(dir_, {1, 10});
  const int second = Save(20);
  EXPECT_NE(second, first);
  const int third = Save(30);
  EXPECT_NE(third, first);
  EXPECT_EQ(Save(40), -1) << "10 is committed, 20 and 30 may be";
  memory_->Commit(dir_, {1, 30});
  EXPECT_NE(Save(40), third);
}

TEST_F(MemoryTest, AStepSavedTwiceIsOneImage) {
  Prepare();
  Save(10);
  memory_->Commit(dir_, {1, 10});
  const int first = Save(20);
  const int second = Save(20);
  ASSERT_NE(second, -1);
  EXPECT_EQ(Save(30), -1) << "either of 20 may be committed yet";
  ASSERT_THAT(memory_->Images(dir_, {1, 20}), SizeIs(1));
  memory_->Commit(dir_, {1, 20});
  ASSERT_THAT(memory_->Images(dir_, {1, 20}), SizeIs(1));
  EXPECT_EQ(memory_->Images(dir_, {1, 20})[0].slot, first);
  EXPECT_NE(Save(30), first);
  EXPECT_EQ(Save(40), second) << "the committed one of 20 counts, so the other is free";
}

TEST_F(MemoryTest, AStepSavedTwiceKeepsNoSlot) {
  Prepare(2);
  const int first = Save(10);
  memory_->Commit(dir_, {1, 10});
  const int second = Save(10);
  ASSERT_NE(second, -1);
  EXPECT_EQ(memory_->Images(dir_, {1, 10}).at(0).slot, first);
  EXPECT_EQ(Save(20), second) << "the committed one counts, so the other is free";
}

TEST_F(MemoryTest, AStepSavedTwiceIsDroppedWhole) {
  Prepare(2);
  Save(10);
  Save(10);
  memory_->Drop(dir_, {1, 10});
  EXPECT_NE(Save(20), -1);
  EXPECT_NE(Save(30), -1);
  EXPECT_THAT(memory_->Images(dir_, {1, 10}), SizeIs(0));
}

TEST_F(MemoryTest, ADroppedImageIsFreeAgain) {
  Prepare(2);
  Save(10);
  memory_->Commit(dir_, {1, 10});
  Save(20);
  EXPECT_EQ(Save(30), -1);
  memory_->Drop(dir_, {1, 20});
  EXPECT_GE(Save(30), 0);
}

TEST_F(MemoryTest, AnImageThatWasHandedOutIsReplacedWhenANewerOneIsCommitted) {
  Prepare();
  const int slot = Save(10);
  memory_->Commit(dir_, {1, 10});
  const std::string path = PathOf(slot);
  memory_->HandOut(memory_->Images().at(0));
  EXPECT_THAT(memory_->Replacements(), SizeIs(0)) << "it is still the newest";
  Save(20);
  memory_->Commit(dir_, {1, 20});
  const auto plans = memory_->Replacements();
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_THAT(memory_->Replacements(), SizeIs(0));
  EXPECT_NE(Save(30), slot) << "a rank may still have it mapped";
  ASSERT_TRUE(MakeSlotFiles(plans[0].files).ok());
  memory_->Install(plans[0]);
  EXPECT_FALSE(fs::exists(path));
  EXPECT_NE(PathOf(slot), path);
  memory_->Commit(dir_, {1, 30});
  EXPECT_GE(Save(40), 0);
  EXPECT_GE(Save(50), 0) << "the fresh slot is as good as any";
}

// Files are made while ranks go on: the state has grown in the meantime, or the other way round.
TEST_F(MemoryTest, AReplacementThatWasBegunForOtherSizesBeginsAnew) {
  for (const bool is_installed_first : {true, false}) {
    dir_ = fmt::format("{}/data{}", root_, is_installed_first);
    fs::create_directory(dir_);
    memory_->SetLiveEpoch(1);
    Prepare(2);
    Save(10);
    memory_->Commit(dir_, {1, 10});
    ASSERT_TRUE(memory_->HandOut(memory_->Images().at(0)));
    Save(20);
    memory_->Commit(dir_, {1, 20});
    const auto plans = memory_->Replacements();
    ASSERT_THAT(plans, SizeIs(1));
    const auto larger = memory_->Plan(dir_, "0", 2 * kBytes, 2, 0);
    ASSERT_TRUE(larger.ok() && MakeSlotFiles(larger->files).ok() && MakeSlotFiles(plans[0].files).ok());
    memory_->Install(is_installed_first ? plans[0] : *larger);
    memory_->Install(is_installed_first ? *larger : plans[0]);
    EXPECT_FALSE(fs::exists(plans[0].files.at(0).path)) << "of a size that is not wanted any more";
    EXPECT_EQ(Page().slot_bytes, 2 * kBytes);
    const auto again = memory_->Replacements();
    ASSERT_THAT(again, SizeIs(1));
    EXPECT_EQ(again[0].bytes, 2 * kBytes);
    ASSERT_TRUE(MakeSlotFiles(again[0].files).ok());
    memory_->Install(again[0]);
    EXPECT_GE(Save(30), 0) << "no slot is lost to that";
    memory_->Remove();
    OpenAgain();
  }
}

TEST_F(MemoryTest, LargerSlotsThatCouldNotBeMadeAreForgotten) {
  memory_->SetLiveEpoch(1);
  Prepare(2);
  Save(10);
  memory_->Commit(dir_, {1, 10});
  ASSERT_TRUE(memory_->HandOut(memory_->Images().at(0)));
  const auto larger = memory_->Plan(dir_, "0", 2 * kBytes, 2, 0);
  ASSERT_TRUE(larger.ok());
  memory_->Abandon(*larger);
  Save(20);
  memory_->Commit(dir_, {1, 20});
  const auto plans = memory_->Replacements();
  ASSERT_THAT(plans, SizeIs(1));
  ASSERT_TRUE(MakeSlotFiles(plans[0].files).ok());
  memory_->Install(plans[0]);
  EXPECT_TRUE(fs::exists(plans[0].files.at(0).path));
  EXPECT_THAT(memory_->Replacements(), SizeIs(0));
  EXPECT_GE(Save(30), 0);
}

TEST_F(MemoryTest, WithoutMemoryForAFreshFileTheOldOneGoesAndTheSlotComesBackLater) {
  Prepare(2);
  const int slot = Save(10);
  memory_->Commit(dir_, {1, 10});
  const std::string path = PathOf(slot);
  memory_->HandOut(memory_->Images().at(0));
  Save(20);
  memory_->Commit(dir_, {1, 20});
  const auto plans = memory_->Replacements();
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_TRUE(memory_->HasRoomFor(plans[0]));
  EXPECT_TRUE(memory_->Postpone(plans[0]));
  EXPECT_FALSE(fs::exists(path));
  EXPECT_LT(Save(30), 0) << "the other slot holds the newest one";
  const auto again = memory_->Replacements();
  ASSERT_THAT(again, SizeIs(1));
  EXPECT_FALSE(memory_->Postpone(again[0])) << "this is not news";
  const auto third = memory_->Replacements();
  ASSERT_THAT(third, SizeIs(1));
  ASSERT_TRUE(MakeSlotFiles(third[0].files).ok());
  memory_->Install(third[0]);
  EXPECT_EQ(Save(30), slot);
}

TEST_F(MemoryTest, WhatNoMemoryCouldReplaceIsNotHandedOutForEver) {
  Prepare(2);
  Save(10);
  memory_->Commit(dir_, {1, 10});
  MemoryImage image = memory_->Images().at(0);
  WithControl([](Control control) {  // of slots that no machine could hold twice
    const uint64_t numbers[] = {1, 2};
    control.SetSlots(2, uint64_t{1} << 50, numbers);
  });
  EXPECT_FALSE(memory_->HandOut(image));
  WithControl([](Control control) {
    const uint64_t numbers[] = {1, 2};
    control.SetSlots(2, kBytes, numbers);
  });
  Save(20);
  memory_->Commit(dir_, {1, 20});
  EXPECT_THAT(memory_->Replacements(), SizeIs(0));
}

TEST_F(MemoryTest, ASlotWithoutAFileIsMadeByTheNextPlan) {
  Prepare(2);
  Save(10);
  memory_->Commit(dir_, {1, 10});
  memory_->HandOut(memory_->Images().at(0));
  Save(20);
  memory_->Commit(dir_, {1, 20});
  memory_->Postpone(memory_->Replacements().at(0));
  Prepare(2);
  EXPECT_THAT(memory_->Replacements(), SizeIs(0));
  EXPECT_GE(Save(30), 0);
}

TEST_F(MemoryTest, AFolderWithAPageThatCannotBeOpenedIsBegunAnew) {
  Prepare();
  ASSERT_TRUE(memory_->OpenPage(dir_, "1").ok());
  Save(10);
  const std::string other = fs::path(control_path_).replace_filename("control-1");
  fs::remove(other);
  fs::create_symlink("/dev/null", other);
  OpenAgain();
  EXPECT_THAT(memory_->Images(), SizeIs(0));
  Prepare();
  EXPECT_TRUE(memory_->OpenPage(dir_, "1").ok());
  EXPECT_GE(Save(20), 0);
}

TEST_F(MemoryTest, AFolderThatCannotBeMadeIsRefusedAndForgotten) {
  fs::remove_all(memory_->path());
  EXPECT_FALSE(memory_->OpenPage(dir_, "0").ok());
  memory_->SetLiveEpoch(2);
  EXPECT_THAT(memory_->Images(), SizeIs(0));
  fs::create_directory(memory_->path());
  EXPECT_TRUE(memory_->OpenPage(dir_, "0").ok());
}

TEST_F(MemoryTest, AnotherSizeKeepsTheNewestCommittedImageUntilThereIsANewerOne) {
  Prepare();
  Save(10);
  memory_->Commit(dir_, {1, 10});
  Prepare(3, 2 * kBytes);
  ASSERT_THAT(memory_->Images(), SizeIs(1));
  EXPECT_EQ(CheckMemoryImage(memory_->Images().at(0)).why, "");
  Save(20);
  memory_->Commit(dir_, {1, 20});
  const auto plans = memory_->Replacements();
  ASSERT_THAT(plans, SizeIs(1));
  EXPECT_EQ(plans[0].files.at(0).bytes, 2 * kBytes);
}

TEST_F(MemoryTest, AnotherSizeTakesNoFileFromAnImageThatMayBeCommittedYet) {
  OutgrowTwo();
  EXPECT_THAT(memory_->Images(), SizeIs(2)) << "it is sealed, and its commit on its way";
  memory_->Commit(dir_, {1, 20});
  EXPECT_THAT(memory_->Replacements(), SizeIs(1));
}

// Two are sealed when the first is committed.
TEST_F(MemoryTest, ACommitTakesNoFileFromANewerImageOfTheOldSize) {
  memory_->SetLiveEpoch(1);
  Prepare(3);
  for (const int64_t step : {10, 20, 30}) ASSERT_GE(Save(step), 0);
  memory_->Commit(dir_, {1, 10});
  Prepare(3, 2 * kBytes);
  memory_->Commit(dir_, {1, 20});
  for (const SlotPlan& plan : memory_->Replacements()) memory_->Install(plan);
  memory_->Commit(dir_, {1, 30});
  EXPECT_THAT(memory_->Images(dir_, {1, 30}), SizeIs(1));
}

// Else no save would fit anywhere, and nothing be committed behind which it is replaced.
TEST_F(MemoryTest, AFileOfAnotherSizeIsReplacedWhenItsImageIsOver) {
  OutgrowTwo();
  EXPECT_THAT(memory_->Replacements(), SizeIs(0));
  memory_->Drop(dir_, {1, 20});
  auto plans = memory_->Replacements();
  ASSERT_THAT(plans, SizeIs(1)) << "dropped";
  ASSERT_TRUE(MakeSlotFiles(plans[0].files).ok());
  memory_->Install(plans[0]);
  EXPECT_GE(Save(30), 0);
}

TEST_F(MemoryTest, AFileOfAnotherSizeIsReplacedWhenItWasReadToItsEnd) {
  memory_->SetLiveEpoch(1);
  Prepare(2);
  Save(10);
  memory_->Commit(dir_, {1, 10});
  const MemoryImage read = memory_->Images(dir_, {1, 10}).at(0);
  ASSERT_TRUE(memory_->Hold(read));
  Save(20);
  memory_->Commit(dir_, {1, 20});
  Prepare(2, 2 * kBytes);
  EXPECT_THAT(memory_->Replacements(), SizeIs(0));
  memory_->Release(read);
  EXPECT_THAT(memory_->Replacements(), SizeIs(1));
}

// Files are made while saves go on.
TEST_F(MemoryTest, WhatIsCommittedWhileFilesAreMadeKeepsItsOwn) {
  Prepare(2);
  const auto plan = memory_->Plan(dir_, "0", 2 * kBytes, 2, 0);
  ASSERT_TRUE(plan.ok());
  ASSERT_TRUE(MakeSlotFiles(plan->files).ok());
  Save(10);
  memory_->Commit(dir_, {1, 10});
  memory_->Install(*plan);
  ASSERT_THAT(memory_->Images(), SizeIs(1));
  EXPECT_EQ(CheckMemoryImage(memory_->Images().at(0)).why, "");
}

TEST_F(MemoryTest, AnotherSizeTakesNoFileFromAnImageThatIsRead) {
  Prepare();
  Save(10);
  memory_->Commit(dir_, {1, 10});
  ASSERT_TRUE(memory_->Hold(memory_->Images().at(0)));
  Save(20);
  memory_->Commit(dir_, {1, 20});
  Prepare(3, 2 * kBytes);
  EXPECT_THAT(memory_->Images(dir_, {1, 10}), SizeIs(1));
}

TEST_F(MemoryTest, FewerSlotsAreNotFewerThanWhatIsHeldThere) {
  Prepare();
  Save(10);
  Save(20);
  const int slot = Save(30);
  memory_->Commit(dir_, {1, 30});
  ASSERT_EQ(slot, 2);
  Prepare(2);
  EXPECT_THAT(memory_->Images(dir_, {1, 30}), SizeIs(1));
}

// This process has too few descriptors: the image is as good as ever.
TEST_F(MemoryTest, AnImageThatCannotBeReadForNowIsNotDamaged) {
  Prepare();
  Save(10);
  const MemoryImage image = memory_->Images().at(0);
  rlimit before{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &before), 0);
  const rlimit none{0, before.rlim_max};
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &none), 0);
  const ImageFault fault = CheckMemoryImage(image);
  ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &before), 0);
  EXPECT_THAT(fault.why, HasSubstr("Too many open files"));
  EXPECT_FALSE(fault.is_damage);
  std::ofstream(image.path, std::ios::in | std::ios::out | std::ios::binary) << "X";
  EXPECT_TRUE(CheckMemoryImage(image).is_damage);
}

// Another device number is that of a file system that was mounted again, and where nothing is one that is not mounted.
TEST_F(MemoryTest, MemoryOfADirectoryWhoseFileSystemMayNotBeMountedStays) {
  Prepare();
  const std::string mark = MarkOf(dir_).mark;
  memory_->SetMark({dir_, "1" + mark});
  Save(10);
  OpenAgain();
  EXPECT_THAT(GoneOf(memory_->TakenUp()), SizeIs(0));
  fs::remove_all(dir_);
  EXPECT_THAT(GoneOf(memory_->TakenUp()), SizeIs(0));
}

TEST_F(MemoryTest, MemoryOfADirectoryThatIsAnotherByNowIsFoundOut) {
  Prepare();
  ASSERT_TRUE(memory_->WantsMark(dir_));
  memory_->SetMark(MarkOf(dir_));
  EXPECT_FALSE(memory_->WantsMark(dir_));
  Save(10);
  EXPECT_THAT(memory_->TakenUp(), SizeIs(0)) << "this agent opened it";
  OpenAgain();
  EXPECT_THAT(GoneOf(memory_->TakenUp()), SizeIs(0));
  memory_->KeepAllBut({});
  EXPECT_THAT(memory_->TakenUp(), SizeIs(0)) << "it was looked at";
  EXPECT_THAT(memory_->Images(), SizeIs(1));

  fs::rename(dir_, dir_ + ".old");  // kept, so that the new one cannot get its inode
  OpenAgain();
  EXPECT_THAT(GoneOf(memory_->TakenUp()), ElementsAre(dir_));
  fs::create_directory(dir_);
  EXPECT_THAT(GoneOf(memory_->TakenUp()), ElementsAre(dir_));
  memory_->KeepAllBut(GoneOf(memory_->TakenUp()));
  EXPECT_THAT(memory_->Images(), SizeIs(0));
  EXPECT_FALSE(fs::exists(control_path_));
}

TEST_F(MemoryTest, WhatWasNotKnownOfADirectoryDoesNotSpeakAgainstIt) {
  Prepare();
  Save(10);
  OpenAgain();
  EXPECT_THAT(GoneOf(memory_->TakenUp()), SizeIs(0));
}

TEST_F(MemoryTest, FilesThatNoSlotNamesAreRemoved) {
  Prepare();
  const std::string stray = fs::path(control_path_).parent_path().string() + "/slot-0-2.77";
  std::ofstream(stray) << "x";
  OpenAgain();
  EXPECT_FALSE(fs::exists(stray));
}

TEST_F(MemoryTest, GarbageInAControlPageIsNoImage) {
  Prepare();
  Save(10);
  std::ofstream(control_path_, std::ios::in | std::ios::out | std::ios::binary) << "garbage!";
  OpenAgain();
  EXPECT_THAT(memory_->Images(), SizeIs(0));
}

TEST_F(MemoryTest, OthersOfItsUserSeeWhoseItIs) {
  Prepare();
  const auto living = ReadMemories(root_);
  ASSERT_TRUE(living.ok()) << living.status();
  ASSERT_THAT(*living, SizeIs(1));
  EXPECT_TRUE(living->at(0).agent_lives);
  memory_.reset();
  const auto left = ReadMemories(root_);
  ASSERT_TRUE(left.ok()) << left.status();
  ASSERT_THAT(*left, SizeIs(1));
  EXPECT_FALSE(left->at(0).agent_lives);
  EXPECT_EQ(left->at(0).job_id, "job");
  EXPECT_GE(left->at(0).bytes, 3 * kBytes);
}

TEST_F(MemoryTest, APageThatNobodyNeedsGivesItsMemoryBack) {
  Prepare(3);
  Save(10);
  memory_->SetLiveEpoch(2);
  ASSERT_TRUE(memory_->OpenPage(dir_, "1").ok());
  memory_->MarkOpened(dir_, "1");
  memory_->FreeUnneeded(dir_, {.epoch = 2, .step = 20});
  EXPECT_FALSE(fs::exists(control_path_));
  EXPECT_FALSE(memory_->HasPage(dir_, "0"));
  EXPECT_TRUE(memory_->HasPage(dir_, "1"));
  EXPECT_LT(memory_->Bytes(), 2 * kBytes);
  Prepare(2);  // such a rank is there again
  EXPECT_EQ(Save(30, 2), 0);
}

TEST_F(MemoryTest, NothingIsLeftWhenItIsRemoved) {
  Prepare();
  memory_->Remove();
  EXPECT_FALSE(fs::exists(memory_->path()));
}

}  // namespace
}  // namespace phalanx::checkpoint
