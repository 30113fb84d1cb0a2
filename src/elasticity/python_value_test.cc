#include "elasticity/python_value.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <string>
#include <string_view>

#include "elasticity/python_json.h"

namespace phalanx::elasticity {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
const double kNaN = std::nan("");

Value Json(std::string_view text) {
  Result<Value> value = ReadJson(text);
  EXPECT_TRUE(value.ok()) << text << ": " << value.error().message;
  return value.ok() ? *value : Value();
}

std::string ReprOf(std::string_view json) { return Repr(Json(json)); }

TEST(PythonValue, FloatsArePrintedWithTheFewestDigits) {
  EXPECT_EQ(FloatRepr(0.1), "0.1");
  EXPECT_EQ(FloatRepr(-0.0), "-0.0");
  EXPECT_EQ(FloatRepr(2), "2.0");
  EXPECT_EQ(FloatRepr(123456.789), "123456.789");
  EXPECT_EQ(FloatRepr(0.1 + 0.2), "0.30000000000000004");
  EXPECT_EQ(FloatRepr(0.0001), "0.0001");
  EXPECT_EQ(FloatRepr(0.00001), "1e-05");
  EXPECT_EQ(FloatRepr(9999999999999998), "9999999999999998.0");
  EXPECT_EQ(FloatRepr(1e16), "1e+16");
  EXPECT_EQ(FloatRepr(-1.5e300), "-1.5e+300");
  EXPECT_EQ(FloatRepr(5e-324), "5e-324");
  EXPECT_EQ(FloatRepr(kNaN), "nan");
  EXPECT_EQ(FloatRepr(-kInfinity), "-inf");
}

TEST(PythonValue, TextsAreQuotedAsPythonDoes) {
  EXPECT_EQ(ReprOf(R"("it")"), "'it'");
  EXPECT_EQ(ReprOf(R"("it's")"), "\"it's\"");
  EXPECT_EQ(ReprOf(R"("it's \"it\"")"), R"('it\'s "it"')");
  EXPECT_EQ(ReprOf(R"("\t\n\r\\\u0000\u007f")"), R"('\t\n\r\\\x00\x7f')");
  EXPECT_EQ(ReprOf(R"("\u00e9\u4e2d\ud83d\ude00")"), "'\u00e9\u4e2d\U0001F600'");
  EXPECT_EQ(ReprOf(R"("\u00a0\u200b\ud800\udb40\udc01")"), R"('\xa0\u200b\ud800\U000e0001')");
}

TEST(PythonValue, ContainersShowWhatTheirElementsAre) {
  EXPECT_EQ(ReprOf(R"([1, true, null, 2.0, "x", [], {}, {"a": [NaN]}])"),
            "[1, True, None, 2.0, 'x', [], {}, {'a': [nan]}]");
  EXPECT_EQ(Str(Json(R"("x")")), "x");
  EXPECT_EQ(TypeText(Json("null")), "<class 'NoneType'>");
  EXPECT_EQ(TypeText(Json("100000000000000000000000000000000000000000")), "<class 'int'>");
}

Order OrderOf(std::string_view left, std::string_view right) {
  const Result<Order> order = Compare(Json(left), Json(right), "<");
  EXPECT_TRUE(order.ok()) << left << " and " << right;
  return order.ok() ? *order : Order::kUnordered;
}

TEST(PythonValue, NumbersCompareExactly) {
  EXPECT_EQ(OrderOf("true", "1.0"), Order::kEqual);
  EXPECT_EQ(OrderOf("9007199254740993", "9007199254740992.0"), Order::kGreater);
  EXPECT_EQ(OrderOf("2", "2.5"), Order::kLess);
  EXPECT_EQ(OrderOf("-2", "-2.5"), Order::kGreater);
  EXPECT_EQ(OrderOf("-2.5", "-2"), Order::kLess);
  EXPECT_EQ(OrderOf("NaN", "1"), Order::kUnordered);
  EXPECT_EQ(OrderOf("1", "Infinity"), Order::kLess);
  const std::string big = std::string("1").append(60, '0');
  const std::string low = std::string("-").append(big);
  EXPECT_EQ(OrderOf(big, "1e60"), Order::kGreater);  // the double is 9.999..e59
  EXPECT_EQ(OrderOf(low, "-1e60"), Order::kLess);
  EXPECT_EQ(OrderOf(big, "Infinity"), Order::kLess);
  EXPECT_EQ(OrderOf(big, "NaN"), Order::kUnordered);
  EXPECT_EQ(OrderOf("5", big), Order::kLess);
  EXPECT_EQ(OrderOf(low, low + "0"), Order::kGreater);
  EXPECT_EQ(OrderOf(big, big), Order::kEqual);
}

TEST(PythonValue, OtherThingsDoNotCompare) {
  for (const char* other : {"null", "\"1\"", "[]", "{}"}) {
    EXPECT_EQ(Compare(Json(other), Value(1), "<").error().type, "TypeError") << other;
    EXPECT_EQ(Compare(Value(1), Json(other), "<").error().type, "TypeError") << other;
  }
}

TEST(PythonValue, EqualityLooksInside) {
  EXPECT_TRUE(Equal(Json(R"({"a": 1, "b": [true]})"), Json(R"({"b": [1.0], "a": 1})")));
  EXPECT_FALSE(Equal(Json("[1, 2]"), Json("[2, 1]")));
  EXPECT_FALSE(Equal(Json(R"("0.1")"), Json("0.1")));
  EXPECT_FALSE(Equal(Json("NaN"), Json("NaN")));
  EXPECT_TRUE(Equal(Json("[NaN]"), Json("[NaN]")));  // the same object, in Python
  EXPECT_TRUE(Equal(Json("null"), Json("null")));
}

TEST(PythonValue, DivisionRoundsDownAndTheRestHasTheDivisorsSign) {
  const auto quotient = [](const Value& a, const Value& b) { return Repr(*FloorDivide(a, b)); };
  const auto rest = [](const Value& a, const Value& b) { return Repr(*Modulo(a, b)); };
  EXPECT_EQ(quotient(Value(-7), Value(2)), "-4");
  EXPECT_EQ(rest(Value(-7), Value(2)), "1");
  EXPECT_EQ(quotient(Value(7), Value(-2)), "-4");
  EXPECT_EQ(rest(Value(7), Value(-2)), "-1");
  EXPECT_EQ(quotient(Value(7), Value(true)), "7");
  EXPECT_EQ(quotient(Value(-7.5), Value(2)), "-4.0");
  EXPECT_EQ(rest(Value(-7.5), Value(2)), "0.5");
  EXPECT_EQ(rest(Value(6.0), Value(-2)), "-0.0");
  EXPECT_EQ(quotient(Value(0.3), Value(0.1)), "2.0");  // floor(0.3 / 0.1) is 2, and so is this
  EXPECT_EQ(quotient(Value(kInfinity), Value(2)), "nan");
  EXPECT_EQ(rest(Value(5), Value(kInfinity)), "5.0");
  EXPECT_EQ(FloorDivide(Value(1), Value(0)).error().type, "ZeroDivisionError");
  EXPECT_EQ(Divide(Value(1), Value(-0.0)).error().type, "ZeroDivisionError");
  EXPECT_EQ(Modulo(Value(std::string("%d")), Value(1)).error().type, "TypeError");
  EXPECT_EQ(Multiply(IntOf(false, std::string(50, '9')), Value(1)).error().type, kLimitError);
  EXPECT_EQ(Multiply(IntOf(false, std::string(36, '9')), IntOf(false, std::string(36, '9'))).error().type, kLimitError);
}

TEST(PythonValue, QuotientsOfIntsAreRoundedOnce) {
  const auto quotient = [](std::string_view a, std::string_view b) { return *Divide(Json(a), Json(b)); };
  EXPECT_EQ(quotient("7", "-2"), -3.5);
  EXPECT_EQ(quotient("true", "3"), 1.0 / 3);
  EXPECT_EQ(quotient("-1713958519363874910675", "6"), -285659753227312496640.0);  // not ...463872: rounded twice
  EXPECT_EQ(quotient("9007199254740993", "9007199254740993"), 1);
  EXPECT_EQ(quotient("3", "999999999999999999999999999999999999"), 3e-36);
  EXPECT_EQ(quotient("0", "999999999999999999999999999999999999"), 0);
}

TEST(PythonValue, FloatsBecomeInts) {
  EXPECT_EQ(*Truncate(-2.5), Int{-2});
  EXPECT_EQ(*Floor(-2.5), Int{-3});
  EXPECT_EQ(Truncate(kNaN).error().type, "ValueError");
  EXPECT_EQ(Floor(kInfinity).error().type, "OverflowError");
  EXPECT_EQ(Truncate(1e300).error().type, kLimitError);
}

TEST(PythonValue, TextsBecomeFloats) {
  const auto float_of = [](std::string_view text) { return ToFloat(Value(std::string(text))); };
  for (const char* text : {"0.1", " 0.1\n", "1e-1", "+.1", "0.1_0", "1_0.0e-2", "\u0660.\u0661", "\u00a00.1\u2003"}) {
    ASSERT_TRUE(float_of(text).ok()) << text;
    EXPECT_EQ(*float_of(text), 0.1) << text;
  }
  EXPECT_EQ(*float_of("-Infinity"), -kInfinity);
  EXPECT_TRUE(std::isnan(*float_of("nAn")));
  EXPECT_EQ(*float_of("5."), 5.0);
  for (const char* text :
       {"", " ", ".", "0x1", "1e", "_1", "1_", "1__0", "0.1 1", "in", "0.1\x1c", "\u00bd", "--1", "e1"}) {
    ASSERT_FALSE(float_of(text).ok()) << text;
    EXPECT_EQ(float_of(text).error().type, "ValueError") << text;
  }
  EXPECT_EQ(ToFloat(Value()).error().type, "TypeError");
  EXPECT_EQ(*ToFloat(Value(true)), 1.0);
  EXPECT_EQ(*ToFloat(IntOf(true, std::string("1").append(40, '0'))), -1e40);
  EXPECT_EQ(ToFloat(IntOf(false, std::string(400, '9'))).error().type, "OverflowError");
}

TEST(PythonValue, NumericTextsAreNotAllInts) {
  for (const char* text : {"4", "007", "\u0664", "\uff18"}) {
    EXPECT_TRUE(IsNumeric(text)) << text;
    EXPECT_TRUE(ToInt(text).ok()) << text;
  }
  EXPECT_EQ(Repr(*ToInt("\u0664\u0668")), "48");
  for (const char* text : {"\u00bd", "\u00b2", "\u4e94"}) {
    EXPECT_TRUE(IsNumeric(text)) << text;
    EXPECT_EQ(ToInt(text).error().type, "ValueError") << text;
  }
  for (const char* text : {"", "-1", " 4", "1.5", "x", "1_0", "\xff"}) EXPECT_FALSE(IsNumeric(text)) << text;
  EXPECT_EQ(ToInt(std::string(kIntDigitsMax + 1, '9')).error().type, "ValueError");
}

}  // namespace
}  // namespace phalanx::elasticity
