#include "master/rules/last_exception.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>

#include "base/traceback_text.h"
#include "base/utf8.h"
#include "master/rules/blame.h"

namespace phalanx::master {
namespace {

// "ValueError", "torch.cuda.OutOfMemoryError": what an exception's line begins with.
bool IsName(std::string_view text) {
  const auto is_part = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_' || c == '.' || c >= 0x80; };
  return !text.empty() && std::isdigit(static_cast<unsigned char>(text[0])) == 0 &&
         std::all_of(text.begin(), text.end(), is_part);
}

bool IsException(std::string_view line) { return IsName(line.substr(0, line.find(':'))); }

// A syntax error of the script itself comes without a traceback.
bool IsSyntaxError(std::string_view line) {
  return line.starts_with("SyntaxError: ") || line.starts_with("IndentationError: ") || line.starts_with("TabError: ");
}

std::string Shown(std::string_view bytes) {
  const std::string text = ToUtf8(bytes.substr(0, 2 * kMaxExceptionBytes));
  std::string shown(CutUtf8(text, kMaxExceptionBytes));
  if (shown.size() < text.size()) shown += "...";
  std::string printable;
  for (size_t i = 0; i < shown.size(); ++i) {
    const auto byte = static_cast<unsigned char>(shown[i]);
    // U+0080 to U+009F act upon terminals, too.
    const bool is_c1 = byte == 0xC2 && i + 1 < shown.size() && static_cast<unsigned char>(shown[i + 1]) < 0xA0;
    printable += byte < 0x20 || byte == 0x7F || is_c1 ? '?' : shown[i];
    if (is_c1) ++i;
  }
  return printable;
}

}  // namespace

namespace {

struct Raised {
  std::string_view line;   // "ValueError: text"; empty: none
  std::string_view frame;  // '  File "train.py", line 12, in main': the innermost; empty: not known
};

Raised LastRaised(std::string_view words) {
  Raised found;
  std::string_view frame;
  bool in_traceback = false;
  while (!words.empty()) {
    const size_t end = std::min(words.find('\n'), words.size());
    const std::string_view line = WithoutRank(words.substr(0, end));
    words.remove_prefix(std::min(end + 1, words.size()));
    if (line.ends_with(kTracebackHeader)) {  // behind a progress bar, which ends no line
      in_traceback = true;
      frame = "";
      continue;
    }
    if (line.starts_with("  File \"")) frame = line;
    if (IsSyntaxError(line)) found = {line, frame};
    if (!in_traceback || line.empty() || line.starts_with(' ')) continue;
    in_traceback = false;  // its frames are over
    if (IsException(line)) found = {line, frame};
  }
  return found;
}

// '  File "train.py", line 12, in main' -> "train.py:12".
std::string PlaceOf(std::string_view frame) {
  const size_t begin = frame.find('"');
  const size_t end = frame.find("\", line ");
  if (begin == std::string_view::npos || end == std::string_view::npos || end <= begin) return "";
  const std::string_view rest = frame.substr(end + std::string_view("\", line ").size());
  const size_t digits = std::min(rest.find_first_not_of("0123456789"), rest.size());
  if (digits == 0) return "";
  return fmt::format("{}:{}", frame.substr(begin + 1, end - begin - 1), rest.substr(0, digits));
}

constexpr std::array kMistakes = {
    "AssertionError", "AttributeError",      "ImportError",       "IndentationError",    "IndexError",
    "KeyError",       "ModuleNotFoundError", "NameError",         "NotImplementedError", "SyntaxError",
    "TabError",       "TypeError",           "UnboundLocalError", "ValueError",          "ZeroDivisionError"};

}  // namespace

std::string LastException(std::string_view words) { return Shown(LastRaised(words).line); }

std::string LastingError(const v1::WorkerExited& exit) {
  if (exit.signal() != 0) return "";
  const Raised raised = LastRaised(exit.last_words());
  const std::string_view name = raised.line.substr(0, raised.line.find(':'));
  const std::string place = PlaceOf(raised.frame);
  if (place.empty() || std::ranges::find(kMistakes, name) == kMistakes.end()) return "";
  return fmt::format("{}, at {}", Shown(raised.line), Shown(place));
}

std::string LastException(const v1::WorkerExited& exit) {
  if (exit.signal() != 0) return "";
  const std::string recorded = RecordedMessage(exit.error_json());
  if (!recorded.empty() && recorded != exit.error_json()) {
    const std::string_view line = std::string_view(recorded).substr(0, recorded.find('\n'));
    if (IsException(line)) return Shown(line);
  }
  return LastException(exit.last_words());
}

}  // namespace phalanx::master
