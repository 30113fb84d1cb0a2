// What agent_message_fuzzer begins with: lives of small jobs as their agents and the platform tell them.
#include "master/serve/fuzzed_steps.h"

#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "base/test_seeds.h"
#include "master/core/job_fixture.h"
#include "phalanx/v1/platform.pb.h"

namespace phalanx::master {
namespace {

using Kind = FuzzedStep::Kind;

// An input, step by step.
class Input {
 public:
  Input& Add(Kind kind, uint64_t session = 1, int64_t after_ms = 0) {
    bytes_ += FuzzedStepBytes({kind, session, after_ms, ""});
    return *this;
  }
  template <typename Body>
  Input& Say(uint64_t session, const Body& body) {
    return Message(Kind::kAgentMessage, session, MessageWith(body));
  }
  Input& SayAsPlatform(const v1::PlatformMessage& message) { return Message(Kind::kPlatformMessage, 1, message); }
  const std::string& bytes() const { return bytes_; }

 private:
  template <typename M>
  Input& Message(Kind kind, uint64_t session, const M& message) {
    const std::string text = message.SerializeAsString();
    EXPECT_LE(text.size(), 255U);
    bytes_ += FuzzedStepBytes({kind, session, 0, text});
    return *this;
  }

  std::string bytes_;
};

std::vector<Kind> KindsOf(std::string_view bytes) {
  std::vector<Kind> kinds;
  while (!bytes.empty()) kinds.push_back(TakeFuzzedStep(bytes).kind);
  return kinds;
}

bool IsWellFormed(const FuzzedStep& step) {
  v1::AgentMessage agent;
  v1::PlatformMessage platform;
  const std::string text(step.message);
  if (step.kind == Kind::kAgentMessage) return agent.ParseFromString(text) && agent.body_case() != 0;
  if (step.kind == Kind::kPlatformMessage) return platform.ParseFromString(text) && platform.body_case() != 0;
  return step.kind != Kind::kNothing;
}

void ExpectKept(const std::string& name, const Input& input) {
  const std::string seed = SeedOf("master/serve/corpus", name, input.bytes());
  EXPECT_EQ(KindsOf(seed), KindsOf(input.bytes())) << name;
  std::string_view rest = seed;
  for (int at = 0; !rest.empty(); ++at) EXPECT_TRUE(IsWellFormed(TakeFuzzedStep(rest))) << name << ", step " << at;
}

Input TwoNodesThatTrain() {
  Input input;
  v1::FirstStep first;
  first.set_epoch(1);
  first.set_step(1);
  input.Add(Kind::kHello, 1).Add(Kind::kHello, 2).Add(Kind::kTick, 1, 1'600);
  return input.Say(1, first).Say(2, first);
}

TEST(AgentMessageSeeds, OfARankThatFailsAndANodeThatGoes) {
  Input input = TwoNodesThatTrain();
  v1::WorkerExited exited = JobFixture::Ended(1, 3);
  exited.set_epoch(1);
  exited.set_last_words("ValueError: no");
  v1::Leaving leaving;
  leaving.set_signal(15);
  input.Say(1, exited).Add(Kind::kTick, 1, 1'000).Say(2, leaving).Add(Kind::kDetached, 2).Add(Kind::kTick, 1, 1'600);
  ExpectKept("a_rank_fails", input);
}

TEST(AgentMessageSeeds, OfWhatAgentsTellWhileTheyTrain) {
  Input input = TwoNodesThatTrain();
  v1::Beat beat;
  beat.set_epoch(1);
  beat.set_min_step(7);
  beat.set_max_step(8);
  beat.set_told_ranks(2);
  beat.mutable_progress()->set_step(8);
  beat.add_paces()->set_steps(7);
  v1::StoreRefused refused;
  refused.set_epoch(1);
  refused.set_sentence("10.0.0.66 is no member");
  v1::ConsoleLost lost;
  lost.set_sentence("No space left on device");
  v1::SafePoint safe_point;
  safe_point.set_epoch(1);
  safe_point.set_reached(true);
  input.Say(1, beat).Say(2, refused).Say(2, lost).Say(1, v1::Ready()).Say(1, safe_point).Add(Kind::kTick, 1, 500);
  ExpectKept("they_train", input);
}

TEST(AgentMessageSeeds, OfShardsAndASave) {
  Input input = TwoNodesThatTrain();
  v1::ShardRequest request;
  request.set_epoch(1);
  request.set_request(1);
  request.set_dataset("data");
  request.mutable_open()->set_size(10);
  request.mutable_open()->set_shard_size(3);
  request.mutable_open()->set_passes(1);
  input.Say(1, request);
  request.set_request(2);
  request.mutable_take();
  input.Say(1, request);
  v1::CheckpointReport report;
  report.set_epoch(1);
  report.set_dir("/d");
  report.mutable_opened();
  input.Say(1, report).Say(2, report);
  report.mutable_sealed()->mutable_save()->set_step(7);
  input.Say(1, report).Say(2, report).Add(Kind::kTick, 1, 300);
  ExpectKept("shards_and_a_save", input);
}

TEST(AgentMessageSeeds, OfAPlatform) {
  Input input = TwoNodesThatTrain();
  v1::PlatformMessage message;
  message.mutable_hello()->set_job_id("job");
  message.mutable_hello()->set_platform("kubernetes");
  input.SayAsPlatform(message);
  v1::PlatformView& view = *message.mutable_view();
  view.set_generation(1);
  view.set_wanted_nodes(3);
  v1::Departure& departure = *view.add_departures();
  departure.set_address("10.0.0.2");
  departure.set_name("job-worker-1");
  departure.set_reason("its node is drained");
  departure.set_left_ms(30'000);
  v1::NodePlace& place = *view.add_places();
  place.set_address("10.0.0.1");
  place.set_access_switch(1);
  input.SayAsPlatform(message);
  message.mutable_fact()->set_address("10.0.0.1");
  message.mutable_fact()->set_kind("node");
  message.mutable_fact()->set_sentence("its disk is full");
  message.mutable_fact()->set_number(1);
  input.SayAsPlatform(message).Add(Kind::kHello, 3).Add(Kind::kTick, 1, 1'600).Add(Kind::kPlatformGone);
  ExpectKept("a_platform", input);
}

}  // namespace
}  // namespace phalanx::master
