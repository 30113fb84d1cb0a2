#include "elasticity/config.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <optional>
#include <string>
#include <string_view>
#include <tuple>

namespace phalanx::elasticity {
namespace {

using testing::ElementsAre;

Json Of(std::string_view text) {
  Result<Json> value = ReadJson(text);
  EXPECT_TRUE(value.ok()) << text;
  return value.ok() ? *value : Json();
}

std::string WhyNot(std::string_view block) {
  const Result<Config> config = ReadConfig(Of(block));
  return config.ok() ? "" : config.error().type + ": " + config.error().message;
}

// A block with these members after the two that must be there.
std::string With(const std::string& members) {
  return R"({"enabled": true, "max_train_batch_size": 8, "micro_batch_sizes": [2])" + members + "}";
}

TEST(Config, HasDefaults) {
  const Result<Config> config = ReadConfig(Of("{}"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(Text(config->max_train_batch_size), "2000");
  EXPECT_THAT(config->micro_batch_sizes, ElementsAre(2, 4, 6));
  EXPECT_EQ(Text(config->min_gpus), "1");
  EXPECT_EQ(Text(config->max_gpus), "10000");
  EXPECT_EQ(Text(config->num_gpus_per_node), "1");
  EXPECT_EQ(Text(config->model_parallel_size), "1");
  EXPECT_EQ(Text(config->min_time), "0");
  EXPECT_EQ(config->version.text, "0.2");
  EXPECT_TRUE(config->prefer_larger_batch);
}

TEST(Config, NumbersStayWhatTheyWereWrittenAs) {
  const Result<Config> config = ReadConfig(
      Of(R"({"max_train_batch_size": 8.0, "micro_batch_sizes": [4, 2], "version": "0.1", "prefer_larger_batch": ""})"));
  ASSERT_TRUE(config.ok());
  EXPECT_EQ(Text(config->max_train_batch_size), "8.0");
  EXPECT_THAT(config->micro_batch_sizes, ElementsAre(4, 2));
  EXPECT_EQ(config->version.number, 0.1);
  EXPECT_EQ(config->version.text, "0.1");
  EXPECT_TRUE(config->version.is_text);
  EXPECT_FALSE(config->prefer_larger_batch);
}

TEST(Config, IsRefusedInDeepSpeedsWordsAndOrder) {
  const std::string config_error = "ElasticityConfigError: ";
  EXPECT_EQ(WhyNot(R"({"enabled": 1})"), config_error + "Elasticity config missing max_train_batch_size");
  EXPECT_EQ(WhyNot(R"({"enabled": "no", "max_train_batch_size": 1})"),
            config_error + "Elasticity config missing micro_batch_sizes");
  EXPECT_EQ(WhyNot(R"({"micro_batch_sizes": "x"})"),
            config_error +
                "Elasticity expected value of micro_batch_sizes to be a list of micro batches, instead is: <class "
                "'str'>, containing: x");
  EXPECT_EQ(WhyNot(R"({"micro_batch_sizes": [4, 2.0, "a"]})"),
            config_error +
                "Elasticity expected micro_batch_sizes to only contain a list of integers, instead contains: f[4, "
                "2.0, 'a']");
  EXPECT_EQ(WhyNot(R"({"micro_batch_sizes": [4, true]})"),
            config_error +
                "Elasticity expected micro_batch_sizes to only contain a list of integers, instead contains: f[4, "
                "True]");
  EXPECT_EQ(WhyNot(R"({"micro_batch_sizes": [4, 0]})"),
            config_error +
                "Elasticity expected micro_batch_sizes to only contain positive integers, instead contains: f[4, 0]");
  EXPECT_EQ(WhyNot(With(R"(, "min_gpus": 0, "max_gpus": 4)")),
            config_error + "Elasticity min/max gpus must be > 0, given min_gpus: 0, max_gpus: 4");
  EXPECT_EQ(WhyNot(With(R"(, "min_gpus": 5, "max_gpus": 4.5)")),
            config_error + "Elasticity min_gpus cannot be greater than max_gpus, given min_gpus: 5, max_gpus: 4.5");
  EXPECT_EQ(WhyNot(With(R"(, "model_parallel_size": 0.5, "num_gpus_per_node": 0)")),
            config_error + "Model-Parallel size cannot be less than 1, given model-parallel size: 0.5");
  EXPECT_EQ(WhyNot(With(R"(, "num_gpus_per_node": 0.0, "min_time": -1)")),
            config_error + "Number of GPUs per node cannot be less than 1, given number of GPUs per node: 0.0");
  EXPECT_EQ(WhyNot(With(R"(, "min_time": -1)")), config_error + "Elasticity min time needs to be >= 0: given -1");
}

TEST(Config, NamesTheMemberThatIsNoNumber) {
  for (const auto& [key, value, shown] :
       {std::tuple("min_gpus", "\"1\"", "'1'"), std::tuple("max_gpus", "null", "None"),
        std::tuple("min_time", "[]", "[]"), std::tuple("model_parallel_size", "{}", "{}"),
        std::tuple("num_gpus_per_node", "true", "True"), std::tuple("version", "\"x\"", "'x'"),
        std::tuple("version", "null", "None"), std::tuple("version", "\" 0.1\"", "' 0.1'")}) {
    EXPECT_EQ(
        WhyNot(With(", \"" + std::string(key) + "\": " + value)),
        "InvalidRequest: '" + std::string(key) + "' in the elasticity block is " + shown + ": it should be a number");
  }
  EXPECT_EQ(WhyNot(R"({"max_train_batch_size": "8"})"),
            "InvalidRequest: 'max_train_batch_size' in the elasticity block is '8': it should be a number");
  EXPECT_TRUE(WhyNot("[]").starts_with("AttributeError: "));
}

TEST(Config, BlockMustBeThereAndEnabled) {
  const auto why_not = [](std::string_view config) {
    const Json value = Of(config);
    const Result<const Json*> block = FindBlock(value);
    return block.ok() ? "" : block.error().type + ": " + block.error().message;
  };
  EXPECT_EQ(why_not(R"(["a"])"),
            "ValueError: Expected ds_config to be a dictionary but received a <class 'list'>, containing: ['a']");
  EXPECT_EQ(why_not("{}"),
            "ElasticityConfigError: 'elasticity' is missing from config json, please add it if running an elastic "
            "training job.");
  EXPECT_EQ(why_not(R"({"elasticity": {"enabled": 0.0}})"),
            "ElasticityConfigError: Elasticity is disabled, please enable it ('enabled':true) if running an elastic "
            "training job.");
  EXPECT_TRUE(why_not(R"({"elasticity": null})").starts_with("AttributeError: "));
  EXPECT_EQ(why_not(R"({"elasticity": {"enabled": [0]}})"), "");
}

std::string Differs(const std::string& runtime, const std::optional<std::string>& scheduler) {
  const Result<bool> compared = EnsureImmutable(Of(runtime), scheduler);
  if (!compared.ok()) return compared.error().message;
  return *compared ? "same" : "nothing to compare with";
}

TEST(Config, SchedulerMustHaveSeenTheSame) {
  const std::string block = With(R"(, "version": 0.1)");
  EXPECT_EQ(Differs(block, std::nullopt), "nothing to compare with");
  EXPECT_EQ(Differs(block, block), "same");
  EXPECT_EQ(Differs(block, With(R"(, "version": 0.1, "min_gpus": 4)")), "same");
  EXPECT_EQ(Differs(block, With("")),
            "Elastic config 'version=0.2' seen by resource scheduler does not match config passed to runtime "
            "version=0.1");
  EXPECT_EQ(Differs(block, "{}"),
            "Elastic config 'max_acceptable_batch_size=2000' seen by resource scheduler does not match config passed "
            "to runtime max_acceptable_batch_size=8");
  EXPECT_EQ(Differs(block, R"({"max_train_batch_size": 8.0, "micro_batch_sizes": [2, 1]})"),
            "Elastic config 'micro_batches=[2, 1]' seen by resource scheduler does not match config passed to runtime "
            "micro_batches=[2]");
  EXPECT_EQ(Differs(block, With(R"(, "version": 1e-1)")), "same");
  EXPECT_EQ(Differs(block, With(R"(, "version": "0.1")")),
            "Elastic config 'version=0.1' seen by resource scheduler does not match config passed to runtime "
            "version=0.1");
  EXPECT_EQ(EnsureImmutable(Of(block), "x").error().type, "JSONDecodeError");
}

}  // namespace
}  // namespace phalanx::elasticity
