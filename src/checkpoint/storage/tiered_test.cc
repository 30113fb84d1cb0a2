// What storage_test.cc does not ask of every storage: two of them behind one.
#include "checkpoint/storage/tiered.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <functional>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/storage/posix.h"
#include "checkpoint/storage/publish.h"

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An archive of which a test says what it does.
class FaultyStorage : public PosixStorage {
 public:
  using PosixStorage::PosixStorage;
  StatusOr<std::vector<FoundStep>> List() override {
    ++lists;
    if (!is_there) return absl::UnavailableError("the archive is away");
    return PosixStorage::List();
  }
  StatusOr<Shard> Put(const std::string& step, const FileToPut& file) override {
    if (before_put) before_put();
    if (fails_at == file.rank) return absl::UnavailableError("the archive is full");
    return PosixStorage::Put(step, file);
  }

  bool is_there = true;
  int lists = 0;
  int64_t fails_at = -2;
  std::function<void()> before_put;
};

class TieredStorageTest : public testing::Test {
 protected:
  void SetUp() override { MakeTiers(0); }
  void MakeTiers(int64_t every) {
    directory_ = std::make_shared<PosixStorage>(folder_ / "run");
    archive_ = std::make_shared<FaultyStorage>(folder_ / "archive");
    tiered_ = std::make_unique<TieredStorage>(directory_, archive_, every);
  }
  static std::string TextOf(int64_t step, int64_t rank) {
    return "rank " + std::to_string(rank) + " of step " + std::to_string(step);
  }
  void Store(int64_t step, const Retention& retention = {}) {
    ASSERT_TRUE(tiered_->Make().ok());
    StepToPublish put;
    put.name = tiered_->Begin(step, 1).value();
    for (const int64_t rank : {0, 1}) {
      const std::string text = TextOf(step, rank);
      folder_.Write("slot", text);
      const StatusOr<Shard> shard = tiered_->Put(put.name, {folder_ / "slot", ShardName(kTorchLayout, rank), rank,
                                                            text.size(), Crc32(0, text.data(), text.size())});
      ASSERT_TRUE(shard.ok()) << shard.status();
      put.manifest.shards.push_back(*shard);
    }
    put.manifest.step = step;
    put.manifest.world_size = 2;
    put.manifest.kind = "full";
    put.manifest.layout = kTorchLayout;
    put.manifest.job_id = "job";
    put.trackers = {"latest"};
    put.retention = retention;
    const auto published = PublishStep(*tiered_, put);
    ASSERT_TRUE(published.ok()) << published.status();
  }
  static std::vector<std::string> NamesOf(const StatusOr<std::vector<FoundStep>>& steps) {
    std::vector<std::string> names;
    EXPECT_TRUE(steps.ok()) << steps.status();
    if (!steps.ok()) return names;
    for (const FoundStep& found : *steps) {
      if (found.manifest) names.push_back(found.name);
    }
    return names;
  }
  ArchivedSteps Archive() { return tiered_->Archive({"latest"}); }

  TestFolder folder_;
  std::shared_ptr<PosixStorage> directory_;
  std::shared_ptr<FaultyStorage> archive_;
  std::unique_ptr<TieredStorage> tiered_;
};

TEST_F(TieredStorageTest, TheNewestIsCopiedWithAllThatIsKnownOfIt) {
  EXPECT_THAT(Archive().steps, IsEmpty()) << "there is no directory";
  for (const int64_t step : {10, 20, 30}) Store(step);
  const ArchivedSteps done = Archive();
  EXPECT_THAT(done.steps, ElementsAre(30));
  EXPECT_EQ(done.error, "");
  EXPECT_THAT(NamesOf(archive_->List()), ElementsAre("30"));
  EXPECT_EQ(*archive_->LookAt("30").manifest, *directory_->LookAt("30").manifest);
  EXPECT_EQ(folder_.Read("archive/30/rank_1.pt"), TextOf(30, 1));
  EXPECT_EQ(folder_.Read("archive/latest"), "30");
  EXPECT_THAT(Archive().steps, IsEmpty()) << "it is there";
}

TEST_F(TieredStorageTest, EachThatWasAskedForStaysUntilItIsThere) {
  MakeTiers(20);
  for (const int64_t step : {10, 20, 30, 40, 50}) Store(step, {.keep_last = 1});
  EXPECT_THAT(NamesOf(directory_->List()), ElementsAre("50", "40", "20"));
  archive_->is_there = false;
  EXPECT_THAT(Archive().error, HasSubstr("the archive is away"));
  archive_->is_there = true;
  EXPECT_THAT(Archive().steps, ElementsAre(20, 40));
  Store(60, {.keep_last = 1});
  EXPECT_THAT(NamesOf(directory_->List()), ElementsAre("60")) << "it is due, and the newest";
  Store(70, {.keep_last = 1});
  EXPECT_THAT(NamesOf(directory_->List()), ElementsAre("70", "60"));
  EXPECT_THAT(NamesOf(archive_->List()), ElementsAre("40", "20"));
}

