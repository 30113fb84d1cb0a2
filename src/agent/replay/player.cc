#include "agent/replay/player.h"

#include <utility>
#include <variant>

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
    return DecisionsOf(agent::Step(core_, std::get<Event>(any), now));
  }

 private:
  CoreState core_;
  joining::State joining_;
  leaving::State leaving_;
};

}  // namespace

StatusOr<std::unique_ptr<replay::Player>> PlayAgent(const v1::ReplayStart& start) {
  PHX_ASSIGN_OR_RETURN(AgentOptions options, OptionsAtStart(start.agent()));
  return std::unique_ptr<replay::Player>(new AgentPlayer(std::move(options)));
}

}  // namespace phalanx::agent
