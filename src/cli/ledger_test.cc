#include "cli/ledger.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <time.h>

#include <algorithm>
#include <array>
#include <fstream>
#include <numeric>
#include <sstream>

#include "base/test_paths.h"
#include "master/core/convert.h"
#include "master/core/test_random_life.h"

namespace phalanx::cli {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using Row = master::RecordRow;

constexpr int64_t kBegin = 1'000;

// Rows as a master writes them; times are since the beginning.
class Rows {
 public:
  explicit Rows(int64_t begin = kBegin) : begin_(begin) {}
  Rows& Add(int64_t at_ms, uint64_t epoch, const std::string& kind, const std::string& reason,
            const std::string& detail = "{}", const std::string& node = "", int64_t rank = -1) {
    const int64_t id = static_cast<int64_t>(view.rows.size()) + 1;
    view.rows.push_back({id, begin_ + at_ms, epoch, kind, node, rank, reason, detail});
    return *this;
  }
  Rows& Start(int64_t at_ms, uint64_t epoch, const std::string& why, int64_t ranks = 4) {
    return Add(at_ms, epoch, "round-started", why, fmt::format(R"({{"world_size":{}}})", ranks));
  }
  Rows& Stepping(int64_t at_ms, uint64_t epoch, int64_t saving_ms = 0) {
    Add(at_ms, epoch, "first-step", "all ranks of node a have made their first step");
    return Add(at_ms, epoch, "round-stepping", "world trains", fmt::format(R"({{"saving_ms":{}}})", saving_ms));
  }
  Rows& Kill(int64_t at_ms, uint64_t epoch, int64_t rank) {
    return Add(at_ms, epoch, "worker-exited", fmt::format("rank {} died (SIGKILL) on node b", rank), R"({"signal":9})",
               "b", rank);
  }
  Rows& Finish(int64_t at_ms, uint64_t epoch, int code) {
    view.status.set_phase("finished");
    view.status.set_exit_code(code);
    return Add(at_ms, epoch, "job-finished", "the end", fmt::format(R"({{"exit_code":{}}})", code));
  }
  Ledger Make(int64_t now_ms = 0) {
    view.status.set_job_id("job7");
    view.status.set_started_unix_ms(begin_);
    return MakeLedger(view, begin_ + now_ms);
  }

  JobView view;

