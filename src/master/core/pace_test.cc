#include "master/core/pace.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "master/core/convert.h"
#include "master/core/job_fixture.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int64_t kStepMs = 400;

// Three nodes of two ranks, which step together; each rank works so many milliseconds of that by itself.
class Paces : public testing::Test {
 protected:
  void Begin(bool excludes, uint32_t min_nodes = 2, uint32_t max_nodes = 3) {
    job_.spec.set_min_nodes(min_nodes);
    job_.spec.set_max_nodes(max_nodes);
    job_.spec.mutable_check()->set_excludes_stragglers(excludes);
    job_.spec.mutable_check()->set_left_out_ms(600'000);
    job_.state = job_.journal_state = JobState("job", job_.spec);
    for (const char* name : {"a", "b", "c"}) sessions_.push_back(job_.Attach(name));
    job_.AllStep();
  }

  // Ten seconds.
  void Train(const std::vector<int64_t>& own_ms) {
    job_.Pass(10'000);
    step_ += 10'000 / kStepMs;
    own_ms_.resize(own_ms.size());
    for (size_t i = 0; i < own_ms.size(); ++i) own_ms_[i] += 10'000 / kStepMs * own_ms[i];
    for (size_t node = 0; node < sessions_.size(); ++node) {
      v1::Beat beat;
      beat.set_epoch(job_.Epoch());
      beat.set_min_step(step_);
      beat.set_max_step(step_);
      for (uint32_t local = 0; local < 2; ++local) {
        v1::RankPace& pace = *beat.add_paces();
        pace.set_local_rank(local);
        pace.set_steps(static_cast<uint64_t>(step_));
        pace.set_own_us(own_ms_.at(2 * node + local) * 1'000);
        pace.set_waited_us((step_ * kStepMs - own_ms_.at(2 * node + local)) * 1'000);
      }
      job_.Say(sessions_[node], beat);
    }
  }
  void TrainAMinute(const std::vector<int64_t>& own_ms) {
    for (int i = 0; i < 7; ++i) Train(own_ms);
  }

  const std::string kSlow = "rank 3 (node b) holds the others up: 300 ms of its own in each step, the others 100 ms";
  const std::vector<int64_t> kOneSlow = {100, 101, 100, 300, 99, 100};
  JobFixture job_{2, 3};
  std::vector<uint64_t> sessions_;
  int64_t step_ = 1;
  std::vector<int64_t> own_ms_;
};

TEST_F(Paces, WhoHoldsTheOthersUpIsNamedOnAllNodes) {
  Begin(false);
  TrainAMinute(kOneSlow);
  EXPECT_THAT(job_.Records("rank-slow"), ElementsAre(kSlow));
  for (const uint64_t session : sessions_) EXPECT_EQ(job_.told[session].notices.back(), kSlow);
  EXPECT_THAT(job_.Records("node-left-out"), IsEmpty());
  for (int i = 0; i < 9; ++i) Train({100, 100, 100, 100, 100, 100});
  EXPECT_THAT(job_.Records("rank-slow-over"), ElementsAre("rank 3 (node b) holds the others up no more"));
}

TEST_F(Paces, ItsNodeIsLeftOutWhereThatIsAskedFor) {
  Begin(true);
  TrainAMinute(kOneSlow);
  EXPECT_THAT(
      job_.Records("node-left-out"),
      ElementsAre("node b is left out for 600 s: slow: rank 3: 300 ms of its own in each step, the others 100 ms"));
  ASSERT_EQ(job_.Epoch(), 2U);
  EXPECT_EQ(job_.state.round->slots.size(), 2U);
  EXPECT_THAT(job_.told[sessions_[1]].reason, HasSubstr("node b is left out (slow: rank 3"));
  EXPECT_EQ(job_.told[sessions_[1]].rounds.size(), 1U);
  EXPECT_EQ(StatusOf(job_.state, job_.now).left_out_size(), 1);
  // Nothing checks it: it trains again when its time is over.
  job_.Pass(600'000);
  EXPECT_EQ(job_.state.round->slots.size(), 3U);
}

TEST_F(Paces, OfANodeWithSeveralOneLineIsSaid) {
  Begin(true);
  TrainAMinute({100, 101, 310, 300, 99, 100});
  EXPECT_THAT(job_.Records("rank-slow"),
              ElementsAre("ranks 2, 3 (node b) hold the others up: 310 ms of its own in each step, the others 100 ms"));
  EXPECT_THAT(job_.Records("node-left-out"), ElementsAre(HasSubstr("slow: rank 2: 310 ms of its own in each step")));
}

TEST_F(Paces, NobodyIsLeftOutWhomTheJobNeeds) {
  Begin(true, 3);
  TrainAMinute(kOneSlow);
  EXPECT_THAT(job_.Records("rank-slow"), ElementsAre(kSlow));
  EXPECT_THAT(job_.Records("node-left-out"), IsEmpty());
  EXPECT_EQ(job_.Epoch(), 1U);
}

// One that is to be checked yet is no reason to do without a member: it may fail.
TEST_F(Paces, ASpareThatIsNotCheckedYetStandsInForNobody) {
  Begin(true, 3);
  job_.state.spec->mutable_check()->set_level(1);
  job_.state.spec->mutable_check()->set_limit_ms(3'600'000);
  job_.Attach("spare");
  job_.Pass(1'000);
  ASSERT_TRUE(job_.state.health.run);
  TrainAMinute(kOneSlow);
  EXPECT_THAT(job_.Records("rank-slow"), ElementsAre(kSlow));
  EXPECT_THAT(job_.Records("node-left-out"), IsEmpty());
}

// It was needed when it was told.
TEST_F(Paces, ASpareThatComesLaterTakesThePlaceOfASlowNode) {
  Begin(true, 3);
  TrainAMinute(kOneSlow);
  ASSERT_EQ(job_.Epoch(), 1U);
  job_.Attach("spare");
  for (int i = 0; i < 3; ++i) Train(kOneSlow);
  EXPECT_THAT(job_.Records("rank-slow"), ElementsAre(kSlow)) << "once";
  EXPECT_THAT(job_.Records("node-left-out"), ElementsAre(HasSubstr("node b is left out for 600 s: slow: rank 3")));
  EXPECT_EQ(job_.Epoch(), 2U);
  EXPECT_EQ(job_.state.round->slots.size(), 3U);
}

TEST_F(Paces, WithoutAGraceItGoesAtOnce) {
  job_.spec.set_rescale_grace_ms(0);
  Begin(true);
  TrainAMinute(kOneSlow);
  EXPECT_EQ(job_.Epoch(), 2U);
  EXPECT_EQ(job_.state.round->slots.size(), 2U);
}

TEST_F(Paces, OneThatComesAgainIsStillLeftOut) {
  Begin(true);
  TrainAMinute(kOneSlow);
  job_.Detach(sessions_[1]);
  const uint64_t again = job_.Attach("b");
  job_.Pass(30'000);
  EXPECT_EQ(job_.state.round->slots.size(), 2U);
  EXPECT_THAT(job_.told[again].notices.back(), HasSubstr("this node is left out for"));
}

// A node that is dropped, and comes back while the ranks of all have their time to save, goes all the same.
TEST_F(Paces, OneThatComesBackBeforeItHasGoneStillGoes) {
  Begin(true);
  job_.wants_safe_point = true;
  TrainAMinute(kOneSlow);
  ASSERT_EQ(job_.Epoch(), 1U);
  v1::Hello hello = job_.Info("b");
  *hello.mutable_live_round() = job_.told[sessions_[1]].rounds.back();
  const uint64_t again = job_.Attach(hello);
  EXPECT_EQ(NodeStateText(job_.state, job_.state.nodes.at(again)), "left out");
  for (const ToldRescale& announce : std::exchange(job_.announced, {})) {
    if (job_.state.nodes.contains(announce.session)) job_.SafePoint(announce, 0, true);
  }
  EXPECT_EQ(job_.Epoch(), 2U);
  EXPECT_EQ(job_.state.round->slots.size(), 2U);
}

TEST_F(Paces, WhoseTimeEndsWhileNoneTrainsWaitsLikeTheOthers) {
  Begin(true, 2);
  TrainAMinute(kOneSlow);
  job_.Detach(sessions_[2]);  // too few are left
  job_.Pass(5'000);
  ASSERT_EQ(job_.state.phase, Phase::kGathering);
  job_.Send(LetIn{"b"});
  job_.Pass(10'000);
  EXPECT_EQ(job_.state.round->slots.size(), 2U);
}

TEST_F(Paces, OfManySlowNodesOneLineIsSaid) {
  job_.spec.set_min_nodes(100);
  job_.spec.set_max_nodes(100);
  job_.state = job_.journal_state = JobState("job", job_.spec);
  std::vector<int64_t> own_ms;
  for (int i = 0; i < 100; ++i) {
    sessions_.push_back(job_.Attach(fmt::format("n{}", i)));
    own_ms.insert(own_ms.end(), 2, i % 10 == 0 ? 300 : 100);
  }
  job_.AllStep();
  const size_t before = job_.told[sessions_[5]].notices.size();
  TrainAMinute(own_ms);
  EXPECT_EQ(job_.Records("rank-slow").size(), 10U);
  ASSERT_EQ(job_.told[sessions_[5]].notices.size(), before + 1);
  EXPECT_THAT(job_.told[sessions_[5]].notices.back(), HasSubstr("7 other nodes hold the others up: 300 ms of its own"));
}

TEST_F(Paces, OneThatIsLetInTrainsAgain) {
  Begin(true);
  TrainAMinute(kOneSlow);
  job_.Send(LetIn{"nobody"});
  EXPECT_THAT(job_.Records("node-let-in"), IsEmpty());
  job_.Send(LetIn{"b"});
  EXPECT_THAT(job_.Records("node-let-in"), ElementsAre("somebody lets node b in again, before its time is over"));
  job_.Pass(10'000);
  EXPECT_EQ(job_.state.round->slots.size(), 3U);
}

}  // namespace
}  // namespace phalanx::master
