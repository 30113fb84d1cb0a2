// Texts of a JSON object that somebody else wrote.
#pragma once

#include <string>

namespace phalanx {

// "" where the object has no such text, or is no object.
template <typename Json>
std::string TextIn(const Json& object, const char* key) {
  if (!object.is_object()) return "";
  const auto it = object.find(key);
  return it != object.end() && it->is_string() ? it->template get<std::string>() : "";
}

}  // namespace phalanx
