// The version of what agents and master say to each other (proto/phalanx/v1/agent.proto). An agent's Hello names its
// own; a master of another version refuses it, and says both. It grows with a change that the other side would
// misunderstand.
#pragma once

#include <cstdint>

namespace phalanx::wire {

constexpr uint32_t kProtocolVersion = 2;

}  // namespace phalanx::wire
