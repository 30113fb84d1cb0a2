#include "master/core/look.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/core/convert.h"
#include "master/core/job_fixture.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class LookTest : public testing::Test {
 protected:
  LookTest() {
    a_ = job_.Attach("a");
    b_ = job_.Attach("b");
    job_.AllStep();
  }

  void Tell(uint64_t session, int64_t step, int ranks) {
    v1::Beat beat;
    beat.set_epoch(job_.Epoch());
    beat.set_min_step(step);
    beat.set_max_step(step);
    beat.set_asked_for(true);
    for (int rank = 0; rank < ranks; ++rank) {
      beat.add_ranks()->set_local_rank(static_cast<uint32_t>(rank));
      beat.mutable_ranks(rank)->set_pid(100 + rank);
    }
    job_.Say(session, beat);
  }

  JobFixture job_{2, 2};
  uint64_t a_ = 0;
  uint64_t b_ = 0;
};

TEST_F(LookTest, IsOverWhenAllHaveAnswered) {
  job_.Send(LookedAt{true});
  EXPECT_THAT(job_.told[a_].asked_for_steps, ElementsAre(true));
  EXPECT_THAT(job_.told[b_].asked_for_steps, ElementsAre(true));
  EXPECT_EQ(job_.state.look.owed, 2U);
  Tell(a_, 7, 2);
  EXPECT_EQ(job_.state.look.owed, 1U);
  Tell(a_, 8, 2);
  EXPECT_EQ(job_.state.look.owed, 1U) << "one answers once";
  Tell(b_, 7, 2);
  EXPECT_EQ(job_.state.look.owed, 0U);
  const v1::StatusReply status = StatusOf(job_.state, job_.now, true);
  ASSERT_EQ(status.nodes_size(), 2);
  EXPECT_EQ(status.nodes(0).ranks_size(), 2);
  EXPECT_EQ(status.nodes(1).rank_base() + status.nodes(1).ranks(1).local_rank(), 3U);
  EXPECT_EQ(StatusOf(job_.state, job_.now).nodes(0).ranks_size(), 0) << "nobody has asked for them";
  const int64_t quiet_ms = status.nodes(0).ranks(0).quiet_ms();
  const v1::StatusReply later = StatusOf(job_.state, job_.now + 8'000, true);
  EXPECT_EQ(later.nodes(0).ranks(0).quiet_ms(), quiet_ms + 8'000) << "what it told 8 s ago is older by that";
  job_.state.nodes.at(a_).ranks[0].set_age_ms(-1);
  EXPECT_EQ(StatusOf(job_.state, job_.now + 8'000, true).nodes(0).ranks(0).age_ms(), -1) << "it is not known";
}

TEST_F(LookTest, AnsweredALittleWhileAgoNobodyIsAskedAgain) {
  job_.Send(LookedAt{true});
  Tell(a_, 7, 2);
  Tell(b_, 7, 2);
  job_.now += kLookKeptMs - 1;
  job_.Send(LookedAt{});
  EXPECT_EQ(job_.told[a_].asked_for_steps.size(), 1U);
  job_.now += 1;
  job_.Send(LookedAt{});
  EXPECT_THAT(job_.told[a_].asked_for_steps, ElementsAre(true, false));
  job_.Send(LookedAt{true});
  EXPECT_THAT(job_.told[a_].asked_for_steps, ElementsAre(true, false, true)) << "their ranks were not told";
}

TEST_F(LookTest, WhoDoesNotAnswerIsNotWaitedFor) {
  job_.Send(LookedAt{});
  Tell(a_, 7, 0);
  EXPECT_EQ(NextDeadline(job_.state), job_.now + kLookMs);
  job_.Pass(kLookMs);
  EXPECT_EQ(job_.state.look.owed, 0U);
  EXPECT_GT(NextDeadline(job_.state), job_.now);
  Tell(b_, 7, 0);
  EXPECT_EQ(job_.state.look.owed, 0U) << "too late";
}

TEST_F(LookTest, WhoGoesOwesNothing) {
  job_.Send(LookedAt{});
  Tell(a_, 7, 0);
  job_.Detach(b_);
  EXPECT_EQ(job_.state.look.owed, 0U);
}

TEST_F(LookTest, RanksOfARoundThatIsOverAreNotTold) {
  job_.Send(LookedAt{true});
  Tell(a_, 7, 2);
  Tell(b_, 7, 2);
  job_.Exit(b_, JobFixture::Ended(0, 1));
  const v1::StatusReply status = StatusOf(job_.state, job_.now, true);
  EXPECT_EQ(status.nodes(0).ranks_size(), 0);
}

TEST_F(LookTest, ASpareIsNotAsked) {
  JobFixture job(1, 1);
  const uint64_t member = job.Attach("a");
  const uint64_t spare = job.Attach("b");
  job.Send(LookedAt{});
  EXPECT_EQ(job.told[member].asked_for_steps.size(), 1U);
  EXPECT_THAT(job.told[spare].asked_for_steps, IsEmpty());
}

}  // namespace
}  // namespace phalanx::master
