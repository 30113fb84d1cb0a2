// What Python's json makes of a text, and what Python then does with it: truth, comparison, arithmetic, str() and
// repr(). DeepSpeed's rules are written in Python without a look at types, so that a count may be True, 2.5 or a text,
// and what comes of it is part of the rules. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "elasticity/result.h"

namespace phalanx::elasticity {

// Holds what is computed with numbers up to the limits (plan.h) exactly.
__extension__ typedef __int128 Int;

// An int that Int may not hold. It is compared and printed, never computed with.
struct BigInt {
  bool negative = false;
  std::string digits;  // without leading zeros
};

struct Member;
struct Value;
using List = std::vector<Value>;
using Dict = std::vector<Member>;  // in the order of first mention; each key once

struct Value {
  using Data = std::variant<std::monostate, bool, Int, BigInt, double, std::string, List, Dict>;
  Data data;  // a text is UTF-8, with lone surrogates as three bytes

  Value() = default;
  explicit Value(bool value);
  explicit Value(Int value);
  explicit Value(int value);
  explicit Value(int64_t value);
  explicit Value(BigInt value);
  explicit Value(double value);
  explicit Value(std::string value);
  explicit Value(List value);
  explicit Value(Dict value);

  template <typename T>
  const T* as() const {
    return std::get_if<T>(&data);
  }
};

struct Member {
  std::string key;
  Value value;
};

inline Value::Value(bool value) : data(value) {}
inline Value::Value(Int value) : data(value) {}
inline Value::Value(int value) : data(static_cast<Int>(value)) {}
inline Value::Value(int64_t value) : data(static_cast<Int>(value)) {}
inline Value::Value(BigInt value) : data(std::move(value)) {}
inline Value::Value(double value) : data(value) {}
inline Value::Value(std::string value) : data(std::move(value)) {}
inline Value::Value(List value) : data(std::move(value)) {}
inline Value::Value(Dict value) : data(std::move(value)) {}

// Null where there is no such key, or `value` is no dict.
const Value* Find(const Value& value, std::string_view key);

// The int of these decimal digits.
Value IntOf(bool negative, std::string_view digits);
std::string Text(Int value);

// isinstance(value, int): bools are.
bool IsInt(const Value& value);
bool Truthy(const Value& value);
// "<class 'int'>"
std::string TypeText(const Value& value);
std::string Str(const Value& value);
std::string Repr(const Value& value);
std::string FloatRepr(double value);
// Of a decimal number as JSON and Python write it, whatever the locale.
double DecimalOf(std::string_view text);

enum class Order { kLess, kEqual, kGreater, kUnordered };
// Of two numbers; TypeError for others, naming `operation` ("<").
Result<Order> Compare(const Value& left, const Value& right, const char* operation);
bool Equal(const Value& left, const Value& right);

// left // right, left % right, left / right, left * right. TypeError where one is no number, ZeroDivisionError, and
// kLimitError for a BigInt.
Result<Value> FloorDivide(const Value& left, const Value& right);
Result<Value> Modulo(const Value& left, const Value& right);
Result<double> Divide(const Value& left, const Value& right);
Result<Value> Multiply(const Value& left, const Value& right);

// int(value), math.floor(value)
Result<Int> Truncate(double value);
Result<Int> Floor(double value);
// float(value), of texts too
Result<double> ToFloat(const Value& value);

// str.isnumeric() and int(text)
bool IsNumeric(std::string_view text);
Result<Value> ToInt(std::string_view text);

// A character of `text` at `at`, which moves behind it.
uint32_t NextCodePoint(std::string_view text, size_t* at);
void AppendUtf8(uint32_t code_point, std::string* text);

}  // namespace phalanx::elasticity
