#include "master/serve/record_keeper.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

#include "master/record/lost_rows.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;

RecordRow Told(int64_t id) { return {id, 10 * id, 1, "first-step", "", -1, "", "{}"}; }

class RecordKeeperTest : public ::testing::Test {
 protected:
  void SetUp() override {
    folder_ = fmt::format("{}phalanx-record-keeper-test-{}", ::testing::TempDir(), getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  void WriteEarlierRows(const std::vector<RecordRow>& rows) const {
    RecordWriter writer(Path(), {0, "m", "job", "", 1, 0}, 1, [](const std::string&) {});
    for (const RecordRow& row : rows) writer.Append(row, RowWeight::kTelling);
    ASSERT_TRUE(writer.Close(10'000));
  }
  // Of what a master that takes the job up remembers, once it has written a row.
  std::vector<int64_t> IdsOfTheNextMaster() const {
    RecordKeeper keeper(1'000);
    keeper.Open(Path(), {0, "n", "job", "", 1'000, 0}, /*resume=*/true, /*before_id=*/"");
    Record resumed;
    resumed.kind = "master-resumed";
    keeper.Add(resumed, "a new master");
    keeper.Close();
    std::vector<int64_t> ids;
    const v1::EventsReply reply = keeper.After(0, 1'000);
    for (const v1::EventRecord& event : reply.events()) ids.push_back(event.id());
    return ids;
  }
  std::string Path() const { return folder_ + "/events.db"; }

  std::string folder_;
};

TEST_F(RecordKeeperTest, GoesOnBehindTheRowsOfTheMasterBefore) {
  WriteEarlierRows({Told(1), Told(2)});
  EXPECT_THAT(IdsOfTheNextMaster(), ElementsAre(1, 2, 3));
}

TEST_F(RecordKeeperTest, GoesOnBehindTheRowsThatTheRecordLost) {
  WriteEarlierRows({Told(1), LostRow(2, 5, 20)});
  EXPECT_THAT(IdsOfTheNextMaster(), ElementsAre(1, 2, 7)) << "2 to 6 were lost";
}

// A row's sort is known from what was decided, before it is text.
TEST_F(RecordKeeperTest, RemembersTheOwnDeathAmongThoseOfVictims) {
  RecordKeeper keeper(1'000);
  const auto add = [&keeper](const std::string& node, bool collateral, int times) {
    Record exited{"worker-exited", 1, node, 0, {{"exit_code", int64_t{1}}, {"signal", int64_t{0}}}};
    if (collateral) exited.detail.push_back({"collateral", int64_t{1}});
    for (int i = 0; i < times; ++i) keeper.Add(exited, "rank 0 failed");
  };
  constexpr int kFlood = 2 * static_cast<int>(RecentRows::kHeldOfWeight);
  add("victim", true, kFlood);
  add("cause", false, 1);
  add("victim", true, kFlood);
  std::vector<std::string> causes;
  const v1::EventsReply reply = keeper.After(0, 100'000);
  for (const v1::EventRecord& event : reply.events()) {
    if (event.node() != "victim") causes.push_back(event.node());
  }
  EXPECT_THAT(causes, ElementsAre("cause"));
}

}  // namespace
}  // namespace phalanx::master
