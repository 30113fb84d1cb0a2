// More nodes than the job has places: whatever order they come, go and come back in, the job has as many as it can, the
// others wait, and those that have trained go before those that have only waited.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "master/core/core.h"
#include "master/core/job_fixture.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

enum class Loss { kBroken, kSilent, kLeft };
constexpr Loss kLosses[] = {Loss::kBroken, Loss::kSilent, Loss::kLeft};

class SpareJob {
 public:
  explicit SpareJob(uint32_t min_nodes, uint32_t max_nodes, uint32_t node_unit = 1)
      : job_(min_nodes, max_nodes, /*max_restarts=*/0, node_unit) {}

  void Come(const std::string& name) {
    v1::Hello info = job_.Info(name);
    info.set_node_id(ids_.try_emplace(name, "id-" + name).first->second);
    info.set_seen_epoch(job_.state.highest_epoch);
    session_of_[name] = job_.Attach(info);
    Look();
  }

  void Lose(const std::string& name, Loss how) {
    const uint64_t session = session_of_.at(name);
    session_of_.erase(name);
    if (how == Loss::kSilent) {
      job_.Pass(kLeaseMs + 1'000, {session});
    } else {
      if (how == Loss::kLeft) job_.Leave(session);
      if (how == Loss::kLeft) ids_[name] += "'";  // who comes back after that is another launcher
      job_.Detach(session);
    }
    Look();
  }

  void Pass(int64_t ms) {
    job_.Pass(ms);
    job_.Beats();
    Look();
  }

  // The names of the live round by rank; of nodes that are there.
  std::vector<std::string> Members() const {
    std::vector<std::string> names;
    for (const uint64_t session : job_.Ranks()) {
      for (const auto& [name, own] : session_of_) {
        if (own == session) names.push_back(name);
      }
    }
    return names;
  }
  size_t there() const { return session_of_.size(); }
  const JobState& state() const { return job_.state; }

 private:
  // No node is ever told an error, and of two that are there the one that has trained last goes before the other.
  void Look() {
    for (const auto& [session, told] : job_.told) {
      EXPECT_EQ(told.refused, "");
      EXPECT_FALSE(told.outcome) << told.outcome->reason();
    }
    if (job_.Epoch() == epoch_ || !job_.state.round) return;
    epoch_ = job_.Epoch();
    const std::vector<uint64_t> ranks = job_.Ranks();
    const std::set<uint64_t> chosen(ranks.begin(), ranks.end());
    std::set<std::string> members;
    bool newcomer = false;
    for (const uint64_t session : chosen) {
      const std::string& id = job_.state.nodes.at(session).hello.node_id();
      newcomer = newcomer || !trained_.contains(id);
      members.insert(id);
    }
    for (const auto& [session, node] : job_.state.nodes) {
      const bool left_out = !node.leaving && !chosen.contains(session);
      EXPECT_FALSE(newcomer && left_out && trained_.contains(node.hello.node_id()))
          << node.hello.hostname() << " has trained before, and one that has only waited was taken";
    }
    trained_ = std::move(members);
  }

  JobFixture job_;
  std::map<std::string, uint64_t> session_of_;
  std::map<std::string, std::string> ids_;
  uint64_t epoch_ = 0;
  std::set<std::string> trained_;  // node ids of the last round
};

// What holds when everything has had its time.
void ExpectFull(const SpareJob& job, size_t places) {
  if (job.there() < places) {
    EXPECT_EQ(job.state().phase, Phase::kGathering);
    return;
  }
  EXPECT_EQ(job.state().phase, Phase::kRunning);
  EXPECT_EQ(job.Members().size(), places);
  size_t spares = 0;
  for (const auto& [session, node] : job.state().nodes) {
    if (NodeStateText(job.state(), node) == "spare") ++spares;
  }
  EXPECT_EQ(spares, job.there() - places);
}

// Every node comes, is lost in this order, two of them at a time, and comes back.
void LiveThrough(size_t places, const std::vector<std::string>& order, size_t first_loss, int64_t gap_ms) {
  SpareJob job(static_cast<uint32_t>(places), static_cast<uint32_t>(places));
  for (const std::string& name : order) {
    job.Come(name);
    job.Pass(gap_ms);
    ExpectFull(job, places);
  }
  // A job that all nodes have left is over, and one that a last node has broken off waits: keep one place filled.
  std::deque<std::string> away;
  for (size_t i = 0; i < order.size() && order.size() > 1; ++i) {
    if (away.size() == std::min<size_t>(2, order.size() - 1)) {
      job.Come(away.front());
      away.pop_front();
    }
    job.Lose(order[i], kLosses[(first_loss + i) % 3]);
    away.push_back(order[i]);
    job.Pass(gap_ms);
    ExpectFull(job, places);
  }
  for (const std::string& name : away) job.Come(name);
  job.Pass(kGrowLimitMs);
  ExpectFull(job, places);
}

TEST(Spares, AnyOrderOfArrivalsLossesAndReturns) {
  for (size_t places = 1; places <= 3; ++places) {
    for (size_t spares = 0; spares <= 3; ++spares) {
      std::vector<std::string> order;
      for (size_t i = 0; i < places + spares; ++i) order.push_back(fmt::format("n{}", i));
      size_t turn = 0;
      do {
        ++turn;
        SCOPED_TRACE(fmt::format("{} places, arrivals and losses: {}", places, fmt::join(order, " ")));
        // Names differ in nothing else: what a permutation changes is who is lost how, and who comes back when.
        LiveThrough(places, order, turn % 3, turn % 2 == 0 ? 0 : 400);
        if (testing::Test::HasFailure()) return;
      } while (std::next_permutation(order.begin(), order.end()));
    }
  }
}

TEST(Spares, TheOneThatHasTrainedGoesBeforeTheOneThatWaitedLonger) {
  SpareJob job(2, 2);
  for (const char* name : {"a", "b", "waits", "steps-in"}) job.Come(name);
  job.Lose("b", Loss::kBroken);
  EXPECT_THAT(job.Members(), ElementsAre("a", "waits"));
  job.Come("b");
  job.Lose("a", Loss::kBroken);
  EXPECT_THAT(job.Members(), ElementsAre("b", "waits"));
}

// Held for want of a node; a spare and the member that was lost come within one gather window, the spare first.
TEST(Spares, AReturningMemberGoesBeforeASpareThatCameEarlier) {
  SpareJob job(2, 4, 2);
  job.Come("a");
  job.Come("b");
  job.Pass(400);
  ASSERT_THAT(job.Members(), ElementsAre("a", "b"));
  job.Lose("b", Loss::kBroken);
  ASSERT_EQ(job.state().phase, Phase::kGathering);
  job.Come("spare");
  job.Pass(100);
  job.Come("b");
  EXPECT_THAT(job.Members(), IsEmpty());
  job.Pass(400);
  EXPECT_THAT(job.Members(), ElementsAre("a", "b"));
  EXPECT_EQ(job.state().reason, "node b joined: 2 of 2:4 nodes are there");
}

// Who has come back keeps its claim, and takes nobody's rank with it.
TEST(Spares, AReturningMemberLeavesSurvivorsTheirRanks) {
  SpareJob job(1, 3);
  for (const char* name : {"a", "b", "c"}) job.Come(name);
  ASSERT_THAT(job.Members(), ElementsAre("a", "b", "c"));
  job.Lose("b", Loss::kBroken);
  EXPECT_THAT(job.Members(), ElementsAre("a", "c"));
  job.Come("b");
  EXPECT_THAT(job.Members(), ElementsAre("a", "c", "b"));
}

}  // namespace
}  // namespace phalanx::master
