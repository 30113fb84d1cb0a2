#include "agent/core/master_search.h"

#include <algorithm>

#include "base/host_port.h"

namespace phalanx::agent {

std::vector<std::string> Places(const MasterSearch& search) {
  std::vector<std::string> places;
  const auto add = [&places](const std::string& address) {
    const bool known = std::find(places.begin(), places.end(), address) != places.end();
    if (!address.empty() && !known) places.push_back(address);
  };
  add(search.moved_to);
  add(search.address);
  for (const v1::MasterPlace& place : search.successors.places()) {
    add(JoinHostPort(place.address(), static_cast<uint16_t>(place.port())));
  }
  add(search.own);
  add(search.endpoint);
  return places;
}

std::optional<size_t> TurnOf(const MasterSearch& search, const std::string& node_id) {
  for (int turn = 0; turn < search.successors.places_size(); ++turn) {
    if (search.successors.places(turn).node_id() == node_id) return static_cast<size_t>(turn);
  }
  return std::nullopt;
}

}  // namespace phalanx::agent
