// A value, or a sentence that says where, what and what would be right. This module is also loaded into Python: its
// error type needs the C++ library's headers alone.
#pragma once

#include <string>

#include "base/result.h"

namespace phalanx::data {

struct Error {
  std::string message;
};

template <typename T>
using Result = phalanx::Result<T, Error>;

}  // namespace phalanx::data
