// Values of a config: JSON, and numbers as Python prints and divides them. Pure.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

#include "elasticity/result.h"

namespace phalanx::elasticity {

// ---- numbers ----

// Batch sizes: of a batch that overflows in numpy (63 bits), times the GPUs of a node.
__extension__ typedef __int128 Int;

// Up to the limits (batch.h) a double holds integers exactly, and dividing them rounds as dividing doubles does. So
// what a number was written as decides how it is printed, and what kind of number comes of it, but not its value.
struct Number {
  double value = 0;
  bool is_float = false;  // 8.0, not 8
};

std::string Text(Int value);
std::string Text(Number number);  // "8", "8.0", "1e+16"

// left // right, where `right` is not 0.
Int FloorDivide(Int left, Int right);
double FloorDivide(double left, double right);

// ---- JSON ----

using Json = nlohmann::ordered_json;

// Deeper nesting is a RecursionError, in Python too.
constexpr int kJsonDepthMax = 900;

// JSON by the book: NaN, Infinity, numbers beyond a double and lone surrogates are a JSONDecodeError, which Python
// takes. Integers of more than 64 bits become decimal numbers.
Result<Json> ReadJson(std::string_view text);

// Null where there is no such key, or `value` is no object.
const Json* Find(const Json& value, const char* key);

// On one line, of ASCII alone.
std::string OneLine(const Json& value);

// bool(value), type(value), str(value), repr(value). Texts are shown as they are, without Python's escapes.
bool Truthy(const Json& value);
std::string TypeText(const Json& value);
std::string Str(const Json& value);
std::string Repr(const Json& value);

}  // namespace phalanx::elasticity
