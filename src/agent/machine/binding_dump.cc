// For tests/test_placement.py: binds workers on machines described on stdin, one JSON object {"sysfs", "mode" (1: node,
// 2: socket, ...), "allowed", "devices": [PCI addresses], "workers"} a line, and writes each worker's CPUs, or the
// error, as one JSON value a line. Not installed.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "agent/machine/cpu_binding.h"

namespace phalanx::agent {

static StatusOr<CpuBinding> Bind(const nlohmann::json& asked) {
  const auto mode = static_cast<NumaBinding>(asked.at("mode").get<int>());
  const std::string sysfs = asked.at("sysfs");
  PHX_ASSIGN_OR_RETURN(const CpuSet allowed, ParseCpuList(asked.at("allowed").get<std::string>()));
  PHX_ASSIGN_OR_RETURN(const Topology topology, ReadTopology(sysfs, mode, allowed));
  PHX_ASSIGN_OR_RETURN(const auto devices, ReadDevicePlaces(sysfs, asked.at("devices")));
  return BindWorkers(mode, topology, devices, asked.at("workers"));
}

}  // namespace phalanx::agent

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    const auto bound = phalanx::agent::Bind(nlohmann::json::parse(line));
    nlohmann::json answer = nlohmann::json::array();
    if (!bound.ok()) answer = phalanx::Message(bound.status());
    for (const auto& worker : bound.ok() ? bound->workers : std::vector<phalanx::agent::WorkerCpus>()) {
      answer.push_back(phalanx::CpuListText(worker.cpus));
    }
    std::cout << answer.dump() << "\n";
  }
  return 0;
}
