// JSON as Python's json module reads and writes it, which is not what JSON libraries do: NaN and Infinity are numbers,
// ints have any length and are no floats, 1e999 is infinite, "\ud800" may stand alone, and of two members with one name
// the last counts, in the place of the first. Pure.
#pragma once

#include <string>
#include <string_view>

#include "elasticity/python_value.h"

namespace phalanx::elasticity {

// Deeper nesting is a RecursionError, in Python too.
constexpr int kJsonDepthMax = 900;
// Python takes no longer int from a text.
constexpr size_t kIntDigitsMax = 4300;

// JSONDecodeError, with the line, the column and what is wrong there. Python's messages are others.
Result<Value> ReadJson(std::string_view text);

// json.dumps(value, separators=(",", ":")): everything outside ASCII is escaped.
void WriteJson(const Value& value, std::string* out);
void WriteJsonText(std::string_view text, std::string* out);

}  // namespace phalanx::elasticity
