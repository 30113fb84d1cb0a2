#include "elasticity/target_version.h"

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <vector>

#include "elasticity/python_json.h"
#include "elasticity/unicode_ranges.h"

namespace phalanx::elasticity {
namespace {

constexpr const char* kMinimum = "0.3.8";
constexpr std::array<int, 3> kMinimumRelease = {0, 3, 8};

// What decides between a version and one without pre, post, dev and local parts. Numbers are digits, of any length.
struct Version {
  std::string_view epoch;
  std::vector<std::string_view> release;
  bool is_pre = false;
  bool is_post = false;
  bool is_dev = false;
  bool has_long_number = false;  // Python makes no int of it
};

bool IsDigit(char c) { return c >= '0' && c <= '9'; }
char Lower(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Reads a version as packaging's regular expression does, from left to right and never back.
class Scanner {
 public:
  explicit Scanner(std::string_view text) : text_(text) {}

  bool Scan(Version* version) {
    TakeWord("v");
    if (!ScanNumbers(version)) return false;
    version->is_pre = ScanPart({"alpha", "a", "beta", "b", "preview", "pre", "c", "rc"}, version);
    version->is_post = ScanBarePost(version) || ScanPart({"post", "rev", "r"}, version);
    version->is_dev = ScanPart({"dev"}, version);
    ScanLocal(version);
    return at_ == text_.size();
  }

 private:
  // [epoch!]number[.number]...
  bool ScanNumbers(Version* version) {
    std::string_view number = TakeDigits(version);
    if (number.empty()) return false;
    if (At('!')) {
      ++at_;
      version->epoch = number;
      number = TakeDigits(version);
      if (number.empty()) return false;
    }
    version->release.push_back(number);
    while (At('.') && at_ + 1 < text_.size() && IsDigit(text_[at_ + 1])) {
      ++at_;
      version->release.push_back(TakeDigits(version));
    }
    return true;
  }

  // [separator]name[separator][number]
  bool ScanPart(std::initializer_list<std::string_view> names, Version* version) {
    const size_t begin = at_;
    TakeSeparator();
    if (std::none_of(names.begin(), names.end(), [&](std::string_view name) { return TakeWord(name); })) {
      at_ = begin;
      return false;
    }
    TakeSeparator();
    TakeDigits(version);
    return true;
  }

  // -number
  bool ScanBarePost(Version* version) {
    if (!At('-') || at_ + 1 >= text_.size() || !IsDigit(text_[at_ + 1])) return false;
    ++at_;
    TakeDigits(version);
    return true;
  }

  // +part[separator part]...
  void ScanLocal(Version* version) {
    if (!At('+')) return;
    size_t end = at_;
    do {
      at_ = end + 1;
      const std::string_view part = TakePart();
      if (part.empty()) break;
      if (std::all_of(part.begin(), part.end(), IsDigit)) version->has_long_number |= part.size() > kIntDigitsMax;
      end = at_;
    } while (IsSeparator());
    at_ = end;
  }

  std::string_view TakePart() {
    const size_t begin = at_;
    while (at_ < text_.size() && (IsDigit(text_[at_]) || (Lower(text_[at_]) >= 'a' && Lower(text_[at_]) <= 'z'))) ++at_;
    return text_.substr(begin, at_ - begin);
  }

  std::string_view TakeDigits(Version* version) {
    const size_t begin = at_;
    while (at_ < text_.size() && IsDigit(text_[at_])) ++at_;
    version->has_long_number |= at_ - begin > kIntDigitsMax;
    return text_.substr(begin, at_ - begin);
  }

  bool TakeWord(std::string_view word) {
    if (text_.size() - at_ < word.size()) return false;
    for (size_t i = 0; i < word.size(); ++i) {
      if (Lower(text_[at_ + i]) != word[i]) return false;
    }
    at_ += word.size();
    return true;
  }

  bool At(char c) const { return at_ < text_.size() && text_[at_] == c; }
  bool IsSeparator() const { return At('.') || At('_') || At('-'); }
  void TakeSeparator() {
    if (IsSeparator()) ++at_;
  }

  std::string_view text_;
  size_t at_ = 0;
};

// Python's \s
bool IsBlank(uint32_t c) {
  return c < 0x80 ? c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F) : IsSpaceOutsideAscii(c);
}

std::string_view WithoutBlanks(std::string_view text) {
  size_t begin = text.size();
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const size_t here = at;
    if (IsBlank(NextCodePoint(text, &at))) continue;
    begin = std::min(begin, here);
    end = at;
  }
  return end == 0 ? std::string_view() : text.substr(begin, end - begin);
}

// -1, 0 or 1 for a number of decimal digits against one of one digit.
int CompareDigits(std::string_view digits, int number) {
  digits.remove_prefix(std::min(digits.find_first_not_of('0'), digits.size()));
  if (digits.size() > 1) return 1;
  const int value = digits.empty() ? 0 : digits[0] - '0';
  return value < number ? -1 : value > number ? 1 : 0;
}

bool IsOlder(const Version& version) {
  if (CompareDigits(version.epoch, 0) > 0) return false;
  for (size_t i = 0; i < std::max(version.release.size(), kMinimumRelease.size()); ++i) {
    const std::string_view digits = i < version.release.size() ? version.release[i] : std::string_view();
    const int order = CompareDigits(digits, i < kMinimumRelease.size() ? kMinimumRelease[i] : 0);
    if (order != 0) return order < 0;
  }
  return version.is_pre || (version.is_dev && !version.is_post);
}

}  // namespace

Result<Done> CheckTargetVersion(const Value& target) {
  const auto* text = target.as<std::string>();
  Version version;
  if (text == nullptr || !Scanner(WithoutBlanks(*text)).Scan(&version)) {
    return Error{"InvalidVersion", "Invalid version: " + Repr(target)};
  }
  if (version.has_long_number) return Error{"ValueError", "a number in the target version has too many digits"};
  if (!IsOlder(version)) return Done{};
  return Error{"ElasticityError", "Target deepspeed version of " + *text + " is not compatible with minimum version " +
                                      kMinimum + " supporting elasticity."};
}

}  // namespace phalanx::elasticity
