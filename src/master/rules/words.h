// Numbers and lists as sentences have them. Pure.
#pragma once

#include <cstddef>
#include <string>
#include <vector>

namespace phalanx::master {

// "1 node", "3 nodes".
std::string Plural(size_t count, const std::string& noun);

// "a, b and 5 others" (with `others`); at most `shown` are named.
std::string ListText(const std::vector<std::string>& items, const std::string& others, size_t shown = 3);

}  // namespace phalanx::master
