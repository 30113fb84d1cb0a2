#include "cli/jobs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cli/phase_text.h"
#include "cli/report.h"

namespace phalanx::cli {
namespace {

using ::testing::HasSubstr;

ListedJob Live() {
  ListedJob job;
  job.folder = "/state/run7";
  job.view.live = true;
  v1::StatusReply& s = job.view.status;
  s.set_job_id("run7");
  s.set_phase("running");
  s.set_started_unix_ms(1'000);
  s.set_world_size(4);
  s.set_min_nodes(1);
  s.set_max_nodes(3);
  for (const int64_t step : {41, 42}) {
    v1::NodeStatus& node = *s.add_nodes();
    node.set_group_rank(static_cast<int32_t>(step - 41));
    node.set_max_step(step);
  }
  return job;
}

ListedJob Failed() {
  ListedJob job;
  job.folder = "/state/old";
  job.view.status.set_job_id("o\nld");
  job.view.status.set_phase("finished");
  job.view.status.set_exit_code(1);
  return job;
}

TEST(JobsTest, ARowForEach) {
  ListedJob bad;
  bad.folder = "/state/bad";
  bad.fault = "no run of this job is recorded";
  const std::string text = JobsText({Live(), Failed(), bad}, 5, 62'000);
  EXPECT_THAT(text, HasSubstr("run7"));
  EXPECT_THAT(text, HasSubstr("0:01:01  2 of 1:3  4      42    /state/run7"));
  EXPECT_THAT(text, HasSubstr("failed (1)"));
  EXPECT_THAT(text, HasSubstr("-         -      -     /state/old"));
  EXPECT_THAT(text, HasSubstr("no run of this job is recorded"));
  EXPECT_THAT(text, HasSubstr("and 2 earlier ones: --all lists them\n"));
  EXPECT_EQ(JobsText({}, 0, 0), "");
}

TEST(JobsTest, OfAJobThatHasEndedWhatItsRecordTells) {
  ListedJob stopped = Failed();
  stopped.view.status.set_exit_code(130);
  stopped.view.status.set_reason("job stopped: all nodes left (SIGINT)");
  stopped.view.status.set_started_unix_ms(1'000);
  stopped.view.status.set_world_size(8);
  stopped.view.ended = {.at_unix_ms = 62'000, .master_said = "", .nodes = 2, .step = 111};
  const std::string text = JobsText({stopped}, 1, 900'000);
  EXPECT_THAT(text, HasSubstr("stopped (SIGINT)"));
  EXPECT_THAT(text, HasSubstr("  0:01:01  2      8      111   /state/old"));
  EXPECT_THAT(JobsJson({stopped}), HasSubstr("\"ended_unix_ms\": 62000"));
  stopped.view.status.set_exit_code(1);
  EXPECT_THAT(JobsText({stopped}, 1, 900'000), HasSubstr("  stopped  "));
  stopped.view.status.set_reason("rank 0 failed (exit code 1) on node a; all 3 restarts are used up");
  EXPECT_THAT(JobsText({stopped}, 1, 900'000), HasSubstr("  failed (1)  "));
}

TEST(JobsTest, SaysWhatStatusSays) {
  for (const ListedJob& job : {Live(), Failed()}) {
    const std::string phase = PhaseText(job.view.status);
    EXPECT_THAT(JobsText({job}, 1, 0), HasSubstr(phase + "  "));
    EXPECT_THAT(StatusText(job.view, 0), HasSubstr(": " + phase));
  }
  EXPECT_EQ(PhaseText(Failed().view.status), "failed (1)");
}

TEST(JobsTest, ForPrograms) {
  const std::string text = JobsJson({Live(), Failed()});
  EXPECT_THAT(text, HasSubstr("\"job_id\": \"run7\""));
  EXPECT_THAT(text, HasSubstr("\"step\": 42"));
  EXPECT_THAT(text, HasSubstr("\"exit_code\": 1"));
}

}  // namespace
}  // namespace phalanx::cli
