// The smallest list of faults that still breaks the same rule.
#pragma once

#include <functional>

#include "simulation/scenario.h"

namespace phalanx::simulation {

// `fails`: whether a scenario shows the violation in question. `scenario` does. Faults are dropped in ever smaller
// pieces, then shortened, as long as that holds; everything else stays.
Scenario Shrink(Scenario scenario, const std::function<bool(const Scenario&)>& fails);

}  // namespace phalanx::simulation
