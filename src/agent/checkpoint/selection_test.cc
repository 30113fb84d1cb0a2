#include "agent/checkpoint/selection.h"

#include <fmt/format.h>
#include <gtest/gtest.h>

#include "checkpoint/rank/memory_names.h"

namespace phalanx::agent {
namespace {

namespace ckpt = phalanx::checkpoint;

using Texts = std::vector<std::string>;

constexpr char kDir[] = "/data/run";

// The image of a rank, or of a shared page, in a world of four; its path is the page's name.
ckpt::MemoryImage Image(const std::string& page, uint32_t rank = 0, uint32_t world_size = 4) {
  ckpt::MemoryImage image;
  image.dir = kDir;
  image.page = page;
  image.path = page;
  image.image.epoch = 7;
  image.image.step = 100;
  image.image.rank = rank;
  image.image.world_size = world_size;
  return image;
}

Texts Pages(const std::vector<ckpt::MemoryImage>& images) {
  Texts pages;
  for (const ckpt::MemoryImage& image : images) pages.push_back(image.page);
  return pages;
}

// --- what memory holds --------------------------------------------------------------------------------------------

TEST(HeldPagesTest, TellsWhatAnImageIs) {
  ckpt::MemoryImage own = Image("1", 3);
  own.committed = true;
  own.image.form = kDdpForm;
  const std::vector<HeldPage> pages = HeldPages({{own, ""}, {Image(ckpt::kMainPageName), ""}}, {});
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_EQ(pages[0].dir, kDir);
  EXPECT_EQ(pages[0].form, kDdpForm);
  EXPECT_NE(pages[0].page, kMainPage);
  EXPECT_EQ(pages[0].save, (SaveKey{7, 100}));
  EXPECT_EQ(pages[0].rank, 3u);
  EXPECT_EQ(pages[0].world_size, 4u);
  EXPECT_TRUE(pages[0].committed);
  EXPECT_EQ(pages[1].page, kMainPage);
  EXPECT_FALSE(pages[1].committed);
}

TEST(HeldPagesTest, LeavesOutWhatIsNotWhole) {
  const std::vector<HeldPage> pages = HeldPages(
      {{Image("0", 2), ""}, {Image("1", 3), "its checksum differs"}, {Image(ckpt::kMainPageName), "cut off"}}, {});
  ASSERT_EQ(pages.size(), 1u);
  EXPECT_EQ(pages[0].rank, 2u);
}

TEST(NeedOfTest, EachImageSaysWhoNeedsIt) {
  ckpt::MemoryImage own = Image("0", 5), shared = Image(ckpt::kMainPageName, 5);
  own.image.form = shared.image.form = kDcpForm;
  EXPECT_EQ(NeedOf(own), FileNeed::kAnyRank);
  EXPECT_EQ(RankOf(own), 5);
  EXPECT_EQ(NeedOf(shared), FileNeed::kEveryRank);
  EXPECT_EQ(RankOf(shared), ckpt::kMainRank);
  EXPECT_EQ(NeedOf(Image("0")), FileNeed::kOwner);
}

TEST(HeldPagesTest, TellsWhereOlderImagesWereNotRead) {
  ckpt::MemoryImage elsewhere = Image("0");
  elsewhere.dir = "/data/other";
  const std::vector<HeldPage> pages = HeldPages({{Image("0"), ""}, {elsewhere, ""}}, {kDir});
  ASSERT_EQ(pages.size(), 2u);
  EXPECT_TRUE(pages[0].older_unread);
  EXPECT_FALSE(pages[1].older_unread);
}

// --- which images are read ----------------------------------------------------------------------------------------

class NextToReadTest : public ::testing::Test {
 protected:
  // Two local ranks hold a step each in one of their slots. Its path is the step and the rank.
  void Add(int64_t step, bool committed, const std::string& dir = kDir) {
    for (const char* page : {"0", "1"}) {
      ckpt::MemoryImage image = Image(page, page[0] == '1' ? 1 : 0);
      image.dir = dir;
      image.path = fmt::format("{}.{}", step, page);
      image.slot = static_cast<int>(step) % 3;
      image.generation = static_cast<uint64_t>(step);
      image.image.step = step;
      image.committed = committed;
      images_.push_back(image);
    }
  }

  // Reads on until nothing is left to be read; images at these paths are not whole. What was read, in order.
  Texts Read(const std::set<std::string>& damaged = {}, const std::set<std::string>& all_of = {}) {
    Texts paths;
    for (auto next = NextToRead(images_, read_, all_of); !next.empty(); next = NextToRead(images_, read_, all_of)) {
      for (const ckpt::MemoryImage& image : next) {
        read_.push_back({image, damaged.contains(image.path) ? "damaged" : ""});
        paths.push_back(image.path);
      }
    }
    return paths;
  }

