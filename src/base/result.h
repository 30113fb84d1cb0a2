// A value or an error, for modules that are loaded into Python as well, beside whatever C++ libraries are there: it
// needs the headers of the standard library alone. Each module has an error type of its own.
#pragma once

#include <utility>
#include <variant>

namespace phalanx {

template <typename T, typename Error>
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

}  // namespace phalanx

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
