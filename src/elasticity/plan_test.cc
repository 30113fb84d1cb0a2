#include "elasticity/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kDocumented =
    R"("max_train_batch_size": 8, "micro_batch_sizes": [4, 2], "min_gpus": 1, "max_gpus": 4, "version": 0.1)";

struct Asked {
  std::string members;
  int64_t world_size = 0;
  bool with_micro_batch = false;
  std::optional<std::string> variable = std::nullopt;
  Behaviour behaviour = Behaviour::kDeepSpeed0165;
};

Result<Config> Read(const std::string& members) {
  PHX_TRY(const Json block, ReadJson(R"({"enabled": true, )" + members + "}"));
  return ReadConfig(block);
}

Result<Plan> Compute(const Asked& asked, const std::string& target_version = "0.16.5") {
  PHX_TRY(const Config config, Read(asked.members));
  return ComputePlan(config,
                     {asked.world_size, target_version, asked.with_micro_batch, asked.variable, asked.behaviour});
}

std::string WhyNot(const Asked& asked, const std::string& target_version = "0.16.5") {
  const Result<Plan> plan = Compute(asked, target_version);
  return plan.ok() ? "" : plan.error().type + ": " + plan.error().message;
}

TEST(Plan, DocumentedExample) {
  const Result<Plan> plan = Compute({kDocumented});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->batch_size, Int{8});
  EXPECT_THAT(plan->gpus->counts, ElementsAre(1, 2, 4));
  EXPECT_FALSE(plan->has_micro_batch);
  EXPECT_EQ(Compute({kDocumented, 1})->micro_batch, 4);
  EXPECT_EQ(Compute({kDocumented, 4})->micro_batch, 2);
  EXPECT_EQ(WhyNot({kDocumented, 3}),
            "ElasticityIncompatibleWorldSize: World size (3) is not valid with the current list of valid GPU counts: "
            "[1, 2, 4]");
}

TEST(Plan, VersionsOfTheRules) {
  const std::string rest = R"(, "max_train_batch_size": 8, "micro_batch_sizes": [2])";
  EXPECT_EQ(WhyNot({R"("version": "0.1")" + rest}), "");
  EXPECT_EQ(WhyNot({R"("version": 1e-1)" + rest}), "");
  EXPECT_EQ(WhyNot({R"("version": 0.15)" + rest}),
            "NotImplementedError: Unable to find elastic logic for version: 0.15");
  EXPECT_EQ(WhyNot({R"("version": "1.0")" + rest}),
            "ElasticityConfigError: Attempting to run elasticity version 1.0 but runtime only supports up to 0.2");
  EXPECT_EQ(WhyNot({R"("version": "0.1", "model_parallel_size": 2)" + rest}),
            "ElasticityConfigError: Elasticity V0.1 does not support model-parallel training. Given model-parallel "
            "size: 2");
}

TEST(Plan, TargetVersionsAreNumbersAndDots) {
  for (const char* taken : {"0.3.8", "0.4", "0.3.8.0", "0.3.8.1", "00.03.08", "1", "0.16.5"}) {
    EXPECT_EQ(WhyNot({kDocumented}, taken), "") << taken;
  }
  for (const char* old : {"0.3.7", "0.3", "0", "0.3.7.99"}) {
    EXPECT_EQ(WhyNot({kDocumented}, old), "ElasticityError: Target deepspeed version of " + std::string(old) +
                                              " is not compatible with minimum version 0.3.8 supporting elasticity.");
  }
  for (const char* none : {"", "abc", "v1", " 1", ".1", "1.", "1..2", "-1", "1.-2", "99999999999999999999.0"}) {
    EXPECT_EQ(WhyNot({kDocumented}, none), "InvalidVersion: Invalid version: '" + std::string(none) + "'");
  }
  for (const char* more : {"0.16.5+cu12", "0.3.8rc1", "1 ", "1!2"}) {
    EXPECT_EQ(WhyNot({kDocumented}, more),
              "InvalidVersion: Invalid version: '" + std::string(more) + "': only numbers and dots are taken here");
  }
}

TEST(Plan, TargetVersionIsCheckedBeforeTheVersionsRules) {
  EXPECT_THAT(WhyNot({kDocumented}, "0.3.7"), HasSubstr("ElasticityError: Target deepspeed version of 0.3.7"));
  EXPECT_EQ(WhyNot({R"("max_train_batch_size": 8, "micro_batch_sizes": [2], "version": 0.05)"}, "?"),
            "InvalidVersion: Invalid version: '?'");
}

