// What answers at a port. Pure.
#pragma once

namespace phalanx {

enum class Reach {
  kAnswered,
  kRefused,  // the machine is there, and nobody listens
  kSilent,   // neither; or somebody listens who stands still
};

}  // namespace phalanx
