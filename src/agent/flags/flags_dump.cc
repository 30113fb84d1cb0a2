// For tests/test_flags.py: parses command lines from stdin, one JSON object {"args": [...], "env": {...}} a line, and
// writes what came of each as one JSON object a line. Not installed.
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "agent/flags/elastic_config.h"
#include "agent/flags/flags.h"

namespace {

using phalanx::Environment;
using phalanx::agent::HostFacts;
using phalanx::agent::LaunchConfig;
using phalanx::agent::ParseFlags;
using phalanx::agent::ParseResult;
using phalanx::agent::PrintAndExit;
using phalanx::agent::StreamMap;

nlohmann::json Shown(const StreamMap& streams) {
  nlohmann::json by_rank = nlohmann::json::object();
  for (auto [rank, value] : streams.by_local_rank) by_rank[std::to_string(rank)] = value;
  return {{"all", streams.for_all}, {"by_rank", by_rank}};
}

nlohmann::json Shown(const LaunchConfig& config) {
  return {
      {"script", config.script},
      {"script_args", config.script_args},
      {"kind", static_cast<int>(config.kind)},
      {"min_nodes", config.min_nodes},
      {"max_nodes", config.max_nodes},
      {"nproc_per_node", config.nproc_per_node},
      {"rendezvous", static_cast<int>(config.rendezvous)},
      {"endpoint_host", config.endpoint_host},
      {"endpoint_port", config.endpoint_port},
      {"rdzv_id", config.rdzv_id},
      {"node_rank", config.node_rank},
      {"role", config.role},
      {"max_restarts", config.max_restarts ? static_cast<int64_t>(*config.max_restarts) : -1},
      {"stop_timeout_ms", config.stop_timeout_ms},
      {"signals", config.signals_to_handle_text},
      {"log_dir", config.log_dir},
      {"redirects", Shown(config.redirects)},
      {"tee", Shown(config.tee)},
      {"local_ranks_filter", config.local_ranks_filter},
      {"local_addr", config.local_addr},
      {"numa_binding", static_cast<int>(config.numa_binding)},
      {"virtual_local_rank", config.virtual_local_rank},
  };
}

}  // namespace

int main() {
  HostFacts host;
  host.cwd = "/cwd";
  host.own_dir = "/bin";
  host.home = "/home";
  host.fresh_uuid = "fresh";
  host.is_executable = [](const std::string&) { return true; };
  host.read_file = phalanx::agent::ReadConfigFile;
  host.read_secret = [](const std::string&) { return absl::NotFoundError("none"); };
  for (std::string line; std::getline(std::cin, line);) {
    nlohmann::json asked = nlohmann::json::parse(line);
    Environment env(asked.at("env").get<std::map<std::string, std::string>>());
    ParseResult result = ParseFlags(asked.at("args").get<std::vector<std::string>>(), env, host);
    nlohmann::json answer;
    if (auto* print = std::get_if<PrintAndExit>(&result)) {
      answer = {{"exit", print->exit_code}, {"text", print->text}};
    } else {
      answer = {{"config", Shown(std::get<LaunchConfig>(result))}};
    }
    std::cout << answer.dump() << "\n";
  }
  return 0;
}
