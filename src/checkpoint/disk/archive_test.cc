#include "checkpoint/disk/archive.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

FoundStep Stored(int64_t step, uint64_t sequence) {
  FoundStep found;
  found.step = step;
  found.name = std::to_string(step);
  found.sequence = sequence;
  found.state = StepState::kCommitted;
  Manifest& manifest = found.manifest.emplace();
  manifest.step = step;
  manifest.sequence = sequence;
  manifest.job_id = "job";
  return found;
}

FoundStep Unfinished(int64_t step) {
  FoundStep found;
  found.step = step;
  found.name = std::to_string(step);
  return found;
}

TEST(StepsToArchive, IsTheNewestOrEachThatWasAskedFor) {
  const std::vector<FoundStep> here = {Unfinished(50), Stored(40, 4), Stored(30, 3), Stored(20, 2), Stored(10, 1)};
  EXPECT_THAT(StepsToArchive(here, {}, 0), ElementsAre("40"));
  EXPECT_THAT(StepsToArchive(here, {}, 20), ElementsAre("20", "40"));
  EXPECT_THAT(StepsToArchive(here, {Stored(20, 2)}, 20), ElementsAre("40"));
  EXPECT_THAT(StepsToArchive(here, {Stored(40, 4)}, 0), IsEmpty()) << "an older one is none that was asked for";
  EXPECT_THAT(StepsToArchive(here, {}, 1000), IsEmpty());
  EXPECT_THAT(StepsToArchive({Unfinished(50)}, {}, 0), IsEmpty());
}

TEST(StepsToArchive, AStepOfThatNumberIsAnotherWhereItsSaveIs) {
  FoundStep there = Stored(40, 4);
  there.name = "40.1";
  EXPECT_THAT(StepsToArchive({Stored(40, 4)}, {there}, 0), IsEmpty()) << "whatever it is called there";
  there.manifest->written_unix_ms = 1;
  EXPECT_THAT(StepsToArchive({Stored(40, 4)}, {there}, 0), ElementsAre("40"));
  there.manifest.reset();
  EXPECT_THAT(StepsToArchive({Stored(40, 4)}, {there}, 0), ElementsAre("40")) << "it does not count there";
}

}  // namespace
}  // namespace phalanx::checkpoint
