#include "elasticity/value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::elasticity {
namespace {

using testing::StartsWith;

TEST(Number, FloatsArePrintedWithTheFewestDigits) {
  EXPECT_EQ(Text(Number{0.1, true}), "0.1");
  EXPECT_EQ(Text(Number{-0.0, true}), "-0.0");
  EXPECT_EQ(Text(Number{2, true}), "2.0");
  EXPECT_EQ(Text(Number{123456.789, true}), "123456.789");
  EXPECT_EQ(Text(Number{0.1 + 0.2, true}), "0.30000000000000004");
  EXPECT_EQ(Text(Number{0.0001, true}), "0.0001");
  EXPECT_EQ(Text(Number{0.00001, true}), "1e-05");
  EXPECT_EQ(Text(Number{9999999999999998, true}), "9999999999999998.0");
  EXPECT_EQ(Text(Number{1e16, true}), "1e+16");
  EXPECT_EQ(Text(Number{-1.5e300, true}), "-1.5e+300");
  EXPECT_EQ(Text(Number{5e-324, true}), "5e-324");
}

TEST(Number, IntegersArePrintedWhole) {
  EXPECT_EQ(Text(Int{0}), "0");
  EXPECT_EQ(Text(Int{-120}), "-120");
  EXPECT_EQ(Text(Int{1} << 100), "1267650600228229401496703205376");
  EXPECT_EQ(Text(Number{8}), "8");
  EXPECT_EQ(Text(Number{8, true}), "8.0");
  EXPECT_EQ(Text(Number{-3}), "-3");
  EXPECT_EQ(Text(Number{1e40}), "1e+40");  // of an integer with more than 64 bits
}

TEST(Number, DivisionRoundsDown) {
  EXPECT_EQ(FloorDivide(Int{7}, Int{2}), Int{3});
  EXPECT_EQ(FloorDivide(Int{-7}, Int{2}), Int{-4});
  EXPECT_EQ(FloorDivide(Int{-8}, Int{2}), Int{-4});
  EXPECT_EQ(FloorDivide(Int{7}, Int{-2}), Int{-4});
  EXPECT_EQ(FloorDivide(7.5, 2.0), 3);
  EXPECT_EQ(FloorDivide(-7.5, 2.0), -4);
  EXPECT_EQ(FloorDivide(7.5, -2.0), -4);
  EXPECT_EQ(FloorDivide(8.0, 2.0), 4);
  EXPECT_EQ(FloorDivide(0.6, 0.2), 2);  // 0.6 is a little less than three times 0.2
  EXPECT_EQ(FloorDivide(1099511627775.0, 1099511627776.0), 0);
}

Json Of(std::string_view text) {
  Result<Json> value = ReadJson(text);
  EXPECT_TRUE(value.ok()) << text << ": " << value.error().message;
  return value.ok() ? *value : Json();
}

TEST(Json, OfTwoMembersWithOneNameTheLastCounts) {
  EXPECT_EQ(OneLine(Of(R"({"b": 1, "a": [2.0, "é"], "b": {"c": null}})")), R"({"b":{"c":null},"a":[2.0,"\u00e9"]})");
}

TEST(Json, RefusesWhatOnlyPythonTakes) {
  for (const char* text : {"NaN", "[Infinity]", "-Infinity", "1e400", R"("\ud800")", "\"\xff\"", "{'a': 1}", "[1] 2",
                           "[1,]", "\"\n\"", "01", "", " "}) {
    const Result<Json> value = ReadJson(text);
    ASSERT_FALSE(value.ok()) << text;
    EXPECT_EQ(value.error().type, "JSONDecodeError");
    EXPECT_THAT(value.error().message, StartsWith("no JSON: ")) << text;
  }
  EXPECT_THAT(ReadJson("{\"a\":\n x}").error().message, StartsWith("no JSON: line 2, column 2: "));
  EXPECT_EQ(ReadJson("1e400").error().message, "no JSON: number overflow parsing '1e400'");
}

TEST(Json, DeepNestingIsRefused) {
  const auto nested = [](size_t depth) { return std::string(depth, '[') + std::string(depth, ']'); };
  EXPECT_TRUE(ReadJson(nested(kJsonDepthMax)).ok());
  EXPECT_EQ(ReadJson(nested(kJsonDepthMax + 1)).error().type, "RecursionError");
  EXPECT_EQ(ReadJson(nested(1'000'000)).error().type, "RecursionError");
}

TEST(Json, ValuesAreShownAsPythonShowsThem) {
  EXPECT_EQ(Repr(Of(R"([1, true, null, 2.0, "x", [], {}, {"a": [1e16]}])")),
            "[1, True, None, 2.0, 'x', [], {}, {'a': [1e+16]}]");
  EXPECT_EQ(Repr(Of(R"("it's")")), "\"it's\"");
  EXPECT_EQ(Str(Of(R"("x")")), "x");
  EXPECT_EQ(Str(Of("[\"x\"]")), "['x']");
  EXPECT_EQ(Repr(Of("18446744073709551615")), "18446744073709551615");
  EXPECT_EQ(TypeText(Of("null")), "<class 'NoneType'>");
  EXPECT_EQ(TypeText(Of("[1]")), "<class 'list'>");
  EXPECT_EQ(TypeText(Of("18446744073709551615")), "<class 'int'>");
  EXPECT_EQ(TypeText(Of("1.0")), "<class 'float'>");
}

TEST(Json, EmptyThingsAreFalse) {
  for (const char* text : {"null", "false", "0", "0.0", "-0.0", "\"\"", "[]", "{}"}) EXPECT_FALSE(Truthy(Of(text)));
  for (const char* text : {"true", "-1", "0.1", "\"0\"", "[0]", "{\"\":0}"}) EXPECT_TRUE(Truthy(Of(text)));
}

}  // namespace
}  // namespace phalanx::elasticity
