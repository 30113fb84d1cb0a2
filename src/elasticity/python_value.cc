#include "elasticity/python_value.h"

#include <locale.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <limits>
#include <optional>
#include <utility>

#include "elasticity/python_json.h"
#include "elasticity/unicode_ranges.h"

namespace phalanx::elasticity {
namespace {

constexpr size_t kIntDigits = 36;              // any number of so many digits fits into Int
constexpr double kIntEnd = 0x1p126;            // and so does any double below this
constexpr uint32_t kReplacement = 0xFFFFFFFF;  // of bytes that are no UTF-8: no character

Error TypeErrorOf(const char* operation, const Value& left, const Value& right) {
  return {"TypeError", std::string("'") + operation + "' cannot take " + TypeText(left) + " and " + TypeText(right)};
}

// ---- text ----

void AppendHex(const char* format, uint32_t code_point, std::string* out) {
  char text[12];
  std::snprintf(text, sizeof text, format, code_point);
  out->append(text);
}

void AppendTextRepr(std::string_view text, std::string* out) {
  const bool has_single = text.find('\'') != std::string_view::npos;
  const char quote = has_single && text.find('"') == std::string_view::npos ? '"' : '\'';
  out->push_back(quote);
  for (size_t at = 0; at < text.size();) {
    const size_t begin = at;
    const uint32_t code_point = NextCodePoint(text, &at);
    if (code_point == static_cast<uint32_t>(quote) || code_point == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(code_point));
    } else if (code_point == '\n') {
      out->append("\\n");
    } else if (code_point == '\r') {
      out->append("\\r");
    } else if (code_point == '\t') {
      out->append("\\t");
    } else if (IsPrintable(code_point)) {
      out->append(text.substr(begin, at - begin));
    } else {
      AppendHex(code_point < 0x100 ? "\\x%02x" : code_point < 0x10000 ? "\\u%04x" : "\\U%08x", code_point, out);
    }
  }
  out->push_back(quote);
}

struct ReprWriter {
  std::string* out;

  void operator()(std::monostate) const { out->append("None"); }
  void operator()(bool value) const { out->append(value ? "True" : "False"); }
  void operator()(Int value) const { out->append(Text(value)); }
  void operator()(const BigInt& value) const { out->append(value.negative ? "-" : "").append(value.digits); }
  void operator()(double value) const { out->append(FloatRepr(value)); }
  void operator()(const std::string& value) const { AppendTextRepr(value, out); }
  void operator()(const List& value) const {
    out->push_back('[');
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out->append(", ");
      std::visit(*this, value[i].data);
    }
    out->push_back(']');
  }
  void operator()(const Dict& value) const {
    out->push_back('{');
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out->append(", ");
      AppendTextRepr(value[i].key, out);
      out->append(": ");
      std::visit(*this, value[i].value.data);
    }
    out->push_back('}');
  }
};

// ---- numbers ----

// A number as what it is computed with: Python's bools are ints.
struct Number {
  bool is_float = false;
  Int whole = 0;
  double real = 0;

  double AsFloat() const { return is_float ? real : static_cast<double>(whole); }
};

// False where it is no number, or a BigInt.
bool ReadNumber(const Value& value, Number* number) {
  if (const auto* truth = value.as<bool>()) {
    *number = {false, *truth ? 1 : 0, 0};
  } else if (const auto* whole = value.as<Int>()) {
    *number = {false, *whole, 0};
  } else if (const auto* real = value.as<double>()) {
    *number = {true, 0, *real};
  } else {
    return false;
  }
  return true;
}

Result<std::pair<Number, Number>> ReadNumbers(const Value& left, const Value& right, const char* operation) {
  std::pair<Number, Number> numbers;
  const bool both = ReadNumber(left, &numbers.first) && ReadNumber(right, &numbers.second);
  if (both) return numbers;
  const auto number_of_any_size = [](const Value& value) { return IsInt(value) || value.as<double>() != nullptr; };
  if (!number_of_any_size(left) || !number_of_any_size(right)) return TypeErrorOf(operation, left, right);
  return Error{kLimitError, "a number of more than " + std::to_string(kIntDigits) + " digits is not computed with"};
}

