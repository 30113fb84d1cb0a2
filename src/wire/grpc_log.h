// gRPC would write to stderr what our errors say in their own words.
#pragma once

namespace phalanx::wire {

// For this process; any time, any thread.
void SilenceGrpc();

}  // namespace phalanx::wire
