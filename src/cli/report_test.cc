#include "cli/report.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/rows.h"
#include "master/record/lost_rows.h"

namespace phalanx::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;
using Row = master::RecordRow;

// A job that loses rank 1 in epoch 1, whose victim reports first, then loses a node, then ends.
std::vector<Row> Rows() {
  const std::string victim = R"({"local_rank":0,"pid":10,"exit_code":1,"signal":0,"steps":5,"collateral":1})";
  const std::string killed =
      R"({"local_rank":1,"pid":11,"exit_code":0,"signal":9,"steps":5,"last_words":"so\nlong\u001b[2J"})";
  const std::string raised = R"({"local_rank":0,"pid":12,"exit_code":3,"signal":0,"steps":7})";
  return {
      {1, 1'000, 0, "node-joined", "a", -1, "node a joined (2 ranks)", "{}"},
      {2, 1'000, 1, "round-started", "", -1, "all 2 nodes are there", R"({"world_size":4,"restart_count":0})"},
      {3, 2'000, 1, "worker-exited", "a", 0, "rank 0 failed (exit code 1) on node a, as a peer was gone", victim},
      {4, 2'001, 2, "round-started", "", -1, "rank 0 failed (exit code 1) on node a, restart 1 of 3",
       R"({"world_size":4,"restart_count":1,"restarts_left":2})"},
      {5, 2'003, 1, "worker-exited", "b", 1, "rank 1 died (SIGKILL) on node b", killed},
      {6, 2'003, 1, "cause-refined", "b", 1, "the first cause of the end of epoch 1: rank 1 died (SIGKILL) on node b",
       "{}"},
      {7, 2'090, 2, "round-stepping", "", -1, "world 4 trains", "{}"},
      {8, 3'000, 2, "node-lost", "b", -1, "node b was lost (its stream broke)", "{}"},
      {9, 3'000, 3, "round-started", "", -1, "node b was lost (its stream broke): 2 -> 1 nodes",
       R"({"because":"nodes","world_size":2,"restart_count":2,"restarts_left":2})"},
      {10, 4'000, 3, "worker-exited", "a", 0, "rank 0 failed (exit code 3) on node a", raised},
      {11, 4'000, 3, "job-finished", "", -1, "rank 0 failed (exit code 3) on node a; --max-restarts=1 is used up",
       R"({"exit_code":1})"},
  };
}

TEST(StatusOfSpares, SaysWhyTheyWait) {
  JobView view;
  view.live = true;
  view.status.add_nodes()->set_hostname("a");
  EXPECT_THAT(StatusText(view, 0), Not(HasSubstr("spares")));
  EXPECT_THAT(StatusJson(view), Not(HasSubstr("waits_because")));
  for (int i = 0; i < 2; ++i) view.status.add_nodes()->set_waits_because("3 x 2 ranks is no valid world size");
  EXPECT_THAT(StatusText(view, 0), HasSubstr("SILENT\n"));
  EXPECT_THAT(StatusText(view, 0), testing::EndsWith("\nnodes wait as spares: 3 x 2 ranks is no valid world size\n"));
  EXPECT_THAT(StatusJson(view), HasSubstr("\"waits_because\": \"3 x 2 ranks"));
}

TEST(StatusOfCheckpoints, IsToldOfALiveJob) {
  JobView view;
  view.live = true;
  view.status.add_nodes()->set_hostname("a");
  EXPECT_THAT(StatusText(view, 0), Not(HasSubstr("CHECKPOINTS")));
  v1::CheckpointStatus& dir = *view.status.add_checkpoints();
  dir.set_dir("/data/run7");
  dir.set_committed_step(40);
  dir.set_stored_step(-1);
  dir.set_storing_step(30);
  dir.set_storing_ms(61'000);
  EXPECT_THAT(StatusText(view, 0), HasSubstr("CHECKPOINTS IN  IN MEMORY  ON STORAGE  ON ITS WAY THERE\n"
                                             "/data/run7      40         -           30, for 0:01:01\n"));
  EXPECT_THAT(StatusJson(view), HasSubstr("\"committed_step\": 40"));
}

TEST(Why, TellsTheEndOfAFailedJob) {
  const std::vector<Row> rows = Rows();
  const StatusOr<Story> story = TellStory(rows, std::nullopt);
  ASSERT_TRUE(story.ok());
  EXPECT_EQ(story->turn->id, 11);
  EXPECT_EQ(story->first_cause->id, 10);
  EXPECT_THAT(StoryText(*story, {}, 0),
              HasSubstr("first cause: rank 0 failed (exit code 3) on node a (local rank 0, pid 12, 7 steps)"));
}

TEST(Why, BlamesTheDeadEvenWhereTheVictimWasFaster) {
  const std::vector<Row> rows = Rows();
  const StatusOr<Story> story = TellStory(rows, 2);
  ASSERT_TRUE(story.ok());
  EXPECT_EQ(story->first_cause->id, 5);
  const std::string text = StoryText(*story, {}, 0);
  EXPECT_THAT(text, HasSubstr("epoch 2 began"));
  EXPECT_THAT(text, HasSubstr("-1 ms"));
  EXPECT_THAT(text, HasSubstr("+89 ms"));
  EXPECT_THAT(text, HasSubstr("its last words:\nso\nlong?[2J"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
  EXPECT_THAT(StoryJson(*story, {}, 0), HasSubstr("\"signal\": 9"));
}

TEST(Why, AMembershipChangeHasNoWorkerToBlame) {
  const std::vector<Row> rows = Rows();
  const StatusOr<Story> story = TellStory(rows, 3);
  ASSERT_TRUE(story.ok());
  EXPECT_EQ(story->first_cause, nullptr);
  EXPECT_EQ(story->rows.front()->id, 7);  // late news of the failure before is not told again
}

TEST(Why, TellsOfTheLastRestartWhereTheJobEndedWell) {
  std::vector<Row> rows = Rows();
  rows.back().detail_json = R"({"exit_code":0})";
  const StatusOr<Story> story = TellStory(rows, std::nullopt);
  ASSERT_TRUE(story.ok());
  EXPECT_EQ(story->turn->id, 9);
}

TEST(Why, SaysWhatItDoesNotKnow) {
  EXPECT_EQ(TellStory({}, std::nullopt).status().code(), absl::StatusCode::kNotFound);
  EXPECT_THAT(Message(TellStory(Rows(), 99).status()), HasSubstr("--epoch=99"));
}

// Whose row was written before anybody was lost by it.
TEST(Why, SaysOfARankThatEndedEarlyWhatTheBoxSays) {
  std::vector<Row> rows = Rows();
  rows.resize(2);
  rows.push_back({3, 2'000, 1, "worker-exited", "b", 1, "rank 1 ended well on node b",
                  R"({"local_rank":1,"pid":11,"exit_code":0,"signal":0,"steps":3})"});
  rows.push_back({4, 2'001, 1, "worker-exited", "a", 0, "rank 0 failed (exit code 1) on node a, as a peer was gone",
                  R"({"local_rank":0,"pid":10,"exit_code":1,"signal":0,"steps":3,"collateral":1})"});
  rows.push_back({5, 2'002, 1, "job-finished", "", -1, "rank 1 ended early", R"({"exit_code":1})"});
  const StatusOr<Story> story = TellStory(rows, std::nullopt);
  ASSERT_TRUE(story.ok());
  const std::string text = StoryText(*story, {}, 0);
  EXPECT_THAT(text, HasSubstr("\nfirst cause: rank 1 ended early (exit code 0, after step 3) on node b (local rank 1"));
  EXPECT_THAT(text, Not(HasSubstr("ended well")));
  EXPECT_THAT(StoryJson(*story, {}, 0), HasSubstr("\"reason\": \"rank 1 ended early (exit code 0, after step 3)"));
}

TEST(Record, TellsTheStatusOfAJobThatIsOver) {
  master::RecordRun run;
  run.job_id = "job7";
  JobView view;
  view.rows = Rows();
  view.status = StatusFromRecord(run, view.rows);
  EXPECT_EQ(view.status.phase(), "finished");
  EXPECT_EQ(view.status.exit_code(), 1);
  EXPECT_EQ(view.status.epoch(), 3U);
  EXPECT_EQ(view.status.restart_count(), 2U);
  EXPECT_THAT(StatusText(view, 0), HasSubstr("job job7: failed (1), world 2, epoch 3, 2 restarts, 2 left"));
  view.rows.pop_back();
  EXPECT_EQ(StatusFromRecord(run, view.rows).phase(), "unfinished");
}

TEST(Record, TellsHowFarAJobCameThatIsOver) {
  std::vector<Row> rows = Rows();
  rows[1].detail_json = R"({"world_size":4,"nodes":2})";
  rows[8].detail_json = R"({"world_size":2,"nodes":1})";
  EndedJob end = EndFromRecord({}, rows);
  EXPECT_EQ(end.at_unix_ms, 4'000);
  EXPECT_EQ(end.nodes, 1);
  EXPECT_EQ(end.step, 7);
  EXPECT_EQ(end.master_said, "");
  rows.erase(rows.begin() + 9, rows.end());
  EXPECT_EQ(EndFromRecord({}, rows).step, 5) << "of the round before: this one names none";
  rows.push_back({10, 5'000, 3, "checkpoint-restore", "", -1, "step 4 is restored", R"({"dir":"/d","step":4})"});
  rows.push_back({11, 9'000, 0, "master-stopped", "", -1, "the master ends: its last agent has gone", "{}"});
  end = EndFromRecord({}, rows);
  EXPECT_EQ(end.step, 4);
  EXPECT_EQ(end.at_unix_ms, 9'000);
  EXPECT_EQ(end.master_said, "the master ends: its last agent has gone");
  EXPECT_EQ(EndFromRecord({}, {}).step, -1);
}

TEST(Status, SaysThatNobodyServesAJobThatHasNoEnd) {
  JobView view;
  view.status.set_phase("unfinished");
  view.status.set_reason("0 of at least 1 nodes left, waiting up to 600 s for more");
  view.ended = {.at_unix_ms = 9'000, .master_said = "the master ends: its last agent has gone", .nodes = 1, .step = 40};
  view.left = {{"/data/run7", 42, "/dev/shm/phx-0-a-b"}};
  std::string text = StatusText(view, 0);
  EXPECT_THAT(text, HasSubstr("\nnobody serves it since " + Clock(9'000, true) + ": the master ends: its last agent"));
  EXPECT_THAT(text, HasSubstr("\nthe last step that its record names: 40\n"));
  EXPECT_THAT(text, HasSubstr("\nits last decision, which nobody carries out any more: 0 of at least 1 nodes left"));
  EXPECT_THAT(text, HasSubstr("\nstep 42 of /data/run7 still lies in this machine's memory: `phalanx ckpt rescue "
                              "/dev/shm/phx-0-a-b --to /data/run7` writes it there\n"));
  EXPECT_THAT(StatusJson(view), HasSubstr("\"folder\": \"/dev/shm/phx-0-a-b\""));
  view.ended.master_said = "";
  EXPECT_THAT(StatusText(view, 0), HasSubstr("\nnobody serves it: its last master has ended without a word, at "));
  view.status.set_phase(std::string(kNotAnswering));
  text = StatusText(view, 0);
  EXPECT_THAT(text, StartsWith("job : not answering (this is what its record has), epoch 0, "));
  EXPECT_THAT(text, HasSubstr("\nits master says nothing: it stands still, or cannot be reached from here"));
  EXPECT_THAT(text, Not(HasSubstr("nobody serves it")));
  EXPECT_THAT(text, Not(HasSubstr("nobody carries out")));
  view.status.set_phase("finished");
  text = StatusText(view, 0);
  EXPECT_THAT(text, HasSubstr(", ran for 0:00:09 on 1 node; the last step that its record names: 40\n"));
  EXPECT_THAT(text, Not(HasSubstr("nobody serves it")));
  EXPECT_THAT(text, HasSubstr("\nlast decision: 0 of"));
}

TEST(MissingRows, AreCountedByTheGapsInTheIds) {
  JobView view;
  EXPECT_EQ(MissingText(view), "");
  view.rows = Rows();
  EXPECT_EQ(MissingRows(view.rows), 0);
  EXPECT_EQ(MissingText(view), "");
  view.rows.erase(view.rows.begin(), view.rows.begin() + 2);
  view.rows.erase(view.rows.begin() + 3);
  EXPECT_EQ(MissingRows(view.rows), 3);
  EXPECT_THAT(MissingText(view), HasSubstr("3 of 11 rows are not told: the master remembers some of each round"));
  view.recorded = true;
  EXPECT_THAT(MissingText(view), HasSubstr("3 of 11 rows are not told: the record has lost them, or they are older"));
  view.live = true;
  EXPECT_THAT(MissingText(view), HasSubstr("3 of 11 rows are not told: the record has lost them or has not been "
                                           "written yet, or they are older"));
  // Rows 3 to 5 are lost, which a row in the place of the first says.
  view.rows = Rows();
  view.rows[2].kind = "record-lost";
  view.rows.erase(view.rows.begin() + 3, view.rows.begin() + 5);
  EXPECT_EQ(MissingRows(view.rows), 3);
  // ... and row 11 with four behind it.
  view.rows.back().kind = "record-lost";
  view.rows.back().detail_json = R"({"count":5})";
  EXPECT_EQ(MissingRows(view.rows), 8);
  EXPECT_THAT(MissingText(view), HasSubstr("8 of 15 rows are not told"));
  view.rows = {master::LostRow(1, 5, 1'000)};
  EXPECT_THAT(MissingText(view), HasSubstr("5 of 5 rows are not told"));
}

TEST(Merged, HasWhatTheRecordOrTheMasterKnows) {
  const std::vector<Row> all = Rows();
  std::vector<Row> recorded(all.begin(), all.begin() + 9);  // the newest are on their way
  recorded[2].kind = "record-lost";
  recorded.erase(recorded.begin() + 3);
  const std::vector<Row> remembered = {all[2], all[3], all[8], all[10]};
  const std::optional<std::vector<Row>> merged = Merged(recorded, remembered);
  ASSERT_TRUE(merged);
  EXPECT_EQ(MissingRows(*merged), 1);
  ASSERT_EQ(merged->size(), 10U);
  EXPECT_EQ((*merged)[2].kind, "worker-exited");
  EXPECT_EQ((*merged)[3].id, 4);
  EXPECT_EQ(merged->back().id, 11);
}

TEST(Merged, SaysWhatStaysLost) {
  const std::vector<Row> all = Rows();
  // 3, 4, 6 and 7 are lost, then 9 to 11.
  const std::vector<Row> recorded = {all[0], all[1], master::LostRow(3, 4, 9'000),
                                     all[4], all[7], master::LostRow(9, 3, 9'000)};
  const auto note = [](const Row& row, int64_t id, int64_t count) {
    return row.kind == "record-lost" && row.id == id && NumberIn(Detail(row), "count") == count;
  };
  std::vector<Row> merged = *Merged(recorded, {all[2], all[8]});
  ASSERT_EQ(merged.size(), 8U);
  EXPECT_EQ(merged[2].kind, "worker-exited");
  EXPECT_TRUE(note(merged[3], 4, 3)) << merged[3].reason;
  EXPECT_EQ(merged[6].id, 9);
  EXPECT_TRUE(note(merged[7], 10, 2)) << merged[7].reason;
  EXPECT_EQ(MissingRows(merged), 5);

  merged = *Merged(recorded, {all[6], all[10]});  // others than the first
  ASSERT_EQ(merged.size(), 8U);
  EXPECT_TRUE(note(merged[2], 3, 3)) << merged[2].reason;
  EXPECT_TRUE(note(merged[6], 9, 2)) << merged[6].reason;
  EXPECT_EQ(MissingRows(merged), 5);

  merged = *Merged(recorded, {all[2], all[3], all[5], all[6], all[8], all[9], all[10]});
  EXPECT_EQ(merged.size(), all.size());
  EXPECT_EQ(MissingRows(merged), 0);
}

TEST(Merged, IsNothingOfTwoRuns) {
  const std::vector<Row> recorded = Rows();
  std::vector<Row> of_another_run = {recorded[2], recorded[8]};
  EXPECT_TRUE(Merged(recorded, of_another_run));
  of_another_run[1].unix_ms += 1;
  EXPECT_FALSE(Merged(recorded, of_another_run));
}

TEST(Events, SurviveGarbageInTheRecord) {
  std::vector<Row> rows = Rows();
  rows[2].detail_json = "no json";
  rows[3].reason = "\xff\x1b[2J";
  EXPECT_THAT(EventsText(rows), Not(HasSubstr("\x1b")));
  EXPECT_THAT(EventsJson(rows), HasSubstr("\"detail\":{}"));
  EXPECT_TRUE(TellStory(rows, 2).ok());
}

}  // namespace
}  // namespace phalanx::cli
