#include "elasticity/plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "elasticity/python_json.h"

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;

constexpr const char* kDocumented =
    R"("max_train_batch_size": 8, "micro_batch_sizes": [4, 2], "min_gpus": 1, "max_gpus": 4, "version": 0.1)";

struct Asked {
  std::string members;
  Value world_size = Value(0);
  bool with_micro_batch = false;
  std::optional<std::string> variable = std::nullopt;
  Behaviour behaviour = Behaviour::kDeepSpeed0165;
};

Result<Plan> Compute(const Asked& asked, const std::string& target_version = "0.16.5") {
  const Result<Value> config = ReadJson(R"({"elasticity": {"enabled": true, )" + asked.members + "}}");
  EXPECT_TRUE(config.ok()) << asked.members;
  if (!config.ok()) return config.error();
  const Value target(target_version);
  return ComputePlan({&*config, &target, asked.world_size, asked.with_micro_batch, asked.variable, asked.behaviour});
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
  EXPECT_EQ(plan->micro_batch, std::nullopt);
  EXPECT_EQ(Repr(*Compute({kDocumented, Value(1)})->micro_batch), "4");
  EXPECT_EQ(Repr(*Compute({kDocumented, Value(4)})->micro_batch), "2");
  EXPECT_EQ(WhyNot({kDocumented, Value(3)}),
            "ElasticityIncompatibleWorldSize: World size (3) is not valid with the current list of valid GPU counts: "
            "[1, 2, 4]");
}

TEST(Plan, VersionsAreFloatsAndTextsOfFloats) {
  const std::string rest = R"(, "max_train_batch_size": 8, "micro_batch_sizes": [2])";
  EXPECT_EQ(WhyNot({R"("version": " 1e-1 ")" + rest}), "");
  EXPECT_EQ(WhyNot({R"("version": 0.15)" + rest}),
            "NotImplementedError: Unable to find elastic logic for version: 0.15");
  EXPECT_EQ(WhyNot({R"("version": true)" + rest}),
            "ElasticityConfigError: Attempting to run elasticity version True but runtime only supports up to 0.2");
  EXPECT_EQ(WhyNot({R"("version": "0.1", "model_parallel_size": 2)" + rest}),
            "ElasticityConfigError: Elasticity V0.1 does not support model-parallel training. Given model-parallel "
            "size: 2");
  EXPECT_THAT(WhyNot({R"("version": "x")" + rest}), HasSubstr("ValueError: "));
  EXPECT_THAT(WhyNot({R"("version": null)" + rest}), HasSubstr("TypeError: "));
}

TEST(Plan, TargetVersionIsCheckedBeforeTheVersionsRules) {
  EXPECT_THAT(WhyNot({kDocumented}, "0.3.7"), HasSubstr("ElasticityError: Target deepspeed version of 0.3.7"));
  EXPECT_EQ(WhyNot({R"("max_train_batch_size": 8, "micro_batch_sizes": [2], "version": 0.05)"}, "?"),
            "InvalidVersion: Invalid version: '?'");
}

TEST(Plan, MicroBatchOfVersion01NeedsAWorldSize) {
  EXPECT_THAT(WhyNot({kDocumented, Value(0), true}), HasSubstr("ZeroDivisionError: "));
  Asked asked{kDocumented, Value(0), true, std::nullopt, Behaviour::kDeepSpeed0197};
  EXPECT_EQ(WhyNot(asked),
            "ElasticityConfigError: Elasticity V 0.1 needs WORLD_SIZE to compute a micro batch size. Either give it as "
            "argument to function compute_elastic_config or set it as an environment variable. Value of WORLD_SIZE as "
            "environment variable is None");
  asked.variable = "3";
  EXPECT_THAT(WhyNot(asked), HasSubstr("ElasticityIncompatibleWorldSize: World size (3) "));
  asked.variable = "2";
  EXPECT_EQ(Repr(*Compute(asked)->micro_batch), "4");
}

TEST(Plan, NothingFoundIsNone) {
  const std::string members =
      R"("max_train_batch_size": 8, "micro_batch_sizes": [5], "min_gpus": 4, "version": 0.1, "prefer_larger_batch": 0)";
  EXPECT_EQ(Compute({members})->gpus, std::nullopt);
  EXPECT_THAT(WhyNot({members, Value(4)}), HasSubstr("TypeError: "));
}

std::string Nodes(const std::string& members) {
  return R"("version": 0.2, "max_train_batch_size": 64, "micro_batch_sizes": [2, 4], )" + members;
}

TEST(Plan, Version02NeedsAWorldSize) {
  const std::string members = Nodes(R"("max_gpus": 8)");
  EXPECT_EQ(WhyNot({members, Value(0), false, "x"}),
            "ElasticityConfigError: Elasticity V 0.2 needs WORLD_SIZE to compute valid batch size. Either give it as "
            "argument to function compute_elastic_config or set it as an environment variable. Value of WORLD_SIZE as "
            "environment variable is x");
  EXPECT_EQ(WhyNot({members, Value(0), false, "4"}), "");
  EXPECT_THAT(WhyNot({members, Value(0), false, "\u00bd"}), HasSubstr("ValueError: "));
  EXPECT_THAT(WhyNot({members, Value(0), false, "0"}), HasSubstr("ZeroDivisionError: "));
}

