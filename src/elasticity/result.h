// A value, or the error that DeepSpeed would have raised. This module is also loaded into ranks, beside whatever torch
// brought along: so it has an error type of its own and needs the C++ library's headers alone.
#pragma once

#include <string>
#include <utility>
#include <variant>

namespace phalanx::elasticity {

// A refusal that DeepSpeed does not know: something is larger than this module takes.
constexpr const char* kLimitError = "ElasticityLimitError";

struct Error {
  std::string type;     // the name of a Python exception class: "ElasticityConfigError", "TypeError", or kLimitError
  std::string message;  // without the class

  bool operator==(const Error&) const = default;
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : data_(std::move(value)) {}      // NOLINT(google-explicit-constructor): `return value;`
  Result(Error error) : data_(std::move(error)) {}  // NOLINT(google-explicit-constructor): `return Error{...};`

  bool ok() const { return data_.index() == 0; }
  const Error& error() const { return *std::get_if<Error>(&data_); }
  const T& operator*() const& { return *std::get_if<T>(&data_); }
  T& operator*() & { return *std::get_if<T>(&data_); }
  T&& operator*() && { return std::move(*std::get_if<T>(&data_)); }
  const T* operator->() const { return std::get_if<T>(&data_); }
  T* operator->() { return std::get_if<T>(&data_); }

 private:
  std::variant<T, Error> data_;
};

// Nothing, or an error.
struct Done {};

}  // namespace phalanx::elasticity

#define PHX_TRY_CONCAT_INNER(a, b) a##b
#define PHX_TRY_CONCAT(a, b) PHX_TRY_CONCAT_INNER(a, b)

// PHX_TRY(const Value sum, Add(a, b)): leaves the function with the error where there is one.
#define PHX_TRY(lhs, expr)                                                                         \
  auto PHX_TRY_CONCAT(phx_try_, __LINE__) = (expr);                                                \
  if (!PHX_TRY_CONCAT(phx_try_, __LINE__).ok()) return PHX_TRY_CONCAT(phx_try_, __LINE__).error(); \
  lhs = *std::move(PHX_TRY_CONCAT(phx_try_, __LINE__))

// The same for a Result<Done>.
#define PHX_TRY_DONE(expr)                                               \
  do {                                                                   \
    if (auto phx_done = (expr); !phx_done.ok()) return phx_done.error(); \
  } while (false)
