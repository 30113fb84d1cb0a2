// A failed worker as JSON: the part that the lines of --log-format=json and the report of --report-file share. Pure.
#pragma once

#include <nlohmann/json.hpp>

#include "phalanx/v1/agent.pb.h"

namespace phalanx::agent {

// Who, where, when and how: docs/formats/log-lines.md. `exit_code` is below zero for a signal.
nlohmann::ordered_json FailureJson(const v1::Failure& failure);

// On one line, ended by a newline; bytes that are no UTF-8 are replaced.
std::string JsonLine(const nlohmann::ordered_json& object);

}  // namespace phalanx::agent
