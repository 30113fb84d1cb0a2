// Shards of datasets: which rank is given which, and what is done. What a master that is started anew still knows is in
// src/master/journal/shards_test.cc.
#include "master/topics/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "master/core/job_fixture.h"
#include "master/core/test_shard_asker.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

class ShardsTest : public testing::Test {
 protected:
  ShardsTest() {
    a_ = job_.Attach("a");
    b_ = job_.Attach("b");
  }

  JobFixture job_{2, 2};
  ShardAsker ask_{job_};
  uint64_t a_ = 0, b_ = 0;
};

// --- giving -------------------------------------------------------------------------------------------------------

TEST_F(ShardsTest, EachShardIsGivenOnceInOrder) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 3));
  EXPECT_EQ(ask_.Take(a_, 0), 0U);
  EXPECT_EQ(ask_.Take(b_, 1), 1U);
  EXPECT_EQ(ask_.Take(a_, 1), 2U);
  EXPECT_EQ(ask_.Take(a_, 0), 3U);
  EXPECT_EQ(ask_.Take(b_, 0), std::nullopt) << "10 records are four shards of at most 3";
}

TEST_F(ShardsTest, APassFollowsTheOther) {
  ask_.Open(a_, 0, ShardAsker::Spec(4, 2, 2));
  std::vector<uint64_t> given;
  while (const auto shard = ask_.Take(a_, 0)) given.push_back(*shard);
  EXPECT_THAT(given, ElementsAre(0, 1, 2, 3));
}

TEST_F(ShardsTest, PassesWithoutEndHaveNone) {
  ask_.Open(a_, 0, ShardAsker::Spec(1, 1, 0));
  for (uint64_t shard = 0; shard < 500; ++shard) {
    EXPECT_EQ(ask_.Take(a_, 0), shard);
    EXPECT_EQ(ask_.Done(a_, 0, shard), "");
  }
}

TEST_F(ShardsTest, ARequestThatIsSaidAgainGivesTheSameShard) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  const v1::ShardRequest take = ask_.Request(0);
  EXPECT_EQ(ask_.TakeBy(a_, take), 0U);
  EXPECT_EQ(ask_.TakeBy(a_, take), 0U);
  EXPECT_EQ(ask_.Take(a_, 0), 1U);
}

TEST_F(ShardsTest, SoManyRanksHoldNoMoreThanIsBounded) {
  ask_.Open(a_, 0, ShardAsker::Spec(1'000'000, 1));
  for (size_t i = 0; i < kMaxShardsOfRank; ++i) ASSERT_TRUE(ask_.Take(a_, 0));
  EXPECT_THAT(ask_.Refused(a_, ask_.Request(0)), HasSubstr("rank 0 holds 64 shards"));
  EXPECT_TRUE(ask_.Take(a_, 1)) << "others may have more";
}

TEST(ShardTopic, AllRanksTogetherHoldNoMoreThanIsBounded) {
  ShardState state;
  v1::ShardRequest request;
  request.set_epoch(1);
  request.set_dataset("data");
  *request.mutable_open() = ShardAsker::Spec(1'000'000, 1);
  ASSERT_EQ(OnShardRequest(state, request, 0, 1).reply.refused(), "");
  request.mutable_take();
  for (uint64_t taken = 0; taken < kMaxShardsOut; ++taken) {
    request.set_request(taken + 1);
    const auto rank = static_cast<uint32_t>(taken / kMaxShardsOfRank);
    ASSERT_EQ(OnShardRequest(state, request, rank, 1).reply.shard(), taken);
  }
  request.set_request(kMaxShardsOut + 1);
  EXPECT_THAT(OnShardRequest(state, request, 1'000, 1).reply.refused(), HasSubstr("ranks hold 8192 shards of it"));
}

// However large the dataset is, what is kept is what ranks hold.
TEST_F(ShardsTest, ManyShardsCostNothingUntilTheyAreGiven) {
  ask_.Open(a_, 0, ShardAsker::Spec(kMaxRecords, 1, 16));
  EXPECT_EQ(ask_.Take(a_, 0), 0U);
  const Dataset& dataset = job_.state.shards.datasets.at("data");
  EXPECT_EQ(dataset.given.size() + dataset.waiting.size(), 1U);
}

// --- opening ------------------------------------------------------------------------------------------------------

TEST_F(ShardsTest, AllRanksSayTheSameOfADataset) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 3));
  ask_.Open(b_, 0, ShardAsker::Spec(10, 3));
  EXPECT_THAT(
      ask_.RefusedOpen(b_, 1, ShardAsker::Spec(10, 4)),
      HasSubstr("it has begun with 10 records in shards of 3, 1 passes, not shuffled, seed 0; this rank says 10 "
                "records in shards of 4"));
}