template <typename T>
Order OrderOf(const T& left, const T& right) {
  if (left < right) return Order::kLess;
  if (left > right) return Order::kGreater;
  return left == right ? Order::kEqual : Order::kUnordered;
}

Order Reversed(Order order) {
  if (order == Order::kLess) return Order::kGreater;
  return order == Order::kGreater ? Order::kLess : order;
}

// Exactly: the int is not rounded first.
Order CompareWithFloat(Int whole, double real) {
  if (std::isnan(real)) return Order::kUnordered;
  if (std::fabs(real) >= kIntEnd) return real > 0 ? Order::kLess : Order::kGreater;
  const double truncated = std::trunc(real);
  const Order order = OrderOf(whole, static_cast<Int>(truncated));
  return order == Order::kEqual ? OrderOf(truncated, real) : order;
}

Order CompareNumbers(const Number& left, const Number& right) {
  if (left.is_float && right.is_float) return OrderOf(left.real, right.real);
  if (left.is_float) return Reversed(CompareWithFloat(right.whole, left.real));
  if (right.is_float) return CompareWithFloat(left.whole, right.real);
  return OrderOf(left.whole, right.whole);
}

Order CompareDigits(std::string_view left, std::string_view right) {
  if (left.size() != right.size()) return OrderOf(left.size(), right.size());
  return OrderOf(left, right);
}

// `big` is none of the ints that Number holds.
Order CompareBig(const BigInt& big, const Value& other) {
  const Order by_sign = big.negative ? Order::kLess : Order::kGreater;
  std::string digits;
  if (const auto* also_big = other.as<BigInt>()) {
    if (also_big->negative != big.negative) return by_sign;
    digits = also_big->digits;
  } else if (const auto* real = other.as<double>(); real != nullptr && std::fabs(*real) >= kIntEnd) {
    if (std::isinf(*real)) return *real > 0 ? Order::kLess : Order::kGreater;
    if ((*real < 0) != big.negative) return by_sign;
    std::string text(400, '\0');  // the longest double has 309 digits
    text.resize(static_cast<size_t>(std::snprintf(text.data(), text.size(), "%.0f", std::fabs(*real))));
    digits = text;
  } else if (real != nullptr && std::isnan(*real)) {
    return Order::kUnordered;
  } else {
    return by_sign;
  }
  const Order order = CompareDigits(big.digits, digits);
  return big.negative ? Reversed(order) : order;
}

// The quotient of ints as Python rounds it: once. `over` is not 0.
double DivideInts(Int left, Int over) {
  constexpr Int kExact = Int{1} << 53;  // doubles hold all ints up to here
  if (left > -kExact && left < kExact && over > -kExact && over < kExact) {
    return static_cast<double>(left) / static_cast<double>(over);
  }
  const bool negative = (left < 0) != (over < 0);
  const Int divisor = over < 0 ? -over : over;
  Int rest = left < 0 ? -left : left;
  Int quotient = rest / divisor;
  rest %= divisor;
  int shift = 0;
  for (; quotient >> 66 == 0 && shift < 200; ++shift) {  // more bits than a double has, and then whether any is left
    rest *= 2;
    quotient = quotient * 2 + (rest >= divisor ? 1 : 0);
    if (rest >= divisor) rest -= divisor;
  }
  const double rounded = std::ldexp(static_cast<double>(quotient | (rest != 0 ? 1 : 0)), -shift);
  return negative ? -rounded : rounded;
}

// Python's float division: the quotient is rounded down, the remainder has the divisor's sign.
void DivideFloats(double left, double right, double* quotient, double* remainder) {
  double mod = std::fmod(left, right);
  double div = (left - mod) / right;
  if (mod != 0) {
    if ((right < 0) != (mod < 0)) {
      mod += right;
      div -= 1;
    }
  } else {
    mod = std::copysign(0.0, right);
  }
  double floored = 0;
  if (div != 0) {
    floored = std::floor(div);
    if (div - floored > 0.5) floored += 1;
  } else {
    floored = std::copysign(0.0, left / right);
  }
  *quotient = floored;
  *remainder = mod;
}

