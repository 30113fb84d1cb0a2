// What both ends of a stream between agent and master bear with: how long silence is believed, how much may wait. All
// times are milliseconds.
#pragma once

#include <cstddef>
#include <cstdint>

namespace phalanx::wire {

// A stream to another machine that answers nothing within this is given up; the caller dials again.
constexpr int kHandshakeTimeoutMs = 5'000;
// The same by our own clock, for a name that has several addresses.
constexpr int64_t kDialTimeoutMs = 4 * kHandshakeTimeoutMs;
// A master that says nothing for this is pinged, and given up where the answer takes as long: the kernel alone would
// believe a cut-off or frozen one for a quarter of an hour.
constexpr int kPingMs = 5'000;
// Who looks for the job's master at several places waits no longer at one.
constexpr int64_t kDialOneOfManyMs = 1'000;

// How long a silent agent is believed, in a job of so many nodes. Larger jobs beat less often, so that the master's
// load stays the same.
constexpr int64_t kLeaseMs = 3'000;
constexpr int64_t kNodesPerLease = 2'000;
constexpr int64_t LeaseMs(int64_t nodes) {
  const int64_t of_many = kLeaseMs * nodes / kNodesPerLease;
  return of_many > kLeaseMs ? of_many : kLeaseMs;
}

// No job may ask for a shorter one.
constexpr int64_t kLeaseLeastMs = 1'000;

// More messages than this in the master's queue for one stream: the agent does not read, and is cancelled. One step of
// the master may queue several for each checkpoint directory, and nothing is written while it does.
constexpr size_t kMaxQueued = 4'096;

// Of what is to be the same on all ranks of a save: so many values are compared, with names of so many bytes.
constexpr size_t kMaxSharedValues = 64;
constexpr size_t kMaxSharedValueNameBytes = 256;

}  // namespace phalanx::wire