TEST(Plan, MicroBatchOfVersion01NeedsAWorldSize) {
  EXPECT_THAT(WhyNot({kDocumented, 0, true}), HasSubstr("ZeroDivisionError: "));
  Asked asked{kDocumented, 0, true, std::nullopt, Behaviour::kDeepSpeed0197};
  EXPECT_EQ(WhyNot(asked),
            "ElasticityConfigError: Elasticity V 0.1 needs WORLD_SIZE to compute a micro batch size. Either give it as "
            "argument to function compute_elastic_config or set it as an environment variable. Value of WORLD_SIZE as "
            "environment variable is None");
  asked.variable = "3";
  EXPECT_THAT(WhyNot(asked), HasSubstr("ElasticityIncompatibleWorldSize: World size (3) "));
  asked.variable = "2";
  EXPECT_EQ(Compute(asked)->micro_batch, 4);
}

TEST(Plan, NothingFoundIsNone) {
  const std::string members =
      R"("max_train_batch_size": 8, "micro_batch_sizes": [5], "min_gpus": 4, "version": 0.1, "prefer_larger_batch": 0)";
  EXPECT_EQ(Compute({members})->gpus, std::nullopt);
  EXPECT_THAT(WhyNot({members, 4}), HasSubstr("TypeError: "));
}

std::string Nodes(const std::string& members) {
  return R"("version": 0.2, "max_train_batch_size": 64, "micro_batch_sizes": [2, 4], )" + members;
}

TEST(Plan, Version02NeedsAWorldSize) {
  const std::string members = Nodes(R"("max_gpus": 8)");
  EXPECT_EQ(WhyNot({members, 0, false, "x"}),
            "ElasticityConfigError: Elasticity V 0.2 needs WORLD_SIZE to compute valid batch size. Either give it as "
            "argument to function compute_elastic_config or set it as an environment variable. Value of WORLD_SIZE as "
            "environment variable is x");
  EXPECT_EQ(WhyNot({members, 0, false, "4"}), "");
  EXPECT_THAT(WhyNot({members, 0, false, "\u0664"}), HasSubstr("variable is \u0664"));
  EXPECT_THAT(WhyNot({members, 0, false, "0"}), HasSubstr("ZeroDivisionError: "));
}

TEST(Plan, Version02CountsNodes) {
  const std::string members = Nodes(R"("num_gpus_per_node": 4, "model_parallel_size": 2)");
  const Result<Plan> plan = Compute({members, 0, true, "8"});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->batch_size, Int{48});
  EXPECT_THAT(plan->gpus->counts, ElementsAre(2, 4, 6, 8, 12, 24));
  EXPECT_EQ(plan->micro_batch, 2);
  // The given size is one of GPUs, the list one of data-parallel groups: a quirk that stays.
  EXPECT_THAT(WhyNot({members, 16}), HasSubstr("World size (16) is not valid"));
  EXPECT_EQ(WhyNot({Nodes(R"("num_gpus_per_node": 3, "model_parallel_size": 2)"), 3}),
            "ElasticityError: In Elasticity v0.2, number of GPUs per node:3 should be divisible by model parallel size "
            "2");
}

TEST(Plan, Version02FallsBackToTheSizeItself) {
  const std::string members = Nodes(R"("num_gpus_per_node": 4)");
  const Result<Plan> plan = Compute({members, 5});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->batch_size, Int{60});
  EXPECT_THAT(plan->gpus->counts, ElementsAre(5));
  EXPECT_EQ(plan->micro_batch, 4);
  EXPECT_EQ(Compute({members, 100})->batch_size, Int{0});
}

TEST(Plan, FloatsStayFloats) {
  const Result<Plan> plan = Compute({Nodes(R"("num_gpus_per_node": 4.0)"), 8});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->CountText(0), "4.0");
  EXPECT_EQ(Compute({Nodes(R"("num_gpus_per_node": 4)"), 8})->CountText(0), "4");
  const std::string common = R"("version": 0.2, "max_train_batch_size": 16, "micro_batch_sizes": [4, 6], )";
  EXPECT_EQ(WhyNot({common + R"("num_gpus_per_node": 2.0, "model_parallel_size": 2)", 3}),
            "ElasticityIncompatibleWorldSize: World size (3) is not valid with the current list of valid GPU counts: "
            "[1.0, 2.0, 4.0]");
  EXPECT_EQ(WhyNot({R"("version": 0.1, "max_train_batch_size": 8, "micro_batch_sizes": [4, 6])", 5}),
            "ElasticityIncompatibleWorldSize: World size (5) is not valid with the current list of valid GPU counts: "
            "[1, np.int64(2), np.int64(3)]");
  EXPECT_EQ(WhyNot({Nodes(R"("min_gpus": 2.5, "max_gpus": 3.5)"), 3}), "");
}

