#include "elasticity/python_json.h"

#include <algorithm>
#include <cstdio>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

namespace phalanx::elasticity {
namespace {

constexpr uint32_t kHighSurrogate = 0xD800;
constexpr uint32_t kLowSurrogate = 0xDC00;
constexpr uint32_t kSurrogateEnd = 0xE000;

bool IsDigit(char c) { return c >= '0' && c <= '9'; }

// The last value of each key, where the key was first.
void DropRepeated(Dict* dict) {
  std::vector<size_t> by_key(dict->size());
  std::iota(by_key.begin(), by_key.end(), size_t{0});
  std::sort(by_key.begin(), by_key.end(), [&](size_t a, size_t b) {
    const int order = (*dict)[a].key.compare((*dict)[b].key);
    return order != 0 ? order < 0 : a < b;
  });
  std::vector<bool> repeated(dict->size());
  bool any = false;
  for (size_t i = 1, first = 0; i < by_key.size(); ++i) {
    if ((*dict)[by_key[i]].key != (*dict)[by_key[first]].key) {
      first = i;
      continue;
    }
    (*dict)[by_key[first]].value = std::move((*dict)[by_key[i]].value);
    repeated[by_key[i]] = any = true;
  }
  if (!any) return;
  size_t kept = 0;
  for (size_t i = 0; i < dict->size(); ++i) {
    if (repeated[i]) continue;
    if (kept != i) (*dict)[kept] = std::move((*dict)[i]);
    ++kept;
  }
  dict->resize(kept);
}

// Recursive descent; its depth is bounded. `error_` is set once and ends everything.
class Reader {
 public:
  explicit Reader(std::string_view text) : text_(text) {}

  Result<Value> Read() {
    Value value;
    SkipBlank();
    if (ReadValue(&value)) {
      SkipBlank();
      if (at_ != text_.size()) Refuse("more text behind the end");
    }
    if (!error_.type.empty()) return error_;
    return value;
  }

 private:
  bool ReadValue(Value* value) {
    if (at_ >= text_.size()) return Refuse("the text ends where a value should be");
    switch (text_[at_]) {
      case '{':
        return ReadDict(value);
      case '[':
        return ReadList(value);
      case '"': {
        std::string text;
        if (!ReadText(&text)) return false;
        value->data = std::move(text);
        return true;
      }
      default:
        return ReadWord(value) || (error_.type.empty() && ReadNumber(value));
    }
  }

  // False without an error where no word stands here.
  bool ReadWord(Value* value) {
    constexpr double kInfinity = std::numeric_limits<double>::infinity();
    if (Take("null")) return Set(value, Value());
    if (Take("true")) return Set(value, Value(true));
    if (Take("false")) return Set(value, Value(false));
    if (Take("NaN")) return Set(value, Value(std::numeric_limits<double>::quiet_NaN()));
    if (Take("Infinity")) return Set(value, Value(kInfinity));
    return Take("-Infinity") && Set(value, Value(-kInfinity));
  }

  bool ReadNumber(Value* value) {
    const size_t begin = at_;
    const bool negative = Take("-");
    const size_t digits_at = at_;
    if (!Take("0")) SkipDigits();
    if (at_ == digits_at) {
      at_ = begin;
      return Refuse("no JSON value");
    }
    const std::string_view digits = text_.substr(digits_at, at_ - digits_at);
    const bool has_fraction = SkipFraction();
    if (SkipExponent() || has_fraction) return Set(value, Value(DecimalOf(text_.substr(begin, at_ - begin))));
    if (digits.size() > kIntDigitsMax) {
      error_ = {"ValueError", "an integer of " + std::to_string(digits.size()) + " digits: Python takes at most " +
                                  std::to_string(kIntDigitsMax)};
      return false;
    }
    return Set(value, IntOf(negative, digits));
  }

  bool SkipFraction() {
    if (at_ + 1 >= text_.size() || text_[at_] != '.' || !IsDigit(text_[at_ + 1])) return false;
    ++at_;
    SkipDigits();
    return true;
  }

