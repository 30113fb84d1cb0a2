#include "cli/elasticity.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace phalanx::cli {
namespace {

using elasticity::WorldSize;
using testing::HasSubstr;
using testing::IsEmpty;
using testing::StartsWith;

ElasticityQuery Query(const std::string& members, int64_t world_size = 0, bool json = false) {
  ElasticityQuery query;
  query.config = R"({"elasticity": {"enabled": true, )" + members + "}}";
  query.world_size = world_size;
  query.target_version = "0.16.5";
  query.json = json;
  return query;
}

// 8 at once at most, on 1 to 10 GPUs: 1, 2 and 4 of them work.
const std::string kSmall = R"("max_train_batch_size": 8, "micro_batch_sizes": [4, 2], "max_gpus": 10, "version": 0.1)";

std::string Texts(const std::vector<SizeRange>& ranges) {
  std::string out;
  for (const SizeRange& range : ranges) {
    out += std::to_string(range.gpus_first) + "-" + std::to_string(range.gpus_last) + ":";
    out +=
        range.first ? std::to_string(range.first->world_size) + "-" + std::to_string(range.last->world_size) : "none";
    out += " ";
  }
  return out;
}

TEST(FoldSizes, LeavesNoGap) {
  EXPECT_EQ(Texts(FoldSizes({{3, 2, 4, 24}, {6, 2, 2, 24}, {12, 2, 1, 24}}, 1, 20)),
            "1-2:none 3-5:3-3 6-11:6-6 12-20:12-12 ");
  EXPECT_EQ(Texts(FoldSizes({}, 2, 5)), "2-5:none ");
  EXPECT_EQ(Texts(FoldSizes({{5, 1, 1, 5}}, 5, 5)), "5-5:5-5 ");
}

TEST(FoldSizes, PutsNeighboursTogetherThatSplitAlike) {
  const WorldSize three{3, 2, 1, 6};
  const WorldSize four{4, 2, 1, 8};
  const WorldSize five{5, 2, 1, 10};
  EXPECT_EQ(Texts(FoldSizes({three, four, five}, 3, 5)), "3-5:3-5 ");
  EXPECT_EQ(Texts(FoldSizes({three, four, five}, 3, 7)), "3-4:3-4 5-7:5-5 ");  // who is idle is seen
  EXPECT_EQ(Texts(FoldSizes({three, {4, 1, 2, 8}, five}, 3, 5)), "3-3:3-3 4-4:4-4 5-5:5-5 ");
  EXPECT_EQ(Texts(FoldSizes({three, five}, 3, 5)), "3-4:3-3 5-5:5-5 ");
}

TEST(ElasticityPlan, IsATable) {
  EXPECT_EQ(TellPlan(Query(kSmall, 2)).text,
            "final batch         8\n"
            "valid world sizes   1-2, 4 (3 of them)\n"
            "world size          2\n"
            "micro batch         4\n"
            "accumulation steps  1\n");
  EXPECT_EQ(TellPlan(Query(kSmall)).text,
            "final batch        8\n"
            "valid world sizes  1-2, 4 (3 of them)\n");
}

TEST(ElasticityPlan, IsJson) {
  EXPECT_EQ(TellPlan(Query(kSmall, 4, true)).text,
            "{\"final_batch_size\":8,\"valid_gpus\":[1,2,4],\"world_size\":4,\"micro_batch_size\":2,"
            "\"gradient_accumulation_steps\":1}\n");
  EXPECT_EQ(TellPlan(Query(kSmall, 0, true)).text, "{\"final_batch_size\":8,\"valid_gpus\":[1,2,4]}\n");
}

TEST(ElasticityPlan, ManyWorldSizesAreShortened) {
  const std::string text =
      TellPlan(Query(R"("max_train_batch_size": 100000, "micro_batch_sizes": [2, 4, 6], "version": 0.1)")).text;
  EXPECT_THAT(text, HasSubstr(", ..., "));
  EXPECT_LT(text.size(), 400U);
}

TEST(ElasticityPlan, RefusesAsDeepSpeedDoes) {
  const ElasticityAnswer size = TellPlan(Query(kSmall, 3));
  EXPECT_EQ(size.exit_code, 1);
  EXPECT_EQ(size.complaint,
            "ElasticityIncompatibleWorldSize: World size (3) is not valid with the current list of valid GPU counts: "
            "[1, 2, 4]");
  EXPECT_THAT(size.text, IsEmpty());
  const ElasticityAnswer config = TellPlan(Query(R"("max_train_batch_size": 8)", 0, true));
  EXPECT_EQ(config.exit_code, 2);
  EXPECT_EQ(config.text,
            "{\"error\":{\"class\":\"ElasticityConfigError\",\"message\":\"Elasticity config missing "
            "micro_batch_sizes\"}}\n");
}

TEST(ElasticityPlan, WorldSizeMayComeFromTheEnvironment) {
  const std::string nodes = R"("max_train_batch_size": 8, "micro_batch_sizes": [4, 2], "max_gpus": 10, "version": 0.2)";
  EXPECT_THAT(TellPlan(Query(nodes)).complaint, HasSubstr("needs WORLD_SIZE"));
  ElasticityQuery query = Query(nodes);
  query.world_size_variable = "2";
  EXPECT_THAT(TellPlan(query).text, StartsWith("final batch        8\n"));
}

TEST(ElasticityPlan, NamesTheMemberThatIsNoNumber) {
  const std::string rest = R"(, "micro_batch_sizes": [4])";
  for (const auto& [member, value] :
       {std::pair(R"("max_train_batch_size": "8")", "'8'"), std::pair(R"("max_train_batch_size": true)", "True"),
        std::pair(R"("max_train_batch_size": [8])", "[8]")}) {
    const ElasticityAnswer answer = TellPlan(Query(member + rest));
    EXPECT_EQ(answer.exit_code, 2);
    EXPECT_EQ(answer.complaint, std::string("InvalidRequest: 'max_train_batch_size' in the elasticity block is ") +
                                    value + ": it should be a number");
  }
}

TEST(ElasticityExplain, TellsEachNumberOfGpus) {
  EXPECT_EQ(ExplainSizes(Query(kSmall)).text,
            "3 of the 10 world sizes from 1 to 10 are valid\n\n"
            "GPUS  WORLD SIZE  MICRO BATCH  ACCUMULATION  FINAL BATCH  IDLE\n"
            "1     1           4            2             8            0\n"
            "2-3   2           4            1             8            0-1\n"
            "4-10  4           2            1             8            0-6\n");
  EXPECT_EQ(ExplainSizes(Query(kSmall + R"(, "min_gpus": 3)")).text,
            "1 of the 8 world sizes from 3 to 10 are valid\n\n"
            "GPUS  WORLD SIZE  MICRO BATCH  ACCUMULATION  FINAL BATCH  IDLE\n"
            "3     -           -            -             -            all\n"
            "4-10  4           2            1             8            0-6\n");
}

TEST(ElasticityExplain, IsJson) {
  EXPECT_EQ(ExplainSizes(Query(kSmall + R"(, "min_gpus": 3.5, "max_gpus": 5)", 0, true)).text,
            "{\"min_gpus\":4,\"max_gpus\":5,\"gpus\":[\n"
            "{\"gpus\":4,\"world_size\":4,\"micro_batch_size\":2,\"gradient_accumulation_steps\":1,"
            "\"final_batch_size\":8,\"idle_gpus\":0},\n"
            "{\"gpus\":5,\"world_size\":4,\"micro_batch_size\":2,\"gradient_accumulation_steps\":1,"
            "\"final_batch_size\":8,\"idle_gpus\":1}\n]}\n");
  EXPECT_THAT(ExplainSizes(Query(kSmall + R"(, "min_gpus": 3)", 0, true)).text,
              HasSubstr(R"({"gpus":3,"world_size":null,"micro_batch_size":null,"gradient_accumulation_steps":null,)"
                        R"("final_batch_size":null,"idle_gpus":3})"));
}

TEST(ElasticityExplain, ShowsBothEndsOfWhatIsLong) {
  const std::string text =
      ExplainSizes(Query(R"("max_train_batch_size": 100000, "micro_batch_sizes": [1, 2, 4, 6])")).text;
  EXPECT_THAT(text, HasSubstr("more rows: --json has all)"));
  EXPECT_EQ(std::count(text.begin(), text.end(), '\n'), 2 + 1 + 41);
}

TEST(ElasticityExplain, RefusesMoreThanCanBeShown) {
  const std::string start = R"("max_train_batch_size": 8, "micro_batch_sizes": [4], "max_gpus": )";
  for (const char* max : {"1000001", "1e300", "100000000000000000000000000000000000000000000"}) {
    const ElasticityAnswer answer = ExplainSizes(Query(start + max));
    EXPECT_EQ(answer.exit_code, 2);
    EXPECT_THAT(answer.complaint, HasSubstr(": world sizes are explained up to 1000000"));
  }
}

TEST(ElasticityExplain, ReadsWhatIsNoConfig) {
  ElasticityQuery query;
  EXPECT_THAT(ExplainSizes(query).complaint, StartsWith("JSONDecodeError: "));
  query.config = "{}";
  EXPECT_THAT(ExplainSizes(query).complaint, StartsWith("ElasticityConfigError: 'elasticity' is missing"));
  query.config = R"({"elasticity": 3})";
  EXPECT_EQ(ExplainSizes(query).exit_code, 2);
}

}  // namespace
}  // namespace phalanx::cli
