#include "master/core/platform.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>

#include "master/core/job_fixture.h"

namespace phalanx::master {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;
using ::testing::UnorderedElementsAre;

// A job whose nodes a platform runs: node n has address 10.0.0.n.
class PlatformJob : public JobFixture {
 public:
  PlatformJob(uint32_t min_nodes, uint32_t max_nodes, bool sized = true) : JobFixture(min_nodes, max_nodes) {
    spec.set_sized_by_platform(sized);
    spec.set_rescale_grace_ms(30'000);
    AdmitSpec(spec);
    state = journal_state = JobState("job", spec);
    wants_safe_point = true;
    v1::PlatformMessage hello;
    hello.mutable_hello()->set_platform("kubernetes");
    Send(SaidByPlatform(hello));
  }

  uint64_t Come(int number) {
    v1::Hello hello = Info(fmt::format("n{}", number));
    hello.set_address(Address(number));
    return Attach(hello);
  }
  // So many come, 0 first, and train.
  void Train(int nodes) {
    for (int i = 0; i < nodes; ++i) Come(i);
    Pass(1'000);
  }
  static std::string Address(int number) { return fmt::format("10.0.0.{}", number); }

  void Goes(int number, const std::string& reason) {
    v1::Departure& departure = *view.add_departures();
    departure.set_address(Address(number));
    departure.set_name(fmt::format("job-worker-{}", number));
    departure.set_reason(reason);
    departure.set_left_ms(30'000);
  }
  // Where it is in the network.
  void IsUnder(int number, uint32_t access_switch) {
    v1::NodePlace& place = *view.add_places();
    place.set_address(Address(number));
    place.set_pod_switch(1);
    place.set_access_switch(access_switch);
  }
  void Tell() {
    view.set_generation(view.generation() + 1);
    v1::PlatformMessage message;
    *message.mutable_view() = view;
    Send(SaidByPlatform(message));
  }
  // All ranks come to their safe point.
  void BeSafe() {
    v1::SafePoint point;
    point.set_epoch(state.round->epoch);
    point.set_reached(true);
    std::vector<uint64_t> sessions;
    for (const Slot& slot : std::as_const(*state.round).slots) sessions.push_back(slot.session);
    for (const uint64_t session : sessions) Say(session, point);
  }
  v1::JobView View() const { return ViewOf(state, now); }
  size_t World() const { return state.round ? state.round->slots.size() : 0; }

  v1::PlatformView view;
};

TEST(PlatformTest, WhoIsPreemptedTrainsNoMoreWhileItIsStillThere) {
  PlatformJob job(2, 3);
  job.Train(3);
  ASSERT_EQ(job.World(), 3u);
  const uint32_t restarts = RestartsLeft(job.state.budget, job.now);
  job.Goes(1, "preempted by a pod of higher priority");
  job.Tell();
  EXPECT_EQ(job.View().generation(), 1u);
  EXPECT_THAT(job.View().released(), IsEmpty());  // it trains until all are at a safe point
  job.BeSafe();
  EXPECT_EQ(job.World(), 2u);
  EXPECT_THAT(job.state.round->reason, HasSubstr("preempted by a pod of higher priority"));
  EXPECT_THAT(job.View().released(), ElementsAre("10.0.0.1"));
  EXPECT_EQ(RestartsLeft(job.state.budget, job.now), restarts);  // no failure
}

TEST(PlatformTest, WhoStaysAfterAllTrainsAgain) {
  PlatformJob job(1, 2);
  job.Come(0);
  const uint64_t other = job.Come(1);
  job.Pass(1'000);
  job.Goes(1, "its node is drained");
  job.Tell();
  job.BeSafe();
  ASSERT_EQ(job.World(), 1u);
  job.view.clear_departures();
  job.Tell();
  EXPECT_THAT(job.told[other].notices, Contains(HasSubstr("this node stays: it may train again")));
  job.Pass(kGrowQuietMs);
  job.BeSafe();
  EXPECT_EQ(job.World(), 2u);
}

TEST(PlatformTest, WhereTooFewWouldBeLeftItTrainsUntilItGoes) {
  PlatformJob job(2, 2);
  job.Come(0);
  const uint64_t goes = job.Come(1);
  job.Pass(1'000);
  job.Goes(1, "its node is drained");
  job.Tell();
  job.Pass(10'000);
  EXPECT_EQ(job.World(), 2u);
  EXPECT_TRUE(job.state.nodes.at(goes).left_out.empty());
  EXPECT_EQ(job.state.round->rescale_by, kNever);
  // ... or until another one has come, and it is this node's place that is free.
  job.Come(2);
  job.BeSafe();
  ASSERT_EQ(job.World(), 2u);
  EXPECT_THAT(job.View().released(), ElementsAre("10.0.0.1"));
  EXPECT_EQ(job.state.round->SlotOfNode("id-n1"), nullptr);
}

TEST(PlatformTest, OfAllThatGoNotAllAreLeftOut) {
  PlatformJob job(1, 3);
  job.Train(3);
  for (int i = 0; i < 3; ++i) job.Goes(i, "its node is not ready");
  job.Tell();
  job.BeSafe();
  EXPECT_EQ(job.World(), 1u);
  EXPECT_EQ(job.View().released_size(), 2);
}

TEST(PlatformTest, ANodeThatGoesIsNotTakenInWhenItComesLate) {
  PlatformJob job(1, 2);
  job.Goes(1, "evicted");
  job.Tell();
  job.Train(2);
  EXPECT_EQ(job.World(), 1u);
  EXPECT_THAT(job.View().released(), ElementsAre("10.0.0.1"));
}

TEST(PlatformTest, WhatIsSaidTwiceChangesNothing) {
  PlatformJob job(1, 2);
  job.Train(2);
  job.Goes(1, "evicted");
  job.Tell();
  job.BeSafe();
  const uint64_t epoch = job.state.round->epoch;
  job.Tell();
  job.Pass(5'000);
  EXPECT_EQ(job.state.round->epoch, epoch);
  EXPECT_EQ(job.View().generation(), 2u);
}

TEST(PlatformTest, APlatformThatIsLostIsBelievedForAWhile) {
  PlatformJob job(1, 2);
  job.Train(2);
  job.Goes(1, "evicted");
  job.Tell();
  job.BeSafe();
  job.Send(PlatformGone{});
  job.Pass(30'000 + kDepartureKeptMs - 1);
  EXPECT_EQ(job.World(), 1u);
  job.Pass(1 + kGrowQuietMs);
  job.BeSafe();
  EXPECT_EQ(job.World(), 2u);
}

TEST(PlatformTest, ItsNodesAreAsManyAsItWants) {
  PlatformJob job(1, 2);
  job.Train(2);
  job.view.set_wanted_nodes(3);
  job.Tell();
  EXPECT_EQ(job.state.spec->max_nodes(), 3u);
  job.spec.set_max_nodes(3);  // what NODE_NUM is by now
  job.Come(2);
  job.Pass(kGrowQuietMs);
  job.BeSafe();
  EXPECT_EQ(job.World(), 3u);
  job.view.set_wanted_nodes(2);
  job.Goes(2, "the job is made smaller");
  job.Tell();
  job.BeSafe();
  EXPECT_EQ(job.World(), 2u);
  EXPECT_EQ(job.state.spec->max_nodes(), 2u);
}

TEST(PlatformTest, WhoComesWithAnotherNumberBeforeThePlatformSaysSoIsLetIn) {
  PlatformJob job(1, 2);
  job.Come(0);
  job.spec.set_max_nodes(3);
  v1::Hello hello = job.Info("n1");
  hello.set_node_rank_wanted(2);
  const uint64_t other = job.Attach(hello);
  EXPECT_EQ(job.told[other].refused, "");
  hello = job.Info("n2");
  hello.set_node_rank_wanted(3);
  const uint64_t beyond = job.Attach(hello);
  EXPECT_THAT(job.told[beyond].refused, HasSubstr("--node-rank=3: expected 0 to 2, as --nnodes=1:3"));
}

TEST(PlatformTest, OneStaysTheOtherGoes) {
  PlatformJob job(1, 3);
  job.Train(3);
  job.Goes(1, "evicted");
  job.Goes(2, "evicted");
  job.Tell();
  job.BeSafe();
  ASSERT_EQ(job.World(), 1u);
  job.view.mutable_departures()->RemoveLast();
  job.Tell();
  job.Pass(kGrowQuietMs);
  job.BeSafe();
  EXPECT_EQ(job.World(), 2u);
  EXPECT_THAT(job.View().released(), ElementsAre("10.0.0.1"));
}

TEST(PlatformTest, AJobOfAFixedSizeTrainsOnUntilTheOthersAreThere) {
  PlatformJob job(2, 2);
  job.Train(2);
  job.view.set_wanted_nodes(4);
  job.Tell();
  EXPECT_EQ(job.World(), 2u);
  EXPECT_EQ(job.state.spec->min_nodes(), 2u);
  job.view.set_wanted_nodes(1);
  job.Tell();
  EXPECT_EQ(job.state.spec->min_nodes(), 1u);
}

TEST(PlatformTest, NumbersOfTheUserCount) {
  PlatformJob job(1, 2, /*sized=*/false);
  job.Come(0);
  job.view.set_wanted_nodes(3);
  job.Tell();
  EXPECT_EQ(job.state.spec->max_nodes(), 2u);
  job.spec.set_max_nodes(3);
  const uint64_t other = job.Come(1);
  EXPECT_THAT(job.told[other].refused, HasSubstr("--nnodes=1:3 differs from the job's --nnodes=1:2"));
}

// They happened to be the platform's own, until that wanted others.
TEST(PlatformTest, NumbersOfTheUserCountAlsoWhereTheyWereThePlatforms) {
  PlatformJob job(2, 2);
  job.Train(2);
  job.view.set_wanted_nodes(3);
  job.Tell();
  ASSERT_EQ(job.state.spec->max_nodes(), 3u);
  job.spec.set_sized_by_platform(false);  // NODE_NUM is 3, and --nnodes=2
  const uint64_t third = job.Come(2);
  EXPECT_EQ(job.told[third].refused, "");
  EXPECT_EQ(job.state.spec->max_nodes(), 2u);
  EXPECT_THAT(job.Records("job-resized").back(),
              HasSubstr("a node's command has numbers of its own: --nnodes=2 in place of 2:3"));
  job.view.set_wanted_nodes(4);
  job.Tell();
  EXPECT_EQ(job.state.spec->max_nodes(), 2u);
  job.spec.set_max_nodes(5);
  EXPECT_THAT(job.told[job.Come(3)].refused, HasSubstr("--nnodes=2:5 differs from the job's --nnodes=2"));
}

TEST(PlatformTest, TheMinimumThatWasAskedForComesBackWithTheNodes) {
  PlatformJob job(4, 4);
  job.view.set_wanted_nodes(2);
  job.Tell();
  job.Come(0);
  EXPECT_EQ(job.state.spec->min_nodes(), 2u);
  job.view.set_wanted_nodes(8);
  job.Tell();
  EXPECT_EQ(job.state.spec->min_nodes(), 4u);
}

// Its own node was told another size than the job has by now, and it has no journal.
TEST(PlatformTest, ANewMasterTakesUpWhatIsLargerThanItsFirstNodeWasTold) {
  PlatformJob before(1, 4);
  before.Train(4);
  ASSERT_EQ(before.World(), 4u);
  PlatformJob job(1, 2);
  const std::vector<uint64_t> members = before.Ranks();
  for (const uint64_t session : members) {
    v1::Hello hello = before.state.nodes.at(session).hello;
    *hello.mutable_spec() = job.spec;
    *hello.mutable_live_round() = before.told[session].rounds.back();
    EXPECT_THAT(job.told[job.Attach(hello)].holds, IsEmpty());
  }
  EXPECT_EQ(job.World(), 4u);
  EXPECT_EQ(job.state.round->away, 0u);
  EXPECT_EQ(job.state.spec->max_nodes(), 4u);
}

// A master that has just begun does not know who trains: its nodes may be on their way.
TEST(PlatformTest, NobodyIsReleasedWhomTheMasterHasNotMet) {
  PlatformJob before(1, 2);
  before.Train(2);
  PlatformJob job(1, 2);
  job.Goes(1, "evicted");
  job.Tell();
  EXPECT_THAT(job.View().released(), IsEmpty());
  const std::vector<uint64_t> members = before.Ranks();
  for (const uint64_t session : members) {
    EXPECT_THAT(job.View().released(), IsEmpty());
    v1::Hello hello = before.state.nodes.at(session).hello;
    *hello.mutable_live_round() = before.told[session].rounds.back();
    job.Attach(hello);
  }
  EXPECT_THAT(job.View().released(), IsEmpty());
  job.BeSafe();
  EXPECT_THAT(job.View().released(), ElementsAre("10.0.0.1"));
}

TEST(PlatformTest, TheLastNodeThatLeavesDoesNotEndTheJob) {
  PlatformJob job(1, 1);
  const uint64_t first = job.Come(0);
  job.Pass(1'000);
  job.wants_safe_point = false;
  job.Leave(first);
  job.Pass(1'000);
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  // However long the platform takes.
  job.Pass(3 * job.spec.join_timeout_ms());
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  job.Send(PlatformGone{});
  job.Pass(job.spec.join_timeout_ms() - 1);
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  v1::PlatformMessage hello;
  hello.mutable_hello()->set_platform("kubernetes");
  job.Send(SaidByPlatform(hello));
  job.Pass(job.spec.join_timeout_ms());
  job.Come(1);
  job.Pass(1'000);
  EXPECT_EQ(job.World(), 1u);
}

TEST(PlatformTest, AJobThatHasEndedForgetsNothingInVain) {
  PlatformJob job(1, 1);
  const uint64_t only = job.Come(0);
  job.Pass(1'000);
  job.Goes(0, "evicted");
  job.Tell();
  job.Send(PlatformGone{});
  for (uint32_t rank = 0; rank < 2; ++rank) job.Exit(only, JobFixture::Ended(rank, 0));
  ASSERT_EQ(job.state.phase, Phase::kFinished);
  EXPECT_EQ(DeparturesDue(job.state), kNever);
  job.Pass(30'000 + 2 * kDepartureKeptMs);
}

// --local-addr names one of another network than the platform's.
TEST(PlatformTest, ANodeIsKnownByAnyOfItsAddresses) {
  PlatformJob job(1, 2);
  job.Come(0);
  v1::Hello hello = job.Info("n1");
  hello.set_address("192.168.7.1");
  hello.add_interface_addresses("10.0.0.1");
  job.Attach(hello);
  job.Pass(1'000);
  job.Goes(1, "evicted");
  job.Tell();
  EXPECT_THAT(job.View().released(), IsEmpty());
  job.BeSafe();
  EXPECT_EQ(job.World(), 1u);
  EXPECT_THAT(job.View().released(), ElementsAre("10.0.0.1"));
}

TEST(PlatformTest, NodesUnderOneSwitchHaveRanksNextToEachOther) {
  PlatformJob job(4, 4);
  for (int i = 0; i < 4; ++i) job.IsUnder(i, 1 + i % 2);
  job.Tell();
  job.Train(4);
  EXPECT_THAT(job.Records("round-addresses"), ElementsAre("nodes by rank: 10.0.0.0, 10.0.0.2, 10.0.0.1, 10.0.0.3"));
}

TEST(PlatformTest, NoRoundBeginsBeforeItIsKnownWhereNodesAre) {
  PlatformJob job(2, 2);
  job.state.platform.await_until = job.now + 10'000;
  job.Train(2);
  job.Pass(5'000);
  EXPECT_EQ(job.World(), 0u);
  for (int i = 0; i < 2; ++i) job.IsUnder(i, 1);
  job.Tell();
  EXPECT_EQ(job.World(), 2u);
  EXPECT_THAT(job.Records("round-addresses"), SizeIs(1));
}

TEST(PlatformTest, APlatformThatNeverComesIsNotWaitedForForEver) {
  PlatformJob job(2, 2);
  job.state.platform.await_until = job.now + 10'000;
  job.Train(2);
  job.Pass(8'999);
  EXPECT_EQ(job.World(), 0u);
  job.Pass(1);
  EXPECT_EQ(job.World(), 2u);
  EXPECT_THAT(job.Records("platform-not-heard"), SizeIs(1));
}

// On a node that does not answer it may work on when its successor is ready, and its nodes are to go there.
TEST(PlatformTest, AMasterMakesRoomForALaterOne) {
  PlatformJob job(2, 2);
  job.Train(2);
  job.state.epoch = 3;
  for (const uint32_t known : {0u, 3u}) {
    job.view.set_master_epoch(known);
    job.Tell();
    EXPECT_FALSE(job.state.platform.has_another) << known;
  }
  job.view.set_master_epoch(4);
  job.Tell();
  EXPECT_TRUE(job.state.platform.has_another);
  EXPECT_EQ(job.state.phase, Phase::kRunning) << "the other one goes on with the job";
  EXPECT_THAT(job.Records("master-replaced"), ElementsAre(HasSubstr("of epoch 4; this one's is 3")));
}

// A master that is started anew while a node is drained: the round that others were to begin without it waits till it
// is known who goes, and has not the node that goes.
TEST(PlatformTest, ANewMasterChangesNoRoundBeforeItKnowsWhoGoes) {
  PlatformJob job(1, 3);
  job.Train(3);
  job.Goes(1, "evicted");
  job.Tell();
  ASSERT_NE(job.state.round->rescale_by, kNever);
  for (auto& [session, node] : job.state.nodes) job.state.ChangeNode(node, [](Node& n) { n.left_out.clear(); });
  job.state.left_out.clear();
  job.state.platform = Platform();
  job.state.platform.await_until = job.now + 10'000;
  job.BeSafe();
  EXPECT_EQ(job.World(), 3u) << "the round is as it was";
  job.Tell();
  job.BeSafe();
  EXPECT_EQ(job.World(), 2u);
  EXPECT_EQ(job.state.rounds_begun, 2u);
}

v1::PlatformMessage FactOf(uint64_t number) {
  v1::PlatformMessage message;
  message.mutable_fact()->set_sentence(fmt::format("fact {}", number));
  message.mutable_fact()->set_number(number);
  return message;
}

v1::PlatformMessage HelloOf(const std::string& instance, uint64_t epoch) {
  v1::PlatformMessage message;
  message.mutable_hello()->set_platform("kubernetes");
  message.mutable_hello()->set_instance(instance);
  message.mutable_hello()->set_epoch(epoch);
  message.mutable_hello()->set_lease("lease-1");
  return message;
}

TEST(PlatformTest, AFactThatIsSaidAgainBehindABrokenStreamIsOne) {
  PlatformJob job(1, 1);
  job.Send(SaidByPlatform(HelloOf("x", 1)));
  for (const uint64_t number : {1, 2}) job.Send(SaidByPlatform(FactOf(number)));
  EXPECT_EQ(job.View().facts(), 2u);
  job.Send(PlatformGone{});
  job.Send(SaidByPlatform(HelloOf("x", 1)));
  for (const uint64_t number : {2, 3}) job.Send(SaidByPlatform(FactOf(number)));
  EXPECT_THAT(job.Records("platform-fact"), ElementsAre("fact 1", "fact 2", "fact 3"));
  job.Send(PlatformGone{});
  job.Send(SaidByPlatform(HelloOf("y", 2)));
  EXPECT_EQ(job.View().facts(), 0u) << "another process counts anew";
  job.Send(SaidByPlatform(FactOf(1)));
  EXPECT_THAT(job.Records("platform-fact"), SizeIs(4));
}

TEST(PlatformTest, AnEarlierPlatformIsNotLetInBesideALaterOne) {
  PlatformJob job(1, 1);
  const auto refusal = [&](uint64_t epoch) { return PlatformRefusal(job.state, HelloOf("y", epoch).hello()); };
  EXPECT_EQ(refusal(1), "");
  job.Send(SaidByPlatform(HelloOf("x", 7)));
  EXPECT_THAT(refusal(6), HasSubstr("its epoch is 7, and this one's 6"));
  EXPECT_EQ(refusal(7), "") << "it comes again";
  EXPECT_EQ(refusal(8), "");
  job.Send(PlatformGone{});
  EXPECT_NE(refusal(6), "");
  v1::PlatformHello other = HelloOf("y", 1).hello();
  other.set_lease("lease-2");
  EXPECT_EQ(PlatformRefusal(job.state, other), "") << "somebody has deleted the lease";
  other.clear_lease();
  EXPECT_EQ(PlatformRefusal(job.state, other), "") << "nobody counts";
}

// A node that comes, and a change that was under way, are not looked at again and again while the platform is waited
// for: JobFixture::Pass fails where a deadline is never over.
TEST(PlatformTest, WhileThePlatformIsAwaitedNoDeadlineIsMissed) {
  PlatformJob job(1, 3);
  job.Train(2);
  job.state.platform.await_until = job.now + 10'000;
  job.Come(2);
  job.Pass(9'000);
  EXPECT_EQ(job.World(), 2u);
  job.Pass(2'000);
  job.BeSafe();
  EXPECT_EQ(job.World(), 3u);
}

TEST(PlatformTest, ANodeThatLeavesByItselfDoesNotWaitForThePlatform) {
  PlatformJob job(1, 2);
  job.Train(2);
  job.state.platform.await_until = job.now + 10'000;
  job.Leave(job.Ranks()[1]);
  job.BeSafe();
  EXPECT_EQ(job.World(), 1u);
}

TEST(PlatformTest, AMachineThatFailedItsCheckIsUnfit) {
  PlatformJob job(1, 2);
  job.Come(0);
  LeaveOut(job.state.health, {7, "n1", "n1", "10.0.0.1"}, "sector 7 is gone", /*needs_others=*/false, 600'000, job.now);
  ASSERT_EQ(job.View().unfit_size(), 1);
  EXPECT_EQ(job.View().unfit(0).address(), "10.0.0.1");
  EXPECT_EQ(job.View().unfit(0).reason(), "sector 7 is gone");
  job.Pass(600'000);
  EXPECT_EQ(job.View().unfit_size(), 0);
}

// Its job's shape is that of the first node, which has not come.
TEST(PlatformTest, APlatformMayComeBeforeTheFirstNode) {
  JobState state;
  state.job_id = "job";
  PlatformSaid said;
  said.message.mutable_hello()->set_instance("operator");
  Step(state, said, 0);
  said.message.mutable_view()->set_generation(1);
  said.message.mutable_view()->add_departures()->set_address("10.0.0.7");
  Step(state, said, 1'000);
  said.message.mutable_view()->clear_departures();
  said.message.mutable_view()->set_generation(2);
  Step(state, said, 2'000);
  Step(state, Tick{}, 3'000);
  EXPECT_EQ(state.left_out_due, kNever);
}

TEST(PlatformTest, WhatItSaysIsBounded) {
  v1::PlatformMessage message;
  for (size_t i = 0; i < kMaxDepartures + 2; ++i) {
    v1::Departure& departure = *message.mutable_view()->add_departures();
    departure.set_address(i == 0 ? "no address" : fmt::format("10.1.{}.{}", i / 256, i % 256));
    departure.set_reason(std::string(10'000, 'x'));
    departure.set_left_ms(-5);
  }
  message.mutable_view()->set_wanted_nodes(UINT32_MAX);
  const PlatformSaid said = SaidByPlatform(message);
  const v1::PlatformView& view = said.message.view();
  ASSERT_EQ(view.departures_size(), static_cast<int>(kMaxDepartures));
  EXPECT_EQ(view.departures(0).address(), "10.1.0.1");
  EXPECT_EQ(view.departures(0).reason().size(), 512u);
  EXPECT_EQ(view.departures(0).left_ms(), 0);
  EXPECT_EQ(view.wanted_nodes(), 1'000'000u);
}

}  // namespace
}  // namespace phalanx::master
