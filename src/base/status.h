// Errors are values: absl::Status and absl::StatusOr with two macros to pass them on. Texts are made with fmt::format
// (absl::InvalidArgumentError(fmt::format(...))): Debian's Abseil has a string_view of its own, so that
// absl::StrCat does not take std::string_view; in our headers string_view is always std::string_view.
#pragma once

#include <fmt/format.h>

#include <string>
#include <string_view>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"

namespace phalanx {

using absl::Status;
using absl::StatusOr;

// Status of a failed system call: "<what>: <strerror(error_number)>", with the code that fits the errno.
[[nodiscard]] Status ErrnoStatus(int error_number, std::string_view what);

// The same status with "<context>: " in front of its message.
[[nodiscard]] Status WithContext(const Status& status, std::string_view context);

// The message alone, without the code in front.
std::string Message(const Status& status);

}  // namespace phalanx

#define PHX_CONCAT_INNER(a, b) a##b
#define PHX_CONCAT(a, b) PHX_CONCAT_INNER(a, b)

#define PHX_RETURN_IF_ERROR(expr)                                                \
  do {                                                                           \
    if (::absl::Status phx_status = (expr); !phx_status.ok()) return phx_status; \
  } while (false)

#define PHX_ASSIGN_OR_RETURN(lhs, expr)                                                   \
  auto PHX_CONCAT(phx_or_, __LINE__) = (expr);                                            \
  if (!PHX_CONCAT(phx_or_, __LINE__).ok()) return PHX_CONCAT(phx_or_, __LINE__).status(); \
  lhs = *std::move(PHX_CONCAT(phx_or_, __LINE__))
