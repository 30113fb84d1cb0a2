// A value, or the error that DeepSpeed would have raised.
#pragma once

#include <string>

#include "base/result.h"

namespace phalanx::elasticity {

// Refusals that DeepSpeed does not know: something is larger than this module takes, or of another type.
constexpr const char* kLimitError = "ElasticityLimitError";
constexpr const char* kRequestError = "InvalidRequest";

struct Error {
  std::string type;     // the name of a Python exception class, or one of the above
  std::string message;  // without the class
};

template <typename T>
using Result = phalanx::Result<T, Error>;

}  // namespace phalanx::elasticity
