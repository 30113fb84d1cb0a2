#include "checkpoint/storage/publish.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>

#include "base/crc/crc32.h"
#include "base/test_folder.h"
#include "checkpoint/storage/posix.h"

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::SizeIs;

class PublishStepTest : public testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(folder_ / "run"); }

  // One rank's step, all of whose files are there.
  StepToPublish Put(int64_t step, const Retention& retention) {
    const std::string text = "state of step " + std::to_string(step);
    folder_.Write("slot", text);
    StepToPublish put;
    put.name = storage_.Begin(step, 1).value();
    const StatusOr<Shard> shard =
        storage_.Put(put.name, {folder_ / "slot", "rank_0.pt", 0, text.size(), Crc32(0, text.data(), text.size())});
    EXPECT_TRUE(shard.ok()) << shard.status();
    put.manifest = {
        .step = step, .world_size = 1, .kind = "full", .layout = "torch-zip", .job_id = "job", .shards = {*shard}};
    put.trackers = {"latest"};
    put.retention = retention;
    return put;
  }
  std::vector<std::string> Names() {
    std::vector<std::string> names;
    const std::vector<FoundStep> steps = storage_.List().value();
    for (const FoundStep& found : steps) names.push_back(found.name);
    return names;
  }

  TestFolder folder_;
  PosixStorage storage_{folder_ / "run"};
};

TEST_F(PublishStepTest, WhatIsStoredLastIsTheNewestAndIsKept) {
  for (const int64_t step : {100, 200, 10}) {
    EXPECT_THAT(PublishStep(storage_, Put(step, {.keep_last = 2})).value(), IsEmpty());
    EXPECT_EQ(folder_.Read("run/latest"), std::to_string(step));
  }
  EXPECT_THAT(Names(), ElementsAre("10", "200"));
  const std::vector<FoundStep> steps = storage_.List().value();
  EXPECT_EQ(steps[0].manifest->sequence, 3U);
  EXPECT_EQ(steps[0].manifest->timeline, 1U);
  EXPECT_EQ(steps[1].manifest->timeline, 0U);
}

TEST_F(PublishStepTest, WhereATrackerCannotBeWrittenNothingIsDeleted) {
  const Retention one{.keep_last = 1};
  ASSERT_THAT(PublishStep(storage_, Put(1, one)).value(), IsEmpty());
  std::filesystem::remove(folder_ / "run/latest");
  folder_.Write("run/latest/in the way", "");
  const std::vector<std::string> warnings = PublishStep(storage_, Put(2, one)).value();
  ASSERT_THAT(warnings, SizeIs(1));
  EXPECT_THAT(warnings[0], HasSubstr("latest: rename"));
  EXPECT_EQ(storage_.LookAt("1").state, StepState::kCommitted);
  EXPECT_EQ(storage_.LookAt("2").state, StepState::kCommitted);
  std::filesystem::remove_all(folder_ / "run/latest");
  ASSERT_THAT(PublishStep(storage_, Put(3, one)).value(), IsEmpty());
  EXPECT_THAT(Names(), ElementsAre("3"));
}

TEST_F(PublishStepTest, WhatCannotBePublishedDoesNotCountAndNothingGoes) {
  ASSERT_THAT(PublishStep(storage_, Put(1, {})).value(), IsEmpty());
  StepToPublish other = Put(2, {.keep_last = 1});
  other.manifest.step = 3;
  EXPECT_EQ(PublishStep(storage_, other).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(storage_.LookAt("2").state, StepState::kUncommitted);
  EXPECT_EQ(storage_.LookAt("1").state, StepState::kCommitted);
  EXPECT_EQ(folder_.Read("run/latest"), "1");
}

}  // namespace
}  // namespace phalanx::checkpoint
