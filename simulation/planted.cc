#include "simulation/plants.h"

namespace phalanx::simulation {

int chosen_plant = -1;

const std::vector<Plant>& Plants() {
  static const std::vector<Plant> kPlants = {
#include "planted/plant_table.h"
  };
  return kPlants;
}

bool ChoosePlant(const std::string& name) {
  chosen_plant = -1;
  if (name.empty()) return true;
  for (size_t i = 0; i < Plants().size(); ++i) {
    if (Plants()[i].name == name) chosen_plant = static_cast<int>(i);
  }
  return chosen_plant >= 0;
}

}  // namespace phalanx::simulation