  bool SkipExponent() {
    size_t at = at_;
    if (at >= text_.size() || (text_[at] != 'e' && text_[at] != 'E')) return false;
    ++at;
    if (at < text_.size() && (text_[at] == '-' || text_[at] == '+')) ++at;
    if (at >= text_.size() || !IsDigit(text_[at])) return false;
    at_ = at;
    SkipDigits();
    return true;
  }

  bool ReadList(Value* value) {
    if (!Deeper()) return false;
    ++at_;
    List list;
    SkipBlank();
    if (!Take("]")) {
      do {
        SkipBlank();
        if (!ReadValue(&list.emplace_back())) return false;
        SkipBlank();
      } while (Take(","));
      if (!Take("]")) return Refuse("expected ',' or ']'");
    }
    --depth_;
    value->data = std::move(list);
    return true;
  }

  bool ReadDict(Value* value) {
    if (!Deeper()) return false;
    ++at_;
    Dict dict;
    SkipBlank();
    if (!Take("}")) {
      do {
        if (!ReadMember(&dict.emplace_back())) return false;
      } while (Take(","));
      if (!Take("}")) return Refuse("expected ',' or '}'");
    }
    DropRepeated(&dict);
    --depth_;
    value->data = std::move(dict);
    return true;
  }

  bool ReadMember(Member* member) {
    SkipBlank();
    if (at_ >= text_.size() || text_[at_] != '"') return Refuse("expected a name in double quotes");
    if (!ReadText(&member->key)) return false;
    SkipBlank();
    if (!Take(":")) return Refuse("expected ':'");
    SkipBlank();
    if (!ReadValue(&member->value)) return false;
    SkipBlank();
    return true;
  }

  bool ReadText(std::string* text) {
    const size_t begin = at_;
    ++at_;
    while (at_ < text_.size() && text_[at_] != '"') {
      if (static_cast<unsigned char>(text_[at_]) < ' ') return Refuse("a control character in a text");
      if (text_[at_] == '\\') {
        if (!ReadEscape(text)) return false;
      } else {
        text->push_back(text_[at_++]);
      }
    }
    if (Take("\"")) return true;
    at_ = begin;
    return Refuse("a text without its closing quote");
  }

  bool ReadEscape(std::string* text) {
    constexpr std::string_view kNames = "\"\\/bfnrt";
    constexpr std::string_view kMeant = "\"\\/\b\f\n\r\t";
    const char name = at_ + 1 < text_.size() ? text_[at_ + 1] : '\0';
    if (name == 'u') return ReadCodePoint(text);
    const size_t which = kNames.find(name);
    if (which == std::string_view::npos) return Refuse("an unknown escape");
    text->push_back(kMeant[which]);
    at_ += 2;
    return true;
  }

  // "\uXXXX", or two of them that are one character.
  bool ReadCodePoint(std::string* text) {
    uint32_t code_point = 0;
    if (!HexAt(at_, &code_point)) return Refuse("\\u without four hex digits");
    at_ += 6;
    uint32_t low = 0;
    if (code_point >= kHighSurrogate && code_point < kLowSurrogate && HexAt(at_, &low) && low >= kLowSurrogate &&
        low < kSurrogateEnd) {
      code_point = 0x10000 + ((code_point - kHighSurrogate) << 10) + (low - kLowSurrogate);
      at_ += 6;
    }
    AppendUtf8(code_point, text);
    return true;
  }

