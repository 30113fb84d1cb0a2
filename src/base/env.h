// The environment door: the only place that reads the environment of this process.
//
// main() takes one snapshot before anything else runs and hands it down; nobody else calls getenv, and nothing ever
// writes to the process's own environment. What comes later is a pure lookup, so tests pass any map they like.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <utility>

namespace phalanx {

// An immutable copy of environment variables. Safe to read from any thread.
class Environment {
 public:
  Environment() = default;
  explicit Environment(std::map<std::string, std::string> values) : values_(std::move(values)) {}

  // What this process was started with. Entries without '=' or without a name are left out; of a name that stands there
  // twice, the first counts, as for getenv.
  static Environment FromProcess();

  // Empty optional: not set. A variable that is set to nothing is an empty string.
  std::optional<std::string> Get(const std::string& name) const;
  // `fallback` where the variable is not set, or set to nothing.
  std::string NonEmptyOr(const std::string& name, const std::string& fallback) const;

  // The same but for that variable.
  Environment Without(const std::string& name) const;

  const std::map<std::string, std::string>& values() const { return values_; }

 private:
  std::map<std::string, std::string> values_;
};

}  // namespace phalanx
