#include "checkpoint/disk/steps.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>

#include "base/test_folder.h"
#include "checkpoint/disk/tracker.h"

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

void WriteStep(const TestFolder& folder, const std::string& name, int64_t step, uint64_t epoch = 1) {
  const Manifest manifest{.step = step,
                          .epoch = epoch,
                          .world_size = 2,
                          .kind = "full",
                          .layout = "torch-zip",
                          .job_id = "job",
                          .shards = {{.rank = 0, .file = "rank_0.pt", .bytes = 10, .crc32 = 1},
                                     {.rank = 1, .file = "rank_1.pt", .bytes = 20, .crc32 = 2}}};
  folder.Write(name + "/rank_0.pt", std::string(10, 'a'));
  folder.Write(name + "/rank_1.pt", std::string(20, 'b'));
  folder.Write(name + "/manifest.json", ManifestText(manifest));
}

std::vector<std::string> Names(const TestFolder& folder) {
  std::vector<std::string> names;
  const StatusOr<std::vector<FoundStep>> steps = FindSteps(folder.path());
  EXPECT_TRUE(steps.ok()) << steps.status();
  for (const FoundStep& found : *steps) names.push_back(found.name);
  return names;
}

TEST(StepName, IsAStepAndPerhapsANumber) {
  EXPECT_EQ(ParseStepName("1200")->step, 1200);
  EXPECT_EQ(ParseStepName("1200.4")->number, 4u);
  EXPECT_EQ(ParseStepName("0")->step, 0);
  for (const char* name : {"", ".", "..", "-1", "+1", "01", "1.", "1.0", "1.01", "1.-1", ".1", "1.1.1", "1a", "latest",
                           " 1", "1 ", "9223372036854775808", "1.18446744073709551616", ".writing"}) {
    EXPECT_FALSE(ParseStepName(name)) << name;
  }
  EXPECT_EQ(StepNameText({.step = 7}), "7");
  EXPECT_EQ(StepNameText({.step = 7, .number = 2}), "7.2");
}

TEST(StepNames, AFreeOneIsNewerThanThoseOfTheSameStep) {
  EXPECT_EQ(StepNameText(FreeStepName(100, 4, {"90", "notes"})), "100");
  EXPECT_EQ(StepNameText(FreeStepName(100, 4, {"100"})), "100.4");
  EXPECT_EQ(StepNameText(FreeStepName(100, 2, {"100", "100.7"})), "100.8");
}

TEST(ClaimStep, NeverGivesAFolderThatIsThere) {
  const TestFolder folder;
  EXPECT_EQ(*ClaimStep(folder.path(), 100, 4), "100");
  EXPECT_EQ(*ClaimStep(folder.path(), 100, 4), "100.4");
  EXPECT_EQ(*ClaimStep(folder.path(), 100, 4), "100.5");
  EXPECT_EQ(*ClaimStep(folder.path(), 100, 2), "100.6");
  EXPECT_EQ(*ClaimStep(folder.path(), 101, 0), "101");
  EXPECT_EQ(*ClaimStep(folder.path(), 101, 0), "101.1");
}

// A deleted name must not come back as an older one than what is there.
TEST(ClaimStep, IsNewerThanAllOfItsStep) {
  const TestFolder folder;
  mkdir((folder / "100.7").c_str(), 0700);
  EXPECT_EQ(*ClaimStep(folder.path(), 100, 1), "100.8");
}

TEST(ClaimStep, NamesTheMissingDirectory) {
  const Status status = ClaimStep("/nowhere/run", 1, 1).status();
  EXPECT_EQ(Message(status), "/nowhere/run: opendir: No such file or directory");
}

// What a job has called its files nobody can tell from what others have put there.
TEST(Unfinished, AllFilesOfAFolderAreOurs) {
  const TestFolder folder;
  const std::string name = *ClaimStep(folder.path(), 100, 4);
  EXPECT_TRUE(folder.Has("100/.unfinished"));
  folder.Write("100/model.pt", "half");
  EXPECT_THAT(Names(folder), ElementsAre("100"));
  EXPECT_TRUE(DeleteStep(folder.path(), name).ok());
  EXPECT_FALSE(folder.Has("100"));
  folder.Write("100/model.pt", "somebody's");
  EXPECT_THAT(Names(folder), IsEmpty()) << "nobody's step";
  EXPECT_TRUE(DeleteStep(folder.path(), name).ok());
  EXPECT_TRUE(folder.Has("100/model.pt"));
}