  bool HexAt(size_t at, uint32_t* code_point) const {
    if (text_.substr(at, 2) != "\\u" || at + 6 > text_.size()) return false;
    *code_point = 0;
    for (const char c : text_.substr(at + 2, 4)) {
      const size_t digit = std::string_view("0123456789abcdef").find(c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
      if (digit == std::string_view::npos) return false;
      *code_point = *code_point << 4 | static_cast<uint32_t>(digit);
    }
    return true;
  }

  bool Take(std::string_view word) {
    if (text_.substr(at_, word.size()) != word) return false;
    at_ += word.size();
    return true;
  }

  static bool Set(Value* value, Value to) {
    *value = std::move(to);
    return true;
  }

  void SkipDigits() {
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
  }

  void SkipBlank() {
    while (at_ < text_.size() && std::string_view(" \t\n\r").find(text_[at_]) != std::string_view::npos) ++at_;
  }

  bool Deeper() {
    if (++depth_ <= kJsonDepthMax) return true;
    error_ = {"RecursionError", "the JSON is nested more than " + std::to_string(kJsonDepthMax) + " deep"};
    return false;
  }

  bool Refuse(const char* what) {
    const std::string_view before = text_.substr(0, at_);
    const size_t line = 1 + static_cast<size_t>(std::count(before.begin(), before.end(), '\n'));
    const size_t line_at = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    error_ = {"JSONDecodeError",
              "no JSON: line " + std::to_string(line) + ", column " + std::to_string(at_ - line_at + 1) + ": " + what};
    return false;
  }

  std::string_view text_;
  size_t at_ = 0;
  int depth_ = 0;
  Error error_;
};

bool IsUtf8(std::string_view text) {
  for (size_t at = 0; at < text.size();) {
    if (static_cast<unsigned char>(text[at]) < 0x80) {
      ++at;
      continue;
    }
    const size_t begin = at;
    const uint32_t code_point = NextCodePoint(text, &at);
    std::string again;
    AppendUtf8(code_point, &again);
    if (again != text.substr(begin, at - begin)) return false;
    if (code_point >= kHighSurrogate && code_point < kSurrogateEnd) return false;
  }
  return true;
}

void WriteEscape(uint32_t unit, std::string* out) {
  char text[12];
  std::snprintf(text, sizeof text, "\\u%04x", unit);
  out->append(text);
}

struct Writer {
  std::string* out;

  void operator()(std::monostate) const { out->append("null"); }
  void operator()(bool value) const { out->append(value ? "true" : "false"); }
  void operator()(Int value) const { out->append(Text(value)); }
  void operator()(const BigInt& value) const { out->append(value.negative ? "-" : "").append(value.digits); }
  void operator()(double value) const {
    if (value != value) {
      out->append("NaN");
    } else if (value - value != 0) {
      out->append(value < 0 ? "-Infinity" : "Infinity");
    } else {
      out->append(FloatRepr(value));
    }
  }
  void operator()(const std::string& value) const { WriteJsonText(value, out); }
  void operator()(const List& value) const {
    out->push_back('[');
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out->push_back(',');
      WriteJson(value[i], out);
    }
    out->push_back(']');
  }
  void operator()(const Dict& value) const {
    out->push_back('{');
    for (size_t i = 0; i < value.size(); ++i) {
      if (i > 0) out->push_back(',');
      WriteJsonText(value[i].key, out);
      out->push_back(':');
      WriteJson(value[i].value, out);
    }
    out->push_back('}');
  }
};

}  // namespace

Result<Value> ReadJson(std::string_view text) {
  if (!IsUtf8(text)) return Error{"UnicodeDecodeError", "the JSON is no UTF-8"};
  return Reader(text).Read();
}

void WriteJson(const Value& value, std::string* out) { std::visit(Writer{out}, value.data); }

void WriteJsonText(std::string_view text, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const char c = text[at];
    if (c >= ' ' && c <= '~' && c != '"' && c != '\\') {
      out->push_back(c);
      ++at;
      continue;
    }
    const uint32_t code_point = NextCodePoint(text, &at);
    const size_t which = std::string_view("\"\\\b\f\n\r\t").find(c);
    if (which != std::string_view::npos) {
      out->push_back('\\');
      out->push_back("\"\\bfnrt"[which]);
    } else if (c == 0x7F) {
      out->push_back(c);
    } else if (code_point >= 0x10000) {
      WriteEscape(kHighSurrogate + ((code_point - 0x10000) >> 10), out);
      WriteEscape(kLowSurrogate + (code_point & 0x3FF), out);
    } else {
      WriteEscape(code_point, out);
    }
  }
  out->push_back('"');
}

}  // namespace phalanx::elasticity
