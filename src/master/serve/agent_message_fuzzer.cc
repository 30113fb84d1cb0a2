// What agents say, as bytes: any message in any order must leave a state that can be stepped, told, shown and restored.
// Among it, what the platform says. Input: fuzzed_steps.h.
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>

#include "base/check.h"
#include "master/core/admit.h"
#include "master/core/convert.h"
#include "master/core/core.h"
#include "master/core/messages.h"
#include "master/core/platform.h"
#include "master/core/test_hello.h"
#include "master/journal/snapshot.h"
#include "master/serve/fuzzed_steps.h"

namespace phalanx::master {
namespace {

class Fuzzed {
 public:
  void Run(std::string_view bytes) {
    while (!bytes.empty()) Take(TakeFuzzedStep(bytes));
    StatusOf(state_, now_);
    PHX_CHECK(ViewOf(state_, now_).IsInitialized(), "no view");
    const auto restored = RestoreState(SaveState(state_, now_), "job", now_);
    PHX_CHECK(restored.ok(), "a journal that a new master refuses");
  }

 private:
  void Take(const FuzzedStep& step) {
    switch (step.kind) {
      case FuzzedStep::Kind::kDetached:
        return Feed(AgentDetached{step.session, "its stream broke"});
      case FuzzedStep::Kind::kPlatformGone:
        return Feed(PlatformGone{});
      case FuzzedStep::Kind::kPlatformMessage:
        return HearPlatform(step.message);
      case FuzzedStep::Kind::kTick:
        now_ += step.after_ms;
        return Feed(Tick{});
      case FuzzedStep::Kind::kHello:
        return Hear(step.session, WellMeantHello(step.session));
      case FuzzedStep::Kind::kAgentMessage:
        return HearBytes(step.session, step.message);
      case FuzzedStep::Kind::kNothing:
        return;
    }
  }

  void HearBytes(uint64_t session, std::string_view bytes) {
    v1::AgentMessage message;
    if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) Hear(session, message);
  }

  void HearPlatform(std::string_view bytes) {
    v1::PlatformMessage message;
    if (message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) Feed(SaidByPlatform(std::move(message)));
  }

  // As the shell does: a stream begins with a Hello, and what is refused or dropped speaks no more.
  void Hear(uint64_t session, const v1::AgentMessage& message) {
    if (state_.nodes.contains(session)) return Feed(EventOf(session, message));
    if (message.has_hello()) Feed(AttachedOf(session, message, "10.0.0.9"));
  }

  void Feed(const Event& event) {
    for (const Decision& decision : Step(state_, event, now_)) {
      if (const v1::StartRound* round = StartRoundIn(decision.action)) {
        PHX_CHECK(round->epoch() >= last_epoch_, "an epoch that falls");
        last_epoch_ = round->epoch();
        PHX_CHECK(round->group_rank() < state_.nodes.size(), "a group rank beyond the nodes there are");
      } else if (const auto* sent = std::get_if<Send>(&decision.action)) {
        PHX_CHECK(sent->message->ByteSizeLong() > 0, "a message without a word");
      } else if (const auto* record = std::get_if<Record>(&decision.action)) {
        PHX_CHECK(DetailJson(*record).front() == '{', "a detail that is no object");
      }
    }
    PHX_CHECK(state_.nodes.size() <= kFuzzedStreams, "more nodes than streams");
  }

  static v1::AgentMessage WellMeantHello(uint64_t session) {
    v1::Hello hello = TestHello("node" + std::to_string(session), 2, TestSpec(1, 3));
    hello.set_hostname("host");
    hello.set_address("10.0.0." + std::to_string(session));
    hello.mutable_spec()->set_join_timeout_ms(60'000);
    return FirstMessage(std::move(hello));
  }

  JobState state_ = [] {
    JobState state;
    state.job_id = "job";
    return state;
  }();
  Instant now_ = 1'000;
  uint64_t last_epoch_ = 0;
};

}  // namespace
}  // namespace phalanx::master

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  phalanx::master::Fuzzed().Run(std::string_view(reinterpret_cast<const char*>(data), size));
  return 0;
}
