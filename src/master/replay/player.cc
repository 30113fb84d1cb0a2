#include "master/replay/player.h"

#include <fmt/format.h>

#include <set>
#include <utility>
#include <vector>

#include "master/core/admit.h"
#include "master/core/core.h"
#include "master/core/platform.h"
#include "master/replay/frames.h"
#include "master/replay/start.h"

namespace phalanx::master {
namespace {

Reach ReachOf(v1::MasterEvent::Reach wire) {
  if (wire == v1::MasterEvent::ANSWERED) return Reach::kAnswered;
  return wire == v1::MasterEvent::REFUSED ? Reach::kRefused : Reach::kSilent;
}

class MasterPlayer final : public replay::Player {
 public:
  MasterPlayer(JobState state, bool resumes) : state_(std::move(state)), resumes_(resumes) {}

  StatusOr<v1::ReplayDecisions> Step(const v1::ReplayEvent& event) override {
    const bool first = std::exchange(first_, false);
    if (event.master().has_resumed()) {
      // In the middle of a life it would forget who is there.
      if (!first || !resumes_) return absl::DataLossError("a job is taken up where none was left");
      return DecisionsOf(Resume(state_, event.now_ms()));
    }
    PHX_ASSIGN_OR_RETURN(const Event of_core, EventFrom(event.master()));
    return DecisionsOf(master::Step(state_, of_core, event.now_ms()));
  }

 private:
  StatusOr<Event> EventFrom(const v1::MasterEvent& event) {
    switch (event.body_case()) {
      case v1::MasterEvent::kAttached: {
        const v1::MasterEvent::Attached& e = event.attached();
        if (e.session() == 0 || !sessions_.insert(e.session()).second) {
          return absl::DataLossError(fmt::format("stream {} begins twice", e.session()));
        }
        return AttachedOf(e.session(), e.message(), e.peer_address());
      }
      case v1::MasterEvent::kSaid:
        return EventOf(event.said().session(), event.said().message());
      case v1::MasterEvent::kDetached:
        return AgentDetached{event.detached().session(), event.detached().cause()};
      case v1::MasterEvent::kTick:
        return Tick{};
      case v1::MasterEvent::kProbed:
        return Probed{event.probed().node_id(), ReachOf(event.probed().master()), ReachOf(event.probed().agent())};
      case v1::MasterEvent::kLookedAt:
        return LookedAt{event.looked_at().ranks()};
      case v1::MasterEvent::kLetIn:
        return LetIn{event.let_in().node()};
      case v1::MasterEvent::kPlatformSaid:
        return SaidByPlatform(event.platform_said());
      case v1::MasterEvent::kPlatformGone:
        return PlatformGone{};
      case v1::MasterEvent::kResumed:
      case v1::MasterEvent::BODY_NOT_SET:
        return absl::DataLossError("an event that this version does not know");
    }
    return absl::DataLossError("an event that this version does not know");
  }

  JobState state_;
  const bool resumes_;  // it was made of a journal
  bool first_ = true;
  std::set<uint64_t> sessions_;  // that have begun
};

}  // namespace

StatusOr<std::unique_ptr<replay::Player>> PlayMaster(const v1::ReplayStart& start) {
  PHX_ASSIGN_OR_RETURN(JobState state, StateOf(start));
  return std::unique_ptr<replay::Player>(new MasterPlayer(std::move(state), start.master().has_snapshot()));
}

}  // namespace phalanx::master