struct Division {
  Int quotient;
  Int remainder;
};

// Of ints; `over` is not 0.
Division DivideDown(Int left, Int over) {
  constexpr Int kNarrow = std::numeric_limits<int64_t>::max();
  if (left >= 0 && left <= kNarrow && over > 0 && over <= kNarrow) {  // in one instruction, and most of them are
    return {static_cast<int64_t>(left) / static_cast<int64_t>(over),
            static_cast<int64_t>(left) % static_cast<int64_t>(over)};
  }
  Division division = {left / over, left % over};
  if (division.remainder != 0 && (division.remainder < 0) != (over < 0)) {
    division.quotient -= 1;
    division.remainder += over;
  }
  return division;
}

// Where both are ints, and can be divided.
std::optional<Division> DivideInts(const Value& left, const Value& right) {
  const auto* whole = left.as<Int>();
  const auto* over = right.as<Int>();
  if (whole == nullptr || over == nullptr || *over == 0) return std::nullopt;
  return DivideDown(*whole, *over);
}

// The two results of Python's divmod.
Result<std::pair<Value, Value>> DivideWithRemainder(const Value& left, const Value& right, const char* operation) {
  PHX_TRY(const auto numbers, ReadNumbers(left, right, operation));
  const auto& [a, b] = numbers;
  if (b.AsFloat() == 0) return Error{"ZeroDivisionError", "division or modulo by zero"};
  if (a.is_float || b.is_float) {
    double quotient = 0;
    double remainder = 0;
    DivideFloats(a.AsFloat(), b.AsFloat(), &quotient, &remainder);
    return std::pair(Value(quotient), Value(remainder));
  }
  const Division division = DivideDown(a.whole, b.whole);
  return std::pair(Value(division.quotient), Value(division.remainder));
}

Result<Int> Whole(double value) {
  if (std::isnan(value)) return Error{"ValueError", "cannot convert float NaN to integer"};
  if (std::isinf(value)) return Error{"OverflowError", "cannot convert float infinity to integer"};
  if (std::fabs(value) >= kIntEnd) return Error{kLimitError, FloatRepr(value) + " is not computed with as an integer"};
  return static_cast<Int>(value);
}

// Digits of other scripts as 0 to 9, other blanks as ' '. False where `text` has something else outside ASCII.
bool Transliterate(std::string_view text, std::string* ascii) {
  for (size_t at = 0; at < text.size();) {
    const uint32_t code_point = NextCodePoint(text, &at);
    if (code_point < 0x80) {
      ascii->push_back(static_cast<char>(code_point));
    } else if (IsSpaceOutsideAscii(code_point)) {
      ascii->push_back(' ');
    } else if (const int digit = DecimalDigit(code_point); digit >= 0) {
      ascii->push_back(static_cast<char>('0' + digit));
    } else {
      return false;
    }
  }
  return true;
}

std::string_view Stripped(std::string_view text) {
  constexpr std::string_view kBlanks = " \t\n\v\f\r";
  const size_t first = text.find_first_not_of(kBlanks);
  if (first == std::string_view::npos) return {};
  return text.substr(first, text.find_last_not_of(kBlanks) - first + 1);
}

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// Without the underscores, each of which must stand between two digits.
bool DropUnderscores(std::string_view text, std::string* plain) {
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '_') {
      plain->push_back(text[i]);
    } else if (i == 0 || i + 1 == text.size() || !IsDigit(text[i - 1]) || !IsDigit(text[i + 1])) {
      return false;
    }
  }
  return true;
}

size_t SkipDigits(std::string_view text, size_t* at) {
  const size_t begin = *at;
  while (*at < text.size() && IsDigit(text[*at])) ++*at;
  return *at - begin;
}