TEST_F(ShardsTest, WhatIsNoDatasetIsRefused) {
  EXPECT_THAT(ask_.RefusedOpen(a_, 0, ShardAsker::Spec(0, 1)), HasSubstr("0 records; expected 1 to"));
  EXPECT_THAT(ask_.RefusedOpen(a_, 0, ShardAsker::Spec(1, 0)), HasSubstr("shards of 0 records"));
  EXPECT_THAT(ask_.RefusedOpen(a_, 0, ShardAsker::Spec(kMaxRecords, 1, 17)), HasSubstr("17 passes of"));
  EXPECT_THAT(ask_.Refused(a_, ask_.Request(0)), HasSubstr("no rank has begun it"));
}

TEST_F(ShardsTest, AJobHasSoManyDatasets) {
  for (size_t i = 0; i < kMaxDatasets; ++i) ask_.Open(a_, 0, ShardAsker::Spec(1, 1), std::to_string(i));
  EXPECT_THAT(ask_.RefusedOpen(a_, 0, ShardAsker::Spec(1, 1)), HasSubstr("at most 256"));
}

// Of a master that has lost its journal, an agent knows more than it.
TEST_F(ShardsTest, WhatAnotherMasterBeganIsNotBegunAnew) {
  v1::ShardRequest open = ask_.Request(0);
  *open.mutable_open() = ShardAsker::Spec(10, 1);
  open.set_ledger(4'711);
  EXPECT_THAT(ask_.Refused(a_, open), HasSubstr("is lost with the master that handed them out"));
  ask_.Open(b_, 0, ShardAsker::Spec(10, 1));  // of a node that knows nothing of it
  EXPECT_THAT(ask_.Refused(a_, open), HasSubstr("is lost with the master that handed them out"));
  EXPECT_EQ(ask_.Restore(a_, 0, ShardAsker::State(10, 1, 3, {1})), "");
  EXPECT_EQ(ask_.Answer(a_, open).refused(), "") << "what is restored needs nothing of before";
  EXPECT_EQ(ask_.Take(a_, 0), 1U);
}

// --- done ---------------------------------------------------------------------------------------------------------

TEST_F(ShardsTest, OnlyWhoHoldsAShardHasDoneIt) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  ASSERT_EQ(ask_.Take(a_, 0), 0U);
  EXPECT_THAT(ask_.Done(a_, 1, 0), HasSubstr("this rank does not hold shard 0"));
  EXPECT_THAT(ask_.Done(a_, 0, 1), HasSubstr("shard 1 was given to no rank"));
  EXPECT_EQ(ask_.Done(a_, 0, 0), "");
  EXPECT_EQ(ask_.Done(a_, 0, 0), "") << "said again";
  EXPECT_TRUE(job_.state.shards.datasets.at("data").IsDone(0));
}

TEST_F(ShardsTest, WhatIsGivenBackIsGivenFirst) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  ASSERT_EQ(ask_.Take(a_, 0), 0U);
  ASSERT_EQ(ask_.Take(a_, 0), 1U);
  v1::ShardRequest back = ask_.Request(0);
  back.mutable_back()->add_shards(0);
  EXPECT_EQ(ask_.Answer(a_, back).refused(), "");
  EXPECT_EQ(ask_.Answer(a_, back).refused(), "") << "said again";
  EXPECT_EQ(ask_.Take(b_, 0), 0U);
  EXPECT_EQ(ask_.Answer(a_, back).refused(), "") << "its answer was lost with a stream";
  EXPECT_EQ(ask_.Take(b_, 0), 2U) << "shard 0 is another's now";
  ask_.Done(b_, 0, 0);
  EXPECT_EQ(ask_.Answer(a_, back).refused(), "");
  EXPECT_EQ(ask_.Take(b_, 0), 3U);
}