 private:
  const int64_t begin_;
};

// In the order of Cause: training, saving, redoing, recovering, waiting, starting, ending. Of a job that never stalled.
std::array<int64_t, kCauses - 1> Times(const Ledger& ledger) {
  EXPECT_EQ(ledger.Of(Cause::kStalled), 0);
  std::array<int64_t, kCauses - 1> times = {};
  std::copy_n(ledger.ms.begin(), times.size(), times.begin());
  return times;
}

// A job of four ranks: 100 ms of gathering, 400 of starting, steps from 500 on; rank 1 dies at 10,000, and training has
// gone on from 10,200, behind step 40 of 50, until 12,000.
Rows Killed() {
  Rows rows;
  rows.Start(100, 1, "all 2 nodes are there").Stepping(500, 1);
  rows.Add(500, 1, "steps-told", "training begins behind step 0", R"({"from_step":0})");
  rows.Kill(10'000, 1, 1).Start(10'000, 2, "rank 1 died (SIGKILL) on node b, restart 1 of 3");
  rows.Add(10'200, 2, "steps-told", "again", R"({"from_step":40,"last_step":50,"highest_step":50})");
  rows.Stepping(10'200, 2);
  rows.Add(12'900, 2, "caught-up", "as far as before", R"({"ms_ago":900,"saving_ms":0})");
  return rows;
}

TEST(Ledger, BooksAFailureAndTheStepsDoneAgain) {
  const Ledger ledger = Killed().Finish(20'000, 2, 0).Add(20'100, 0, "master-stopped", "the end").Make();
  EXPECT_THAT(Times(ledger), ElementsAre(9'500 + 8'000, 0, 1'800, 200, 100, 400, 100));
  EXPECT_EQ(ledger.end_unix_ms - ledger.begin_unix_ms, 20'100);
  ASSERT_EQ(ledger.incidents.size(), 1U);
  const Incident& incident = ledger.incidents[0];
  EXPECT_EQ(incident.unix_ms, kBegin + 10'000);
  EXPECT_EQ(incident.epoch, 1U);
  EXPECT_EQ(incident.rank, 1);
  EXPECT_EQ(incident.node, "b");
  EXPECT_EQ(incident.recovering_ms, 200);
  EXPECT_EQ(incident.redoing_ms, 1'800);
  EXPECT_EQ(incident.steps_lost, 10);
  EXPECT_EQ(incident.rank_ms, 4 * 2'000);
  EXPECT_FALSE(incident.ended_job);
  EXPECT_TRUE(ledger.notes.empty());
}

TEST(Ledger, TellsItToPeopleAndPrograms) {
  Rows rows = Killed().Finish(20'000, 2, 0);
  const Ledger ledger = rows.Make();
  const std::string text = LedgerText(rows.view, ledger);
  EXPECT_THAT(text, AllOf(HasSubstr("job job7: finished\n"), HasSubstr("20.000 s, goodput 87.5 %\n")));
  EXPECT_THAT(text, HasSubstr("training           17.500 s  87.5 %\n"));
  EXPECT_THAT(text, HasSubstr("waiting for nodes  0.100 s   0.5 %\n"));
  EXPECT_THAT(text, HasSubstr("0.200 s     0.000 s  1.800 s  10          8.000 s    -              rank 1 died"));
  EXPECT_THAT(text, Not(HasSubstr("first cause")));
  const std::string json = LedgerJson(rows.view, ledger);
  EXPECT_THAT(json, AllOf(HasSubstr("\"waiting_ms\": 100"), HasSubstr("\"goodput_permille\": 875")));
  EXPECT_THAT(json, AllOf(HasSubstr("\"noticed_ms\": null"), HasSubstr("\"steps_lost\": 10")));
}

TEST(Ledger, WhatANewMasterHearsOnceMoreChangesNothing) {
  Rows rows = Killed();
  const Row told = *std::find_if(rows.view.rows.begin(), rows.view.rows.end(),
                                 [](const Row& row) { return row.kind == "steps-told" && row.epoch == 2; });
  const Row caught_up = rows.view.rows.back();
  ASSERT_EQ(caught_up.kind, "caught-up");
  rows.Stepping(15'000, 2);
  rows.Add(15'000, 2, told.kind, told.reason, R"({"from_step":90,"last_step":200,"highest_step":200})");
  rows.Add(15'100, 2, caught_up.kind, caught_up.reason, R"({"ms_ago":0,"saving_ms":0})");
  EXPECT_EQ(Times(rows.Finish(20'000, 2, 0).Make()), Times(Killed().Finish(20'000, 2, 0).Make()));
}

TEST(Ledger, ALiveJobCountsUpToNow) {
  Rows rows = Killed();
  rows.view.live = true;
  rows.view.rows.pop_back();  // not caught up yet
  EXPECT_THAT(Times(rows.Make(11'000)), ElementsAre(9'500, 0, 800, 200, 100, 400, 0));
  rows.view.status.set_epoch(2);
  rows.view.status.set_saving_ms(300);
  EXPECT_THAT(Times(rows.Make(11'000)), ElementsAre(9'500, 300, 500, 200, 100, 400, 0));
  EXPECT_THAT(LedgerText(rows.view, rows.Make(11'000)), HasSubstr("(now)"));
  // The master has heard of a failure, and has not decided yet.
  rows.Kill(11'000, 2, 3);
  const Ledger blaming = rows.Make(11'400);
  EXPECT_THAT(Times(blaming), ElementsAre(9'500, 300, 500, 600, 100, 400, 0));
  EXPECT_EQ(blaming.incidents.back().rank, 3);
}

TEST(Ledger, AKilledMastersRecordCountsUpToItsLastRow) {
  Rows rows = Killed();
  rows.view.status.set_phase("unfinished");
  EXPECT_EQ(rows.Make().end_unix_ms, kBegin + 12'900);
  EXPECT_THAT(Times(rows.Make()), ElementsAre(9'500 + 900, 0, 1'800, 200, 100, 400, 0));
  EXPECT_THAT(LedgerText(rows.view, rows.Make()), HasSubstr("up to its last row"));
}

TEST(Ledger, AStallIsNoTraining) {
  Rows rows = Killed();
  rows.Add(14'000, 2, "stalled", "no step for 1 s", R"({"silent_ms":1000})").Add(15'500, 2, "stall-over", "on");
  Rows ended = rows;
  ended.Finish(20'000, 2, 0);
  EXPECT_EQ(ended.Make().Of(Cause::kStalled), 2'500);
  EXPECT_EQ(ended.Make().Of(Cause::kTraining), 9'500 + 8'000 - 2'500);
  // The last work of ranks behind others is none, and what ends it does not make an earlier one longer.
  Rows behind = rows;
  behind.Add(18'000, 2, "stalled-behind-end", "", R"({"silent_ms":1000})").Add(19'000, 2, "stall-over", "on");
  EXPECT_EQ(behind.Finish(20'000, 2, 0).Make().Of(Cause::kStalled), 2'500);
  // One that nothing but a restart has ended counts up to that.
  rows.Add(17'000, 2, "stalled", "no step for 1 s", R"({"silent_ms":1000})").Kill(30'000, 2, 1);
  rows.Start(30'000, 3, "rank 1 died (SIGKILL) on node b, restart 2 of 3").Finish(30'500, 3, 1);
  EXPECT_EQ(rows.Make().Of(Cause::kStalled), 2'500 + 14'000);
}

TEST(Ledger, AHangThatWasEndedIsNoTrainingEither) {
  for (const bool told : {false, true}) {
    Rows rows = Killed();
    if (told) rows.Add(16'500, 2, "stalled", "no step for 1 s", R"({"silent_ms":1500})");
    rows.Add(18'000, 2, "hang", "no step for 3 s", R"({"silent_ms":3000})").Finish(18'000, 2, 1);
    EXPECT_EQ(rows.Make().Of(Cause::kStalled), 3'000);
  }
}

TEST(Ledger, SavesAreTakenFromTheTimeTheyWereMadeIn) {
  Rows rows = Killed();
  rows.view.rows.back().detail_json = R"({"ms_ago":900,"saving_ms":700})";
  rows.Add(20'000, 2, "saving", "waited", R"({"saving_ms":1700})").Finish(20'000, 2, 0);
  // What was saved before the first step is a part of that time.
  rows.view.rows[2].detail_json = R"({"saving_ms":150})";
  rows.Add(20'050, 1, "saving", "late words of the first round", R"({"saving_ms":650})");
  EXPECT_THAT(Times(rows.Make()), ElementsAre(9'000 + 7'000, 500 + 700 + 1'000, 1'100, 200, 100, 400, 50));
}

TEST(Ledger, ANodeThatFellSilentIsGoneSinceItWasHeardLast) {
  Rows rows;
  rows.Start(0, 1, "all 2 nodes are there").Stepping(500, 1);
  rows.Add(6'000, 1, "node-left", "node spare left (SIGTERM)", "{}", "spare");  // and nobody minded
  const std::string what = "node b was lost (silent for 3.0 s)";
  rows.Add(10'000, 1, "node-lost", what, R"({"silent_ms":3000,"broke_round":1})", "b");
  rows.Add(10'000, 1, "round-held", what + ": 1 of at least 2 nodes left");
  rows.Add(14'000, 1, "node-joined", "node c joined", "{}", "c").Start(14'300, 2, "node c joined").Stepping(14'500, 2);
  const Ledger ledger = rows.Finish(15'000, 2, 0).Make();
  EXPECT_THAT(Times(ledger), ElementsAre(6'500 + 500, 0, 0, 3'200, 4'300, 500, 0));
  ASSERT_EQ(ledger.incidents.size(), 1U);
  EXPECT_EQ(ledger.incidents[0].unix_ms, kBegin + 7'000);
  EXPECT_EQ(ledger.incidents[0].noticed_ms, 3'000);
  EXPECT_EQ(ledger.incidents[0].node, "b");
  EXPECT_EQ(ledger.incidents[0].waiting_ms, 4'300);
  EXPECT_EQ(ledger.incidents[0].rank_ms, 4 * 7'500);
}

TEST(Ledger, BlamesTheDeadEvenWhereTheVictimWasFaster) {
  Rows rows;
  rows.Start(0, 1, "all 2 nodes are there").Stepping(500, 1);
  const std::string victim = R"({"exit_code":1,"collateral":1})";
  rows.Add(1'000, 1, "worker-exited", "rank 0 failed (exit code 1) on node a, as a peer was gone", victim, "a", 0);
  rows.Start(1'000, 2, "rank 0 failed (exit code 1) on node a, restart 1 of 3").Kill(1'002, 1, 1).Stepping(1'100, 2);
  const Ledger ledger = rows.Make();
  ASSERT_EQ(ledger.incidents.size(), 1U);
  EXPECT_EQ(ledger.incidents[0].rank, 1);
  EXPECT_EQ(ledger.incidents[0].unix_ms, kBegin + 1'000);
  EXPECT_THAT(LedgerText(rows.view, ledger), HasSubstr("first cause: rank 1 died (SIGKILL) on node b"));
}

TEST(Ledger, AFailureOfARecoveryIsAnIncidentOfItsOwn) {
  Rows rows = Killed();
  rows.view.rows.erase(rows.view.rows.begin() + 6, rows.view.rows.end());
  rows.Kill(10'150, 2, 3).Start(10'150, 3, "rank 3 died (SIGKILL) on node b, restart 2 of 3");
  rows.Add(10'400, 3, "steps-told", "again", R"({"from_step":40,"last_step":50,"highest_step":50})");
  rows.Stepping(10'400, 3).Add(11'400, 3, "caught-up", "as far as before", R"({"ms_ago":0,"saving_ms":0})");
  const Ledger ledger = rows.Make();
  ASSERT_EQ(ledger.incidents.size(), 2U);
  EXPECT_EQ(ledger.incidents[0].recovering_ms, 150);
  EXPECT_EQ(ledger.incidents[1].recovering_ms, 250);
  // The first cost the steps; the second came before there were any.
  EXPECT_EQ(ledger.incidents[0].steps_lost, 10);
  EXPECT_EQ(ledger.incidents[0].redoing_ms, 1'000);
  EXPECT_EQ(ledger.incidents[1].steps_lost, 0);
  EXPECT_EQ(ledger.incidents[1].redoing_ms, 0);
}

TEST(Ledger, TheFailureThatEndsAJobIsFollowedByItsEnd) {
  Rows rows = Killed();
  rows.Kill(19'000, 2, 3).Finish(20'000, 2, 1).Add(20'500, 0, "master-stopped", "the end");
  const Ledger ledger = rows.Make();
  EXPECT_EQ(ledger.Of(Cause::kEnding), 1'500);
  ASSERT_EQ(ledger.incidents.size(), 2U);
  EXPECT_TRUE(ledger.incidents[1].ended_job);
  EXPECT_EQ(ledger.incidents[1].recovering_ms, 0);
}

TEST(Ledger, TimesThatGoBackCountNothing) {
  Rows rows = Killed().Finish(20'000, 2, 0);
  rows.view.rows[3].unix_ms = kBegin - 5'000;  // an older version's row, after its clock was set back
  const Ledger ledger = rows.Make();
  EXPECT_EQ(std::accumulate(ledger.ms.begin(), ledger.ms.end(), int64_t{0}), 20'000);
  EXPECT_EQ(ledger.begin_unix_ms, kBegin);
  for (const size_t i : {4, 5}) rows.view.rows[i].unix_ms = kBegin - 5'000;  // the failure and the round after it
  const Ledger failure = rows.Make();
  EXPECT_EQ(failure.incidents[0].unix_ms, kBegin + 500);
  EXPECT_EQ(std::accumulate(failure.ms.begin(), failure.ms.end(), int64_t{0}), 20'000);
}

TEST(Ledger, SaysWhatItDoesNotKnow) {
  Rows stepless;
  stepless.Start(100, 1, "the job's node is there").Finish(5'000, 1, 0);
  EXPECT_EQ(stepless.Make().Of(Cause::kTraining), 4'900);
  EXPECT_THAT(stepless.Make().notes, ElementsAre(HasSubstr("no step was seen")));
  Rows lost = Killed();
  lost.Add(13'000, 0, "record-lost", "7 rows of this record were lost, from here on", R"({"count":7})");
  EXPECT_THAT(lost.Make().notes, ElementsAre(HasSubstr("7 rows")));
  Rows empty;
  EXPECT_THAT(LedgerText(empty.view, empty.Make()), HasSubstr("goodput 0.0 %"));
}

// docs/ledger.md shows what this job's ledger is.
TEST(Ledger, TheManualShowsWhatIsPrinted) {
  tm nine{};  // in the morning, wherever this runs
  nine.tm_year = 126;
  nine.tm_mon = 10;
  nine.tm_mday = 21;
  nine.tm_hour = 9;
  Rows rows(int64_t{mktime(&nine)} * 1'000);
  rows.Start(312, 1, "all 2 nodes are there", 16).Stepping(9'480, 1);
  rows.Add(9'480, 1, "steps-told", "training begins behind step 0", R"({"from_step":0})");
  rows.Kill(2'400'000, 1, 11).Add(2'400'000, 1, "saving", "waited", R"({"saving_ms":8200})");
  rows.Start(2'400'001, 2, "rank 11 died (SIGKILL) on node b, restart 1 of 3", 16);
  rows.Add(2'400'950, 2, "steps-told", "again", R"({"from_step":5000,"last_step":5312,"highest_step":5312})");
  rows.Stepping(2'401'113, 2).Add(2'527'000, 2, "caught-up", "", R"({"ms_ago":412,"saving_ms":0})");
  const std::string what = "node b was lost (silent for 3.0 s)";
  rows.Add(5'000'000, 2, "node-lost", what, R"({"silent_ms":3000,"broke_round":1})", "b");
  rows.Add(5'000'000, 2, "saving", "waited", R"({"saving_ms":9100})");
  rows.Add(5'000'000, 2, "round-held", what + ": 1 of at least 2 nodes left, waiting up to 600 s for more");
  rows.Start(5'042'700, 3, "node c joined: all 2 nodes are there", 16);
  rows.Add(5'044'000, 3, "steps-told", "again", R"({"from_step":11000,"last_step":11070,"highest_step":11070})");
  rows.Stepping(5'044'120, 3).Add(5'073'000, 3, "caught-up", "", R"({"ms_ago":550,"saving_ms":0})");
  rows.Add(7'201'000, 3, "saving", "waited", R"({"saving_ms":7900})");
  const Ledger ledger = rows.Finish(7'201'000, 3, 0).Add(7'201'140, 0, "master-stopped", "the end").Make();
  std::ifstream file(SourceDir() + "/docs/ledger.md");
  const std::string manual((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  std::string shown = "    $ phalanx ledger job7\n";
  std::istringstream text(LedgerText(rows.view, ledger));
  for (std::string line; std::getline(text, line);) shown += line.empty() ? "\n" : fmt::format("    {}\n", line);
  EXPECT_THAT(manual, HasSubstr(shown));
}

// What version 0.1.0 wrote before there was a ledger: a node joins, then a rank is killed.
TEST(Ledger, ReadsRecordsFromBeforeItsTime) {
  Rows rows;
  rows.Add(0, 0, "master-started", "Phalanx 0.1.0 serves job 'a' at 127.0.0.1:37577", R"({"port":37577})");
  rows.Add(5, 0, "node-joined", "node 127.0.0.1 joined (1 rank)",
           R"({"address":"127.0.0.1","hostname":"vm","workers":1})", "127.0.0.1");
  rows.Add(307, 1, "round-started", "1 of 1:2 nodes is there",
           R"({"because":"start","world_size":1,"nodes":1,"members":"127.0.0.1","store":"127.0.0.1 port 43833",)"
           R"("restart_count":0,"restarts_left":3})");
  rows.Add(3'902, 1, "first-step", "all ranks of node 127.0.0.1 have made their first step",
           R"({"step":1,"since_round_ms":3595})", "127.0.0.1");
  rows.Add(3'902, 1, "round-stepping", "world 1 trains: first step on all nodes 3595 ms after the round began",
           R"({"step":1,"since_round_ms":3595})");
  rows.Add(3'969, 1, "node-joined", "node 127.0.0.2 joined (1 rank)",
           R"({"address":"127.0.0.2","hostname":"vm","workers":1})", "127.0.0.2");
  rows.Add(8'304, 1, "node-ready", "node 127.0.0.2 is ready to start", "{}", "127.0.0.2");
  rows.Add(8'304, 2, "round-started", "node 127.0.0.2 joined: 1 -> 2 nodes",
           R"({"because":"nodes","world_size":2,"nodes":2,"members":"127.0.0.1, 127.0.0.2",)"
           R"("store":"127.0.0.1 port 38089","restart_count":1,"restarts_left":3})");
  rows.Add(8'475, 2, "first-step", "all ranks of node 127.0.0.2 have made their first step",
           R"({"step":1,"since_round_ms":172})", "127.0.0.2");
  rows.Add(8'475, 2, "round-stepping", "world 2 trains: first step on all nodes 172 ms after the round began",
           R"({"step":1,"since_round_ms":172})");
  rows.Add(8'506, 2, "worker-exited", "rank 1 died (SIGKILL) on node 127.0.0.2",
           R"({"local_rank":0,"pid":27672,"exit_code":0,"signal":9,"steps":1,"script_started":1,)"
           R"("unix_ms":1795281601276})",
           "127.0.0.2", 1);
  rows.Add(8'506, 3, "round-started", "rank 1 died (SIGKILL) on node 127.0.0.2, restart 1 of 3",
           R"({"because":"failure","world_size":2,"restart_count":2,"restarts_left":2})");
  rows.Add(8'734, 3, "round-stepping", "world 2 trains: first step on all nodes 228 ms after the round began",
           R"({"step":1,"since_round_ms":228})");
  rows.Add(9'000, 3, "node-lost", "node 127.0.0.2 was lost (its stream broke)", "{}", "127.0.0.2");
  rows.Add(9'000, 4, "round-started", "node 127.0.0.2 was lost (its stream broke): 2 -> 1 nodes",
           R"({"because":"nodes","world_size":1,"restart_count":3,"restarts_left":2})");
  rows.Add(9'100, 4, "round-stepping", "world 1 trains", R"({"step":1,"since_round_ms":100})");
  const Ledger ledger = rows.Finish(11'540, 4, 0).Make();
  EXPECT_THAT(Times(ledger), ElementsAre(4'402 + 31 + 266 + 2'440, 0, 0, 171 + 228 + 100, 307, 3'595, 0));
  ASSERT_EQ(ledger.incidents.size(), 3U);
  EXPECT_EQ(ledger.incidents[0].first_cause, "");
  EXPECT_EQ(ledger.incidents[1].rank, 1);
  EXPECT_EQ(ledger.incidents[2].node, "127.0.0.2");
  EXPECT_THAT(ledger.notes, ElementsAre(HasSubstr("redoing is unknown for 3 of 3 incidents")));
  EXPECT_THAT(LedgerText(rows.view, ledger), HasSubstr("unknown"));
}

// --- whatever happens ---------------------------------------------------------------------------------------------

JobView ViewOf(const master::JobFixture& job, int64_t began) {
  JobView view;
  view.live = true;
  view.status.set_started_unix_ms(began);
  for (size_t i = 0; i < job.records.size(); ++i) {
    const auto& [record, reason] = job.records[i];
    view.rows.push_back({static_cast<int64_t>(i) + 1, job.record_times[i], record.epoch, record.kind, record.node,
                         record.rank, reason, master::DetailJson(record)});
  }
  if (job.state.round) {
    view.status.set_epoch(job.state.round->epoch);
    view.status.set_saving_ms(job.state.round->saving_ms);
  }
  return view;
}

void Check(const master::JobFixture& job, int64_t began) {
  const Ledger ledger = MakeLedger(ViewOf(job, began), job.now);
  EXPECT_EQ(ledger.end_unix_ms, job.now);
  EXPECT_EQ(std::accumulate(ledger.ms.begin(), ledger.ms.end(), int64_t{0}), job.now - began);
  for (const int64_t ms : ledger.ms) EXPECT_GE(ms, 0);
  int64_t recovering_ms = 0;
  int64_t redoing_ms = 0;
  int64_t silent_ms = 0;
  for (const Incident& incident : ledger.incidents) {
    recovering_ms += incident.recovering_ms;
    redoing_ms += incident.redoing_ms;
    silent_ms += incident.noticed_ms.value_or(0);
    EXPECT_FALSE(incident.what.empty());
    EXPECT_GE(incident.rank_ms, incident.recovering_ms + incident.redoing_ms + incident.waiting_ms);
  }
  EXPECT_EQ(ledger.Of(Cause::kRecovering), recovering_ms);
  EXPECT_EQ(ledger.Of(Cause::kRedoing), redoing_ms);
  // The master's own state over time says the same as its rows.
  EXPECT_EQ(ledger.Of(Cause::kWaiting), job.GatheringMs());
  if (!ledger.notes.empty() && ledger.notes[0].starts_with("no step was seen")) return;
  const int64_t stepping_ms = ledger.Of(Cause::kTraining) + ledger.Of(Cause::kSaving) + ledger.Of(Cause::kRedoing);
  EXPECT_LE(stepping_ms, job.SteppingMs());
  EXPECT_GE(stepping_ms, job.SteppingMs() - silent_ms);
}

TEST(LedgerProperty, EveryMillisecondHasOneCause) {
  std::array<int64_t, kCauses> seen = {};
  for (uint64_t seed = 1; seed <= 1'000; ++seed) {
    master::RandomLife life(seed);
    const int64_t began = life.job().now;
    for (int i = 0; i < 60 && !HasFailure(); ++i) {
      life.Act();
      if (i % 10 == 9) Check(life.job(), began);
    }
    if (HasFailure()) {
      for (const std::string& line : life.story()) std::cerr << line << "\n";
      FAIL() << "seed " << seed;
    }
    const Ledger ledger = MakeLedger(ViewOf(life.job(), began), life.job().now);
    for (size_t cause = 0; cause < kCauses; ++cause) seen[cause] += ledger.ms[cause];
  }
  seen[static_cast<size_t>(Cause::kStalled)] += 1;  // no life is long enough
  for (const int64_t ms : seen) EXPECT_GT(ms, 0) << "a cause that no life has come to";
}

}  // namespace
}  // namespace phalanx::cli
