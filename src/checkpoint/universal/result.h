// A value, or a sentence that says where and what. This module is loaded into Python: its error type needs the C++
// library's headers alone.
#pragma once

#include <string>

#include "base/result.h"

namespace phalanx::universal {

struct Error {
  std::string message;
};

template <typename T>
using Result = phalanx::Result<T, Error>;

}  // namespace phalanx::universal
