// Messages and decisions as lines of text: what a replay log keeps of a decision, and what `phalanx replay` prints. Two
// decisions are the same where their lines are. Pure.
#pragma once

#include <google/protobuf/message.h>

#include <optional>
#include <string>

#include "phalanx/v1/replay.pb.h"

namespace phalanx::replay {

constexpr size_t kMaxLineBytes = 4'096;

// All fields that are set, in one line, bytes escaped.
std::string OneLine(const google::protobuf::Message& message);

// Of a longer line the beginning, its length and its CRC-32, so that any change shows.
std::string Clipped(std::string line);

v1::ReplayDecision DecisionOf(std::string action, const std::string& reason);

// The number, from 0, of the first decision that one of both has otherwise or not at all; absent: they are the same.
std::optional<int> FirstDifference(const v1::ReplayDecisions& recorded, const v1::ReplayDecisions& replayed);

}  // namespace phalanx::replay
