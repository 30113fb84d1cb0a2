#include "simulation/shrink.h"

#include <algorithm>
#include <utility>
#include <vector>

namespace phalanx::simulation {
namespace {

using Fails = std::function<bool(const Scenario&)>;

bool DropSome(Scenario& scenario, const Fails& fails) {
  bool any = false;
  for (size_t piece = std::max<size_t>(1, scenario.faults.size() / 2); piece > 0; piece /= 2) {
    for (size_t at = 0; at < scenario.faults.size();) {
      Scenario smaller = scenario;
      const auto first = smaller.faults.begin() + static_cast<ptrdiff_t>(at);
      const size_t count = std::min(piece, smaller.faults.size() - at);
      smaller.faults.erase(first, first + static_cast<ptrdiff_t>(count));
      if (fails(smaller)) {
        scenario = std::move(smaller);
        any = true;
      } else {
        at += piece;
      }
    }
  }
  return any;
}

bool ShortenSome(Scenario& scenario, const Fails& fails) {
  bool any = false;
  for (size_t i = 0; i < scenario.faults.size(); ++i) {
    while (scenario.faults[i].lasts > kMs) {
      Scenario shorter = scenario;
      shorter.faults[i].lasts /= 2;
      if (!fails(shorter)) break;
      scenario = std::move(shorter);
      any = true;
    }
  }
  return any;
}

}  // namespace

Scenario Shrink(Scenario scenario, const Fails& fails) {
  while (DropSome(scenario, fails)) {
  }
  ShortenSome(scenario, fails);
  while (DropSome(scenario, fails)) {
  }
  return scenario;
}

}  // namespace phalanx::simulation
