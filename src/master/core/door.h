// Who may come in. Pure.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "master/core/core.h"

namespace phalanx::master {

constexpr size_t kMaxNameBytes = 256;
constexpr size_t kMaxInterfaceAddresses = 256;
constexpr uint32_t kMaxLocalWorldSize = 4'096;
constexpr uint32_t kMaxNodes = 1'000'000;

// Why the node may not take part, with a sentence that names the value and what would be right; empty: it may.
std::optional<v1::Refused> Refusal(const JobState& state, const AgentAttached& attached, Instant now);

// Why no job can be like that, as a sentence; empty: one can.
std::optional<std::string> SpecFault(const v1::JobSpec& spec);

// The hello says that its node holds a place of the live round, and it does.
bool IsMember(const JobState& state, const v1::Hello& hello);

// As --nnodes has it: "4", "1:4".
std::string NodesText(const v1::JobSpec& spec);

// A textual IP address, v4 or v6, without a scope.
bool IsIpAddress(const std::string& text);

}  // namespace phalanx::master
