// A value, or the error that DeepSpeed would have raised. This module is also loaded into ranks, beside whatever torch
// brought along: so it has an error type of its own and needs the C++ library's headers alone.
#pragma once

#include <string>

#include "base/result.h"

namespace phalanx::elasticity {

// A refusal that DeepSpeed does not know: something is larger than this module takes.
constexpr const char* kLimitError = "ElasticityLimitError";

struct Error {
  std::string type;     // the name of a Python exception class: "ElasticityConfigError", "TypeError", or kLimitError
  std::string message;  // without the class

  bool operator==(const Error&) const = default;
};

template <typename T>
using Result = phalanx::Result<T, Error>;

}  // namespace phalanx::elasticity
