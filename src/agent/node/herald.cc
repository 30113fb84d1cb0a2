#include "agent/node/herald.h"

#include <utility>

namespace phalanx::agent {

OldPlaceHerald::OldPlaceHerald(EventLoop& loop, std::string address, wire::Credentials credentials,
                               std::function<std::optional<v1::AgentMessage>()> hello)
    : loop_(loop),
      address_(std::move(address)),
      hello_(std::move(hello)),
      link_(loop, std::move(credentials), Events()) {
  Dial();
}

OldPlaceHerald::~OldPlaceHerald() { loop_.Cancel(again_); }

void OldPlaceHerald::Dial() { link_.Dial(address_, kDialMs); }

wire::LinkEvents OldPlaceHerald::Events() {
  wire::LinkEvents events;
  events.on_up = [this](const std::string&) {
    std::optional<v1::AgentMessage> hello = hello_();
    if (!hello) return link_.HangUp();
    link_.Send(*std::move(hello));
  };
  events.on_message = [this](const v1::MasterMessage&) { link_.HangUp(); };  // it will not hear of it
  events.on_down = [this](const Status&, wire::LinkFault, bool) {
    again_ = loop_.At(MonotonicMs() + kAgainMs, [this] { Dial(); });
  };
  return events;
}

}  // namespace phalanx::agent
