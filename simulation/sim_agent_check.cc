// A simulated node is checked: what src/agent/node/checking.cc does, with a helper that finds what the scenario says.
#include <fmt/format.h>

#include <algorithm>

#include "simulation/judge.h"
#include "simulation/sim_agent.h"

namespace phalanx::simulation {
namespace {

// A helper imports torch, and a check works.
constexpr Micros kHelperImports = 900 * kMs;
constexpr Micros kCheckTakes = 150 * kMs;

}  // namespace

void SimAgent::StepOnCheck(const agent::checking::Event& event) {
  for (const auto& decision : agent::checking::Step(checking_, event, Now())) {
    parts_.judge.OnAgentDecided(*this, decision.reason);
    std::visit([this](const auto& action) { this->Do(action); }, decision.action);
  }
}

void SimAgent::Do(const agent::checking::StartHelper&) {
  Later(kHelperImports, [this, helper = ++helpers_] {
    if (helper == helpers_) Feed(agent::checking::HelperReady{});
  });
}

void SimAgent::Do(const agent::checking::EndHelper&) { ++helpers_; }

void SimAgent::Do(const agent::checking::OpenStore&) {
  reserved_port_ = 0;
  Do(agent::SendBeat{0});
}

// Whether something is found to be wrong. Of all together only the first two are named, and nobody is blamed.
bool SimAgent::Finds(const v1::CheckOrder& order) const {
  const auto is_bad = [this](const std::unique_ptr<Machine>& machine, bool alone) {
    const Arrival& there = parts_.scenario.machines[static_cast<size_t>(machine->index)];
    const Health fails = alone ? Health::kFailsAlone : Health::kFailsBesideOthers;
    return there.health == fails && parts_.queue.now() < there.well_at;
  };
  return std::ranges::any_of(parts_.machines, [&](const std::unique_ptr<Machine>& machine) {
    if (order.kind() == v1::CheckOrder::ALONE) return machine->index == parts_.machine.index && is_bad(machine, true);
    const bool takes_part = std::ranges::any_of(
        order.names(), [&](const std::string& name) { return name == machine->name || name == machine->address; });
    return order.kind() == v1::CheckOrder::PAIR && takes_part && is_bad(machine, false);
  });
}

void SimAgent::Do(const agent::checking::Give& action) {
  const bool fails = Finds(action.order);
  // Who waits for another one in vain waits long.
  const bool waits = fails && action.order.kind() == v1::CheckOrder::PAIR;
  const Micros takes = waits ? action.order.limit_ms() * kMs * 9 / 10 : kCheckTakes;
  Later(takes, [this, id = action.id, fails, helper = helpers_] {
    if (helper != helpers_) return;
    agent::checking::CheckTold told;
    told.id = id;
    told.result.set_check("check");
    if (fails) told.result.set_outcome(v1::CheckResult::FAILED);
    told.result.set_sentence(fails ? "it fails here" : "");
    Feed(std::move(told));
    Feed(agent::checking::CheckDone{id, ""});
  });
}

void SimAgent::Do(const agent::checking::Report& action) {
  v1::AgentMessage message;
  *message.mutable_check() = action.report;
  SendToMaster(std::move(message));
}

}  // namespace phalanx::simulation
