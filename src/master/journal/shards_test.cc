// Shards of datasets in a job whose master dies: what the next one knows, and lives drawn at random in which every
// record is to be done exactly once.
#include "master/topics/shards.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "master/core/job_fixture.h"
#include "master/core/test_shard_asker.h"
#include "master/journal/restarted.h"

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;

TEST(ShardsOfTheNextMaster, WhatWasGivenAndDoneIsKnown) {
  JobFixture job(1, 1);
  const uint64_t a = job.Attach("a");
  ShardAsker before(job);
  before.Open(a, 0, ShardAsker::Spec(10, 1));
  const v1::ShardRequest take = before.Request(0);
  ASSERT_EQ(before.TakeBy(a, take), 0U);
  ASSERT_EQ(before.Take(a, 1), 1U);
  ASSERT_EQ(before.Done(a, 1, 1), "");
  const uint64_t ledger = before.Answer(a, take).ledger();

  Restarted next(job);
  ShardAsker asker(next);
  const uint64_t back = next.ComeBack(a);
  v1::ShardRequest again = take;
  again.set_ledger(ledger);
  EXPECT_EQ(asker.TakeBy(back, again), 0U) << "the answer may have been lost";
  const Dataset& dataset = next.state.shards.datasets.at("data");
  EXPECT_TRUE(dataset.IsDone(1));
  EXPECT_EQ(dataset.next, 2U);
}

TEST(ShardsOfTheNextMaster, WithoutAJournalNothingIsGivenTwiceUnsaid) {
  JobFixture job(1, 1);
  const uint64_t a = job.Attach("a");
  ShardAsker before(job);
  before.Open(a, 0, ShardAsker::Spec(10, 1));
  v1::ShardRequest take = before.Request(0);
  take.set_ledger(before.Answer(a, take).ledger());

  Restarted next(job, /*journal=*/false);
  ShardAsker asker(next);
  const uint64_t back = next.ComeBack(a);
  EXPECT_THAT(asker.Refused(back, take), HasSubstr("restore a state of it on all ranks"));
}

TEST(ShardsOfTheNextMaster, RanksThatHaveRestoredAreKnown) {
  JobFixture job(1, 1);
  const uint64_t a = job.Attach("a");
  ShardAsker before(job);
  const v1::DatasetState state = ShardAsker::State(10, 1, 4, {2});
  v1::ShardRequest restore = before.Request(0);
  *restore.mutable_restore() = state;
  ASSERT_EQ(before.Refused(a, restore), "");
  ASSERT_EQ(before.Take(a, 0), 2U);
  ASSERT_EQ(before.Done(a, 0, 2), "");

  Restarted next(job);
  ShardAsker asker(next);
  const uint64_t back = next.ComeBack(a);
  ASSERT_EQ(asker.Refused(back, restore), "") << "its answer may have been lost";
  EXPECT_EQ(asker.Take(back, 0), 4U) << "nothing is taken back by that";
  ASSERT_EQ(asker.Restore(back, 1, state), "");
  EXPECT_EQ(asker.Take(back, 1), 5U) << "nor as rank 1 comes late";
  ASSERT_EQ(asker.Done(back, 1, 5), "");
  ASSERT_EQ(asker.Done(back, 0, 4), "");
  ASSERT_EQ(asker.Restore(back, 0, state), "");
  EXPECT_EQ(asker.Take(back, 1), 2U) << "this rank has restored before, and wants to go back once more";
}

TEST(ShardsOfTheNextMaster, WhatIsNoStateOfShardsIsNoJournal) {
  JobFixture job(1, 1);
  const uint64_t a = job.Attach("a");
  ShardAsker asker(job);
  asker.Open(a, 0, ShardAsker::Spec(10, 1));
  ASSERT_EQ(asker.Take(a, 0), 0U);
  const auto restored = [&](auto change) {
    v1::Snapshot wire;
    PHX_CHECK(wire.ParseFromString(SaveState(job.state, job.now)), "its own snapshot");
    change(*wire.mutable_shards()->mutable_datasets(0));
    return RestoreState(wire.SerializeAsString(), "job", job.now).status();
  };
  EXPECT_TRUE(restored([](auto&) {}).ok());
  EXPECT_FALSE(restored([](auto& dataset) { dataset.set_next(11); }).ok());
  EXPECT_FALSE(restored([](auto& dataset) { dataset.add_waiting(0); }).ok()) << "it is given";
  EXPECT_FALSE(restored([](auto& dataset) { dataset.add_waiting(1); }).ok()) << "it was never given";
  EXPECT_FALSE(restored([](auto& dataset) { *dataset.add_given() = dataset.given(0); }).ok());
  EXPECT_FALSE(restored([](auto& dataset) { dataset.mutable_spec()->set_shard_size(0); }).ok());
  EXPECT_FALSE(restored([](auto& dataset) { dataset.clear_name(); }).ok());
  EXPECT_FALSE(restored([](auto& dataset) { dataset.set_restored(7); }).ok()) << "by nobody";
}