TEST(Deleted, AStepOfNamedFilesGoesToItsLastFileAndNoFurther) {
  const TestFolder folder;
  const Manifest manifest{
      .step = 100,
      .world_size = 1,
      .kind = "files",
      .layout = "files",
      .job_id = "job",
      .shards = {{.rank = 0, .file = "model.pt", .bytes = 10, .crc32 = 1, .needed_by = FileNeed::kAnyRank}}};
  const auto write = [&] {
    folder.Write("100/model.pt", std::string(10, 'a'));
    folder.Write("100/manifest.json", ManifestText(manifest));
  };
  for (const bool marked : {false, true}) {
    write();
    folder.Write("100/README.md", "theirs");
    if (marked) folder.Write("100/.unfinished", "");  // of a writer who was killed behind the manifest
    EXPECT_TRUE(DeleteStep(folder.path(), "100").ok());
    EXPECT_FALSE(folder.Has("100/model.pt"));
    EXPECT_TRUE(folder.Has("100/README.md"));
    EXPECT_FALSE(folder.Has("100/.deleted.json"));
    EXPECT_FALSE(folder.Has("100/.unfinished"));
  }
  // Killed behind the rename: the next who deletes goes on from there.
  write();
  std::filesystem::rename(folder / "100/manifest.json", folder / "100/.deleted.json");
  EXPECT_THAT(Names(folder), ElementsAre("100"));
  EXPECT_TRUE(DeleteStep(folder.path(), "100").ok());
  EXPECT_FALSE(folder.Has("100/model.pt"));
  EXPECT_TRUE(folder.Has("100/README.md"));
  // Of a list that nobody can read people are told where its files lie.
  write();
  folder.Write("100/manifest.json", "damaged");
  EXPECT_TRUE(DeleteStep(folder.path(), "100").ok());
  EXPECT_TRUE(folder.Has("100/model.pt"));
  EXPECT_THAT(Names(folder), ElementsAre("100"));
  std::filesystem::remove(folder / "100/.deleted.json");
  // What is damaged goes, too.
  write();
  folder.Write("100/model.pt", "short");
  EXPECT_TRUE(DeleteStep(folder.path(), "100").ok());
  EXPECT_FALSE(folder.Has("100/model.pt"));
}

TEST(FindSteps, ListsNewestFirst) {
  const TestFolder folder;
  WriteStep(folder, "90", 90);
  WriteStep(folder, "100", 100, 3);
  WriteStep(folder, "100.4", 100, 4);
  WriteStep(folder, "1000", 1000, 5);
  EXPECT_THAT(Names(folder), ElementsAre("1000", "100.4", "100", "90"));
  const auto steps = FindSteps(folder.path());
  EXPECT_EQ(NewestCommitted(*steps)->name, "1000");
  EXPECT_EQ((*steps)[1].epoch, 4u);
}

FoundStep Placed(int64_t step, uint64_t sequence, uint64_t timeline = 0) {
  FoundStep found;
  found.name = std::to_string(step);
  found.step = step;
  found.sequence = sequence;
  if (sequence == 0) return found;
  found.state = StepState::kCommitted;
  found.manifest.emplace();
  found.manifest->timeline = timeline;
  return found;
}

TEST(StepOrder, IsThatOfTheirStoring) {
  std::vector<FoundStep> steps = {Placed(100, 1), Placed(200, 2), Placed(10, 3, 1), Placed(20, 4, 1)};
  // Without a manifest: by their numbers.
  for (const int64_t step : {5, 15, 150}) steps.push_back(Placed(step, 0));
  OrderNewestFirst(steps);
  std::vector<int64_t> order;
  for (const FoundStep& found : steps) order.push_back(found.step);
  EXPECT_THAT(order, testing::ElementsAre(150, 20, 15, 10, 200, 100, 5));
}

TEST(StepOrder, ALowerStepBeginsATimeline) {
  EXPECT_EQ(NextPlaceOf(10, {}, {}).sequence, 1U);
  const std::vector<FoundStep> steps = {Placed(20, 4, 1), Placed(200, 2)};
  EXPECT_EQ(NextPlaceOf(30, {}, steps).sequence, 5U);
  for (const std::optional<std::string>& past : {std::optional<std::string>(), {"20"}}) {
    EXPECT_EQ(NextPlaceOf(30, past, steps).timeline, 1U);
    EXPECT_EQ(NextPlaceOf(20, past, steps).timeline, 2U);
    EXPECT_EQ(NextPlaceOf(10, past, steps).timeline, 2U);
  }
}

