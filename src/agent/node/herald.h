// Tells where the job's master is: whoever serves at its endpoint, or at the place of the master before, is dialled and
// told in a Hello, again and again. One that was there before steps aside and sends on who comes to it. Belongs to the
// loop's thread.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "base/event_loop.h"
#include "phalanx/v1/agent.pb.h"
#include "wire/agent_link.h"

namespace phalanx::agent {

class OldPlaceHerald {
 public:
  // Where nobody answers, or who answers has been told, it is dialled again after this. Less than a master waits for
  // more nodes before it begins with one.
  static constexpr int64_t kAgainMs = 200;
  // Together less than a master takes that finds all others ended (kFoundEnded, src/master/rules/voters.h).
  static constexpr int64_t kDialMs = 400;

  // `hello` makes what is said; absent: nothing is known for certain just now.
  OldPlaceHerald(EventLoop& loop, std::string address, wire::Credentials credentials,
                 std::function<std::optional<v1::AgentMessage>()> hello);
  OldPlaceHerald(const OldPlaceHerald&) = delete;
  OldPlaceHerald& operator=(const OldPlaceHerald&) = delete;
  ~OldPlaceHerald();

 private:
  void Dial();
  wire::LinkEvents Events();

  EventLoop& loop_;
  const std::string address_;
  const std::function<std::optional<v1::AgentMessage>()> hello_;
  wire::MasterLink link_;
  EventLoop::TimerId again_{};
};

}  // namespace phalanx::agent
