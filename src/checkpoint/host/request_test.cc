#include "checkpoint/host/request.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::checkpoint {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

TEST(RequestTest, HasWhatWasSent) {
  Request request(R"({"type":"t","text":"a","low":-5,"names":["x","y"],
                      "shards":[{"rank":-1,"file":"main.pt","bytes":7,"crc32":4294967295,"needed_by":"every-rank"}]})");
  EXPECT_EQ(request.type(), "t");
  EXPECT_EQ(request.Text("text", 1), "a");
  EXPECT_EQ(request.Number("low", -5, 0), -5);
  EXPECT_THAT(request.Texts("names", 2), ElementsAre("x", "y"));
  EXPECT_THAT(request.Shards("shards"), ElementsAre(Shard{-1, "main.pt", 7, 0xffffffff, FileNeed::kEveryRank}));
  EXPECT_TRUE(request.status().ok()) << request.status();
}

// The first field that is wrong is told, with what would be right.
TEST(RequestTest, NamesWhatIsWrong) {
  const struct {
    const char* packet;
    const char* said;
  } rows[] = {
      {R"({"type":"t"})", "number of t: expected a whole number from 1 to 9"},
      {R"({"type":"t","number":0})", "number of t"},
      {R"({"type":"t","number":10})", "number of t"},
      {R"({"type":"t","number":1.5})", "number of t"},
      {R"({"type":"t","number":18446744073709551615})", "number of t"},
      {R"({"type":"t","number":"1"})", "number of t"},
      {R"({"type":"t","number":1,"text":"abcd"})", "text of t: expected a text of at most 3 bytes"},
      {R"({"type":"t","number":1,"text":7})", "text of t"},
      {R"({"type":"t","number":1,"text":"a","names":["x","y"]})", "names of t: expected a list of at most 1 names"},
      {R"({"type":"t","number":1,"text":"a","names":[1]})", "names of t: expected texts"},
      {R"({"type":"t","number":1,"text":"a","names":[],"shards":{}})", "shards of t: expected a list"},
      {R"({"type":"t","number":1,"text":"a","names":[],"shards":[1]})", "shards of t: expected objects"},
      {R"({"type":"t","number":1,"text":"a","names":[],"shards":[{"rank":-2}]})", "rank of t"},
      {R"({"type":"t","number":1,"text":"a","names":[],
           "shards":[{"rank":0,"file":"a","bytes":1,"crc32":1,"needed_by":"me"}]})",
       "needed_by of t: expected one of owner, every-rank, any-rank, nobody"},
      {R"([])", "a request is a JSON object"},
      {"{", "a request is a JSON object"},
      {R"({"type":7})", "type of : expected a text"},
  };
  for (const auto& row : rows) {
    Request request(row.packet);
    request.Number("number", 1, 9);
    request.Text("text", 3);
    request.Texts("names", 1);
    request.Shards("shards");
    EXPECT_TRUE(absl::IsInvalidArgument(request.status())) << row.packet;
    EXPECT_THAT(std::string(request.status().message()), HasSubstr(row.said)) << row.packet;
  }
}

}  // namespace
}  // namespace phalanx::checkpoint
