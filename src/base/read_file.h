// A whole file, and what a call on a file came to. Errors name the path and the call.
#pragma once

#include <cstddef>
#include <string>

#include "base/status.h"

namespace phalanx {

// "<path>: <call>: <text of errno>". NotFound for ENOENT alone: a device that is gone says nothing of what it holds.
Status CallFailed(const std::string& path, const char* call, int error_number);

// The whole file. NotFound where it is not there, OutOfRange where it has more bytes.
StatusOr<std::string> ReadFile(const std::string& path, size_t max_bytes);

}  // namespace phalanx