// It timed out, and its agent says it again when the same rank was given that shard once more.
TEST_F(ShardsTest, WhatIsGivenBackLateIsKeptWhereItWasTakenSince) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  ASSERT_EQ(ask_.Take(a_, 0), 0U);
  v1::ShardRequest back = ask_.Request(0);
  back.mutable_back()->add_shards(0);
  ASSERT_EQ(ask_.Answer(a_, back).refused(), "");
  ASSERT_EQ(ask_.Take(a_, 0), 0U);
  EXPECT_EQ(ask_.Answer(a_, back).refused(), "");
  EXPECT_EQ(ask_.Take(b_, 0), 1U);
  EXPECT_EQ(ask_.Done(a_, 0, 0), "");
}

TEST_F(ShardsTest, TheLastOneDoneIsTold) {
  ask_.Open(a_, 0, ShardAsker::Spec(2, 1));
  for (const uint64_t shard : {0U, 1U}) ASSERT_EQ(ask_.Take(a_, 0), shard);
  ask_.Done(a_, 0, 1);
  EXPECT_EQ(job_.records.back().first.kind, "dataset-begun");
  ask_.Done(a_, 0, 0);
  EXPECT_EQ(job_.records.back().first.kind, "dataset-done");
}

// --- rounds -------------------------------------------------------------------------------------------------------

TEST_F(ShardsTest, WhatADeadRankHeldIsGivenAgain) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  ASSERT_EQ(ask_.Take(a_, 0), 0U);
  ASSERT_EQ(ask_.Take(b_, 0), 1U);
  ASSERT_EQ(ask_.Take(b_, 1), 2U);
  ASSERT_EQ(ask_.Done(b_, 0, 1), "");
  const uint64_t before = job_.Epoch();
  job_.Kill(b_, 1);
  ASSERT_GT(job_.Epoch(), before);
  EXPECT_EQ(ask_.Take(b_, 1), 0U) << "in order, before what was never given";
  EXPECT_EQ(ask_.Take(a_, 0), 2U);
  EXPECT_EQ(ask_.Take(a_, 1), 3U);
}

TEST_F(ShardsTest, NothingOfARoundThatIsOverIsHeard) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  ASSERT_EQ(ask_.Take(a_, 0), 0U);
  v1::ShardRequest done = ask_.Request(0);
  done.mutable_done()->add_shards(0);
  job_.Kill(b_, 1);
  ASSERT_EQ(ask_.Take(b_, 0), 0U);
  const size_t replies = job_.shard_replies.size();
  job_.Say(a_, done);
  job_.Pass(1'000);
  EXPECT_EQ(job_.shard_replies.size(), replies) << "whoever asks is being ended";
  EXPECT_FALSE(job_.state.shards.datasets.at("data").IsDone(0));
}

TEST_F(ShardsTest, ARankThatEndsWellLeavesWhatItHeldToOthers) {
  ask_.Open(a_, 0, ShardAsker::Spec(1, 1));
  ASSERT_EQ(ask_.Take(a_, 0), 0U);
  EXPECT_EQ(ask_.Take(b_, 0), std::nullopt);
  job_.Exit(a_, JobFixture::Ended(0, 0));
  EXPECT_EQ(ask_.Take(b_, 0), 0U);
}

// --- states -------------------------------------------------------------------------------------------------------

TEST_F(ShardsTest, AStateGoesBackToWhereItWas) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  for (const uint64_t shard : {0U, 1U, 2U}) ASSERT_EQ(ask_.Take(a_, 0), shard);
  ask_.Done(a_, 0, 1);
  v1::ShardRequest read = ask_.Request(0);
  read.mutable_read();
  const v1::DatasetState state = ask_.Answer(b_, read).state();
  EXPECT_EQ(state.next(), 3U);
  EXPECT_THAT(state.undone_gaps(), ElementsAre(0, 2));
  ask_.Done(a_, 0, 0);
  ask_.Done(a_, 0, 2);
  ASSERT_EQ(ask_.Restore(b_, 0, state), "");
  EXPECT_EQ(ask_.Take(a_, 0), 0U);
  EXPECT_EQ(ask_.Take(a_, 0), 2U);
  EXPECT_EQ(ask_.Take(a_, 0), 3U);
}