// [digits][.digits][e[+-]digits], with digits before or behind the point.
bool IsDecimal(std::string_view text) {
  size_t at = 0;
  size_t digits = SkipDigits(text, &at);
  if (at < text.size() && text[at] == '.') {
    ++at;
    digits += SkipDigits(text, &at);
  }
  if (digits == 0) return false;
  if (at < text.size() && (text[at] == 'e' || text[at] == 'E')) {
    ++at;
    if (at < text.size() && (text[at] == '+' || text[at] == '-')) ++at;
    if (SkipDigits(text, &at) == 0) return false;
  }
  return at == text.size();
}

Result<double> FloatOfText(const std::string& text) {
  const Error no_float = {"ValueError", "could not convert string to float: " + Repr(Value(text))};
  std::string ascii;
  std::string plain;
  if (!Transliterate(text, &ascii) || !DropUnderscores(Stripped(ascii), &plain)) return no_float;
  const bool negative = !plain.empty() && plain[0] == '-';
  std::string body = plain.substr(negative || (!plain.empty() && plain[0] == '+') ? 1 : 0);
  std::transform(body.begin(), body.end(), body.begin(),
                 [](char c) { return c >= 'A' && c <= 'Z' ? c - 'A' + 'a' : c; });
  double value = 0;
  if (body == "inf" || body == "infinity") {
    value = std::numeric_limits<double>::infinity();
  } else if (body == "nan") {
    value = std::numeric_limits<double>::quiet_NaN();
  } else if (IsDecimal(body)) {
    value = DecimalOf(body);
  } else {
    return no_float;
  }
  return negative ? -value : value;
}

bool EqualInside(const Value& left, const Value& right);

bool EqualDicts(const Dict& left, const Dict& right) {
  if (left.size() != right.size()) return false;
  std::vector<const Member*> a;
  std::vector<const Member*> b;
  for (const Member& member : left) a.push_back(&member);
  for (const Member& member : right) b.push_back(&member);
  const auto by_key = [](const Member* x, const Member* y) { return x->key < y->key; };
  std::sort(a.begin(), a.end(), by_key);
  std::sort(b.begin(), b.end(), by_key);
  return std::equal(a.begin(), a.end(), b.begin(), [](const Member* x, const Member* y) {
    return x->key == y->key && EqualInside(x->value, y->value);
  });
}

// Within lists and dicts Python takes what is the same object for equal, and json has one NaN.
bool EqualInside(const Value& left, const Value& right) {
  const auto* a = left.as<double>();
  const auto* b = right.as<double>();
  if (a != nullptr && b != nullptr && std::isnan(*a) && std::isnan(*b)) return true;
  return Equal(left, right);
}

}  // namespace

const Value* Find(const Value& value, std::string_view key) {
  const auto* dict = value.as<Dict>();
  if (dict == nullptr) return nullptr;
  const auto found = std::find_if(dict->begin(), dict->end(), [&](const Member& member) { return member.key == key; });
  return found == dict->end() ? nullptr : &found->value;
}

Value IntOf(bool negative, std::string_view digits) {
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > kIntDigits) return Value(BigInt{negative, std::string(digits)});
  Int value = 0;
  for (const char digit : digits) value = value * 10 + (digit - '0');
  return Value(negative ? -value : value);
}

std::string Text(Int value) {
  char digits[48];
  char* at = std::end(digits);
  const bool negative = value < 0;
  do {
    const auto digit = static_cast<int>(value % 10);
    *--at = static_cast<char>('0' + (digit < 0 ? -digit : digit));
    value /= 10;
  } while (value != 0);
  if (negative) *--at = '-';
  return {at, std::end(digits)};
}

bool IsInt(const Value& value) {
  return value.as<bool>() != nullptr || value.as<Int>() != nullptr || value.as<BigInt>() != nullptr;
}