TEST(Plan, Version02CountsNodes) {
  const std::string members = Nodes(R"("num_gpus_per_node": 4, "model_parallel_size": 2)");
  const Result<Plan> plan = Compute({members, Value(0), true, "8"});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->batch_size, Int{48});
  EXPECT_THAT(plan->gpus->counts, ElementsAre(2, 4, 6, 8, 12, 24));
  EXPECT_EQ(Repr(*plan->micro_batch), "2");
  // The given size is one of GPUs, the list one of data-parallel groups: a quirk that stays.
  EXPECT_THAT(WhyNot({members, Value(16)}), HasSubstr("World size (16) is not valid"));
  EXPECT_EQ(WhyNot({Nodes(R"("num_gpus_per_node": 3, "model_parallel_size": 2)"), Value(3)}),
            "ElasticityError: In Elasticity v0.2, number of GPUs per node:3 should be divisible by model parallel size "
            "2");
}

TEST(Plan, Version02FallsBackToTheSizeItself) {
  const std::string members = Nodes(R"("num_gpus_per_node": 4)");
  const Result<Plan> plan = Compute({members, Value(5)});
  ASSERT_TRUE(plan.ok());
  EXPECT_EQ(plan->batch_size, Int{60});
  EXPECT_THAT(plan->gpus->counts, ElementsAre(5));
  EXPECT_EQ(Repr(*plan->micro_batch), "4");
  EXPECT_EQ(Compute({members, Value(100)})->batch_size, Int{0});
}

TEST(Plan, FloatsStayFloats) {
  const Result<Plan> plan = Compute({Nodes(R"("num_gpus_per_node": 4.0)"), Value(8)});
  ASSERT_TRUE(plan.ok());
  EXPECT_TRUE(plan->gpus->are_floats);
  EXPECT_EQ(WhyNot({kDocumented, Value(2.0)}), "");
  EXPECT_THAT(WhyNot({kDocumented, Value(2.5)}), HasSubstr("World size (2.5) is"));
}

TEST(Plan, WorldSizesOfOtherTypes) {
  EXPECT_EQ(Repr(*Compute({kDocumented, Value(true)})->micro_batch), "4");
  EXPECT_THAT(WhyNot({kDocumented, Value(std::string("4"))}), HasSubstr("TypeError: "));
  EXPECT_THAT(WhyNot({Nodes(R"("max_gpus": 8)"), Value()}), HasSubstr("TypeError: "));
  EXPECT_EQ(WhyNot({kDocumented, Value(-4)}), "");
  EXPECT_EQ(Compute({Nodes(R"("max_gpus": 8)"), Value(-4)})->micro_batch, std::nullopt);
}

TEST(Plan, TooLargeIsSaidOnlyWhereDeepSpeedWouldGoOn) {
  const std::string large = R"("num_gpus_per_node": 2199023255552, "micro_batch_sizes": [4], "version": 0.2, )";
  EXPECT_THAT(WhyNot({large + R"("max_train_batch_size": 4)", Value(1)}), HasSubstr("ValueError: All micro batches"));
  EXPECT_THAT(WhyNot({kDocumented, Value(kWorldSizeMax + 1)}), HasSubstr("ElasticityLimitError: the world size is"));
  EXPECT_THAT(WhyNot({Nodes(R"("max_gpus": 8)"), Value(0), false, std::string(30, '9')}),
              HasSubstr("ElasticityLimitError: the world size is"));
  EXPECT_THAT(WhyNot({Nodes(R"("max_gpus": 1e300)"), Value(4)}),
              HasSubstr("ElasticityLimitError: max_gpus is 1e+300: at most 1099511627776 is taken"));
  EXPECT_THAT(WhyNot({Nodes(R"("max_gpus": Infinity)"), Value(4)}), HasSubstr("OverflowError: "));
}

// Each world size that ComputePlan grants, asked one by one.
void ExpectAllFound(const std::string& members, int64_t max) {
  const Result<Value> config = ReadJson(R"({"elasticity": {"enabled": true, )" + members + "}}");
  ASSERT_TRUE(config.ok());
  const Value target(std::string("0.16.5"));
  PlanRequest request{&*config, &target, Value(0), false, std::nullopt, Behaviour::kDeepSpeed0197};
  const Result<std::vector<WorldSize>> found = FindWorldSizes(request, max);
  ASSERT_TRUE(found.ok()) << found.error().message;
  auto next = found->begin();
  for (int64_t size = 1; size <= max; ++size) {
    request.world_size = Value(size);
    const Result<Plan> plan = ComputePlan(request);
    if (!plan.ok() || plan->batch_size < 1) continue;
    ASSERT_TRUE(next != found->end() && next->world_size == size) << members << " " << size;
    EXPECT_EQ(next->batch_size, plan->batch_size);
    EXPECT_EQ(Repr(Value(next->micro_batch)), Repr(*plan->micro_batch));
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
  const Value none;
  const Value target(std::string("0.16.5"));
  PlanRequest request{&none, &target, Value(0), false, std::nullopt, Behaviour::kDeepSpeed0165};
  EXPECT_EQ(FindWorldSizes(request, 10).error().type, "ValueError");
  EXPECT_EQ(FindWorldSizes(request, kExplainedMax + 1).error().type, kLimitError);
}

}  // namespace
}  // namespace phalanx::elasticity
