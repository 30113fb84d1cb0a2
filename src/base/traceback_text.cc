#include "base/traceback_text.h"

#include <algorithm>
#include <cctype>

namespace phalanx {

std::string_view WithoutRank(std::string_view line) {
  while (line.ends_with('\n') || line.ends_with('\r')) line.remove_suffix(1);
  if (!line.starts_with("[rank")) return line;
  const size_t end = line.find("]:");
  const size_t digits = std::string_view("[rank").size();
  if (end == std::string_view::npos || end == digits) return line;
  const std::string_view rank = line.substr(digits, end - digits);
  if (!std::all_of(rank.begin(), rank.end(), [](unsigned char c) { return std::isdigit(c) != 0; })) return line;
  line.remove_prefix(end + 2);
  return line.starts_with(' ') ? line.substr(1) : line;
}

}  // namespace phalanx