bool Truthy(const Value& value) {
  if (const auto* truth = value.as<bool>()) return *truth;
  if (const auto* whole = value.as<Int>()) return *whole != 0;
  if (const auto* real = value.as<double>()) return *real != 0;
  if (const auto* text = value.as<std::string>()) return !text->empty();
  if (const auto* list = value.as<List>()) return !list->empty();
  if (const auto* dict = value.as<Dict>()) return !dict->empty();
  return value.as<BigInt>() != nullptr;
}

std::string TypeText(const Value& value) {
  constexpr const char* kNames[] = {"NoneType", "bool", "int", "int", "float", "str", "list", "dict"};
  return std::string("<class '") + kNames[value.data.index()] + "'>";
}

std::string Str(const Value& value) {
  const auto* text = value.as<std::string>();
  return text != nullptr ? *text : Repr(value);
}

std::string Repr(const Value& value) {
  std::string out;
  std::visit(ReprWriter{&out}, value.data);
  return out;
}

std::string FloatRepr(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  // The shortest digits that are this number: d.ddde+xx, with the locale's point.
  char text[40];
  for (int precision = 0; precision <= 16; ++precision) {
    std::snprintf(text, sizeof text, "%.*e", precision, std::fabs(value));
    if (std::strtod(text, nullptr) == std::fabs(value)) break;
  }
  const std::string_view all = text;
  const size_t exponent_at = all.find('e');
  std::string digits;
  for (const char c : all.substr(0, exponent_at)) {
    if (IsDigit(c)) digits.push_back(c);
  }
  const int exponent = std::atoi(text + exponent_at + 1);
  std::string out = std::signbit(value) ? "-" : "";
  if (exponent < -4 || exponent >= 16) {
    out.append(digits, 0, 1);
    if (digits.size() > 1) out.append(".").append(digits, 1);
    std::snprintf(text, sizeof text, "e%c%02d", exponent < 0 ? '-' : '+', std::abs(exponent));
    return out + text;
  }
  if (exponent < 0) return out + "0." + std::string(static_cast<size_t>(-exponent - 1), '0') + digits;
  const auto whole = static_cast<size_t>(exponent) + 1;
  if (digits.size() <= whole) return out + digits + std::string(whole - digits.size(), '0') + ".0";
  return out + digits.substr(0, whole) + "." + digits.substr(whole);
}

double DecimalOf(std::string_view text) {
  // The C locale is not made, but there.
  return strtod_l(std::string(text).c_str(), nullptr, newlocale(LC_ALL_MASK, "C", nullptr));
}

Result<Order> Compare(const Value& left, const Value& right, const char* operation) {
  const auto* left_whole = left.as<Int>();
  const auto* right_whole = right.as<Int>();
  if (left_whole != nullptr && right_whole != nullptr) return OrderOf(*left_whole, *right_whole);
  Number a;
  Number b;
  if (ReadNumber(left, &a) && ReadNumber(right, &b)) return CompareNumbers(a, b);
  const auto* left_big = left.as<BigInt>();
  const auto* right_big = right.as<BigInt>();
  if (left_big != nullptr && (right_big != nullptr || ReadNumber(right, &b))) return CompareBig(*left_big, right);
  if (right_big != nullptr && ReadNumber(left, &a)) return Reversed(CompareBig(*right_big, left));
  return TypeErrorOf(operation, left, right);
}

bool Equal(const Value& left, const Value& right) {
  if (const auto order = Compare(left, right, "=="); order.ok()) return *order == Order::kEqual;
  if (left.data.index() != right.data.index()) return false;
  if (const auto* text = left.as<std::string>()) return *text == *right.as<std::string>();
  if (const auto* list = left.as<List>()) {
    const List& other = *right.as<List>();
    return list->size() == other.size() && std::equal(list->begin(), list->end(), other.begin(), EqualInside);
  }
  if (const auto* dict = left.as<Dict>()) return EqualDicts(*dict, *right.as<Dict>());
  return left.as<std::monostate>() != nullptr;
}

Result<Value> FloorDivide(const Value& left, const Value& right) {
  if (const auto division = DivideInts(left, right)) return Value(division->quotient);
  PHX_TRY(auto both, DivideWithRemainder(left, right, "//"));
  return std::move(both.first);
}

