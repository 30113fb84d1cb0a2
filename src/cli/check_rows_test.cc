#include "cli/check_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::cli {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

v1::CheckSummary Check() {
  v1::CheckSummary check;
  check.set_run(1);
  check.set_done(true);
  check.set_rounds(1);
  check.set_sentence("node check: 2 nodes, 1 round, 2.3 s: b\x1b[31m slow (3.1 x the mean of the others: 900 ms)");
  for (const char* name : {"a", "b"}) {
    v1::CheckedNode& node = *check.add_nodes();
    node.set_node(name);
    node.set_address("10.0.0.1");
    for (const int64_t us : {400'000, 250'000}) {
      v1::CheckResult& result = *node.add_results();
      result.set_check("matmul");
      v1::CheckValue& value = *result.add_values();
      value.set_name("matmul_time");
      value.set_unit("us");
      value.set_value(us);
      value.set_better(v1::CheckValue::LESS);
    }
  }
  check.mutable_nodes(1)->set_verdict(v1::CheckedNode::NAMED);
  v1::CheckedPair& pair = *check.add_pairs();
  pair.set_second(1);
  pair.set_part(2);
  pair.set_sentence("tcp with b: Connection refused");
  return check;
}

TEST(CheckRows, NodesAndPairsAsTables) {
  const std::string text = CheckText(Check());
  EXPECT_THAT(text, HasSubstr("NODE  ADDRESS   VERDICT  matmul_time  WHY"));
  EXPECT_THAT(text, HasSubstr("a     10.0.0.1  good     250 ms"));  // the better of both
  EXPECT_THAT(text, HasSubstr("b     10.0.0.1  slow     250 ms"));
  EXPECT_THAT(text, HasSubstr("1      a - b  failed  -         tcp with b: Connection refused"));
  EXPECT_THAT(text, Not(HasSubstr("\x1b")));
}

TEST(CheckRows, NoCheckAndOneThatIsUnderWay) {
  EXPECT_THAT(CheckText({}), HasSubstr("no node of this job has been checked"));
  EXPECT_EQ(CheckJson({}), nullptr);
  v1::CheckSummary check = Check();
  check.set_done(false);
  EXPECT_THAT(CheckText(check), HasSubstr("under way"));
  EXPECT_THAT(CheckText(check), HasSubstr("a     10.0.0.1  ..."));
}

TEST(CheckRows, ForPrograms) {
  const auto json = CheckJson(Check());
  EXPECT_EQ(json["nodes"][1]["verdict"], "slow");
  EXPECT_EQ(json["nodes"][0]["results"][0]["values"][0]["value"], 400'000);
  EXPECT_EQ(json["pairs"][0]["second"], "b");
  EXPECT_EQ(json["pairs"][0]["passed"], false);
}

TEST(CheckRows, WhoIsLeftOut) {
  google::protobuf::RepeatedPtrField<v1::LeftOut> left_out;
  v1::LeftOut& entry = *left_out.Add();
  entry.set_node("b");
  entry.set_reason("disk_write: No space left on device");
  entry.set_rest_ms(552'000);
  entry.set_times(2);
  EXPECT_EQ(LeftOutText(left_out),
            "node b is left out for another 0:09:12 (time 2): disk_write: No space left on device\n");
  EXPECT_EQ(LeftOutJson(left_out)[0]["times"], 2);
  entry.set_rest_ms(0);
  EXPECT_EQ(LeftOutText(left_out), "");
}

TEST(CheckRows, WhoWasLetInOrWhoIsLeftOutInstead) {
  v1::LetInReply reply;
  v1::LeftOut& other = *reply.add_left_out();
  other.set_node("c");
  other.set_reason("slow");
  other.set_rest_ms(60'000);
  EXPECT_EQ(LetInText(reply, "b"), "phalanx: no node b is left out\nnode c is left out for another 0:01:00: slow\n");
  EXPECT_EQ(nlohmann::json::parse(LetInJson(reply))["left_out"][0]["node"], "c");
  reply.Clear();
  reply.add_nodes("b");
  EXPECT_EQ(LetInText(reply, "b"), "node b may come in: it is checked first where the job checks its nodes\n");
  EXPECT_EQ(nlohmann::json::parse(LetInJson(reply))["let_in"][0], "b");
}

}  // namespace
}  // namespace phalanx::cli
