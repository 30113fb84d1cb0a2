// How a zygote came to its end.
#pragma once

#include <string>

namespace phalanx::agent {

struct ZygoteEnd {
  enum class Kind {
    kTainted,  // `module` must not be preloaded; a new zygote may do
    kFailed,   // `reason`: preloading is impossible or not wanted
    kDied,     // `reason`: how it ended, with its last words
  };
  Kind kind = Kind::kDied;
  std::string module;
  std::string reason;
};

}  // namespace phalanx::agent
