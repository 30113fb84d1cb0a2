#include "checkpoint/disk/retention.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <set>

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

FoundStep Found(int64_t step, StepState state = StepState::kCommitted, uint64_t number = 0) {
  FoundStep found;
  found.name = StepNameText({.step = step, .number = number});
  found.step = step;
  found.number = number;
  found.state = state;
  return found;
}

std::vector<FoundStep> Committed(const std::vector<int64_t>& newest_first) {
  std::vector<FoundStep> steps;
  for (const int64_t step : newest_first) steps.push_back(Found(step));
  return steps;
}

TEST(Retention, KeepsAllWhereNothingIsAsked) {
  EXPECT_THAT(StepsToDelete(Committed({30, 20, 10}), {}), IsEmpty());
  EXPECT_THAT(StepsToDelete({Found(20), Found(10, StepState::kDamaged)}, {}), IsEmpty());
}

TEST(Retention, KeepsTheLast) {
  EXPECT_THAT(StepsToDelete(Committed({40, 30, 20, 10}), {.keep_last = 2}), ElementsAre("10", "20"));
  EXPECT_THAT(StepsToDelete(Committed({40, 30}), {.keep_last = 5}), IsEmpty());
}

TEST(Retention, KeepsThoseThatANumberDividesAndTheNewest) {
  EXPECT_THAT(StepsToDelete(Committed({50, 40, 30, 20, 10, 0}), {.keep_every = 20}), ElementsAre("10", "30"));
}

TEST(Retention, KeepsWhatEitherAsksFor) {
  EXPECT_THAT(StepsToDelete(Committed({50, 40, 30, 20, 10}), {.keep_last = 2, .keep_every = 20}),
              ElementsAre("10", "30"));
}

TEST(Retention, OfAStepWrittenTwiceTheNewerCounts) {
  EXPECT_THAT(StepsToDelete({Found(20, StepState::kCommitted, 3), Found(20), Found(10)}, {.keep_last = 2}),
              ElementsAre("20"));
}

TEST(Retention, LeavesWhatMayBeOnItsWay) {
  EXPECT_THAT(StepsToDelete({Found(40, StepState::kUncommitted), Found(35, StepState::kDamaged), Found(30),
                             Found(20, StepState::kUncommitted), Found(10, StepState::kDamaged)},
                            {.keep_last = 1}),
              ElementsAre("10", "20"));
  EXPECT_THAT(StepsToDelete({Found(40), Found(30, StepState::kDamaged), Found(20), Found(10, StepState::kDamaged)},
                            {.keep_last = 2}),
              ElementsAre("10"));
}

TEST(Retention, LeavesAllWhereNothingCounts) {
  EXPECT_THAT(StepsToDelete({Found(20, StepState::kDamaged), Found(10, StepState::kUncommitted)}, {.keep_last = 1}),
              IsEmpty());
}

TEST(Retention, LeavesWhatCannotBeRead) {
  EXPECT_THAT(StepsToDelete({Found(30), Found(20, StepState::kUnreadable), Found(10)}, {.keep_last = 1}),
              ElementsAre("10"));
}

std::vector<FoundStep> Random(std::mt19937& random) {
  std::vector<FoundStep> steps;
  const auto count = random() % 12;
  for (int64_t step = 40; steps.size() < count; step -= static_cast<int64_t>(random() % 3)) {
    const bool again = !steps.empty() && steps.back().step == step;
    if (again && steps.back().number == 0) continue;
    steps.push_back(Found(step, static_cast<StepState>(random() % 4), again ? steps.back().number - 1 : random() % 3));
  }
  return steps;
}

// What must hold whatever lies there and whatever is asked.
TEST(Retention, NeverTakesWhatItMustLeave) {
  for (unsigned seed = 0; seed < 20'000; ++seed) {
    std::mt19937 random(seed);
    const std::vector<FoundStep> steps = Random(random);
    const Retention retention{.keep_last = static_cast<int>(random() % 4),
                              .keep_every = static_cast<int64_t>(random() % 3) * 2};
    const std::vector<std::string> names = StepsToDelete(steps, retention);
    const std::set<std::string> gone(names.begin(), names.end());
    ASSERT_EQ(gone.size(), names.size()) << seed;
    const FoundStep* newest = NewestCommitted(steps);
    ASSERT_TRUE(newest != nullptr || gone.empty()) << seed;
    std::set<int64_t> stay;
    for (const FoundStep& found : steps) {
      const bool committed = found.state == StepState::kCommitted;
      const bool deleted = gone.contains(found.name);
      ASSERT_FALSE(deleted && found.state == StepState::kUnreadable) << seed;
      ASSERT_FALSE(deleted && &found <= newest) << seed;
      if (!committed) continue;
      const bool first = !stay.contains(found.step);
      const bool due = retention.keep_every > 0 && found.step % retention.keep_every == 0;
      ASSERT_FALSE(deleted && first && due) << seed;
      ASSERT_FALSE(deleted && first && stay.size() < static_cast<size_t>(retention.keep_last)) << seed;
      if (!deleted) stay.insert(found.step);
    }
    const bool asked = retention.keep_last > 0 || retention.keep_every > 0;
    ASSERT_TRUE(asked || gone.empty()) << seed;
    if (retention.keep_last > 0 && retention.keep_every == 0) {
      ASSERT_LE(stay.size(), static_cast<size_t>(retention.keep_last)) << seed;
    }
  }
}

}  // namespace
}  // namespace phalanx::checkpoint
