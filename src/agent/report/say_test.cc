#include "agent/report/say.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

namespace phalanx::agent {
namespace {

using nlohmann::json;

const Speaker kText{LogFormat::kText, "job7", "node1"};
const Speaker kJson{LogFormat::kJson, "job7", "node1"};

v1::Finish Failed() {
  v1::Finish finish;
  finish.set_exit_code(1);
  finish.set_reason("all 3 restarts are used up");
  v1::Failure& first = *finish.mutable_first_cause();
  first.set_rank(3);
  first.mutable_exited()->set_signal(9);
  first.mutable_exited()->set_last_words("bytes \xff");
  first.mutable_exited()->set_killed_by("the out-of-memory killer of its cgroup");
  first.mutable_exited()->set_blamed_on("XID 79 (...) on GPU 3, 0.4 s before");
  first.mutable_exited()->set_error_json(
      R"({"message": {"message": "ValueError: no", "extraInfo": {"py_callstack": "line 1"}}})");
  finish.add_others()->mutable_exited()->set_exit_code(4);
  return finish;
}

TEST(Say, LinesForPeople) { EXPECT_EQ(SayLine(kText, Level::kWarning, "a \"b\"", 5), "phalanx-run: a \"b\"\n"); }

TEST(Say, ObjectsForPrograms) {
  const std::string line = SayLine(kJson, Level::kWarning, "two\nlines \xff", 5);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const json object = json::parse(line);
  EXPECT_EQ(object.at("unix_ms"), 5);
  EXPECT_EQ(object.at("level"), "warning");
  EXPECT_EQ(object.at("job_id"), "job7");
  EXPECT_EQ(object.at("hostname"), "node1");
  EXPECT_EQ(object.at("message"), "two\nlines \xEF\xBF\xBD");
}

TEST(Say, AFailureIsOneObject) {
  const std::string line = SayFailure(kJson, Failed(), "train.py", 5);
  EXPECT_EQ(line.find('\n'), line.size() - 1);
  const json object = json::parse(line);
  EXPECT_EQ(object.at("level"), "error");
  EXPECT_EQ(object.at("script"), "train.py");
  const json& first = object.at("first_cause");
  EXPECT_EQ(first.at("rank"), 3);
  EXPECT_EQ(first.at("exit_code"), -9);
  EXPECT_EQ(first.at("killed_by"), "the out-of-memory killer of its cgroup");
  EXPECT_EQ(first.at("blamed_on"), "XID 79 (...) on GPU 3, 0.4 s before");
  EXPECT_EQ(first.at("error"), "ValueError: no");
  EXPECT_EQ(first.at("traceback"), "line 1");
  EXPECT_EQ(object.at("others").at(0).at("exit_code"), 4);
}

TEST(Say, AHangIsOneObjectWithTheRanksOfThisNode) {
  v1::Finish finish;
  finish.set_exit_code(1);
  finish.set_reason("no step for 60 s: all ranks are at step 9: --hang-timeout=60 s is over; crash loop");
  std::vector<v1::RankStatus> ranks(1);
  ranks[0].set_step(9);
  ranks[0].set_quiet_ms(60'040);
  const json object = json::parse(SayHang(kJson, finish, "train.py", 4, ranks, 5));
  EXPECT_EQ(object.at("message"), finish.reason());
  EXPECT_EQ(object.at("script"), "train.py");
  EXPECT_EQ(object.at("ranks").at(0).at("rank"), 4);
  EXPECT_EQ(object.at("ranks").at(0).at("quiet_ms"), 60'040);
  EXPECT_EQ(SayHang(kText, finish, "train.py", 4, ranks, 5).rfind("=====", 0), 0u);
}

TEST(Say, AFailureForPeopleIsTheBox) { EXPECT_EQ(SayFailure(kText, Failed(), "train.py", 5).rfind("=====", 0), 0u); }

}  // namespace
}  // namespace phalanx::agent
