// What is wrong, for a caller of the C interface of a library.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>

namespace phalanx {

// Into the caller's `error`, of `error_size` bytes: as much as there is room for, and a NUL. Null or 0: nothing.
inline void PutErrorText(std::string_view text, char* error, size_t error_size) {
  if (error == nullptr || error_size == 0) return;
  const size_t length = std::min(text.size(), error_size - 1);
  std::memcpy(error, text.data(), length);
  error[length] = '\0';
}

}  // namespace phalanx