TEST_F(TieredStorageTest, WhatIsBeingCopiedIsNotDeleted) {
  Store(10);
  archive_->before_put = [&] {
    archive_->before_put = nullptr;
    Store(20, {.keep_last = 1});
    EXPECT_THAT(NamesOf(directory_->List()), ElementsAre("20", "10"));
  };
  const ArchivedSteps done = Archive();
  EXPECT_THAT(done.steps, ElementsAre(10, 20));
  Store(30, {.keep_last = 1});
  EXPECT_THAT(NamesOf(directory_->List()), ElementsAre("30"));
}

TEST_F(TieredStorageTest, ACopyThatFailsCountsForNothingAndIsMadeAgain) {
  Store(10);
  archive_->fails_at = 1;
  EXPECT_THAT(Archive().error, HasSubstr("the archive is full"));
  EXPECT_FALSE(folder_.Has("archive/10"));
  archive_->fails_at = -2;
  EXPECT_THAT(Archive().steps, ElementsAre(10));
}

TEST_F(TieredStorageTest, ADamagedStepHoldsUpNoOther) {
  MakeTiers(10);
  Store(10);
  folder_.Write("run/10/rank_0.pt", "damaged, and long");
  Store(20, {.keep_last = 1});
  const ArchivedSteps done = Archive();
  EXPECT_THAT(done.steps, ElementsAre(20));
  EXPECT_THAT(done.error, HasSubstr("rank_0.pt"));
  EXPECT_EQ(Archive().error, "") << "said once";
  Store(30, {.keep_last = 1});
  EXPECT_THAT(NamesOf(directory_->List()), ElementsAre("30")) << "nobody waits for its copy";
}

TEST_F(TieredStorageTest, ADeletionIsNotUndone) {
  Store(10);
  archive_->before_put = [&] { EXPECT_TRUE(directory_->Delete("10").ok()); };
  const ArchivedSteps done = Archive();
  EXPECT_THAT(done.steps, IsEmpty());
  EXPECT_THAT(NamesOf(archive_->List()), IsEmpty());
}

TEST_F(TieredStorageTest, WhatEndsStopsBehindAFile) {
  MakeTiers(10);
  for (const int64_t step : {10, 20}) Store(step);
  archive_->before_put = [&] { tiered_->StopArchiving(); };
  EXPECT_THAT(Archive().error, HasSubstr("this agent ends"));
  EXPECT_THAT(NamesOf(archive_->List()), IsEmpty());
}

TEST_F(TieredStorageTest, TrackersNeverGoBack) {
  MakeTiers(100);
  for (const int64_t step : {80, 100}) Store(step);
  Archive();
  const auto all = std::make_unique<TieredStorage>(directory_, archive_, 10);
  EXPECT_THAT(all->Archive({"latest"}).steps, ElementsAre(80));
  EXPECT_EQ(folder_.Read("archive/latest"), "100");
}

TEST_F(TieredStorageTest, AnArchiveThatIsNotMountedIsNotTakenForAnEmptyOne) {
  const auto far = std::make_shared<PosixStorage>(folder_ / "mnt/archive");
  TieredStorage unmounted(directory_, far, 0);
  EXPECT_THAT(Message(unmounted.List().status()), HasSubstr("mkdir: No such file or directory"));
  Store(10);
  EXPECT_THAT(unmounted.Archive({}).error, HasSubstr("mkdir: No such file or directory"));
  EXPECT_FALSE(folder_.Has("mnt"));
}

TEST_F(TieredStorageTest, WhatIsStoredIsBehindAllThatTheArchiveHas) {
  for (const int64_t step : {10, 20, 30}) Store(step);
  Archive();
  std::filesystem::remove_all(folder_ / "run");
  ASSERT_TRUE(directory_->Make().ok());
  StepToPublish put;  // by a life without the archive
  put.name = directory_->Begin(1, 1).value();
  folder_.Write("slot", "x");
  put.manifest.step = 1;
  put.manifest.world_size = 1;
  put.manifest.kind = "full";
  put.manifest.layout = kTorchLayout;
  put.manifest.job_id = "job";
  put.manifest.shards = {*directory_->Put(put.name, {folder_ / "slot", "rank_0.pt", 0, 1, Crc32(0, "x", 1)})};
  ASSERT_TRUE(PublishStep(*directory_, put).ok());
  EXPECT_EQ(directory_->LookAt("1").manifest->sequence, 1U);
  Archive();
  Store(2);
  EXPECT_EQ(directory_->LookAt("2").manifest->sequence, 4U);
}

