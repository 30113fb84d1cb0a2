// What an agent and the program that checks its node say to each other, a JSON object a line:
// docs/formats/node-check.md. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "agent/core/checking.h"
#include "base/status.h"
#include "phalanx/v1/health.pb.h"

namespace phalanx::agent::checks {

// A longer line is none of the helper's.
constexpr size_t kMaxLineBytes = 64 << 10;

// GPUs in pairs, each over the switchbox between them.
struct Switchbox {
  std::string source = "nvidia";  // or "tool:PATH", "file:PATH"
  std::vector<std::pair<uint32_t, uint32_t>> pairs = {{0, 1}, {2, 4}, {3, 5}, {6, 7}};
  int64_t min_bandwidth_mb_s = 10'000;
  uint32_t min_channels = 2;
};

// What the node itself knows of its checks.
struct NodeSetup {
  std::string address;    // where others reach it
  std::string directory;  // that a disk check writes to; empty: none is made
  std::vector<std::string> programs;
  std::vector<std::string> nics;  // by which pairs meet, too
  bool has_switchbox = false;
  Switchbox switchbox;
};

// With its line end.
std::string OrderLine(uint64_t id, const v1::CheckOrder& order, const NodeSetup& setup);

// InvalidArgument: it is no line of the helper's; the message says what is wrong with it.
StatusOr<checking::Event> ParseLine(std::string_view line);

}  // namespace phalanx::agent::checks
