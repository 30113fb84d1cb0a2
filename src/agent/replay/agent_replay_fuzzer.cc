// A log of an agent as bytes, and as frames that are anything: whatever it says, its steps are run or refused.
#include <cstddef>
#include <cstdint>

#include "agent/replay/player.h"
#include "replay/fuzzed_log.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  phalanx::replay::FuzzLog(data, size, phalanx::v1::ReplayStart::kAgent, phalanx::agent::PlayAgent);
  return 0;
}
