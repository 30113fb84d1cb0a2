#include "agent/watch/kinds.h"

#include <gtest/gtest.h>

#include <fstream>
#include <iterator>
#include <set>
#include <string>

#include "base/test_paths.h"

namespace phalanx::agent::watch {
namespace {

TEST(KindsTest, EachNameIsUsedOnceAndCanBeFound) {
  std::set<std::string_view> names;
  for (const Kind& kind : Kinds()) {
    EXPECT_TRUE(names.insert(kind.name).second) << kind.name;
    EXPECT_EQ(FindKind(kind.name), &kind);
    EXPECT_GE(kind.limit, 1) << kind.name;
    EXPECT_LE(kind.kind.size(), 32u) << "the master's door cuts it";
  }
  EXPECT_EQ(FindKind("no such counter"), nullptr);
  EXPECT_EQ(FindKind(""), nullptr);
}

TEST(KindsTest, OfAGraveCounterEachStepIsWorthAWord) {
  for (const Kind& kind : Kinds()) {
    if (!kind.grave) continue;
    EXPECT_EQ(kind.limit, 1) << kind.name << " would explain an end that nobody has heard of";
    EXPECT_LT(Weight(kind.kind), Weight("no such kind")) << kind.kind;
  }
}

TEST(KindsTest, WhichXidsAreGrave) {
  const struct {
    int64_t number;
    bool grave;
  } cases[] = {{13, false}, {31, false}, {43, false}, {45, false}, {48, true},    {61, false}, {62, true},
               {63, true},  {64, true},  {74, true},  {79, true},  {92, true},    {94, true},  {95, true},
               {119, true}, {120, true}, {0, false},  {1, false},  {1'023, false}};
  for (const auto& c : cases) EXPECT_EQ(XidOf(c.number).grave, c.grave) << c.number;
  EXPECT_EQ(XidOf(79).meaning, "GPU has fallen off the bus");
  EXPECT_NE(XidOf(999).meaning, "") << "an unknown one says that it is";
}

TEST(KindsTest, XidsStandInOrderAndWithinBounds) {
  int64_t before = 0;
  for (const Xid& xid : Xids()) {
    EXPECT_GT(xid.number, before);
    EXPECT_LE(xid.number, kMaxXid);
    before = xid.number;
  }
}

TEST(KindsTest, AnXidExplainsMoreThanALink) {
  EXPECT_LT(Weight("xid"), Weight("ecc"));
  EXPECT_LT(Weight("ecc"), Weight("link"));
  EXPECT_LT(Weight("link"), Weight("disk"));
}

TEST(KindsTest, ThePageForPeopleHasThisTable) {
  std::ifstream file(SourceDir() + "/docs/node-health.md");
  const std::string page((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  ASSERT_FALSE(page.empty());
  EXPECT_NE(page.find(TableForPeople()), std::string::npos) << TableForPeople();
}

}  // namespace
}  // namespace phalanx::agent::watch
