#include "cli/elasticity_rows.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace phalanx::cli {
namespace {

using elasticity::Behaviour;
using elasticity::kRequestError;
using testing::HasSubstr;
using testing::StartsWith;

std::string Row(const std::string& members) {
  return R"({"id": 7, "ds_config": {"elasticity": {"enabled": true, "max_train_batch_size": 8, )"
         R"("micro_batch_sizes": [4, 2], "max_gpus": 4, "version": 0.1}})" +
         members + "}";
}

std::string Answer(std::string_view row) { return AnswerRow(row, Behaviour::kDeepSpeed0165); }

TEST(Rows, AnswersAreLinesOfJson) {
  EXPECT_EQ(Answer(Row("")), R"({"id":7,"ok":{"final_batch_size":8,"valid_gpus":{"list":[1,2,4]}}})");
  EXPECT_EQ(Answer(Row(R"(, "world_size": 4, "target_version": "0.3.8")")),
            R"({"id":7,"ok":{"final_batch_size":8,"valid_gpus":{"list":[1,2,4]},"micro_batch_size":2}})");
  EXPECT_EQ(Answer(R"({"id": {"a": [1.0]}, "ds_config": "\u00e9"})"),
            R"({"id":{"a":[1.0]},"error":{"class":"ValueError","message":"Expected ds_config to be a dictionary but )"
            R"(received a <class 'str'>, containing: \u00e9"}})");
}

TEST(Rows, EnvironmentComesWithTheRow) {
  const std::string row = R"(, "world_size": 0, "return_microbatch": 1, "env": {"WORLD_SIZE": "2"})";
  EXPECT_THAT(Answer(Row(row)), HasSubstr("ZeroDivisionError"));
  EXPECT_THAT(AnswerRow(Row(row), Behaviour::kDeepSpeed0197), HasSubstr(R"("micro_batch_size":4)"));
}

TEST(Rows, BadRowsAreAnswered) {
  EXPECT_THAT(Answer("{"), StartsWith(R"({"id":null,"error":{"class":"JSONDecodeError")"));
  EXPECT_THAT(Answer("[]"), HasSubstr("a request is a JSON object, this is <class 'list'>"));
  EXPECT_THAT(Answer(R"({"id": 1})"), HasSubstr(R"(the request has no \"ds_config\")"));
  EXPECT_THAT(Answer(Row(R"(, "env": [])")), HasSubstr(kRequestError));
  EXPECT_THAT(Answer(Row(R"(, "env": {"WORLD_SIZE": 4})")), HasSubstr("WORLD_SIZE in \\\"env\\\" is a text"));
}

TEST(Rows, ComparesWithWhatTheSchedulerSaw) {
  EXPECT_EQ(Answer(R"({"runtime": {}, "scheduler_env": null})"), R"({"id":null,"ok":false})");
  EXPECT_EQ(Answer(R"({"runtime": {}, "scheduler_env": "{}"})"), R"({"id":null,"ok":true})");
  EXPECT_EQ(Answer(R"({"runtime": {"version": 1}, "scheduler_env": {"version": 2}})"),
            R"({"id":null,"error":{"class":"ElasticityConfigError","message":"Elastic config 'version=2' seen by )"
            R"(resource scheduler does not match config passed to runtime version=1"}})");
}

TEST(Rows, WhatOnlyPythonTakesIsRefused) {
  EXPECT_THAT(
      Answer(Row(R"(, "world_size": 4.0)")),
      HasSubstr(R"({"class":"InvalidRequest","message":"\"world_size\" is 4.0: it should be a whole number"})"));
  EXPECT_THAT(Answer(Row(R"(, "world_size": 18446744073709551615)")), HasSubstr("it should be a whole number"));
  EXPECT_THAT(Answer(Row(R"(, "target_version": 5)")), HasSubstr("Invalid version: 5"));
  EXPECT_THAT(Answer(Row(R"(, "world_size": NaN)")), StartsWith(R"({"id":null,"error":{"class":"JSONDecodeError")"));
}

}  // namespace
}  // namespace phalanx::cli
