// Who may become the job's master when it is lost: each rule by itself. That no two ever do at a time is the
// simulation's (simulation/succession_test.cc).
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/core/candidacy.h"
#include "master/core/job_fixture.h"
#include "master/core/succession.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;

constexpr uint64_t kTermBefore = 1;
constexpr uint64_t kTerm = 2;
constexpr uint64_t kEpoch = 5;

// A candidate, and the nodes of a round that a master of term 1 has begun.
class ElectionTest : public testing::Test {
 protected:
  ElectionTest() {
    job_.state.succession = true;
    job_.state.port = 4'711;
    job_.state.candidacy = CandidacyOf(kTerm, /*before_broke=*/false);
  }

  // That has confirmed the last round, of so many nodes. The first to come hosts the candidate.
  v1::Hello Member(const std::string& name, uint32_t nodes) {
    v1::Hello hello = job_.Info(name);
    hello.set_term(kTermBefore);
    hello.mutable_master()->set_node_id("id-before");
    hello.mutable_master()->set_address("10.0.0.9");
    hello.mutable_master()->set_port(4'000);
    hello.mutable_master()->set_presence_port(4'001);
    SetWorld(*hello.mutable_world(), kEpoch, nodes);
    *hello.mutable_confirmed() = hello.world();
    hello.set_hosts_master(std::exchange(nobody_hosts_, false));
    return hello;
  }
  static void SetWorld(v1::World& world, uint64_t epoch, uint32_t nodes) {
    world.set_term(kTermBefore);
    world.set_epoch(epoch);
    world.set_nodes(nodes);
    world.set_with_host(true);
    world.set_member(true);
  }

  // The master before says nothing for a lease.
  void LetItBeLost() {
    const Instant until = job_.now + kLeaseMs;
    while (job_.now < until) {
      job_.now += kProbeEveryMs;
      job_.Send(Tick{});
    }
  }
  bool IsElected() const { return !job_.state.candidacy && job_.state.term == kTerm; }
  bool HasGivenUp() const { return job_.state.candidacy && job_.state.candidacy->over; }

  JobFixture job_{2, 4};

 private:
  bool nobody_hosts_ = true;
};

TEST_F(ElectionTest, MoreThanHalfOfTheLastRoundElect) {
  job_.Attach(Member("a", 4));
  job_.Attach(Member("b", 4));
  LetItBeLost();
  EXPECT_FALSE(IsElected()) << "the other half may have elected another one";
  job_.Attach(Member("c", 4));
  LetItBeLost();
  EXPECT_TRUE(IsElected());
}

// One of three voices may be gone, unheard, to the master before: that one has half of the round then, too.
TEST_F(ElectionTest, HalfOfTheLastRoundMayNotGoOnAloneYet) {
  const uint64_t a = job_.Attach(Member("a", 4));
  const uint64_t b = job_.Attach(Member("b", 4));
  const uint64_t c = job_.Attach(Member("c", 4));
  LetItBeLost();
  ASSERT_TRUE(IsElected());
  EXPECT_FALSE(MayDecide(job_.state, {a, b}));
  EXPECT_TRUE(MayDecide(job_.state, {a, b, c}));
}

// It came to the job behind the round that this master knows, and trains on by another one's.
TEST(Doubt, OneThatTellsOfALaterMasterAndIsNotKnownTakesTheWayOutAway) {
  JobFixture job{1, 4};
  job.state.succession = job.state.at_endpoint = true;
  job.state.term = 1;
  job.state.voters.CountEnded();
  v1::Hello hello = job.Info("late");
  hello.set_only_tells(true);
  hello.set_term(1);
  job.Attach(hello);
  EXPECT_TRUE(job.state.voters.counts_ended) << "it knows of no later one";
  hello.set_term(2);
  job.Attach(hello);
  EXPECT_FALSE(job.state.voters.counts_ended);
  EXPECT_TRUE(job.state.nodes.empty());
  job.now += kDoubtMs / 2;
  job.Attach(hello);
  job.now += kDoubtMs - 1;
  job.Send(Tick{});
  EXPECT_FALSE(job.state.voters.counts_ended) << "it says so again and again";
  job.now += 1;
  job.Send(Tick{});
  EXPECT_TRUE(job.state.voters.counts_ended) << "it may have come to be one of this master's";
}

// Its machines may never come back. Another process of the master waits no longer than the first.
TEST(Beware, AnotherProcessWaitsAnewAndForgetsThen) {
  JobState job;
  job.at_endpoint = true;
  BewareStill(job, 5'000);
  EXPECT_EQ(job.beware_until, kNever) << "there was no earlier life";
  job.voters.confirmed = Voters(1, 1, 3);
  BewareStill(job, 5'000);
  EXPECT_EQ(job.beware_until, 5'000 + kBewareMs);
  job.beware_until = kNever;
  job.last_round.emplace();
  BewareStill(job, 5'000);
  EXPECT_EQ(job.beware_until, kNever) << "they are of a round of its own";
}

TEST_F(ElectionTest, NobodyIsElectedWhileTheMasterBeforeMayBeStartedAgain) {
  for (const char* name : {"a", "b", "c"}) job_.Attach(Member(name, 4));
  job_.now += kProbeEveryMs;
  job_.Send(Tick{});
  EXPECT_FALSE(IsElected());
  job_.Send(Probed{"id-before", Reach::kRefused, Reach::kRefused});
  EXPECT_TRUE(IsElected()) << "neither it nor its agent is there";
}

TEST_F(ElectionTest, ItGivesUpWhereTheMasterBeforeAnswersAgain) {
  const uint64_t a = job_.Attach(Member("a", 3));
  job_.Attach(Member("b", 3));
  job_.Send(Probed{"id-before", Reach::kAnswered, Reach::kAnswered});
  EXPECT_TRUE(HasGivenUp());
  EXPECT_THAT(job_.told[a].refused, HasSubstr("the job's master answers again"));
  LetItBeLost();
  EXPECT_FALSE(IsElected());
}

TEST_F(ElectionTest, ItGivesUpWhereANodeHasSeenALaterMaster) {
  job_.Attach(Member("a", 3));
  v1::Hello later = Member("b", 3);
  later.set_term(kTerm);
  const uint64_t b = job_.Attach(later);
  EXPECT_TRUE(HasGivenUp());
  EXPECT_THAT(job_.told[b].refused, HasSubstr("a master of a later term has been elected"));
}

TEST_F(ElectionTest, WhatOneNodeAloneWasGivenIsNotTheJobsPatience) {
  v1::Hello odd = Member("a", 4);
  odd.mutable_spec()->set_lease_ms(24 * 3'600'000);
  job_.Attach(odd);
  for (const char* name : {"b", "c"}) job_.Attach(Member(name, 4));
  EXPECT_EQ(job_.state.candidacy->until, job_.now + kCandidateLeases * kLeaseMs);
  LetItBeLost();
  EXPECT_TRUE(IsElected());
}

TEST_F(ElectionTest, ItWaitsForAsLongAsTheJobBelievesASilentNode) {
  for (const char* name : {"a", "b", "c"}) {
    v1::Hello hello = Member(name, 4);
    hello.mutable_spec()->set_lease_ms(9'000);
    job_.Attach(hello);
  }
  LetItBeLost();
  EXPECT_FALSE(IsElected());
  LetItBeLost();
  LetItBeLost();
  EXPECT_TRUE(IsElected());
}

TEST_F(ElectionTest, ARoundThatSomebodyWasToldOfIsAskedAsWell) {
  v1::Hello told = Member("a", 3);
  SetWorld(*told.mutable_world(), kEpoch + 1, 5);
  job_.Attach(told);
  v1::Hello as_well = Member("b", 3);
  *as_well.mutable_world() = told.world();
  job_.Attach(as_well);
  LetItBeLost();
  EXPECT_FALSE(IsElected()) << "two of three have confirmed the last one, and three of the next one's five may train";
  v1::Hello of_next = Member("d", 3);
  of_next.clear_confirmed();
  *of_next.mutable_world() = told.world();
  job_.Attach(of_next);
  LetItBeLost();
  EXPECT_TRUE(IsElected());
}

TEST_F(ElectionTest, ARoundThatCanNeverBeBindsNobody) {
  v1::Hello told = Member("a", 3);
  SetWorld(*told.mutable_world(), kEpoch + 1, 5);
  job_.Attach(told);
  job_.Attach(Member("b", 3));
  job_.Attach(Member("c", 3));  // two of three were not told of it, and each would have had to be
  LetItBeLost();
  EXPECT_TRUE(IsElected());
}

TEST_F(ElectionTest, ARoundIsOfEnoughOfThoseThatTrainedLast) {
  for (const char* name : {"a", "b"}) job_.Attach(Member(name, 3));
  LetItBeLost();
  ASSERT_TRUE(IsElected());
  std::vector<uint64_t> all;
  for (const auto& [session, node] : job_.state.nodes) all.push_back(session);
  EXPECT_TRUE(MayDecide(job_.state, all));
  EXPECT_FALSE(MayDecide(job_.state, {all.front()})) << "two of three are here, and one of three would begin";
}

TEST_F(ElectionTest, OneThatIsLeftByItsNodesLetsThoseGoThatItHas) {
  std::map<std::string, uint64_t> sessions;
  for (const char* name : {"a", "b"}) sessions[name] = job_.Attach(Member(name, 3));
  LetItBeLost();
  ASSERT_TRUE(IsElected());
  job_.Detach(sessions["b"]);
  job_.Pass(kUndecidedMs - 2'000);
  EXPECT_EQ(job_.told[sessions["a"]].refused, "");
  job_.Pass(4'000);
  EXPECT_THAT(job_.told[sessions["a"]].refused, HasSubstr("this master has too few of the nodes that trained last"));
  EXPECT_TRUE(HasGivenUp());
}

}  // namespace
}  // namespace phalanx::master
