// How long a silent agent is believed. Pure.
//
// Whom that spares (a lone node, all of them behind a stall of the master) is decided in core/departures.cc.
//
// An agent sends a beat every BeatIntervalMs; any message of its counts. When LeaseMs have passed without one, its node
// is lost: its stream is cancelled and its place in the round is free. Both ends measure on their own monotonic clocks.
#pragma once

#include <cstdint>

#include "wire/limits.h"

namespace phalanx::master {

using wire::kLeaseMs;
using wire::LeaseMs;
// Beats that a lease lasts: all but one may be late.
constexpr int64_t kBeatsPerLease = 3;
// A master that looks at its leases this much too late was itself stopped; the silence then says nothing about the
// agents.
constexpr int64_t kMasterStallMs = 1'000;

constexpr int64_t BeatIntervalMs(int64_t lease_ms) { return lease_ms / kBeatsPerLease; }

}  // namespace phalanx::master
