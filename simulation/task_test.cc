#include "simulation/task.h"

#include <gtest/gtest.h>

#include <array>
#include <memory>
#include <utility>
#include <vector>

namespace phalanx::simulation {
namespace {

// A lambda that needs `bytes` more than what it counts with.
template <size_t bytes>
Task Adding(const std::shared_ptr<int>& sum) {
  return [sum, more = std::array<char, bytes>{1}] { *sum += more[0]; };
}

TEST(Task, CallsWhatItKeepsInPlaceAndElsewhere) {
  const auto sum = std::make_shared<int>(0);
  Task small = Adding<1>(sum);
  Task large = Adding<1'000>(sum);
  small();
  large();
  large();
  EXPECT_EQ(*sum, 3);
}

TEST(Task, WhatItKeepsMovesWithItAndGoesOnce) {
  const auto sum = std::make_shared<int>(0);
  std::vector<Task> tasks;
  for (int i = 0; i < 100; ++i) tasks.push_back(i % 2 == 0 ? Adding<1>(sum) : Adding<1'000>(sum));
  EXPECT_EQ(sum.use_count(), 101);
  Task first = std::move(tasks[0]);
  EXPECT_FALSE(tasks[0]);  // NOLINT(bugprone-use-after-move): it is empty
  tasks[1] = std::move(first);
  EXPECT_EQ(sum.use_count(), 100);
  for (Task& task : tasks) {
    if (task) task();
  }
  EXPECT_EQ(*sum, 99);
  tasks[1] = nullptr;
  EXPECT_FALSE(tasks[1]);
  EXPECT_EQ(sum.use_count(), 99);
  tasks.clear();
  EXPECT_EQ(sum.use_count(), 1);
}

TEST(Task, KeepsWhatCannotBeCopied) {
  int got = 0;
  Task task = [&got, number = std::make_unique<int>(7)] { got = *number; };
  Task moved = std::move(task);
  moved();
  EXPECT_EQ(got, 7);
}

TEST(Task, ALambdaMayGiveAwayWhatItKeeps) {
  std::unique_ptr<int> got;
  Task task = [&got, number = std::make_unique<int>(7)]() mutable { got = std::move(number); };
  task();
  ASSERT_NE(got, nullptr);
  EXPECT_EQ(*got, 7);
}

}  // namespace
}  // namespace phalanx::simulation
