#include "master/rules/words.h"

#include <fmt/format.h>

#include <algorithm>

namespace phalanx::master {

std::string Plural(size_t count, const std::string& noun) {
  return fmt::format("{} {}{}", count, noun, count == 1 ? "" : "s");
}

std::string ListText(const std::vector<std::string>& items, const std::string& others, size_t shown) {
  std::string text;
  for (size_t i = 0; i < std::min(items.size(), shown); ++i) text += (i == 0 ? "" : ", ") + items[i];
  if (items.size() > shown) text += fmt::format(" and {} {}", items.size() - shown, others);
  return text;
}

}  // namespace phalanx::master
