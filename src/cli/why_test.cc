// Why a world of 10,000 nodes was restarted: told from what a live master remembers, from its record, and by the master
// behind it, though each of these rounds writes more rows than are remembered.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cli/report.h"
#include "cli/rows.h"
#include "master/core/job_fixture.h"
#include "master/record/record.h"
#include "master/serve/record_keeper.h"

namespace phalanx::cli {
namespace {

using ::testing::HasSubstr;

constexpr uint32_t kNodes = 10'000;
constexpr uint32_t kRanksOfNode = 8;
constexpr uint32_t kGroupRank = 4'711;
constexpr uint32_t kLocalRank = 3;
constexpr uint32_t kVictims = 5'000;

// All nodes train, one rank is killed, others report that a peer was gone, and all nodes train again.
class LargeJob : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    master::JobFixture job(kNodes, kNodes, /*max_restarts=*/3);
    for (uint32_t i = 0; i < kNodes; ++i) job.Attach(fmt::format("n{}", i), kRanksOfNode);
    job.AllStep();
    const std::vector<uint64_t> ranks = job.Ranks();
    ASSERT_EQ(ranks.size(), kNodes);
    job.Exit(ranks[0], master::JobFixture::Collateral(0));  // it is heard of before the dead one
    job.Kill(ranks[kGroupRank], kLocalRank, 1);
    for (uint32_t i = 1; i < kVictims; ++i) {
      if (i != kGroupRank) job.Exit(ranks[i], master::JobFixture::Collateral(0), 1);
    }
    job.AllStep();
    ASSERT_EQ(job.Epoch(), 2U);
    records_ = new Records(std::move(job.records));
  }
  static void TearDownTestSuite() {
    delete records_;
    records_ = nullptr;
  }

  void SetUp() override {
    folder_ = fmt::format("{}phalanx-why-test-{}", ::testing::TempDir(), getpid());
    std::filesystem::create_directories(folder_);
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static void Tell(master::RecordKeeper& keeper) {
    for (const auto& [record, reason] : *records_) keeper.Add(record, reason);
  }
  void Open(master::RecordKeeper& keeper, bool resume) const {
    keeper.Open(folder_ + "/events.db", {0, "m", "job", "", keeper.UnixNow(), 0}, resume, "");
  }

  // As a command asks a live master.
  static std::vector<Row> Ask(const master::RecordKeeper& keeper) {
    std::vector<Row> rows;
    while (true) {
      const v1::EventsReply reply = keeper.After(rows.empty() ? 0 : rows.back().id, 1'024);
      if (reply.events().empty()) return rows;
      for (const v1::EventRecord& e : reply.events()) {
        rows.push_back({e.id(), e.unix_ms(), e.epoch(), e.kind(), e.node(), e.rank(), e.reason(), e.detail_json()});
      }
    }
  }
  std::vector<Row> ReadRecord() const {
    auto reader = master::RecordReader::Open(folder_ + "/events.db");
    EXPECT_TRUE(reader.ok()) << reader.status();
    // A busy disk may hold its writer up for longer than Close() waits.
    const int64_t end_ms = MonotonicMs() + 60'000;
    auto run = reader->LastRun("job");
    while (run.ok() && *run && (*run)->ended_unix_ms == 0 && MonotonicMs() < end_ms) run = reader->LastRun("job");
    return *reader->LastRows((*run)->run, 1'000'000);
  }

  static void ExpectTheCauseIn(const std::vector<Row>& rows) {
    const StatusOr<Story> story = TellStory(rows, std::nullopt);
    ASSERT_TRUE(story.ok()) << story.status();
    EXPECT_EQ(story->turn->epoch, 2U);
    ASSERT_NE(story->first_cause, nullptr);
    EXPECT_EQ(story->first_cause->rank, kGroupRank * kRanksOfNode + kLocalRank);
    EXPECT_THAT(StoryText(*story, {}, 0), HasSubstr("first cause: rank 37691 died (SIGKILL) on node n4711"));
  }

  using Records = std::vector<std::pair<master::Record, std::string>>;
  static Records* records_;
  std::string folder_;
};
LargeJob::Records* LargeJob::records_ = nullptr;

TEST_F(LargeJob, ALiveMasterTellsTheCause) {
  master::RecordKeeper keeper(1'000);
  Tell(keeper);
  const std::vector<Row> rows = Ask(keeper);
  ExpectTheCauseIn(rows);
  EXPECT_GT(records_->size(), 30'000U) << "it remembers all of so few: nothing is shown";
  EXPECT_EQ(MissingRows(rows), static_cast<int64_t>(records_->size() - rows.size()));
  EXPECT_LE(rows.size(), 2 * master::RecentRows::kHeldOfWeight);
}

TEST_F(LargeJob, TheRecordAndTheNextMasterTellTheCause) {
  {
    master::RecordKeeper keeper(1'000);
    Open(keeper, false);
    Tell(keeper);  // faster than any job could: what the disk does not take is counted
    keeper.Close();
  }
  const std::vector<Row> rows = ReadRecord();
  ExpectTheCauseIn(rows);
  int64_t lost = 0;
  for (const Row& row : rows) lost += row.kind == "record-lost" ? NumberIn(Detail(row), "count") : 0;
  EXPECT_EQ(MissingRows(rows), lost);

  master::RecordKeeper next(2'000);
  Open(next, true);
  ExpectTheCauseIn(Ask(next));
  next.Close();
}

}  // namespace
}  // namespace phalanx::cli
