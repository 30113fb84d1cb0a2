#include "agent/core/joining.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace phalanx::agent::joining {
namespace {

constexpr Instant kSince = 1'000;

Options Named() { return {false, false, "master", 29'400, 5'000}; }

// A node that comes, driven by hand.
class Joining : public ::testing::Test {
 protected:
  Joining() { state_.options = Named(); }

  void On(const Event& event) { last_ = Step(state_, event, now_); }

  // Of the only decision; null where there is another one, or none.
  template <typename T>
  const T* Only() const {
    return last_.size() == 1 ? std::get_if<T>(&last_[0].action) : nullptr;
  }

  State state_;
  Instant now_ = kSince;
  std::vector<Decision> last_;
};

TEST_F(Joining, WhoStartsTheMasterFollowsFromTheEndpoint) {
  const Hosting here{true, "0.0.0.0", "10.0.0.1"};
  struct Row {
    const char* what;
    bool has_own_master;
    Hosting hosting;
    bool starts;
  };
  for (const Row& row : {Row{"its own endpoint", false, here, true}, Row{"another node's", false, {}, false},
                         Row{"its own, and a master of its own", true, here, false}}) {
    state_ = State();
    state_.options = Named();
    state_.options.has_own_master = row.has_own_master;
    On(Begun{kSince});
    ASSERT_NE(Only<Resolve>(), nullptr) << row.what;
    On(Resolved{row.hosting});
    if (!row.starts) {
      ASSERT_NE(Only<Join>(), nullptr) << row.what;
      EXPECT_EQ(Only<Join>()->host, "master");
      EXPECT_EQ(Only<Join>()->port, 29'400);
      continue;
    }
    ASSERT_NE(Only<StartMaster>(), nullptr) << row.what;
    EXPECT_EQ(Only<StartMaster>()->bind_address, "0.0.0.0");
    EXPECT_EQ(Only<StartMaster>()->port, 29'400);
    On(MasterReady{29'401});
    ASSERT_NE(Only<Join>(), nullptr) << row.what;
    EXPECT_EQ(Only<Join>()->host, "10.0.0.1");
    EXPECT_EQ(Only<Join>()->port, 29'401);
  }
}

TEST_F(Joining, AMasterThatDoesNotStartIsGivenUp) {
  state_.options = {true, false, "", 0, 5'000};
  On(Begun{kSince});
  EXPECT_EQ(NextDeadline(state_), kSince + kMasterStartMs);
  now_ += kMasterStartMs - 1;
  On(Tick{});
  EXPECT_TRUE(last_.empty());
  now_ += 1;
  On(Tick{});
  ASSERT_NE(Only<Fail>(), nullptr);
  EXPECT_EQ(Only<Fail>()->why, "the job's master could not be started: it has not said within 60 s where it listens");
  EXPECT_EQ(NextDeadline(state_), kNever);
  On(MasterReady{4'711});
  EXPECT_TRUE(last_.empty());
}

TEST_F(Joining, AJobOfOneNodeAsksForNoName) {
  state_.options = {true, false, "", 0, 5'000};
  On(Begun{kSince});
  ASSERT_NE(Only<StartMaster>(), nullptr);
  EXPECT_EQ(Only<StartMaster>()->bind_address, "127.0.0.1");
  On(MasterReady{4'711});
  ASSERT_NE(Only<Join>(), nullptr);
  EXPECT_EQ(Only<Join>()->host, "127.0.0.1");
  EXPECT_EQ(Only<Join>()->port, 4'711);
}

TEST_F(Joining, ANameThatComesLateIsWaitedForWithOneLine) {
  On(Begun{kSince});
  On(NotResolved{"no such name"});
  ASSERT_NE(Only<Say>(), nullptr);
  EXPECT_EQ(Only<Say>()->text, "--rdzv-endpoint: no such name; asking again until it is known, for up to 5 s");
  EXPECT_EQ(NextDeadline(state_), now_ + kResolveAgainMs);
  now_ += kResolveAgainMs - 1;
  On(Tick{});
  EXPECT_TRUE(last_.empty());
  ++now_;
  On(Tick{});
  ASSERT_NE(Only<Resolve>(), nullptr);
  EXPECT_EQ(NextDeadline(state_), kNever);
  On(NotResolved{"no such name"});
  EXPECT_TRUE(last_.empty());
  now_ += kResolveAgainMs;
  On(Tick{});
  On(Resolved{});
  EXPECT_NE(Only<Join>(), nullptr);
  EXPECT_EQ(NextDeadline(state_), kNever);
}

TEST_F(Joining, ItIsGivenUpAtTheJoinTimeoutWhichCountsFromBefore) {
  now_ = kSince + 4'500;
  On(Begun{kSince});
  On(NotResolved{"no such name"});
  EXPECT_EQ(NextDeadline(state_), kSince + 5'000);  // the last time is at the end
  now_ = kSince + 5'000;
  On(Tick{});
  ASSERT_NE(Only<Resolve>(), nullptr);
  On(NotResolved{"no such name"});
  ASSERT_NE(Only<Fail>(), nullptr);
  EXPECT_EQ(Only<Fail>()->why, "--rdzv-endpoint: no such name (--rdzv-conf join_timeout)");
  EXPECT_EQ(NextDeadline(state_), kNever);
}

TEST_F(Joining, AMasterThatCannotListenIsAnotherNodesOrNone) {
  struct Row {
    uint16_t endpoint_port;
    bool address_in_use;
    bool joins;
  };
  for (const Row& row : {Row{29'400, true, true}, Row{29'400, false, false}, Row{0, true, false}}) {
    state_ = State();
    state_.options = Named();
    state_.options.endpoint_port = row.endpoint_port;
    On(Begun{kSince});
    On(Resolved{{true, "10.0.0.1", "10.0.0.1"}});
    On(MasterNotReady{row.address_in_use, "port 29400 is taken"});
    if (row.joins) {
      ASSERT_NE(Only<Join>(), nullptr);
      EXPECT_EQ(Only<Join>()->host, "master");
    } else {
      ASSERT_NE(Only<Fail>(), nullptr);
      EXPECT_EQ(Only<Fail>()->why, "the job's master could not be started: port 29400 is taken");
    }
  }
}

TEST_F(Joining, AMasterThatWasStartedAgainIsTheCoresMatter) {
  On(Begun{kSince});
  On(Resolved{{true, "10.0.0.1", "10.0.0.1"}});
  On(MasterReady{29'400});
  On(MasterReady{29'400});
  EXPECT_TRUE(last_.empty());
  On(MasterNotReady{true, "it ended before it was ready"});
  ASSERT_NE(Only<TellMasterDied>(), nullptr);
  EXPECT_EQ(Only<TellMasterDied>()->why, "it ended before it was ready");
}

TEST_F(Joining, WhoGoesAsksNoMore) {
  On(Begun{kSince});
  On(NotResolved{"no such name"});
  On(GivenUp{});
  EXPECT_EQ(NextDeadline(state_), kNever);
  now_ += 10'000;
  for (const Event& late : {Event(Tick{}), Event(Resolved{}), Event(NotResolved{"?"}), Event(MasterReady{1}),
                            Event(MasterNotReady{true, "?"}), Event(Begun{kSince})}) {
    On(late);
    EXPECT_TRUE(last_.empty()) << late.index();
  }
}

TEST(Master, LivesOnBehindItsNodesWhereOthersMayCome) {
  EXPECT_EQ(MasterLingerMs(1), 0);
  EXPECT_EQ(MasterLingerMs(2), kMasterLingerMs);
}

}  // namespace
}  // namespace phalanx::agent::joining
