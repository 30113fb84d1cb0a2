#include "agent/watch/differ.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::agent::watch {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr int64_t kReading = 15'000;

class DifferTest : public testing::Test {
 protected:
  // A reading later of one value.
  std::vector<Found> Read(const char* name, int64_t value, const std::string& device = "mlx5_0 port 1") {
    now_ += kReading;
    return Compare(differ_, {{FindKind(name), device, "/sys/x", value}}, now_, 1'000 + now_);
  }
  size_t Told(const char* name, int64_t value, const std::string& device = "mlx5_0 port 1") {
    size_t told = 0;
    for (const Found& found : Read(name, value, device)) told += found.told ? 1 : 0;
    return told;
  }

  Differ differ_;
  Instant now_ = 100'000;
};

TEST_F(DifferTest, TheFirstReadingIsTheBaseLine) {
  EXPECT_THAT(Read("link_downed", 12), IsEmpty());
  EXPECT_THAT(Read("link_downed", 12), IsEmpty());
  const std::vector<Found> found = Read("link_downed", 13);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].told);
  EXPECT_EQ(found[0].fact.kind(), "link");
  EXPECT_EQ(found[0].fact.device(), "mlx5_0 port 1");
  EXPECT_EQ(found[0].fact.sentence(), "times that the link went down on mlx5_0 port 1: 1 more within 30 s");
  EXPECT_EQ(found[0].fact.source(), "/sys/x");
  EXPECT_EQ(found[0].fact.unix_ms(), 1'000 + now_);
  EXPECT_TRUE(found[0].fact.grave());
  EXPECT_EQ(found[0].since, now_ - kReading);
  EXPECT_EQ(found[0].at, now_);
}