Result<Value> Modulo(const Value& left, const Value& right) {
  if (const auto division = DivideInts(left, right)) return Value(division->remainder);
  PHX_TRY(auto both, DivideWithRemainder(left, right, "%"));
  return std::move(both.second);
}

Result<double> Divide(const Value& left, const Value& right) {
  PHX_TRY(const auto numbers, ReadNumbers(left, right, "/"));
  const auto& [a, b] = numbers;
  if (b.AsFloat() == 0) return Error{"ZeroDivisionError", "division by zero"};
  return a.is_float || b.is_float ? a.AsFloat() / b.AsFloat() : DivideInts(a.whole, b.whole);
}

Result<Value> Multiply(const Value& left, const Value& right) {
  PHX_TRY(const auto numbers, ReadNumbers(left, right, "*"));
  const auto& [a, b] = numbers;
  if (a.is_float || b.is_float) return Value(a.AsFloat() * b.AsFloat());
  Int product = 0;
  if (__builtin_mul_overflow(a.whole, b.whole, &product)) {
    return Error{kLimitError, "the product of " + Text(a.whole) + " and " + Text(b.whole) + " is too large"};
  }
  return Value(product);
}

Result<Int> Truncate(double value) { return Whole(value); }

Result<Int> Floor(double value) { return Whole(std::floor(value)); }

Result<double> ToFloat(const Value& value) {
  if (const auto* text = value.as<std::string>()) return FloatOfText(*text);
  if (const auto* big = value.as<BigInt>()) {
    const double real = DecimalOf(big->digits);
    if (std::isinf(real)) return Error{"OverflowError", "int too large to convert to float"};
    return big->negative ? -real : real;
  }
  Number number;
  if (ReadNumber(value, &number)) return number.AsFloat();
  return Error{"TypeError", "float() argument must be a string or a real number, not " + TypeText(value)};
}

bool IsNumeric(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (!IsNumericCharacter(NextCodePoint(text, &at))) return false;
  }
  return !text.empty();
}

Result<Value> ToInt(std::string_view text) {
  std::string digits;
  if (!Transliterate(text, &digits) || !std::all_of(digits.begin(), digits.end(), IsDigit)) {
    return Error{"ValueError", "invalid literal for int() with base 10: " + Repr(Value(std::string(text)))};
  }
  if (digits.size() > kIntDigitsMax) return Error{"ValueError", "too many digits for int()"};
  return IntOf(false, digits);
}

uint32_t NextCodePoint(std::string_view text, size_t* at) {
  const auto byte = [&](size_t i) { return i < text.size() ? static_cast<unsigned char>(text[i]) : 0U; };
  const uint32_t first = byte(*at);
  const size_t length = first < 0x80 ? 1 : first < 0xE0 ? 2 : first < 0xF0 ? 3 : 4;
  if (length == 1) {
    ++*at;
    return first;
  }
  uint32_t code_point = first & (0x7FU >> length);
  for (size_t i = 1; i < length; ++i) {
    if ((byte(*at + i) & 0xC0) != 0x80) {
      ++*at;
      return kReplacement;
    }
    code_point = code_point << 6 | (byte(*at + i) & 0x3F);
  }
  *at += length;
  return code_point;
}

void AppendUtf8(uint32_t code_point, std::string* text) {
  const auto put = [&](uint32_t byte) { text->push_back(static_cast<char>(byte)); };
  if (code_point < 0x80) {
    put(code_point);
  } else if (code_point < 0x800) {
    put(0xC0 | code_point >> 6);
    put(0x80 | (code_point & 0x3F));
  } else if (code_point < 0x10000) {
    put(0xE0 | code_point >> 12);
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  } else {
    put(0xF0 | (code_point >> 18 & 7));
    put(0x80 | (code_point >> 12 & 0x3F));
    put(0x80 | (code_point >> 6 & 0x3F));
    put(0x80 | (code_point & 0x3F));
  }
}

}  // namespace phalanx::elasticity
