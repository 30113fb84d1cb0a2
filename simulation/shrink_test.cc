#include "simulation/shrink.h"

#include <gtest/gtest.h>

#include <algorithm>

namespace phalanx::simulation {
namespace {

Scenario WithFaults(std::initializer_list<uint32_t> machines) {
  Scenario scenario;
  for (const uint32_t machine : machines) {
    Fault fault;
    fault.machine = machine;
    fault.lasts = 8 * kSecond;
    scenario.faults.push_back(fault);
  }
  return scenario;
}

bool Holds(const Scenario& scenario, uint32_t machine) {
  return std::any_of(scenario.faults.begin(), scenario.faults.end(),
                     [machine](const Fault& fault) { return fault.machine == machine; });
}

TEST(Shrink, KeepsTheFaultsThatItTakes) {
  int runs = 0;
  const Scenario shrunk = Shrink(WithFaults({1, 2, 3, 4, 5, 6, 7, 8, 9}), [&runs](const Scenario& scenario) {
    ++runs;
    return Holds(scenario, 3) && Holds(scenario, 8);
  });
  ASSERT_EQ(shrunk.faults.size(), 2U);
  EXPECT_EQ(shrunk.faults[0].machine, 3U);
  EXPECT_EQ(shrunk.faults[1].machine, 8U);
  EXPECT_LT(runs, 100);
}

TEST(Shrink, ShortensThem) {
  const Scenario shrunk = Shrink(WithFaults({1}), [](const Scenario& scenario) {
    return Holds(scenario, 1) && scenario.faults[0].lasts >= 3 * kSecond;
  });
  EXPECT_EQ(shrunk.faults[0].lasts, 4 * kSecond);
}

TEST(Shrink, EndsWithNoneWhereNoneIsNeeded) {
  EXPECT_TRUE(Shrink(WithFaults({1, 2, 3}), [](const Scenario&) { return true; }).faults.empty());
}

}  // namespace
}  // namespace phalanx::simulation