  std::vector<ckpt::MemoryImage> images_;
  std::vector<ReadImage> read_;
};

TEST_F(NextToReadTest, TheNewestCommittedSaveAndWhatIsNewer) {
  Add(10, true);
  Add(20, true);
  Add(30, false);
  EXPECT_EQ(Read(), (Texts{"20.0", "20.1", "30.0", "30.1"}));
  EXPECT_EQ(UnreadOf(images_, read_), std::set<std::string>{kDir});
}

TEST_F(NextToReadTest, TheOneBeforeWhereAnImageOfItIsNotWhole) {
  Add(10, true);
  Add(20, true);
  Add(30, true);
  EXPECT_EQ(Read({"30.1"}), (Texts{"30.0", "30.1", "20.0", "20.1"}));
  read_.clear();
  EXPECT_EQ(Read({"30.1", "20.0"}), (Texts{"30.0", "30.1", "20.0", "20.1", "10.0", "10.1"}));
  EXPECT_TRUE(UnreadOf(images_, read_).empty());
}

TEST_F(NextToReadTest, AllOfADirectoryOfWhichNoneIsCommittedOrThatIsAskedFor) {
  Add(10, false);
  Add(20, false);
  Add(11, true, "/data/other");
  Add(12, true, "/data/other");
  EXPECT_EQ(Read(), (Texts{"10.0", "10.1", "20.0", "20.1", "12.0", "12.1"}));
  EXPECT_EQ(UnreadOf(images_, read_), std::set<std::string>{"/data/other"});
  EXPECT_EQ(Read({}, {"/data/other"}), (Texts{"11.0", "11.1"})) << "what was read is not read again";
  EXPECT_TRUE(UnreadOf(images_, read_).empty());
}

TEST(LeftMemoryTest, NamesWhatNobodyElseTellsOf) {
  ckpt::MemoryFolder left;
  left.path = "/dev/shm/phx-left";
  left.own = true;
  left.job_id = "other";
  left.bytes = uint64_t{3} << 20;
  ckpt::MemoryFolder foreign = left, lives = left, same_job = left, second = left;
  foreign.own = false;
  lives.agent_lives = true;
  same_job.job_id = "mine";
  const uint64_t little = uint64_t{20} << 20;
  EXPECT_EQ(LeftMemoryText({foreign, lives, same_job}, "mine", little), "");
  EXPECT_EQ(LeftMemoryText({left}, "mine", uint64_t{25} << 20), "") << "there is enough beside it";
  const std::string one = LeftMemoryText({foreign, left, lives, same_job}, "mine", little);
  EXPECT_NE(one.find("left 3 MiB of memory: /dev/shm/phx-left, of job 'other';"), std::string::npos) << one;
  const std::string two = LeftMemoryText({left, second}, "mine", little);
  EXPECT_NE(two.find("left 6 MiB of memory: 2 folders that"), std::string::npos) << two;
}

ckpt::MemorySlot CommittedSlot(int64_t step) {
  ckpt::MemorySlot slot;
  slot.slot.state = ckpt::SlotState::kSealed;
  slot.slot.generation = slot.slot.committed = 1;
  slot.slot.image.step = step;
  return slot;
}

TEST(LeftStepTest, IsTheNewestOfThatDirectoryThatNobodyGoesOnFrom) {
  ckpt::MemoryFolder left;
  left.path = "/dev/shm/phx-left";
  left.own = true;
  left.job_id = "other";
  left.directories.resize(2);
  left.directories[0].dir = "/data/run";
  left.directories[0].slots = {CommittedSlot(90), CommittedSlot(92), CommittedSlot(93)};
  left.directories[0].slots[2].slot.committed = 0;
  left.directories[1].dir = "/data/another";
  left.directories[1].slots = {CommittedSlot(100)};
  ckpt::MemoryFolder foreign = left, lives = left, same_job = left, older = left;
  foreign.own = false;
  lives.agent_lives = true;
  same_job.job_id = "mine";
  older.path = "/dev/shm/phx-older";
  older.directories[0].slots = {CommittedSlot(91)};
  EXPECT_EQ(LeftStepText({foreign, lives, same_job}, "mine", "/data/run"), "");
  EXPECT_EQ(LeftStepText({left}, "mine", "/data/none"), "");
  const std::string text = LeftStepText({older, left, older}, "mine", "/data/run");
  EXPECT_NE(text.find("left step 92 of /data/run in memory"), std::string::npos) << text;
  EXPECT_NE(text.find("`phalanx ckpt rescue /dev/shm/phx-left --to /data/run`"), std::string::npos) << text;
}

// --- what a rank restores -----------------------------------------------------------------------------------------

TEST(RestoreFromMemoryTest, WhichImagesARankIsGiven) {
  struct Case {
    const char* what;
    std::vector<ckpt::MemoryImage> images;
    std::string own;
    std::string main;
    std::map<std::string, std::string> ranks;
    Texts given;
  };
  const ckpt::MemoryImage first = Image("0", 2), second = Image("1", 3);
  const ckpt::MemoryImage main = Image(ckpt::kMainPageName, 2);
  ckpt::MemoryImage first_part = first, second_part = second;
  first_part.image.form = second_part.image.form = kDcpForm;
  for (const Case& c : {
           Case{"its own", {first, second}, "1", "", {}, {"1"}},
           Case{"and the shared one", {first, second, main}, "1", "main", {}, {"1", "main"}},
           Case{"all that any rank may need",
                {first_part, second_part, main},
                "1",
                "main",
                {{"2", "0"}, {"3", "1"}},
                {"0", "1", "main"}},
           Case{"none where its own is gone", {first}, "", "", {}, {}},
           Case{"none of a world of another size", {Image("1", 3, 8), Image("main", 2, 8)}, "", "", {}, {}},
       }) {
    const ImagesToRestore restore = RestoreFromMemory(c.images, 3, 4);
    EXPECT_EQ(restore.files.own, c.own) << c.what;
    EXPECT_EQ(restore.files.main, c.main) << c.what;
    EXPECT_EQ(restore.files.ranks, c.ranks) << c.what;
    EXPECT_EQ(Pages(restore.images), c.given) << c.what;
  }
}

TEST(RestoreFromStepTest, ItsOwnShardAndTheSharedOne) {
  const std::map<int64_t, std::string> shards = {{ckpt::kMainRank, "main.pt"}, {2, "rank_2.pt"}};
  EXPECT_EQ(RestoreFromStep(shards, 2).own, "rank_2.pt");
  EXPECT_EQ(RestoreFromStep(shards, 2).main, "main.pt");
  EXPECT_EQ(RestoreFromStep(shards, 3).own, "");
  EXPECT_EQ(RestoreFromStep({}, 2).main, "");
}

TEST(ShardsOfRanksTest, WhoReadsWhich) {
  struct Case {
    const char* what;
    const char* layout;
    uint32_t first_rank;
    uint32_t ranks;
    uint32_t world_size;
    std::vector<int64_t> shards;
  };
  // Five shards, and the shared one.
  for (const Case& c : {
           Case{"each its own", ckpt::kTorchLayout, 2, 2, 5, {-1, 2, 3}},
           Case{"a larger world has ranks without one", ckpt::kTorchLayout, 4, 2, 8, {-1, 4}},
           Case{"in a smaller world some are nobody's", ckpt::kTorchLayout, 0, 2, 2, {-1, 0, 1}},
           Case{"named files go the same way", ckpt::kNamedLayout, 0, 2, 2, {-1, 0, 1}},
           Case{"sharded state is dealt out", ckpt::kDcpLayout, 0, 1, 2, {-1, 0, 2, 4}},
           Case{"to all ranks", ckpt::kDcpLayout, 1, 1, 2, {-1, 1, 3}},
           Case{"of a node", ckpt::kDcpLayout, 0, 2, 4, {-1, 0, 1, 4}},
           Case{"a larger world has ranks without one here too", ckpt::kDcpLayout, 6, 2, 8, {-1}},
           Case{"nothing is dealt before the world has a size", ckpt::kDcpLayout, 0, 2, 0, {-1, 0, 1}},
       }) {
    ckpt::Manifest manifest;
    manifest.layout = c.layout;
    const FileNeed own = c.layout == ckpt::kDcpLayout ? FileNeed::kAnyRank : FileNeed::kOwner;
    for (int64_t rank = ckpt::kMainRank; rank < 5; ++rank) {
      manifest.shards.push_back({rank, "file", 1, 2, rank == ckpt::kMainRank ? FileNeed::kEveryRank : own});
    }
    std::vector<int64_t> ranks;
    for (const ckpt::Shard& shard : ShardsOfRanks(manifest, c.first_rank, c.ranks, c.world_size)) {
      ranks.push_back(shard.rank);
    }
    EXPECT_EQ(ranks, c.shards) << c.what;
  }
}

ckpt::FoundStep Step(int64_t step, const std::string& why = "") {
  ckpt::FoundStep found;
  found.name = std::to_string(step);
  found.step = step;
  found.why = why;
  found.state = why.empty() ? ckpt::StepState::kCommitted : ckpt::StepState::kUncommitted;
  if (!why.empty()) return found;
  found.manifest.emplace();
  found.manifest->world_size = 4;
  found.manifest->epoch = 5;
  found.manifest->branch = 2;
  found.manifest->job_id = "job";
  return found;
}

TEST(NewestStepTest, TheNewestThatCountsAndWhyOthersDoNot) {
  const std::vector<ckpt::FoundStep> steps = {Step(40, "no manifest"), Step(30), Step(20, "damaged"), Step(10)};
  v1::FoundOnDisk found = NewestStep(kDir, steps, {}, "job");
  EXPECT_EQ(found.step(), 30);
  EXPECT_EQ(found.name(), "30");
  EXPECT_EQ(found.world_size(), 4u);
  EXPECT_EQ(found.epoch(), 5U);
  EXPECT_EQ(found.branch(), 2U);
  EXPECT_TRUE(found.same_job());
  EXPECT_FALSE(NewestStep(kDir, steps, {}, "another").same_job());
  EXPECT_EQ(found.why(), "/data/run/40: no manifest");
  found = NewestStep(kDir, steps, {"30"}, "job");
  EXPECT_EQ(found.step(), 10);
  EXPECT_EQ(found.why(), "/data/run/40: no manifest; /data/run/20: damaged");
  found = NewestStep(kDir, steps, {"10", "30", "40"}, "job");
  EXPECT_EQ(found.step(), -1);
  EXPECT_EQ(found.why(), "/data/run/20: damaged");
  EXPECT_EQ(NewestStep(kDir, {}, {}, "job").step(), -1);
}

// A job must not begin anew because nobody could read what it has saved.
TEST(WhyNotKnownTest, NamesWhatCannotBeReadWhereNothingElseCounts) {
  ckpt::FoundStep unreadable = Step(40, "manifest.json: read: Input/output error");
  unreadable.state = ckpt::StepState::kUnreadable;
  const std::string why = "/data/run/40: manifest.json: read: Input/output error";
  EXPECT_EQ(WhyNotKnown(kDir, {unreadable, Step(30, "damaged")}, {}), why);
  EXPECT_EQ(WhyNotKnown(kDir, {unreadable, Step(30)}, {"30"}), why);
  EXPECT_EQ(WhyNotKnown(kDir, {unreadable, Step(30)}, {}), "") << "an older one is restored";
  EXPECT_EQ(WhyNotKnown(kDir, {unreadable}, {"40"}), "") << "it was found damaged";
  EXPECT_EQ(WhyNotKnown(kDir, {Step(30, "damaged")}, {}), "");
  EXPECT_EQ(WhyNotKnown(kDir, {}, {}), "");
}

// --- what a node stores -------------------------------------------------------------------------------------------

TEST(ImagesToStoreTest, TheSharedOneOnlyWhereItIsAskedFor) {
  const std::vector<ckpt::MemoryImage> images = {Image("0"), Image(ckpt::kMainPageName), Image("1", 1)};
  EXPECT_EQ(Pages(ImagesToStore(images, true)), (Texts{"0", "main", "1"}));
  EXPECT_EQ(Pages(ImagesToStore(images, false)), (Texts{"0", "1"}));
}

TEST(ImagesToStoreTest, NotWhereTheManifestSaysTheSame) {
  ckpt::MemoryImage own = Image("0"), shared = Image(ckpt::kMainPageName);
  own.image.form = shared.image.form = kFilesForm;
  EXPECT_EQ(Pages(ImagesToStore({own, shared}, true)), (Texts{"0"}));
}

TEST(StoreRefusalTest, EachLocalRankMustHaveItsImage) {
  struct Case {
    std::vector<ckpt::MemoryImage> held;
    std::string refusal;
  };
  for (const Case& c : {Case{{Image("0"), Image("1", 1)}, ""},
                        Case{{Image("0"), Image("main")}, "1 of 2 images are no longer in memory"},
                        Case{{}, "2 of 2 images are no longer in memory"}}) {
    EXPECT_EQ(StoreRefusal(c.held, 2), c.refusal);
  }
}

TEST(ToRestoreTest, GivesWhatWasReadFromOtherNodes) {
  v1::CheckpointOrder order;
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  order.mutable_restore()->set_world_size(4);
  const FetchedImages fetched = {{static_cast<int32_t>(ckpt::kMainRank), "main"}, {2, "two"}, {3, "three"}};
  const RestoreFiles files = ToRestore(order, 3, {}, {}, fetched, kDdpForm).files;
  EXPECT_EQ(files.main, "main");
  EXPECT_EQ(files.own, "three");
  EXPECT_TRUE(files.ranks.empty());
  EXPECT_EQ(ToRestore(order, 5, {}, {}, fetched, kDdpForm).files.own, "");
  const RestoreFiles sharded = ToRestore(order, 3, {}, {}, fetched, kDcpForm).files;
  EXPECT_EQ(sharded.ranks, (std::map<std::string, std::string>{{"2", "two"}, {"3", "three"}}));
}

TEST(ToRestoreTest, GivesWhatTheMasterHasChosen) {
  v1::CheckpointOrder order;
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  order.mutable_restore()->set_world_size(4);
  const CheckedFolder checked{
      "100", {{0, "/data/run/100/rank_0.pt"}, {ckpt::kMainRank, "/data/run/100/main.pt"}}, "torch-zip"};
  EXPECT_EQ(ToRestore(order, 0, {Image("0")}, checked, {}, kFullForm).files.own, "0");
  EXPECT_EQ(ToRestore(order, 1, {Image("0")}, checked, {}, kFullForm).files.own, "") << "it is another rank's";
  order.mutable_restore()->set_source(v1::RestoreDecided::DISK);
  order.mutable_restore()->set_name("100");
  EXPECT_EQ(ToRestore(order, 0, {Image("0")}, checked, {}, kFullForm).files.own, "/data/run/100/rank_0.pt");
  EXPECT_EQ(ToRestore(order, 0, {Image("0")}, checked, {}, kFullForm).files.main, "/data/run/100/main.pt");
  order.mutable_restore()->set_name("90");
  EXPECT_EQ(ToRestore(order, 0, {Image("0")}, checked, {}, kFullForm).files.own, "") << "nobody has read that one";
  order.mutable_restore()->set_source(v1::RestoreDecided::NOTHING);
  EXPECT_EQ(ToRestore(order, 0, {Image("0")}, checked, {}, kFullForm).files.own, "");
}

TEST(ToCloseTest, TheManifestSaysWhatTheMasterHasOrdered) {
  CloseStep action;
  action.dir = kDir;
  action.options.keep_last = 3;
  action.order.mutable_save()->set_epoch(7);
  action.order.mutable_save()->set_step(100);
  v1::WriteManifest& order = *action.order.mutable_write_manifest();
  order.set_name("100.7");
  SetForm(*order.mutable_form(), kDdpForm);
  order.set_world_size(4);
  v1::Shard& shard = *order.add_shards();
  shard.set_rank(2);
  shard.set_file("rank_2.safetensors");
  shard.set_bytes(8192);
  shard.set_crc32(5);
  shard.set_needed_by(v1::NOBODY);
  action.goes_on_from = "90";
  const ckpt::StepToPublish step = ToPublish(action, "job", 1'700'000'000'000);
  EXPECT_EQ(step.goes_on_from, "90");
  EXPECT_EQ(step.name, "100.7");
  EXPECT_EQ(step.retention.keep_last, 3);
  EXPECT_EQ(step.manifest.epoch, 7u);
  EXPECT_EQ(step.manifest.kind, "ddp");
  EXPECT_EQ(step.manifest.layout, ckpt::kNamedLayout);
  EXPECT_EQ(step.manifest.written_unix_ms, 1'700'000'000'000);
  ASSERT_EQ(step.manifest.shards.size(), 1u);
  EXPECT_EQ(step.manifest.shards[0], (ckpt::Shard{2, "rank_2.safetensors", 8192, 5, FileNeed::kNobody}));
}

TEST(CostTextTest, SaysWhatSlotsTakeAndWhatThreeWould) {
  const uint64_t mib = uint64_t{1} << 20;
  EXPECT_EQ(CostText("/data/run", {{"0", {mib, 3, 3}}, {"main", {4 * mib, 3, 3}}}, 100 * mib),
            "checkpoint: saves to /data/run take 15 MiB of this node's /dev/shm, in 3 slots a writer; 100 MiB more are "
            "free (`phalanx ckpt memory`)");
  EXPECT_EQ(CostText("/data/run", {{"0", {mib, 3, 3}}, {"main", {4 * mib, 2, 3}}}, mib),
            "checkpoint: saves to /data/run take 11 MiB of this node's /dev/shm, in 2 slots a writer; 3 slots need 15 "
            "MiB; 1 MiB more are free (`phalanx ckpt memory`)");
}

}  // namespace
}  // namespace phalanx::agent
