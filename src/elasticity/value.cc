#include "elasticity/value.h"

#include <charconv>
#include <cmath>

namespace phalanx::elasticity {

std::string Text(Int value) {
  if (value < 0) return std::string("-").append(Text(-value));
  std::string digits = value < 10 ? "" : Text(value / 10);
  digits.push_back(static_cast<char>('0' + static_cast<int>(value % 10)));
  return digits;
}

std::string Text(Number number) {
  const double magnitude = std::fabs(number.value);
  if (!number.is_float && magnitude < 0x1p63) return Text(static_cast<Int>(number.value));
  const bool is_fixed = magnitude == 0 || (magnitude >= 1e-4 && magnitude < 1e16);
  char text[32];
  const auto format = is_fixed ? std::chars_format::fixed : std::chars_format::scientific;
  const std::string shortest(text, std::to_chars(text, text + sizeof text, number.value, format).ptr);
  return is_fixed && shortest.find('.') == std::string::npos ? shortest + ".0" : shortest;
}

double FloorDivide(double left, double right) {
  double rest = std::fmod(left, right);
  if (rest != 0 && (rest < 0) != (right < 0)) rest += right;
  return std::round((left - rest) / right);
}

Int FloorDivide(Int left, Int right) {
  const Int quotient = left / right;
  return left % right != 0 && (left < 0) != (right < 0) ? quotient - 1 : quotient;
}

Result<Json> ReadJson(std::string_view text) {
  bool is_deep = false;
  const auto bound = [&](int depth, Json::parse_event_t, const Json&) { return !(is_deep |= depth >= kJsonDepthMax); };
  try {
    Json value = Json::parse(text, bound);
    if (!is_deep) return value;
    return Error{"RecursionError", "the JSON is nested deeper than " + std::to_string(kJsonDepthMax) + " levels"};
  } catch (const Json::exception& error) {  // "[json.exception.parse_error.101] parse error at line 1, column 2: .."
    std::string_view why = error.what();
    why.remove_prefix(why.find("] ") + 2);
    if (const size_t where = why.find(" at line "); where != why.npos) why.remove_prefix(where + 4);
    return Error{"JSONDecodeError", "no JSON: " + std::string(why)};
  }
}

const Json* Find(const Json& value, const char* key) {
  if (!value.is_object()) return nullptr;
  const auto found = value.find(key);
  return found != value.end() ? &*found : nullptr;
}

std::string OneLine(const Json& value) {
  return value.dump(-1, ' ', /*ensure_ascii=*/true, Json::error_handler_t::replace);
}

bool Truthy(const Json& value) {
  if (value.is_boolean()) return value.get<bool>();
  if (value.is_number()) return value.get<double>() != 0;
  if (value.is_string()) return !value.get_ref<const std::string&>().empty();
  return !value.empty();  // null is
}

std::string TypeText(const Json& value) {
  constexpr const char* kTypes[] = {"NoneType", "dict", "list", "str", "bool", "int", "int", "float"};
  return std::string("<class '") + kTypes[static_cast<size_t>(value.type())] + "'>";
}

std::string Str(const Json& value) { return value.is_string() ? value.get<std::string>() : Repr(value); }

std::string Repr(const Json& value) {
  if (value.is_null()) return "None";
  if (value.is_boolean()) return value.get<bool>() ? "True" : "False";
  if (value.is_number_float()) return Text(Number{value.get<double>(), true});
  if (value.is_number()) return value.dump();
  if (value.is_string()) {
    const auto& text = value.get_ref<const std::string&>();
    const char* quote = text.find('\'') != std::string::npos && text.find('"') == std::string::npos ? "\"" : "'";
    return quote + text + quote;
  }
  std::string out;
  for (const auto& [key, member] : value.items()) {
    if (!out.empty()) out += ", ";
    if (value.is_object()) out += "'" + key + "': ";
    out += Repr(member);
  }
  return value.is_object() ? "{" + out + "}" : "[" + out + "]";
}

}  // namespace phalanx::elasticity
