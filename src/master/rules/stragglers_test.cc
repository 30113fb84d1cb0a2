#include "master/rules/stragglers.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

v1::CheckValue Value(const std::string& name, int64_t value, const std::string& unit = "us",
                     v1::CheckValue::Better better = v1::CheckValue::LESS) {
  v1::CheckValue told;
  told.set_name(name);
  told.set_unit(unit);
  told.set_value(value);
  told.set_better(better);
  return told;
}

Measured Node(int64_t matmul_us, int64_t disk_mb_s = 1'000) {
  Measured measured;
  Merge(measured, Value("matmul_time", matmul_us));
  Merge(measured, Value("disk", disk_mb_s, "MB/s", v1::CheckValue::MORE));
  return measured;
}

TEST(Stragglers, TwiceTheMeanOfTheOthersIsSlow) {
  const auto slow = FindSlow(v1::CheckSpec::MEAN, {Node(100'000), Node(110'000), Node(310'000), Node(90'000)});
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].node, 2u);
  EXPECT_THAT(slow[0].why, HasSubstr("3.1 x the mean of the others: 310 ms, most of it matmul_time"));
  // 195 ms beside a mean of 100 ms.
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN, {Node(100'000), Node(100'000), Node(195'000)}), IsEmpty());
}

TEST(Stragglers, OfTwoTheMeanRuleKnowsTheSlower) {
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN, {Node(100'000), Node(250'000)}), SizeIs(1));
}

TEST(Stragglers, WhatWasMeasuredForPeople) {
  EXPECT_EQ(MeasuredText(Node(100'000, 900)), "disk 900 MB/s, matmul_time 100 ms");
  EXPECT_EQ(MeasuredText({}), "nothing");
}

TEST(Stragglers, WhatIsSmallIsNoise) {
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN, {Node(10'000), Node(90'000), Node(10'000)}), IsEmpty());
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEDIAN_DEVIATION, {Node(10'000), Node(90'000), Node(10'000)}), IsEmpty());
}

TEST(Stragglers, OneValueFarFromTheMedianIsSlowByDeviation) {
  const auto slow = FindSlow(v1::CheckSpec::MEDIAN_DEVIATION,
                             {Node(100'000, 1'000), Node(101'000, 990), Node(99'000, 300), Node(100'000, 1'010)});
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].node, 2u);
  EXPECT_EQ(slow[0].why, "disk 300 MB/s, others 1000 MB/s");
  // By the mean of the whole check nobody would have seen it.
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN,
                       {Node(100'000, 1'000), Node(101'000, 990), Node(99'000, 300), Node(100'000, 1'010)}),
              IsEmpty());
}

TEST(Stragglers, DevicesAreMeasuredMoreClosely) {
  std::vector<Measured> nodes = {Node(2'700), Node(2'700), Node(2'690), Node(8'000)};
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEDIAN_DEVIATION, nodes), IsEmpty());
  for (Measured& node : nodes) Merge(node, Value("host_to_device_0", 52'000, "MB/s", v1::CheckValue::MORE));
  const auto slow = FindSlow(v1::CheckSpec::MEDIAN_DEVIATION, nodes);
  ASSERT_THAT(slow, SizeIs(1));
  EXPECT_EQ(slow[0].why, "matmul_time 8000 us, others 2700 us");
}

TEST(Stragglers, ValuesThatAllDifferAreNotSlowByDeviation) {
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEDIAN_DEVIATION,
                       {Node(100'000), Node(150'000), Node(200'000), Node(250'000), Node(310'000)}),
              IsEmpty());
}

TEST(Stragglers, TheBestOfSeveralPartsCounts) {
  Measured node = Node(900'000, 100);
  Merge(node, Value("matmul_time", 100'000));
  Merge(node, Value("disk", 900, "MB/s", v1::CheckValue::MORE));
  Merge(node, Value("clock_offset", 5, "us", v1::CheckValue::NEITHER));
  EXPECT_EQ(CheckTimeUs(node), 100'000);
  EXPECT_EQ(node.at("disk").value(), 900);
  EXPECT_FALSE(node.contains("clock_offset"));
}

TEST(Stragglers, WhatOneAloneHasMeasuredMakesItNotSlow) {
  Measured node = Node(100'000);
  Merge(node, Value("scratch_read", 900'000));
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN, {Node(100'000), node, Node(100'000)}), IsEmpty());
}

TEST(Stragglers, WhoHasMeasuredNothingCountsNot) {
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN, {Node(100'000), Measured(), Node(150'000)}), IsEmpty());
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN, {}), IsEmpty());
  EXPECT_THAT(FindSlow(v1::CheckSpec::MEAN, {Node(500'000)}), IsEmpty());
}

}  // namespace
}  // namespace phalanx::master