// --- lives drawn at random ----------------------------------------------------------------------------------------

constexpr uint64_t kRecords = 97;
constexpr uint64_t kShardSize = 4;
constexpr uint64_t kPasses = 3;
constexpr uint32_t kWorkers = 2;  // of a node

// Two nodes train; ranks die, masters die, answers are lost and requests said again.
class ShardLife {
 public:
  explicit ShardLife(uint32_t seed) : random_(seed), job_(std::make_unique<JobFixture>(2, 2, 1'000'000)) {
    for (const char* name : {"a", "b"}) sessions_.push_back(job_->Attach(name));
    job_->AllStep();
    OpenAll();
  }

  void Live() {
    for (int step = 0; step < 20'000 && !over_; ++step) {
      const uint64_t draw = random_() % 1'000;
      if (draw < 4) {
        RankDies();
      } else if (draw < 7) {
        MasterDies();
      } else {
        RankWorks(static_cast<size_t>(random_() % (kWorkers * sessions_.size())));
      }
    }
  }

  void ExpectAllDoneOnce() const {
    EXPECT_TRUE(over_) << "it has come to no end";
    const uint64_t shards = kPasses * ((kRecords - 1) / kShardSize + 1);
    EXPECT_EQ(done_.size(), shards);
    for (const auto& [shard, requests] : done_) EXPECT_EQ(requests.size(), 1U) << "shard " << shard;
  }

 private:
  struct Rank {
    std::vector<uint64_t> held;
    std::optional<v1::ShardRequest> unanswered;
    bool ended = false;
  };

  uint64_t SessionOf(size_t rank) const { return sessions_[rank / kWorkers]; }

  void OpenAll() {
    ranks_.assign(kWorkers * sessions_.size(), Rank());
    ShardAsker asker(*job_);
    for (size_t rank = 0; rank < ranks_.size(); ++rank) {
      asker.Open(SessionOf(rank), static_cast<uint32_t>(rank % kWorkers),
                 ShardAsker::Spec(kRecords, kShardSize, kPasses));
    }
  }

  void RankDies() {
    const auto rank = static_cast<size_t>(random_() % ranks_.size());
    job_->Kill(SessionOf(rank), static_cast<uint32_t>(rank % kWorkers));
    job_->AllStep();
    OpenAll();
  }

  void MasterDies() {
    job_ = std::make_unique<Restarted>(*job_);
    for (uint64_t& session : sessions_) session = static_cast<Restarted&>(*job_).ComeBack(session);
  }

  v1::ShardRequest RequestOf(size_t rank) {
    v1::ShardRequest request;
    request.set_epoch(job_->Epoch());
    request.set_local_rank(static_cast<uint32_t>(rank % kWorkers));
    request.set_request(++requests_);
    request.set_dataset("data");
    return request;
  }

  void RankWorks(size_t number) {
    Rank& rank = ranks_[number];
    if (rank.ended) return;
    if (!rank.unanswered) {
      rank.unanswered = RequestOf(number);
      const bool reports = !rank.held.empty() && (rank.held.size() > 2 || random_() % 2 == 0);
      if (reports) {
        rank.unanswered->mutable_done()->add_shards(rank.held.front());
      } else {
        rank.unanswered->mutable_take();
      }
    }
    const v1::ShardReply reply = ShardAsker(*job_).Answer(SessionOf(number), *rank.unanswered);
    ASSERT_EQ(reply.refused(), "");
    if (rank.unanswered->has_done()) done_[rank.held.front()].insert(rank.unanswered->request());
    if (random_() % 8 == 0) return;  // the answer is lost, and the request said again
    const v1::ShardRequest request = *std::exchange(rank.unanswered, std::nullopt);
    if (request.has_done()) return static_cast<void>(rank.held.erase(rank.held.begin()));
    if (reply.has_shard()) return Given(number, reply.shard());
    rank.ended = rank.held.empty();
    over_ = rank.ended && std::all_of(ranks_.begin(), ranks_.end(), [](const Rank& each) { return each.ended; });
  }

  void Given(size_t number, uint64_t shard) {
    for (const Rank& each : ranks_) {
      EXPECT_EQ(std::count(each.held.begin(), each.held.end(), shard), 0) << "shard " << shard << " is held by two";
    }
    EXPECT_FALSE(done_.contains(shard)) << "shard " << shard << " was done";
    ranks_[number].held.push_back(shard);
  }

  std::mt19937 random_;
  std::unique_ptr<JobFixture> job_;
  std::vector<uint64_t> sessions_;
  std::vector<Rank> ranks_;
  std::map<uint64_t, std::set<uint64_t>> done_;  // by shard, the requests that said so
  uint64_t requests_ = 0;
  bool over_ = false;
};

TEST(ShardsInRandomLives, EachIsDoneExactlyOnce) {
  for (uint32_t seed = 1; seed <= 40 && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    ShardLife life(seed);
    life.Live();
    life.ExpectAllDoneOnce();
  }
}

}  // namespace
}  // namespace phalanx::master
