#include "master/record/recent_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

namespace phalanx::master {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;

constexpr const char* kOwn = R"({"exit_code":0,"signal":9})";
constexpr const char* kCollateral = R"({"exit_code":1,"signal":0,"collateral":1})";
constexpr const char* kWell = R"({"exit_code":0,"signal":0})";
constexpr const char* kSpare = R"({"silent_ms":3000})";
constexpr const char* kMember = R"({"broke_round":1,"silent_ms":3000})";

class RecentRowsTest : public ::testing::Test {
 protected:
  RowWeight Add(const std::string& kind, uint64_t epoch, const std::string& detail = "{}") {
    const RecordRow row = {++id_, 0, epoch, kind, "", -1, "", detail};
    return rows_.Add(row, SortOf(row));
  }
  void AddMany(size_t count, const std::string& kind, uint64_t epoch, const std::string& detail = "{}") {
    for (size_t i = 0; i < count; ++i) Add(kind, epoch, detail);
  }
  std::set<int64_t> Ids() const {
    std::set<int64_t> ids;
    for (const RecordRow* row : rows_.After(0, SIZE_MAX)) ids.insert(row->id);
    return ids;
  }

  RecentRows rows_;
  int64_t id_ = 0;
};

TEST_F(RecentRowsTest, AFloodDoesNotPushOutTheStory) {
  Add("round-started", 1);
  AddMany(10'000, "first-step", 1);
  AddMany(80'000, "worker-exited", 1, kCollateral);
  Add("worker-exited", 1, kOwn);  // the dead one's report comes behind those of its victims
  const int64_t cause = id_;
  Add("round-started", 2);
  const int64_t turn = id_;
  AddMany(10'000, "first-step", 2);
  EXPECT_THAT(Ids(), Contains(1));
  EXPECT_THAT(Ids(), Contains(cause));
  EXPECT_THAT(Ids(), Contains(turn));
  EXPECT_THAT(Ids(), Contains(id_)) << "the newest";
}

TEST_F(RecentRowsTest, TheLossThatBrokeARoundTellsBehindThoseOfSpares) {
  AddMany(10'000, "node-lost", 1, kSpare);
  EXPECT_EQ(Add("node-lost", 1, kMember), RowWeight::kTelling);
  const int64_t cause = id_;
  AddMany(10'000, "node-lost", 1, kSpare);
  EXPECT_THAT(Ids(), Contains(cause));
}

TEST_F(RecentRowsTest, IsBoundedWhateverComes) {
  for (uint64_t epoch = 1; epoch <= 1'000; ++epoch) {
    for (const char* kind : {"round-started", "node-joined", "first-step", "stale-report"}) AddMany(40, kind, epoch);
  }
  EXPECT_EQ(rows_.size(), 2 * RecentRows::kHeldOfWeight);
}

TEST_F(RecentRowsTest, TheFirstOfEachSortAndRoundTell) {
  for (size_t i = 0; i < RecentRows::kTellingOfSort; ++i) EXPECT_EQ(Add("first-step", 1), RowWeight::kTelling);
  EXPECT_EQ(Add("first-step", 1), RowWeight::kFurther);
  EXPECT_EQ(Add("node-joined", 1), RowWeight::kTelling) << "another kind";
  EXPECT_EQ(Add("first-step", 2), RowWeight::kTelling) << "another round";
  EXPECT_EQ(Add("first-step", 1), RowWeight::kFurther) << "late news of a round";
}

TEST_F(RecentRowsTest, RoundsLongAgoAreNotCountedAnew) {
  for (uint64_t epoch = 10; epoch < 10 + RecentRows::kRoundsCounted; ++epoch) Add("round-started", epoch);
  EXPECT_EQ(Add("first-step", 9), RowWeight::kFurther);
  EXPECT_EQ(Add("first-step", 10), RowWeight::kTelling);
  Add("round-started", 10 + RecentRows::kRoundsCounted);
  EXPECT_EQ(Add("first-step", 10), RowWeight::kFurther);
}

TEST_F(RecentRowsTest, AreGivenByIdInPages) {
  AddMany(100, "first-step", 1);
  Add("round-stepping", 1);
  const auto ids = [this](int64_t after, size_t limit) {
    std::vector<int64_t> found;
    for (const RecordRow* row : rows_.After(after, limit)) found.push_back(row->id);
    return found;
  };
  EXPECT_THAT(ids(0, 3), ElementsAre(1, 2, 3));
  EXPECT_THAT(ids(14, 4), ElementsAre(15, 16, 17, 18)) << "of either weight";
  EXPECT_THAT(ids(99, 10), ElementsAre(100, 101));
  EXPECT_THAT(ids(101, 10), ElementsAre());
}

TEST(SortOf, TellsEndsAndDeparturesApart) {
  struct Case {
    const char* kind;
    const char* detail;
    const char* sort;
  };
  const Case cases[] = {
      {"first-step", kCollateral, "first-step"},
      {"worker-exited", kOwn, "worker-exited"},
      {"worker-exited", R"({"exit_code":3,"signal":0,"last_words":"\"collateral\":1"})", "worker-exited"},
      {"worker-exited", kCollateral, "worker-exited, collateral"},
      {"worker-exited", kWell, "worker-exited, well"},
      {"worker-exited", "no json", "worker-exited"},
      {"worker-exited", "[]", "worker-exited"},
      {"node-lost", kSpare, "node-lost"},
      {"node-lost", kMember, "node-lost, broke the round"},
      {"node-left", R"({"broke_round":0})", "node-left"},
      {"node-left", kMember, "node-left, broke the round"},
      {"node-left", "no json", "node-left"},
      {"node-joined", kMember, "node-joined"},
  };
  for (const Case& c : cases) EXPECT_EQ(SortOf({1, 0, 1, c.kind, "", -1, "", c.detail}), c.sort) << c.detail;
}

}  // namespace
}  // namespace phalanx::master
