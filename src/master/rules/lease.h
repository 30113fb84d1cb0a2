// How long a silent agent is believed. Pure.
//
// Whom that spares (a lone node, all of them behind a stall of the master) is decided in core/departures.cc.
//
// An agent sends a beat every BeatIntervalMs; any message of its counts. When LeaseMs have passed without one, its node
// is lost: its stream is cancelled and its place in the round is free. Both ends measure on their own monotonic clocks.
// A job may ask for another lease than ours (JobSpec.lease_ms): beats, which bring the steps, come no less often by
// that.
#pragma once

#include <algorithm>
#include <cstdint>

#include "wire/limits.h"

namespace phalanx::master {

using wire::kLeaseLeastMs;
using wire::kLeaseMs;
using wire::LeaseMs;
// Beats that a lease lasts: all but one may be late.
constexpr int64_t kBeatsPerLease = 3;
// A master that looks at its leases this much too late was itself stopped; the silence then says nothing about the
// agents.
constexpr int64_t kMasterStallMs = 300;
// One that was stopped for so long may have been given up by agents, which come back.
constexpr int64_t kMasterAwayMs = 1'000;

// In a job of so many nodes that asks for asked_ms; 0: for none.
constexpr int64_t LeaseMs(int64_t nodes, int64_t asked_ms) {
  const int64_t usual = LeaseMs(nodes);
  if (asked_ms == 0) return usual;
  return usual > kLeaseMs ? std::max(usual, asked_ms) : asked_ms;
}
// Where there are so many nodes and a lease lasts lease_ms.
constexpr int64_t BeatIntervalMs(int64_t nodes, int64_t lease_ms) {
  return std::min(LeaseMs(nodes), lease_ms) / kBeatsPerLease;
}

}  // namespace phalanx::master
