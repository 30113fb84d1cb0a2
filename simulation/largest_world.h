// The largest world that nodes can make under an elastic config, found by trying all: what the master's choice is
// judged by.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "master/core/core.h"

namespace phalanx::simulation {

// What the spec's elastic config grants; nothing where it has none.
std::optional<elasticity::JobSizes> GrantedBy(const v1::JobSpec& spec);

// `ranks`: of each node that is there. 0: they make no valid one.
uint64_t LargestWorld(const std::vector<uint32_t>& ranks, const v1::JobSpec& spec, const elasticity::JobSizes& granted);

}  // namespace phalanx::simulation