TEST(Plan, OddWorldSizes) {
  EXPECT_EQ(WhyNot({kDocumented, -4}), "");
  EXPECT_EQ(Compute({Nodes(R"("max_gpus": 8)"), -4})->batch_size, Int{64});
  EXPECT_EQ(Compute({kDocumented, -4, true})->micro_batch, 2);
}

TEST(Plan, TooLargeIsSaid) {
  EXPECT_THAT(WhyNot({kDocumented, kWorldSizeMax + 1}),
              HasSubstr("ElasticityLimitError: the world size is 10000001: at most 10000000 is taken"));
  EXPECT_THAT(WhyNot({Nodes(R"("max_gpus": 8)"), 0, false, std::string(30, '9')}),
              HasSubstr("ElasticityLimitError: the world size is 1e+30: at most 10000000"));
  EXPECT_THAT(WhyNot({Nodes(R"("max_gpus": 1e300)"), 4}),
              HasSubstr("ElasticityLimitError: max_gpus is 1e+300: at most 1099511627776 is taken"));
  const std::string sizes = R"("max_train_batch_size": 8, "micro_batch_sizes": )";
  EXPECT_THAT(WhyNot({sizes + "[1099511627777]"}), HasSubstr("ElasticityLimitError: an element of micro_batch_sizes"));
  EXPECT_THAT(WhyNot({sizes + "[18446744073709551615]"}), HasSubstr("ElasticityLimitError: an element of"));
  std::string many = "[1";
  for (size_t i = 0; i < kMicroBatchesMax; ++i) many += ",1";
  EXPECT_THAT(WhyNot({sizes + many + "]"}), HasSubstr("micro_batch_sizes has 1001 elements: at most 1000 are taken"));
}

TEST(Plan, EmptyMicroBatches) {
  const std::string none = R"("max_train_batch_size": 8, "micro_batch_sizes": [], "max_gpus": 4, )";
  EXPECT_THAT(WhyNot({none + R"("version": 0.1)"}), HasSubstr("UFuncTypeError: "));
  EXPECT_THAT(WhyNot({none + R"("num_gpus_per_node": 8)", 4}), HasSubstr("ValueError: min()"));
}

// Each world size that ComputePlan grants, asked one by one.
void ExpectAllFound(const std::string& members, int64_t max) {
  const Result<Config> config = Read(members);
  ASSERT_TRUE(config.ok());
  PlanRequest request{0, "0.16.5", false, std::nullopt, Behaviour::kDeepSpeed0197};
  const Result<std::vector<WorldSize>> found = FindWorldSizes(*config, request, max);
  ASSERT_TRUE(found.ok()) << found.error().message;
  auto next = found->begin();
  for (request.world_size = 1; request.world_size <= max; ++request.world_size) {
    const int64_t size = request.world_size;
    const Result<Plan> plan = ComputePlan(*config, request);
    if (!plan.ok() || plan->batch_size < 1) continue;
    ASSERT_TRUE(next != found->end() && next->world_size == size) << members << " " << size;
    EXPECT_EQ(next->batch_size, plan->batch_size);
    EXPECT_EQ(next->micro_batch, plan->micro_batch);
    EXPECT_EQ(next->accumulation * next->micro_batch * size, plan->batch_size) << members << " " << size;
    ++next;
  }
  EXPECT_TRUE(next == found->end()) << members;
}

TEST(WorldSizes, AreThoseThatPlansAreGrantedFor) {
  ExpectAllFound(kDocumented, 10);
  ExpectAllFound(R"("version": 0.1, "max_train_batch_size": 1000, "micro_batch_sizes": [2, 6, 7], "min_gpus": 3)", 200);
  ExpectAllFound(Nodes(R"("max_gpus": 64)"), 100);
  ExpectAllFound(Nodes(R"("num_gpus_per_node": 4)"), 100);
  ExpectAllFound(Nodes(R"("num_gpus_per_node": 4, "model_parallel_size": 2)"), 100);
  ExpectAllFound(Nodes(R"("num_gpus_per_node": 8.0, "prefer_larger_batch": false)"), 100);
}

TEST(WorldSizes, AreRefusedAsPlansAre) {
  const Result<Config> config = Read(R"("max_train_batch_size": 2, "micro_batch_sizes": [4])");
  ASSERT_TRUE(config.ok());
  PlanRequest request;
  request.target_version = "0.16.5";
  EXPECT_EQ(FindWorldSizes(*config, request, 10).error().type, "ValueError");
  EXPECT_EQ(FindWorldSizes(*config, request, kExplainedMax + 1).error().type, kLimitError);
  request.target_version = "0.3.7";
  EXPECT_EQ(FindWorldSizes(*config, request, 10).error().type, "ElasticityError");
}

}  // namespace
}  // namespace phalanx::elasticity
