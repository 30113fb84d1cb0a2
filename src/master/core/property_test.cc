// Random lives of jobs by seed; what must always hold is checked after every event.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "master/core/core.h"
#include "master/core/job_fixture.h"
#include "master/core/members.h"
#include "master/core/test_random_life.h"

namespace phalanx::master {
namespace {

class RandomJob : private RandomLife {
 public:
  explicit RandomJob(uint64_t seed) : RandomLife(seed) {}

  void Run(int events) {
    for (int i = 0; i < events && !::testing::Test::HasFailure(); ++i) {
      Act();
      Check();
    }
  }

  using RandomLife::story;

 private:
  void Check() {
    const JobState& s = job_.state;
    CheckRound();
    CheckDeadlines();
    CheckWaiting();
    CheckCensus();
    for (const auto& [session, node] : s.nodes) {
      EXPECT_LT(job_.now, node.last_heard + node.lease_ms) << "a node without a lease";
      EXPECT_EQ(s.session_of.at(node.hello.node_id()), session);
    }
    EXPECT_LE(s.budget.used, AllowedRestarts(s.budget));
    EXPECT_LE(RestartsLeft(s.budget, job_.now), AllowedRestarts(s.budget));
    if (s.phase == Phase::kFinished) {
      ASSERT_TRUE(s.outcome);
      for (const auto& [session, node] : s.nodes) {
        EXPECT_TRUE(node.leaving || job_.told[session].outcome) << "an agent that was not told the end";
      }
    }
    for (const Decision& decision : job_.last) EXPECT_FALSE(decision.reason.empty());
    if (::testing::Test::HasFailure()) story_.push_back("reason: " + s.reason);
  }

  // What is counted as it changes is what a walk would count.
  void CheckCensus() {
    const JobState& s = job_.state;
    JobState walked;
    for (const auto& [session, node] : s.nodes) walked.CountNode(node);
    EXPECT_EQ(walked.census.candidates(), s.census.candidates());
    EXPECT_EQ(walked.census.ready(), s.census.ready());
    EXPECT_EQ(walked.census.kinds(), s.census.kinds());
    if (!s.spec) return;
    std::vector<Candidate> there;
    for (const auto& [session, node] : s.nodes) {
      if (!node.leaving) there.push_back({session, -1, node.previous_rank, session, node.hello.local_world_size()});
    }
    EXPECT_EQ(CanBegin(s), Choose(there, *s.spec, s.sizes).size() >= s.spec->min_nodes());
    EXPECT_EQ(NextWorld(s).nodes, NextMembers(s).size());
  }

  void CheckCounts(const Round& round) {
    size_t unsafe = 0;
    size_t unanswered = 0;
    size_t yielded = 0;
    for (const Slot& slot : round.slots) {
      if (slot.session != 0 && !slot.safe) ++unsafe;
      if (slot.session != 0 && !slot.answered) ++unanswered;
      if (!slot.yielded.empty()) ++yielded;
    }
    EXPECT_EQ(unsafe, round.unsafe);
    EXPECT_EQ(unanswered, round.unanswered);
    EXPECT_EQ(yielded, round.slots_yielded);
  }

  void CheckRound() {
    const JobState& s = job_.state;
    const bool live = s.phase == Phase::kRunning || s.phase == Phase::kBlaming;
    EXPECT_TRUE(!live || s.round);
    if (!s.round) return;
    EXPECT_GE(s.round->epoch, highest_);
    highest_ = s.round->epoch;
    CheckCounts(*s.round);
    const uint32_t members = static_cast<uint32_t>(s.round->slots.size());
    EXPECT_LE(members, job_.spec.max_nodes());
    EXPECT_GE(members, job_.spec.min_nodes());
    EXPECT_EQ(members % job_.spec.node_unit(), 0U);
    std::set<uint64_t> sessions;
    uint32_t base = 0;
    for (size_t rank = 0; rank < members; ++rank) {
      const Slot& slot = s.round->slots[rank];
      EXPECT_EQ(slot.rank_base, base) << "ranks are not dense";
      base += slot.local_world_size;
      if (slot.session == 0) {
        // While running, only a node that has finished may be missing.
        EXPECT_TRUE(s.phase != Phase::kRunning || slot.AllDone());
        continue;
      }
      EXPECT_TRUE(sessions.insert(slot.session).second) << "two ranks for one node";
      if (live) CheckMember(slot.session, rank);
    }
    EXPECT_EQ(s.round->world_size, base);
    if (s.sizes) {
      EXPECT_TRUE(std::binary_search(s.sizes->world_sizes.begin(), s.sizes->world_sizes.end(), base))
          << "world " << base << " is not valid";
    }
  }

