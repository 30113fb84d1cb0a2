#include "elasticity/python_json.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>

namespace phalanx::elasticity {
namespace {

using testing::HasSubstr;

std::string ReprOf(std::string_view json) {
  const Result<Value> value = ReadJson(json);
  return value.ok() ? Repr(*value) : value.error().type;
}

std::string Again(std::string_view json) {
  std::string out;
  const Result<Value> value = ReadJson(json);
  if (value.ok()) WriteJson(*value, &out);
  return out;
}

TEST(PythonJson, NumbersAreIntsOrFloats) {
  EXPECT_EQ(ReprOf("[0, -0, 12, -0.0, 1.0, 1e2, 1E+2, 10e-1]"), "[0, 0, 12, -0.0, 1.0, 100.0, 100.0, 1.0]");
  EXPECT_EQ(ReprOf("[NaN, Infinity, -Infinity, 1e999, -1e999]"), "[nan, inf, -inf, inf, -inf]");
  const std::string digits(kIntDigitsMax, '7');
  EXPECT_EQ(ReprOf("-" + digits), "-" + digits);
  EXPECT_EQ(ReprOf(digits + "7"), "ValueError");
  EXPECT_EQ(ReprOf("170141183460469231731687303715884105727"), "170141183460469231731687303715884105727");
}

TEST(PythonJson, OfRepeatedNamesTheLastCountsInTheFirstPlace) {
  EXPECT_EQ(ReprOf(R"({"a": 1, "b": 2, "a": 3, "c": 4, "a": 5})"), "{'a': 5, 'b': 2, 'c': 4}");
}

TEST(PythonJson, EscapesAndLoneSurrogates) {
  EXPECT_EQ(Again(R"("\"\\\/\b\f\n\r\té\u00E9")"), R"("\"\\/\b\f\n\r\t\u00e9\u00e9")");
  EXPECT_EQ(Again(R"("\ud83d\ude00 \ud83d \ude00\ud83dx 😀")"), R"("\ud83d\ude00 \ud83d \ude00\ud83dx \ud83d\ude00")");
}

TEST(PythonJson, WhatIsReadIsWrittenAgain) {
  EXPECT_EQ(Again(" { \"a\" : [ 1 , true , null ] , \"b\" : { } }\r\n"), R"({"a":[1,true,null],"b":{}})");
  EXPECT_EQ(Again("[NaN,-Infinity,1.5,1e+22]"), "[NaN,-Infinity,1.5,1e+22]");
}

TEST(PythonJson, ErrorsNameThePlace) {
  const Result<Value> value = ReadJson("{\n  \"a\": 1,\n}");
  ASSERT_FALSE(value.ok());
  EXPECT_EQ(value.error().type, "JSONDecodeError");
  EXPECT_THAT(value.error().message, HasSubstr("line 3, column 1"));
}

TEST(PythonJson, RefusesWhatIsNone) {
  for (const char* text :
       {"",          " ",   "{",       "[1,]",        "[1 2]",    "{\"a\"}", "{\"a\":}", "{1:2}",
        "01",        "1.",  ".5",      "+1",          "-",        "1e",      "tru",      "nan",
        "'a'",       "\"a", "\"\\x\"", "\"\\u12g4\"", "\"a\nb\"", "1 2",     "]",        "\xef\xbb\xbf{}",
        "--Infinity"}) {
    EXPECT_EQ(ReprOf(text), "JSONDecodeError") << text;
  }
  EXPECT_EQ(ReprOf("\"\xff\""), "UnicodeDecodeError");
  EXPECT_EQ(ReprOf("\"\xc0\x80\""), "UnicodeDecodeError");      // too long for what it says
  EXPECT_EQ(ReprOf("\"\xed\xa0\x80\""), "UnicodeDecodeError");  // half a pair
  EXPECT_EQ(ReprOf("\"\xe4\xb8"), "UnicodeDecodeError");
}

TEST(PythonJson, DepthHasALimit) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_EQ(ReprOf(nested(kJsonDepthMax)), nested(kJsonDepthMax));
  EXPECT_EQ(ReprOf(nested(kJsonDepthMax + 1)), "RecursionError");
  EXPECT_EQ(ReprOf(std::string(1000000, '[')), "RecursionError");
}

}  // namespace
}  // namespace phalanx::elasticity
