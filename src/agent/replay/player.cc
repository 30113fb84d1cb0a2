#include "agent/replay/player.h"

#include <utility>

#include "agent/core/core.h"
#include "agent/replay/events.h"
#include "agent/replay/frames.h"

namespace phalanx::agent {
namespace {

class AgentPlayer final : public replay::Player {
 public:
  explicit AgentPlayer(CoreOptions options) { state_.options = std::move(options); }

  StatusOr<v1::ReplayDecisions> Step(const v1::ReplayEvent& event) override {
    PHX_ASSIGN_OR_RETURN(const Event of_core, EventOf(event.agent()));
    return DecisionsOf(agent::Step(state_, of_core, event.now_ms()));
  }

 private:
  CoreState state_;
};

}  // namespace

StatusOr<std::unique_ptr<replay::Player>> PlayAgent(const v1::ReplayStart& start) {
  PHX_ASSIGN_OR_RETURN(CoreOptions options, OptionsAtStart(start.agent()));
  return std::unique_ptr<replay::Player>(new AgentPlayer(std::move(options)));
}

}  // namespace phalanx::agent
