#include "agent/replay/player.h"

#include <optional>
#include <utility>
#include <variant>

#include "agent/checkpoint/checkpoints.h"
#include "agent/checkpoint/saving.h"
#include "agent/core/core.h"
#include "agent/replay/events.h"
#include "agent/replay/frames.h"

namespace phalanx::agent {
namespace {

class AgentPlayer final : public replay::Player {
 public:
  explicit AgentPlayer(AgentOptions options) {
    core_.options = std::move(options.core);
    joining_.options = std::move(options.joining);
    leaving_.options = options.leaving;
  }

  StatusOr<v1::ReplayDecisions> Step(const v1::ReplayEvent& event) override {
    PHX_ASSIGN_OR_RETURN(const AnyEvent any, EventOf(event.agent()));
    const Instant now = event.now_ms();
    if (const auto* of_joining = std::get_if<joining::Event>(&any)) {
      return DecisionsOf(joining::Step(joining_, *of_joining, now));
    }
    if (const auto* of_leaving = std::get_if<leaving::Event>(&any)) {
      return DecisionsOf(leaving::Step(leaving_, *of_leaving, now));
    }
    if (const auto* of_saving = std::get_if<saving::Event>(&any)) {
      if (!checkpoints_) checkpoints_.emplace(core_.options.local_world_size);
      return DecisionsOf(saving::Step(*checkpoints_, *of_saving));
    }
    return DecisionsOf(agent::Step(core_, std::get<Event>(any), now));
  }

 private:
  CoreState core_;
  joining::State joining_;
  leaving::State leaving_;
  std::optional<NodeCheckpoints> checkpoints_;  // from their first event
};

}  // namespace

StatusOr<std::unique_ptr<replay::Player>> PlayAgent(const v1::ReplayStart& start) {
  PHX_ASSIGN_OR_RETURN(AgentOptions options, OptionsAtStart(start.agent()));
  return std::unique_ptr<replay::Player>(new AgentPlayer(std::move(options)));
}

}  // namespace phalanx::agent
