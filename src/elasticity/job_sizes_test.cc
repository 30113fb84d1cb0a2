#include "elasticity/job_sizes.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// An enabled block with these members.
std::string Block(const std::string& members) { return R"({"enabled": true, )" + members + "}"; }

// The documented one: [1, 2, 4] without further members.
std::string Documented(const std::string& members = "") {
  return Block(R"("max_train_batch_size": 8, "micro_batch_sizes": [4, 2], "version": 0.1)" + members);
}

std::vector<uint32_t> Sizes(const std::string& block, int64_t max = 100) {
  const Result<JobSizes> sizes = FindJobSizes(block, max);
  EXPECT_TRUE(sizes.ok()) << block << ": " << sizes.error().message;
  return sizes.ok() ? sizes->world_sizes : std::vector<uint32_t>();
}

std::string WhyNot(const std::string& block) {
  const Result<JobSizes> sizes = FindJobSizes(block, 100);
  return sizes.ok() ? "" : sizes.error().type + ": " + sizes.error().message;
}

TEST(JobSizes, AreThoseOfTheConfig) {
  EXPECT_THAT(Sizes(Documented()), ElementsAre(1, 2, 4));
  EXPECT_THAT(Sizes(Documented(), 3), ElementsAre(1, 2));
  EXPECT_THAT(Sizes(Documented(), 0), IsEmpty());
  EXPECT_THAT(Sizes(Documented(R"(, "min_gpus": 2, "max_gpus": 3)")), ElementsAre(2));
}

TEST(JobSizes, AreWithinMinAndMaxGpusInVersion02AsWell) {
  const std::string block = R"("max_train_batch_size": 64, "micro_batch_sizes": [1], "min_gpus": 3, "max_gpus": 6)";
  EXPECT_THAT(Sizes(Block(block)), ElementsAre(3, 4, 5, 6));
}

TEST(JobSizes, AreWholeGroupsOfModelParallelRanks) {
  const std::string block =
      R"("max_train_batch_size": 64, "micro_batch_sizes": [1], "num_gpus_per_node": 4, "model_parallel_size": 2)";
  // Of the data-parallel sizes 2, 4, 6, 8, .. DeepSpeed grants those of which half is one as well.
  EXPECT_THAT(Sizes(Block(block), 40), ElementsAre(8, 16, 24, 32));
  EXPECT_THAT(WhyNot(Block(R"("max_train_batch_size": 64, "micro_batch_sizes": [1], "model_parallel_size": 1.5,
                              "num_gpus_per_node": 3)")),
              HasSubstr("model_parallel_size is 1.5"));
}

TEST(JobSizes, StayForMinTime) {
  EXPECT_EQ(FindJobSizes(Documented(), 10)->round_ms_min, 0);
  EXPECT_EQ(FindJobSizes(Documented(R"(, "min_time": 20)"), 10)->round_ms_min, 1'200'000);
  EXPECT_EQ(FindJobSizes(Documented(R"(, "min_time": 0.5)"), 10)->round_ms_min, 30'000);
  EXPECT_THAT(WhyNot(Documented(R"(, "min_time": NaN)")), HasSubstr("JSONDecodeError: no JSON: line 1, column"));
  EXPECT_EQ(WhyNot(Documented(R"(, "min_time": "20")")),
            "InvalidRequest: 'min_time' in the elasticity block is '20': it should be a number");
  EXPECT_THAT(WhyNot(Documented(R"(, "min_time": 1e300)")), HasSubstr("min_time is 1e+300"));
}

TEST(JobSizes, AreRefusedInDeepSpeedsWords) {
  EXPECT_THAT(WhyNot("{"), HasSubstr("JSONDecodeError"));
  EXPECT_THAT(WhyNot(Block(R"("micro_batch_sizes": [2])")),
              HasSubstr("Elasticity config missing max_train_batch_size"));
  EXPECT_THAT(WhyNot("{}"), HasSubstr("Elasticity is disabled"));
}

TEST(ReadBlock, TakesItOutOfAConfig) {
  EXPECT_EQ(*ReadBlock("{\"train_batch_size\": 4,\n \"elasticity\": {\"enabled\": true, \"version\": 0.1}}"),
            R"({"enabled":true,"version":0.1})");
  EXPECT_THAT(ReadBlock("{}").error().message, HasSubstr("'elasticity' is missing from config json"));
  EXPECT_THAT(ReadBlock(R"({"elasticity": {"enabled": false}})").error().message, HasSubstr("Elasticity is disabled"));
  EXPECT_THAT(ReadBlock(R"({"elasticity": 4})").error().message, HasSubstr("should be a JSON object"));
  EXPECT_EQ(ReadBlock(R"({"elasticity": {"enabled": true, "a": ")" + std::string(70'000, 'b') + "\"}}").error().message,
            "the elasticity block has 70023 bytes: at most 4096 are taken");
  EXPECT_THAT(ReadBlock("[1").error().type, HasSubstr("JSONDecodeError"));
  EXPECT_EQ(*ReadBlock(R"({"elasticity": {"b": "\u00e9", "enabled": 1, "a": [1e22, 0.1, 5]}})"),
            R"({"b":"\u00e9","enabled":1,"a":[1e+22,0.1,5]})");
}

}  // namespace
}  // namespace phalanx::elasticity
