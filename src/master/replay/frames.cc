#include "master/replay/frames.h"

#include <fmt/format.h>

#include <utility>
#include <variant>

#include "master/core/convert.h"
#include "replay/text.h"

namespace phalanx::master {
namespace {

// The actions of one step as text. A message that many agents get is put into words once.
class Texts {
 public:
  std::string operator()(const Send& action) {
    if (action.message.get() != last_) {
      last_ = action.message.get();
      last_text_ = replay::OneLine(*action.message);
    }
    return fmt::format("send to stream {}: {}", action.session, last_text_);
  }
  std::string operator()(const Drop& action) { return fmt::format("drop stream {}", action.session); }
  std::string operator()(const Record& action) {
    return fmt::format("record {} epoch={} node='{}' rank={} {}", action.kind, action.epoch, action.node, action.rank,
                       DetailJson(action));
  }
  std::string operator()(const Remember& action) {
    switch (action.when) {
      case Remember::When::kBehind:
        return "remember, behind what is sent";
      case Remember::When::kBefore:
        return "remember, before what is sent";
      case Remember::When::kSynced:
        return "remember on the disk, before what is sent";
    }
    return "remember";
  }
  std::string operator()(const Probe& action) {
    return fmt::format("ask at {} ports {} and {} whether node '{}' lives", action.address, action.master_port,
                       action.presence_port, action.node_id);
  }

 private:
  const v1::MasterMessage* last_ = nullptr;  // of the step's decisions, which outlive this
  std::string last_text_;
};

void Fill(v1::MasterEvent& wire, const AgentAttached& event) {
  v1::MasterEvent::Attached& attached = *wire.mutable_attached();
  attached.set_session(event.session);
  attached.set_peer_address(event.peer_address);
  *attached.mutable_message() = event.message;
}

void Fill(v1::MasterEvent& wire, const AgentSaid& event) {
  wire.mutable_said()->set_session(event.session);
  *wire.mutable_said()->mutable_message() = event.message;
}

void Fill(v1::MasterEvent& wire, const AgentDetached& event) {
  wire.mutable_detached()->set_session(event.session);
  wire.mutable_detached()->set_cause(event.cause);
}

v1::MasterEvent::Reach WireOf(Reach reach) {
  switch (reach) {
    case Reach::kAnswered:
      return v1::MasterEvent::ANSWERED;
    case Reach::kRefused:
      return v1::MasterEvent::REFUSED;
    case Reach::kSilent:
      return v1::MasterEvent::SILENT;
  }
  return v1::MasterEvent::SILENT;
}

void Fill(v1::MasterEvent& wire, const Probed& event) {
  wire.mutable_probed()->set_node_id(event.node_id);
  wire.mutable_probed()->set_master(WireOf(event.master));
  wire.mutable_probed()->set_agent(WireOf(event.agent));
}

void Fill(v1::MasterEvent& wire, const LookedAt& event) { wire.mutable_looked_at()->set_ranks(event.ranks); }

void Fill(v1::MasterEvent& wire, const LetIn& event) { wire.mutable_let_in()->set_node(event.node); }

void Fill(v1::MasterEvent& wire, const PlatformSaid& event) { *wire.mutable_platform_said() = event.message; }

void Fill(v1::MasterEvent& wire, const PlatformGone& /*event*/) { wire.mutable_platform_gone(); }

void Fill(v1::MasterEvent& wire, const Tick& /*event*/) { wire.mutable_tick(); }

}  // namespace

v1::ReplayFrame EventFrame(Instant now, const Event& event) {
  v1::ReplayFrame frame;
  frame.mutable_event()->set_now_ms(now);
  v1::MasterEvent& wire = *frame.mutable_event()->mutable_master();
  std::visit([&wire](const auto& e) { Fill(wire, e); }, event);
  return frame;
}

v1::ReplayFrame ResumedFrame(Instant now) {
  v1::ReplayFrame frame;
  frame.mutable_event()->set_now_ms(now);
  frame.mutable_event()->mutable_master()->mutable_resumed();
  return frame;
}

v1::ReplayDecisions DecisionsOf(const std::vector<Decision>& decisions) {
  v1::ReplayDecisions wire;
  Texts texts;
  for (const Decision& decision : decisions) {
    *wire.add_decisions() = replay::DecisionOf(std::visit(texts, decision.action), decision.reason);
  }
  return wire;
}

v1::ReplayFrame DecisionsFrame(const std::vector<Decision>& decisions) {
  v1::ReplayFrame frame;
  *frame.mutable_decisions() = DecisionsOf(decisions);
  return frame;
}

}  // namespace phalanx::master
