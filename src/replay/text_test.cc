#include "replay/text.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <initializer_list>
#include <utility>

namespace phalanx::replay {
namespace {

using ::testing::HasSubstr;

v1::ReplayDecisions Decisions(std::initializer_list<std::pair<const char*, const char*>> all) {
  v1::ReplayDecisions decisions;
  for (const auto& [action, reason] : all) *decisions.add_decisions() = DecisionOf(action, reason);
  return decisions;
}

TEST(ReplayText, AMessageIsOneLine) {
  v1::AgentMessage message;
  message.set_sequence(3);
  message.mutable_leaving()->set_reason("a\nb");
  EXPECT_EQ(OneLine(message), "sequence: 3 leaving { reason: \"a\\nb\" }");
  EXPECT_EQ(OneLine(v1::AgentMessage()), "");
}

TEST(ReplayText, ALongLineIsCutAndEveryByteOfItCounts) {
  const std::string longest(kMaxLineBytes, 'x');
  EXPECT_EQ(Clipped(longest), longest);
  std::string line(2 * kMaxLineBytes, 'x');
  const std::string cut = Clipped(line);
  EXPECT_LT(cut.size(), kMaxLineBytes + 64);
  EXPECT_THAT(cut, HasSubstr(fmt::format("... ({} bytes, CRC-32 ", line.size())));
  line.back() = 'y';
  EXPECT_NE(Clipped(line), cut);
}

TEST(ReplayText, TheFirstDifferenceIsFound) {
  const v1::ReplayDecisions two = Decisions({{"dial", "it joins"}, {"exit", "it is over"}});
  EXPECT_EQ(FirstDifference(two, two), std::nullopt);
  EXPECT_EQ(FirstDifference(two, Decisions({{"dial", "it joins"}, {"exit", "it is late"}})), 1);
  EXPECT_EQ(FirstDifference(two, Decisions({{"wait", "it joins"}, {"exit", "it is over"}})), 0);
  EXPECT_EQ(FirstDifference(two, Decisions({{"dial", "it joins"}})), 1);
  EXPECT_EQ(FirstDifference(Decisions({}), two), 0);
}

}  // namespace
}  // namespace phalanx::replay
