// What a replay log keeps of an agent's steps: where the state began, events as messages, decisions as text. Pure.
#pragma once

#include <string>
#include <vector>

#include "agent/checkpoint/saving.h"
#include "agent/core/checking.h"
#include "agent/core/core.h"
#include "agent/core/joining.h"
#include "agent/core/leaving.h"
#include "agent/replay/events.h"
#include "base/status.h"
#include "phalanx/v1/replay.pb.h"

namespace phalanx::agent {

// What the states of an agent's cores are made of.
struct AgentOptions {
  CoreOptions core;
  joining::Options joining;
  leaving::Options leaving;
};

// Of states that no event has come to.
v1::AgentStart StartOf(const AgentOptions& options, const std::string& node_id, const std::string& hostname);
// And back; DataLoss where no flags come to such options.
StatusOr<AgentOptions> OptionsAtStart(const v1::AgentStart& start);

v1::ReplayFrame EventFrame(Instant now, const AnyEvent& event);

v1::ReplayDecisions DecisionsOf(const std::vector<Decision>& decisions);
v1::ReplayDecisions DecisionsOf(const std::vector<joining::Decision>& decisions);
v1::ReplayDecisions DecisionsOf(const std::vector<leaving::Decision>& decisions);
// A refusal first. None of them has a reason but what it says itself.
v1::ReplayDecisions DecisionsOf(const saving::Decided& decided);

// For --explain: why, what, and how long behind the agent's begin. Empty: a heartbeat, say, that explains nothing.
std::string ExplainText(const Decision& decision, int64_t since_begin_ms);
std::string ExplainText(const joining::Decision& decision, int64_t since_begin_ms);
std::string ExplainText(const leaving::Decision& decision, int64_t since_begin_ms);
std::string ExplainText(const checking::Decision& decision, int64_t since_begin_ms);

template <typename Decisions>
v1::ReplayFrame DecisionsFrame(const Decisions& decisions) {
  v1::ReplayFrame frame;
  *frame.mutable_decisions() = DecisionsOf(decisions);
  return frame;
}

}  // namespace phalanx::agent