  void CheckMember(uint64_t session, size_t rank) {
    const JobState& s = job_.state;
    ASSERT_TRUE(s.nodes.contains(session)) << "a member without a stream";
    EXPECT_EQ(s.nodes.at(session).group_rank, static_cast<int32_t>(rank));
    int told = 0;
    for (const auto& [other, agent] : job_.told) {  // also on an earlier stream of the node
      if (job_.node_ids.at(other) == s.nodes.at(session).hello.node_id()) told += CheckTold(agent, rank);
    }
    EXPECT_EQ(told, 1) << "StartRound of the live epoch";
  }

  // How often the agent was told of the live round.
  int CheckTold(const ToldAgent& agent, size_t rank) {
    const Round& live = *job_.state.round;
    int told = 0;
    for (const v1::StartRound& round : agent.rounds) {
      if (round.epoch() != live.epoch) continue;
      ++told;
      EXPECT_EQ(round.group_rank(), rank);
      EXPECT_EQ(round.rank_base(), live.slots[rank].rank_base);
      EXPECT_EQ(round.world_size(), live.world_size);
      EXPECT_EQ(round.restart_count(), live.restart_count);
      EXPECT_NE(round.store_port(), 0U);
      EXPECT_EQ(round.member_addresses().empty(), rank != 0);
    }
    return told;
  }

  void CheckDeadlines() {
    const JobState& s = job_.state;
    if (NextDeadline(s) > job_.now) return;
    // What is due now must be consumed by the Tick that the shell brings.
    job_.Send(Tick{});
    EXPECT_GT(NextDeadline(s), job_.now) << "a deadline that a Tick does not consume";
  }

  // Whatever is waited for, something ends it: the window for more nodes, where a world is possible, else the job's
  // patience.
  void CheckWaiting() {
    const JobState& s = job_.state;
    if (s.phase != Phase::kGathering || s.arrivals == 0) return;
    EXPECT_NE(CanBegin(s) ? std::min(s.gather_at, s.gather_limit) : s.join_deadline, kNever) << "waits for ever";
  }

  uint64_t highest_ = 0;
};

// A random life of an elastic job, that is then let alone.
class QuietJob : private RandomLife {
 public:
  explicit QuietJob(uint64_t seed) : RandomLife(seed) {}

  // False where the job is over, or its ranks are.
  bool Settle() {
    if (!job_.state.sizes) return false;
    for (int i = 0; i < 30; ++i) Act();
    job_.Pass(kGrowLimitMs + kGrowQuietMs);
    return state().phase != Phase::kFinished && (!state().round || state().round->ranks_done == 0);
  }

  const JobState& state() const { return job_.state; }
};

TEST(Property, RandomLives) {
  for (uint64_t seed = 1; seed <= 3'000; ++seed) {
    RandomJob job(seed);
    job.Run(60);
    if (HasFailure()) {
      for (const std::string& line : job.story()) std::cerr << line << "\n";
      FAIL() << "seed " << seed;
    }
  }
}

// What a random life has left behind, left alone, is the largest world that is possible, or waits for nodes because
// none is.
TEST(Property, ElasticJobsComeToTheLargestWorld) {
  int settled = 0;
  for (uint64_t seed = 1; seed <= 6'000; ++seed) {
    QuietJob life(seed);
    if (!life.Settle()) continue;
    ++settled;
    const JobState& s = life.state();
    std::vector<Candidate> there;
    for (const auto& [session, node] : s.nodes) {
      if (!node.leaving) there.push_back({session, -1, -1, session, node.hello.local_world_size()});
    }
    uint64_t largest = 0;
    for (const Candidate& c : Choose(there, *s.spec, s.sizes)) largest += c.local_world_size;
    ASSERT_EQ(s.phase, largest > 0 ? Phase::kRunning : Phase::kGathering) << "seed " << seed << ": " << s.reason;
    const bool full = s.round && s.round->slots.size() == s.spec->max_nodes();
    ASSERT_TRUE(largest == 0 || full || s.round->world_size == largest) << "seed " << seed << ": " << s.reason;
  }
  EXPECT_GT(settled, 1'000);
}

// Enough nodes that stay always end up in a round, whatever happened before.
TEST(Property, EnoughNodesAlwaysTrain) {
  for (uint32_t arrivals = 3; arrivals <= 6; ++arrivals) {
    JobFixture job(3, 4);
    for (uint32_t i = 0; i < arrivals; ++i) {
      job.Attach(fmt::format("n{}", i));
      job.Pass(i * 137 % 700);
    }
    job.Pass(kGrowLimitMs + 1'000);
    ASSERT_EQ(job.state.phase, Phase::kRunning);
    EXPECT_EQ(job.Ranks().size(), std::min(arrivals, 4U));
  }
}

}  // namespace
}  // namespace phalanx::master