TEST_F(TieredStorageTest, TheArchiveIsAskedWhereTheDirectoryHasNothing) {
  Store(10);
  Archive();
  Store(20);
  Archive();
  archive_->lists = 0;
  EXPECT_THAT(NamesOf(tiered_->List()), ElementsAre("20", "10"));
  EXPECT_EQ(archive_->lists, 0);
  std::filesystem::remove_all(folder_ / "run");
  EXPECT_THAT(NamesOf(tiered_->List()), ElementsAre("archive:20", "archive:10"));
  const FoundStep found = tiered_->LookAt("archive:20");
  ASSERT_TRUE(found.manifest) << found.why;
  EXPECT_EQ(found.name, "archive:20");
  EXPECT_EQ(tiered_->PathOf("archive:20", ""), folder_ / "archive/20");
  EXPECT_TRUE(tiered_->Check("archive:20", found.manifest->shards[0]).ok());
  std::vector<uint8_t> bytes(4);
  EXPECT_TRUE(tiered_->Read("archive:20", "rank_0.pt", 0, bytes).ok());
  EXPECT_FALSE(tiered_->Delete("archive:20").ok());
  Store(20);
  EXPECT_EQ(directory_->LookAt("20").manifest->sequence, 3U) << "it is stored behind what the archive has";
  EXPECT_EQ(directory_->LookAt("20").manifest->timeline, 1U);
  EXPECT_THAT(Archive().steps, ElementsAre(20));
  EXPECT_THAT(NamesOf(archive_->List()), testing::Contains("20.1")) << "no name is taken twice";
}

TEST_F(TieredStorageTest, AnArchiveThatDoesNotAnswerIsMissedOnlyWhereItIsNeeded) {
  archive_->is_there = false;
  EXPECT_THAT(std::string(tiered_->List().status().message()), HasSubstr("the archive is away"))
      << "nobody knows how many steps were stored before";
  archive_->is_there = true;
  Store(10);
  archive_->is_there = false;
  Store(20);
  EXPECT_THAT(NamesOf(tiered_->List()), ElementsAre("20", "10"));
}

// It may hang, and a store needs nothing of it.
TEST_F(TieredStorageTest, AStoreBesideADamagedStepDoesNotAskTheArchive) {
  Store(10);
  Store(20);
  std::filesystem::remove(folder_ / ("run/20/" + ShardName(kTorchLayout, 0)));
  archive_->lists = 0;
  Store(30);
  EXPECT_EQ(archive_->lists, 0);
  EXPECT_EQ(NamesOf(directory_->List()).front(), "30");
}

TEST_F(TieredStorageTest, OfAStepThatIsUselessHereTheCopyWillDo) {
  Store(10);
  Archive();
  Store(20);
  Archive();
  EXPECT_THAT(NamesOf(tiered_->ListPast({"20"}, {})), testing::UnorderedElementsAre("20", "archive:20", "10"));
  EXPECT_THAT(NamesOf(tiered_->ListPast({"20", "archive:20"}, {})),
              testing::UnorderedElementsAre("20", "archive:20", "10"));
  archive_->lists = 0;
  EXPECT_THAT(NamesOf(tiered_->ListPast({"20"}, {"20"})), ElementsAre("20", "10"))
      << "a save with which nobody gets on is the same wherever it lies";
  EXPECT_EQ(archive_->lists, 0);
  archive_->is_there = false;
  EXPECT_THAT(NamesOf(tiered_->ListPast({"20"}, {})), ElementsAre("20", "10"));
  EXPECT_THAT(std::string(tiered_->ListPast({"20", "10"}, {}).status().message()), HasSubstr("the archive is away"))
      << "nobody begins anew beside it";
}

TEST_F(TieredStorageTest, OfAStepThatListFindsDamagedTheCopyWillDoToo) {
  Store(10);
  Store(20);
  Archive();
  std::filesystem::remove(folder_ / "run/20/rank_0.pt");
  EXPECT_THAT(NamesOf(tiered_->List()), ElementsAre("archive:20", "10"));
}

TEST_F(TieredStorageTest, WhatTheArchiveHasOfAnotherPastComesLast) {
  for (const int64_t step : {10, 20, 30}) Store(step);
  Archive();
  std::filesystem::remove_all(folder_ / "run");
  MakeTiers(0);
  std::filesystem::rename(folder_ / "archive", folder_ / "away");
  Store(1);  // a life that does not see the archive
  Archive();
  std::filesystem::copy(folder_ / "away/30", folder_ / "archive/30", std::filesystem::copy_options::recursive);
  EXPECT_THAT(NamesOf(tiered_->ListPast({"1"}, {})), testing::UnorderedElementsAre("1", "archive:1", "archive:30"));
  EXPECT_EQ(NamesOf(tiered_->ListPast({"1"}, {})).back(), "archive:30");
}

TEST_F(TieredStorageTest, OfTwoCopiesInTheArchiveOneIsListed) {
  Store(10);
  Archive();
  std::filesystem::copy(folder_ / "archive/10", folder_ / "archive/10.1");
  std::filesystem::remove_all(folder_ / "run");
  const std::vector<std::string> names = NamesOf(tiered_->List());
  ASSERT_EQ(names.size(), 1U);
  EXPECT_THAT(NamesOf(tiered_->ListPast({names[0]}, {names[0]})), ElementsAre(names[0]));
  EXPECT_THAT(NamesOf(tiered_->ListPast({names[0]}, {})), testing::SizeIs(2)) << "of a damaged one the other will do";
}

}  // namespace
}  // namespace phalanx::checkpoint