TEST(StepOrder, WhatDoesNotGoOnFromTheNewestBeginsATimeline) {
  const std::vector<FoundStep> steps = {Placed(20, 4, 1), Placed(200, 2)};
  const NextPlace from_nothing = NextPlaceOf(300, "", steps);
  EXPECT_EQ(from_nothing.timeline, 2U);
  EXPECT_EQ(from_nothing.goes_on_from, 0U);
  EXPECT_EQ(NextPlaceOf(300, "200", steps).timeline, 2U) << "from an older one";
  EXPECT_EQ(NextPlaceOf(300, "20", steps).timeline, 1U);
  EXPECT_EQ(NextPlaceOf(300, "20", steps).goes_on_from, 4U);
  EXPECT_EQ(NextPlaceOf(10, "", {}).timeline, 0U) << "the first of all";
  const NextPlace gone = NextPlaceOf(300, "250", steps);
  EXPECT_EQ(gone.timeline, 1U) << "what was deleted says nothing";
  EXPECT_EQ(gone.goes_on_from, std::nullopt);
}

TEST(FindSteps, LeavesOutWhatIsNobodysStep) {
  const TestFolder folder;
  WriteStep(folder, "007", 7);
  WriteStep(folder, "epoch-3", 3);
  folder.Write("12/model.safetensors", "somebody else's");
  folder.Write("13", "a file");
  folder.Write("latest", "7");
  EXPECT_THAT(Names(folder), IsEmpty());
}

TEST(FindSteps, SaysWhyAStepDoesNotCount) {
  const TestFolder folder;
  WriteStep(folder, "1", 1);
  WriteStep(folder, "2", 2);
  std::filesystem::remove(folder / "2/rank_1.pt");
  WriteStep(folder, "3", 3);
  folder.Write("3/rank_0.pt", "short");
  folder.Write("4/rank_0.pt", "no manifest");
  WriteStep(folder, "5", 5);
  folder.Write("5/manifest.json", "{}\n");
  WriteStep(folder, "6", 66);
  WriteStep(folder, "7", 7);
  std::filesystem::remove(folder / "7/rank_0.pt");
  std::filesystem::create_directory(folder / "7/rank_0.pt");
  mkdir((folder / "8").c_str(), 0700);
  WriteStep(folder, "9", 9);
  std::filesystem::remove(folder / "9/manifest.json");
  std::filesystem::create_directory(folder / "9/manifest.json");
  const StatusOr<std::vector<FoundStep>> found = FindSteps(folder.path());
  ASSERT_EQ(found->size(), 9u);
  const struct {
    StepState state;
    const char* why;
  } kSaid[] = {{StepState::kUnreadable, "manifest.json: read: Is a directory"},
               {StepState::kUncommitted, "no manifest: not committed"},
               {StepState::kDamaged, "rank_0.pt is not a regular file"},
               {StepState::kDamaged, "manifest.json is of step 66"},
               {StepState::kDamaged, "manifest.json: cut off: 3 bytes"},
               {StepState::kUncommitted, "no manifest: not committed"},
               {StepState::kDamaged, "rank_0.pt has 5 bytes instead of 10"},
               {StepState::kDamaged, "rank_1.pt: the shard cannot be found: No such file or directory"},
               {StepState::kCommitted, ""}};
  for (size_t i = 0; i < found->size(); ++i) {
    EXPECT_EQ((*found)[i].state, kSaid[i].state) << (*found)[i].name;
    EXPECT_THAT((*found)[i].why, HasSubstr(kSaid[i].why)) << (*found)[i].name;
    EXPECT_EQ((*found)[i].manifest.has_value(), kSaid[i].state == StepState::kCommitted);
  }
  EXPECT_EQ(NewestCommitted(*found)->name, "1");
}