// Each rank restores, as each loads its checkpoint; the first has taken a shard by then.
TEST_F(ShardsTest, TheRanksOfARoundRestoreOnce) {
  const v1::DatasetState state = ShardAsker::State(10, 1, 4, {2});
  ASSERT_EQ(ask_.Restore(a_, 0, state), "");
  ASSERT_EQ(ask_.Take(a_, 0), 2U);
  ASSERT_EQ(ask_.Done(a_, 0, 2), "");
  ASSERT_EQ(ask_.Restore(b_, 0, state), "");
  EXPECT_EQ(ask_.Take(b_, 0), 4U);
  EXPECT_THAT(ask_.Restore(b_, 1, ShardAsker::State(10, 1, 5, {2})),
              HasSubstr("rank 0 has restored another state of it in this round"));
}

TEST_F(ShardsTest, ARestoreThatIsSaidAgainChangesNothing) {
  const v1::DatasetState state = ShardAsker::State(10, 1, 4, {});
  v1::ShardRequest restore = ask_.Request(0);
  *restore.mutable_restore() = state;
  ASSERT_EQ(ask_.Answer(a_, restore).refused(), "");
  ASSERT_EQ(ask_.Take(a_, 0), 4U);
  ASSERT_EQ(ask_.Done(a_, 0, 4), "");
  ASSERT_EQ(ask_.Answer(a_, restore).refused(), "");
  EXPECT_EQ(ask_.Take(a_, 0), 5U);
  EXPECT_EQ(ask_.Done(a_, 0, 5), "");
  EXPECT_EQ(ask_.Restore(a_, 0, state), "") << "by another request: the rank goes back once more";
  EXPECT_EQ(ask_.Take(a_, 0), 4U);
}

TEST_F(ShardsTest, NothingIsTakenFromUnderARank) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  ASSERT_EQ(ask_.Take(a_, 1), 0U);
  EXPECT_THAT(ask_.Restore(b_, 0, ShardAsker::State(10, 1, 4, {})), HasSubstr("rank 1 holds a shard of it"));
  EXPECT_EQ(ask_.Done(a_, 1, 0), "");
  EXPECT_EQ(ask_.Restore(b_, 0, ShardAsker::State(10, 1, 4, {})), "");
}

TEST_F(ShardsTest, WhatIsNoStateIsRefused) {
  EXPECT_THAT(ask_.Restore(a_, 0, ShardAsker::State(10, 1, 11, {})),
              HasSubstr("its next shard is 11, and there are 10"));
  EXPECT_THAT(ask_.Restore(a_, 0, ShardAsker::State(10, 1, 4, {4})), HasSubstr("a shard that is not done was never"));
  EXPECT_THAT(ask_.Restore(a_, 0, ShardAsker::State(10, 1, 4, {1, 0})),
              HasSubstr("a shard that is not done was never"));
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  EXPECT_THAT(ask_.Restore(a_, 0, ShardAsker::State(10, 2, 4, {})),
              HasSubstr("the state is of 10 records in shards of 2"));
  EXPECT_EQ(job_.state.shards.datasets.at("data").next, 0U);
}

// --- the journal --------------------------------------------------------------------------------------------------

TEST_F(ShardsTest, TheJournalHasItBeforeARankHears) {
  ask_.Open(a_, 0, ShardAsker::Spec(10, 1));
  job_.Pass(1'000);
  job_.Say(a_, ask_.Request(0));
  ASSERT_FALSE(job_.last.empty());
  const auto* remember = std::get_if<Remember>(&job_.last.front().action);
  ASSERT_NE(remember, nullptr);
  EXPECT_EQ(remember->when, Remember::When::kBefore);
  EXPECT_EQ(job_.journal_state.shards.datasets.at("data").next, 1U);
}

// Many ranks that ask at once share a write.
TEST_F(ShardsTest, ManyRequestsAreOneWrite) {
  ask_.Open(a_, 0, ShardAsker::Spec(1'000, 1));
  job_.Pass(1'000);
  const size_t replies = job_.shard_replies.size();
  size_t writes = 0;
  for (int i = 0; i < 50; ++i) {
    job_.Say(i % 2 == 0 ? a_ : b_, ask_.Request(0));
    writes += std::count_if(job_.last.begin(), job_.last.end(),
                            [](const Decision& decision) { return std::holds_alternative<Remember>(decision.action); });
  }
  EXPECT_EQ(writes, 1U);
  EXPECT_EQ(job_.shard_replies.size(), replies + 1) << "the first one waits for nothing";
  job_.Pass(10);
  EXPECT_EQ(job_.shard_replies.size(), replies + 50);
}

}  // namespace
}  // namespace phalanx::master
