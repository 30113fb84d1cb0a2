// Virtual time, and processes that stand still in it.
#include "simulation/event_queue.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <vector>

#include "simulation/machine.h"

namespace phalanx::simulation {
namespace {

using ::testing::ElementsAre;

TEST(EventQueue, ServesByTimeAndThenByTheOrderOfAsking) {
  EventQueue queue;
  std::vector<int> served;
  queue.At(20, [&] { served.push_back(3); });
  queue.At(10, [&] { served.push_back(1); });
  queue.At(10, [&] { served.push_back(2); });
  while (!queue.empty()) queue.ServeNext();
  EXPECT_THAT(served, ElementsAre(1, 2, 3));
  EXPECT_EQ(queue.now(), 20);
  EXPECT_EQ(queue.served(), 3U);
}

// The place of a task is free while it runs.
TEST(EventQueue, WhatATaskAsksForComesBehindIt) {
  EventQueue queue;
  std::vector<int> served;
  queue.At(10, [&] {
    queue.After(5, [&] { served.push_back(3); });
    queue.At(1, [&] { served.push_back(2); });  // in the past: now
    served.push_back(1);
  });
  queue.At(30, [&] { served.push_back(4); });
  while (!queue.empty()) queue.ServeNext();
  EXPECT_THAT(served, ElementsAre(1, 2, 3, 4));
  EXPECT_EQ(queue.now(), 30);
}

TEST(Gate, KeepsWhatComesWhileItIsStopped) {
  Gate gate;
  std::vector<int> passed;
  gate.Pass([&] { passed.push_back(1); });
  gate.Stop();
  gate.Stop();
  gate.Pass([&] {
    passed.push_back(2);
    gate.Pass([&] { passed.push_back(4); });  // behind what waits
  });
  gate.Pass([&] { passed.push_back(3); });
  gate.Go();
  EXPECT_THAT(passed, ElementsAre(1));
  gate.Go();
  EXPECT_THAT(passed, ElementsAre(1, 2, 3, 4));
}

}  // namespace
}  // namespace phalanx::simulation