// As one in a folder whose names may be listed and not looked at.
TEST(FindSteps, WhatCannotBeLookedAtIsNotLeftOut) {
  const TestFolder folder;
  WriteStep(folder, "1", 1);
  std::filesystem::create_symlink("2", folder / "2");
  std::filesystem::create_symlink("nowhere", folder / "3");
  const StatusOr<std::vector<FoundStep>> found = FindSteps(folder.path());
  ASSERT_THAT(Names(folder), ElementsAre("2", "1"));
  EXPECT_EQ(found->front().state, StepState::kUnreadable);
  EXPECT_EQ(found->front().why, "stat: Too many levels of symbolic links");
}

TEST(DeleteStep, LeavesOneStepsShardsForTheNext) {
  const TestFolder folder;
  WriteStep(folder, "1", 1);
  WriteStep(folder, "2", 2);
  folder.Write(".recycled/0-rank_0.pt", "of a size that is not wanted");
  ASSERT_TRUE(DeleteStep(folder.path(), "1").ok());
  EXPECT_FALSE(folder.Has("1"));
  EXPECT_FALSE(folder.Has(".recycled/0-rank_0.pt"));
  EXPECT_EQ(folder.Read(".recycled/1-rank_1.pt"), std::string(20, 'b'));
  ASSERT_TRUE(DeleteStep(folder.path(), "2").ok());
  EXPECT_FALSE(folder.Has("2"));
  EXPECT_FALSE(folder.Has(".recycled/2-rank_0.pt"));
  EXPECT_FALSE(folder.Has(".recycled/2-rank_1.pt"));
  EXPECT_TRUE(DeleteStep(folder.path(), "2").ok());  // once more
}

TEST(DeleteStep, LeavesFilesOfOthers) {
  const TestFolder folder;
  WriteStep(folder, "1", 1);
  folder.Write("1/eval.json", "kept");
  ASSERT_TRUE(DeleteStep(folder.path(), "1").ok());
  EXPECT_EQ(folder.Read("1/eval.json"), "kept");
  EXPECT_FALSE(folder.Has("1/rank_0.pt"));
  EXPECT_THAT(Names(folder), IsEmpty());
}

TEST(DeleteStep, TakesWhatHasNoManifest) {
  const TestFolder folder;
  folder.Write("1/rank_0.pt", "a");
  folder.Write("1/__0_0.distcp", "b");
  folder.Write("1/.metadata", "c");
  folder.Write("1/main.safetensors", "d");
  folder.Write("1/rank_12.safetensors", "e");
  ASSERT_TRUE(DeleteStep(folder.path(), "1").ok());
  EXPECT_FALSE(folder.Has("1"));
  EXPECT_FALSE(folder.Has(".recycled"));
}

TEST(DeleteStep, RecyclesNothingThatAnotherNameKeeps) {
  const TestFolder folder;
  WriteStep(folder, "1", 1);
  std::filesystem::create_hard_link(folder / "1/rank_0.pt", folder / "mine.pt");
  ASSERT_TRUE(DeleteStep(folder.path(), "1").ok());
  EXPECT_FALSE(folder.Has(".recycled/1-rank_0.pt"));
  EXPECT_TRUE(folder.Has("mine.pt"));
}

TEST(DeleteStep, RefusesOtherFolders) {
  const TestFolder folder;
  WriteStep(folder, "keep", 1);
  for (const char* name : {"keep", "..", ".", "", "1/..", "../1"}) {
    EXPECT_TRUE(absl::IsInvalidArgument(DeleteStep(folder.path(), name))) << name;
  }
  EXPECT_TRUE(folder.Has("keep/manifest.json"));
}

TEST(Trackers, HoldTheFolderOrTheStep) {
  const TestFolder folder;
  folder.Write("latest", "something older and longer");
  const std::vector<std::string> all = {"latest", "dlrover_latest.txt", "latest_checkpointed_iteration.txt"};
  ASSERT_TRUE(WriteTrackers(folder.path(), "100.4", 100, all).ok());
  EXPECT_EQ(folder.Read("latest"), "100.4");
  EXPECT_EQ(folder.Read("dlrover_latest.txt"), "100");
  EXPECT_EQ(folder.Read("latest_checkpointed_iteration.txt"), "100");
  EXPECT_TRUE(std::filesystem::is_empty(folder / ".writing"));
  EXPECT_THAT(Message(WriteTrackers(folder.path(), "1", 1, {"../x"})), HasSubstr("'../x' is no tracker"));
}

}  // namespace
}  // namespace phalanx::checkpoint
