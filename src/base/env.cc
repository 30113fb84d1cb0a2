#include "base/env.h"

#include <unistd.h>

#include <string_view>

namespace phalanx {

Environment Environment::FromProcess() {
  std::map<std::string, std::string> values;
  for (char** entry = environ; entry != nullptr && *entry != nullptr; ++entry) {
    std::string_view text = *entry;
    size_t equals = text.find('=');
    if (equals == std::string_view::npos || equals == 0) continue;
    values.emplace(text.substr(0, equals), text.substr(equals + 1));
  }
  return Environment(std::move(values));
}

std::optional<std::string> Environment::Get(const std::string& name) const {
  auto it = values_.find(name);
  if (it == values_.end()) return std::nullopt;
  return it->second;
}

std::string Environment::NonEmptyOr(const std::string& name, const std::string& fallback) const {
  auto it = values_.find(name);
  return it == values_.end() || it->second.empty() ? fallback : it->second;
}

Environment Environment::Without(const std::string& name) const {
  Environment less = *this;
  less.values_.erase(name);
  return less;
}

}  // namespace phalanx