TEST_F(DifferTest, ACounterIsToldAtItsLimitAndThenWhenItHasDoubled) {
  Read("symbol_error", 1'000);
  EXPECT_EQ(Told("symbol_error", 1'099), 0u);
  EXPECT_EQ(Told("symbol_error", 1'100), 1u);
  EXPECT_EQ(Told("symbol_error", 1'199), 0u);
  EXPECT_EQ(Told("symbol_error", 1'200), 1u);
  EXPECT_EQ(Told("symbol_error", 1'200), 0u) << "it has not grown";
  EXPECT_EQ(Told("symbol_error", 9'000), 1u);
}

TEST_F(DifferTest, SlowGrowthIsForgotten) {
  Read("symbol_error", 0);
  size_t told = 0;
  for (int64_t value = 1; value <= 2'000; ++value) told += Told("symbol_error", value);
  EXPECT_EQ(told, 0u) << "40 within 10 minutes are below the limit, however many they become";
}

TEST_F(DifferTest, ACounterThatGoesBackIsANewBaseLine) {
  Read("link_downed", 5);
  EXPECT_THAT(Read("link_downed", 0), IsEmpty());
  EXPECT_THAT(Read("link_downed", 0), IsEmpty());
  EXPECT_EQ(Told("link_downed", 1), 1u);
}

TEST_F(DifferTest, AResetCounterHasItsFirstLimitAgain) {
  Read("symbol_error", 0);
  EXPECT_EQ(Told("symbol_error", 50'000), 1u);
  EXPECT_THAT(Read("symbol_error", 0), IsEmpty());
  EXPECT_EQ(Told("symbol_error", 99), 0u);
  EXPECT_EQ(Told("symbol_error", 100), 1u);
}

TEST_F(DifferTest, AResetDoesNotOpenTheDoorToAFlood) {
  Read("link_downed", 0);
  size_t told = 0;
  for (int i = 0; i < 1'000; ++i) told += Told("link_downed", i % 2);
  EXPECT_EQ(told, 2u) << "once more behind the first reset";
}

TEST_F(DifferTest, ALinkThatFlapsIsToldFewTimes) {
  Read("carrier_changes", 0);
  size_t told = 0;
  for (int64_t value = 1; value <= 100'000; ++value) told += Told("carrier_changes", value);
  EXPECT_LE(told, 17u);
  EXPECT_GE(told, 10u);
  EXPECT_EQ(Read("carrier_changes", 100'001).size(), 1u) << "each step may explain an end";
}

TEST_F(DifferTest, AStateThatWasNeverGoodIsNoFact) {
  EXPECT_THAT(Read("state", 0), IsEmpty());
  EXPECT_THAT(Read("state", 0), IsEmpty());
  EXPECT_THAT(Read("state", 1), IsEmpty());
  const std::vector<Found> found = Read("state", 0);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_TRUE(found[0].told);
  EXPECT_EQ(found[0].what, "a link that is down (it was not so before) on mlx5_0 port 1");
}

TEST_F(DifferTest, AStateThatStandsIsToldOnceAndSeenAsLongAsItStands) {
  Read("state", 1);
  const Instant well = now_;
  EXPECT_EQ(Told("state", 0), 1u);
  const std::vector<Found> found = Read("state", 0);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_FALSE(found[0].told);
  EXPECT_EQ(found[0].since, well);
  EXPECT_EQ(found[0].at, well + kReading);
  EXPECT_EQ(found[0].until, now_);
  EXPECT_TRUE(found[0].stands);
  const Instant last = now_;
  const std::vector<Found> over = Read("state", 1);
  ASSERT_EQ(over.size(), 1u);
  EXPECT_TRUE(over[0].over);
  EXPECT_FALSE(over[0].told);
  EXPECT_EQ(over[0].until, last);
  EXPECT_THAT(Read("state", 1), IsEmpty());
}

TEST_F(DifferTest, WhatHoldsForAReadingIsNotToldWhereTwoAreWanted) {
  Read("hw_thermal", 0, "GPU 0");
  EXPECT_EQ(Told("hw_thermal", 1, "GPU 0"), 0u);
  EXPECT_EQ(Told("hw_thermal", 0, "GPU 0"), 0u);
  EXPECT_EQ(Told("hw_thermal", 1, "GPU 0"), 0u);
  EXPECT_EQ(Told("hw_thermal", 1, "GPU 0"), 1u);
  EXPECT_EQ(Told("hw_thermal", 1, "GPU 0"), 0u);
}

TEST_F(DifferTest, EachDeviceHasItsOwnCounter) {
  Read("ecc_uncorrected", 0, "GPU 0");
  Read("ecc_uncorrected", 7, "GPU 1");
  EXPECT_EQ(Told("ecc_uncorrected", 1, "GPU 0"), 1u);
  EXPECT_EQ(Told("ecc_uncorrected", 7, "GPU 1"), 0u);
}

TEST_F(DifferTest, AValueThatIsNotReadStaysAsItWas) {
  Read("link_downed", 1);
  EXPECT_THAT(Compare(differ_, {}, now_ + 1, 0), IsEmpty());
  EXPECT_EQ(Told("link_downed", 2), 1u);
}

TEST_F(DifferTest, AnXidIsToldWithItsMeaning) {
  const std::vector<Found> found = OnXid(differ_, 3, 79, 1, 5'000, 77);
  ASSERT_EQ(found.size(), 1u);
  EXPECT_EQ(found[0].what, "XID 79 (GPU has fallen off the bus) on GPU 3");
  EXPECT_EQ(found[0].fact.sentence(), "XID 79 on GPU 3: GPU has fallen off the bus");
  EXPECT_EQ(found[0].fact.source(), "NVML");
  EXPECT_EQ(found[0].fact.unix_ms(), 77);
  EXPECT_TRUE(found[0].fact.grave());
  EXPECT_TRUE(found[0].told);
  EXPECT_EQ(found[0].since, 5'000);
  EXPECT_FALSE(OnXid(differ_, 0, 31, 1, 5'000, 77)[0].fact.grave());
}

TEST_F(DifferTest, AFloodOfXidsIsToldFewTimes) {
  size_t told = 0;
  for (int i = 0; i < 100'000; ++i) told += OnXid(differ_, 0, 79, 1, i, 0)[0].told ? 1 : 0;
  EXPECT_EQ(told, 17u);
  EXPECT_EQ(OnXid(differ_, 0, 79, INT64_MAX, 0, 0).size(), 1u);
  EXPECT_EQ(OnXid(differ_, 0, 79, INT64_MAX, 0, 0).size(), 1u) << "and sums stay within their bounds";
  EXPECT_TRUE(OnXid(differ_, 1, 79, 1, 0, 0)[0].told) << "another GPU's";
}

TEST_F(DifferTest, MoreValuesThanAnyMachineHasAreNotKept) {
  for (size_t i = 0; i < kMaxTracks + 10; ++i) Told("link_downed", 0, std::to_string(i));
  EXPECT_EQ(differ_.tracks.size(), kMaxTracks);
  EXPECT_THAT(OnXid(differ_, 0, 79, 1, 0, 0), IsEmpty());
}

}  // namespace
}  // namespace phalanx::agent::watch
