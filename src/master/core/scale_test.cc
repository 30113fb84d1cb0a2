// From n nodes to m, for all of them up to six: nodes leave, die and come, one by one and at once, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <bit>
#include <map>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/core/job_fixture.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

constexpr uint32_t kMost = 6;

enum class Way { kLeave, kBreak, kFallSilent };
constexpr Way kWays[] = {Way::kLeave, Way::kBreak, Way::kFallSilent};

class ScaleJob {
 public:
  ScaleJob() : job_(1, kMost, /*max_restarts=*/0) {}

  std::vector<uint64_t> Come(uint32_t count, int64_t gap_ms) {
    std::vector<uint64_t> sessions;
    for (uint32_t i = 0; i < count; ++i) {
      ++nodes_;
      sessions.push_back(job_.Attach(fmt::format("n{}", nodes_), 1 + nodes_ % 3));
      job_.Pass(gap_ms);
      job_.Beats();
    }
    return sessions;
  }

  // These ranks go, with `gap_ms` between them.
  void Go(const std::vector<uint64_t>& sessions, Way way, int64_t gap_ms) {
    if (way == Way::kFallSilent && gap_ms == 0) return job_.Pass(kLeaseMs, {sessions.begin(), sessions.end()});
    for (const uint64_t session : sessions) {
      if (way == Way::kLeave) job_.Leave(session);
      if (way == Way::kBreak) job_.Detach(session);
      if (way == Way::kFallSilent) job_.Pass(kLeaseMs, {session});
      job_.Pass(gap_ms);
      job_.Beats();
      if (way == Way::kLeave) job_.Detach(session);  // when its workers are gone
    }
  }

  void Settle() {
    job_.Pass(kGrowQuietMs + 1'000);
    job_.AllStep();
  }

  // `count` nodes train: every one of them has been told its own part of the same round, and nothing was charged.
  void ExpectWorld(size_t count) {
    ASSERT_EQ(job_.state.phase, Phase::kRunning) << job_.state.reason;
    const std::vector<uint64_t> ranks = job_.Ranks();
    ASSERT_EQ(ranks.size(), count);
    uint32_t base = 0;
    for (uint32_t rank = 0; rank < count; ++rank) {
      const std::vector<v1::StartRound>& told = job_.told[ranks[rank]].rounds;
      ASSERT_FALSE(told.empty());
      EXPECT_EQ(told.back().epoch(), job_.Epoch());
      EXPECT_EQ(told.back().group_rank(), rank);
      EXPECT_EQ(told.back().group_world_size(), count);
      EXPECT_EQ(told.back().rank_base(), base);
      base += job_.state.nodes.at(ranks[rank]).hello.local_world_size();
    }
    for (const uint64_t session : ranks) EXPECT_EQ(job_.told[session].rounds.back().world_size(), base);
    EXPECT_EQ(job_.state.budget.used, 0U);
    EXPECT_GT(job_.Epoch(), epoch_);
    epoch_ = job_.Epoch();
  }

  std::vector<uint64_t> Ranks() const { return job_.Ranks(); }

 private:
  JobFixture job_;
  uint32_t nodes_ = 0;
  uint64_t epoch_ = 0;
};

// Where no hole was below them, survivors are where they were; of the others the fewest move.
void ExpectSurvivorsStay(const std::vector<uint64_t>& before, const std::vector<uint64_t>& after) {
  for (size_t rank = 0; rank < after.size() && rank < before.size(); ++rank) {
    const auto now = std::find(after.begin(), after.end(), before[rank]);
    EXPECT_TRUE(now == after.end() || now == after.begin() + static_cast<ptrdiff_t>(rank))
        << "the survivor of rank " << rank << " has moved";
  }
}

void Grow(uint32_t from, uint32_t to, int64_t gap_ms) {
  SCOPED_TRACE(fmt::format("{} -> {} nodes, {} ms between them", from, to, gap_ms));
  ScaleJob job;
  job.Come(from, 0);
  job.Settle();
  job.ExpectWorld(from);
  const std::vector<uint64_t> before = job.Ranks();
  job.Come(to - from, gap_ms);
  job.Settle();
  job.ExpectWorld(to);
  ExpectSurvivorsStay(before, job.Ranks());
}

// `gone`: a bit for each rank that goes, the lowest first.
void Shrink(uint32_t from, uint32_t gone, Way way, int64_t gap_ms) {
  SCOPED_TRACE(fmt::format("of {} nodes those of the ranks in {:06b} go, way {}, {} ms between them", from, gone,
                           static_cast<int>(way), gap_ms));
  ScaleJob job;
  job.Come(from, 0);
  job.Settle();
  job.ExpectWorld(from);
  const std::vector<uint64_t> before = job.Ranks();
  std::vector<uint64_t> leavers;
  for (uint32_t rank = 0; rank < from; ++rank) {
    if ((gone >> rank & 1) != 0) leavers.push_back(before[rank]);
  }
  job.Go(leavers, way, gap_ms);
  job.Settle();
  job.ExpectWorld(from - leavers.size());
  if (leavers.size() == 1 || (way == Way::kFallSilent && gap_ms == 0)) ExpectSurvivorsStay(before, job.Ranks());
}

// All of the old nodes are replaced: those that come wait as spares where there are too many.
void Replace(uint32_t from, uint32_t to, Way way) {
  SCOPED_TRACE(fmt::format("{} nodes replaced by {} others, way {}", from, to, static_cast<int>(way)));
  ScaleJob job;
  const std::vector<uint64_t> old = job.Come(from, 0);
  job.Settle();
  job.ExpectWorld(from);
  std::vector<uint64_t> fresh = job.Come(to, 100);
  job.Go(old, way, 100);
  job.Settle();
  job.ExpectWorld(to);
  std::vector<uint64_t> members = job.Ranks();
  std::sort(members.begin(), members.end());
  EXPECT_EQ(members, fresh);
}

TEST(Scale, FromAnyNumberOfNodesToAnyOther) {
  for (uint32_t from = 1; from <= kMost; ++from) {
    for (uint32_t to = 1; to <= kMost; ++to) {
      for (const int64_t gap_ms : {0, 500, 8'000}) {
        if (to > from) Grow(from, to, gap_ms);
        for (uint32_t gone = 0; to < from && gone < 1U << from; ++gone) {
          if (static_cast<uint32_t>(std::popcount(gone)) != from - to) continue;
          for (const Way way : kWays) Shrink(from, gone, way, gap_ms);
        }
      }
      for (const Way way : kWays) Replace(from, to, way);
      if (HasFailure()) return;
    }
  }
}

}  // namespace
}  // namespace phalanx::master
