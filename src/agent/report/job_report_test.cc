#include "agent/report/job_report.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace phalanx::agent {
namespace {

using nlohmann::json;

v1::Failure Killed(uint32_t rank, uint32_t group_rank, int64_t pid) {
  v1::Failure failure;
  failure.set_rank(rank);
  failure.set_local_rank(rank % 2);
  failure.set_group_rank(group_rank);
  failure.mutable_exited()->set_pid(pid);
  failure.mutable_exited()->set_signal(9);
  failure.mutable_exited()->set_error_json("{}");
  return failure;
}

JobEnd Ended() {
  JobEnd end;
  end.exit_code = 1;
  end.local_world_size = 2;
  end.round.emplace().set_group_rank(1);
  end.round->set_rank_base(2);
  end.round->set_restart_count(4);
  end.workers = {{0, {"/logs/0/error.json", 70, true}}, {1, {"/logs/1/error.json", 71, true}}};
  end.finish.emplace().set_reason("no restarts left");
  return end;
}

TEST(JobReport, TheFirstCauseComesFirst) {
  JobEnd end = Ended();
  *end.finish->mutable_first_cause() = Killed(3, 1, 71);
  *end.finish->add_others() = Killed(2, 1, 70);
  const json report = json::parse(JobReport(end));
  EXPECT_EQ(report["version"], 1);
  EXPECT_EQ(report["reason"], "no restarts left");
  EXPECT_EQ(report["restart_count"], 4);
  EXPECT_EQ(report["rank_base"], 2);
  ASSERT_EQ(report["failures"].size(), 2u);
  EXPECT_EQ(report["failures"][0]["rank"], 3);
  EXPECT_EQ(report["failures"][0]["exit_code"], -9);
  EXPECT_EQ(report["failures"][0]["error_file"], "/logs/1/error.json");
  EXPECT_EQ(report["failures"][1]["rank"], 2);
}

TEST(JobReport, NamesNoFileOfAnotherNodeOrRound) {
  JobEnd end = Ended();
  *end.finish->mutable_first_cause() = Killed(1, 0, 71);
  *end.finish->add_others() = Killed(3, 1, 61);
  *end.finish->add_others() = Killed(2, 1, 70);
  end.workers[0].left_error = false;
  const json report = json::parse(JobReport(end));
  ASSERT_EQ(report["failures"].size(), 3u);
  for (const json& failure : report["failures"]) EXPECT_EQ(failure["error_file"], "");
}

TEST(JobReport, NamesAFileWhoseTextTheMasterLeftOut) {
  JobEnd end = Ended();
  *end.finish->mutable_first_cause() = Killed(3, 1, 71);
  end.finish->mutable_first_cause()->mutable_exited()->clear_error_json();
  EXPECT_EQ(json::parse(JobReport(end))["failures"][0]["error_file"], "/logs/1/error.json");
}

TEST(JobReport, ANodeThatEndsAsASpareHasNoWorkers) {
  JobEnd end = Ended();
  EXPECT_EQ(json::parse(JobReport(end))["workers"], 2);
  end.exit_code = 0;
  EXPECT_EQ(json::parse(JobReport(end))["workers"], 0);
  end.in_round = true;
  EXPECT_EQ(json::parse(JobReport(end))["workers"], 2);
}

TEST(JobReport, SaysSoWhereNoRoundCameAbout) {
  JobEnd end;
  end.exit_code = 143;
  const json report = json::parse(JobReport(end));
  EXPECT_EQ(report["exit_code"], 143);
  EXPECT_EQ(report["restart_count"], -1);
  EXPECT_TRUE(report["failures"].empty());
}

TEST(JobReport, BytesOfAnyKindMakeValidJson) {
  JobEnd end = Ended();
  *end.finish->mutable_first_cause() = Killed(3, 1, 71);
  end.finish->mutable_first_cause()->mutable_exited()->set_last_words("\xff\"\n");
  EXPECT_EQ(json::parse(JobReport(end))["failures"][0]["last_words"], "\xef\xbf\xbd\"\n");
}

}  // namespace
}  // namespace phalanx::agent
