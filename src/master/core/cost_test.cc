// What one message costs in a job of 10,000 nodes with 8 ranks each: nodes and places looked at, and bytes sent.
// Counted, not timed (src/base/counted.h), so that a walk over the world on a message's path fails here on any machine.
#include <gtest/gtest.h>

#include <bit>
#include <set>
#include <string>
#include <variant>
#include <vector>

#include "master/core/core.h"
#include "master/core/job_fixture.h"
#include "master/core/messages.h"

namespace phalanx::master {
namespace {

constexpr uint32_t kNodes = 10'000;
constexpr uint32_t kRanks = 8;
// Some searches in a map of all nodes, each of which looks at 14 of them.
constexpr uint64_t kMessageMax = uint64_t{20} * std::bit_width(kNodes);
// Some sorts and walks of all nodes.
constexpr uint64_t kRoundMax = uint64_t{10} * std::bit_width(kNodes) * kNodes;
// Of what a message makes the master send, or note.
constexpr size_t kDecisionsMax = 4;
constexpr size_t kStartRoundBytesMax = 512;

class CostJob {
 public:
  explicit CostJob(const std::string& elastic_config = "", uint32_t min_nodes = 1)
      : job_(min_nodes, kNodes, /*max_restarts=*/100) {
    if (!elastic_config.empty()) job_.UseElasticConfig(elastic_config);
  }

  // The visits of the dearest of all nodes' Hellos, but that which begins the round.
  uint64_t Gather() {
    uint64_t dearest = 0;
    for (uint32_t i = 0; i + 1 < kNodes; ++i) {
      dearest = std::max(dearest, Cost([&] { sessions_.push_back(job_.Attach(fmt::format("n{}", i), kRanks)); }));
    }
    return dearest;
  }
  // Of the last node's, which begins it.
  uint64_t BeginRound() {
    return Cost([&] { sessions_.push_back(job_.Attach("last", kRanks)); });
  }

  // A node that is taken in when the job next changes.
  void AttachNewcomer() { job_.Attach("newcomer", kRanks); }

  template <typename What>
  uint64_t Cost(What what) {
    const uint64_t before = job_.state.Visits();
    what();
    return job_.state.Visits() - before;
  }

  // The visits of the dearest of such events, one of each session; each decides little.
  template <typename Make>
  uint64_t Dearest(const std::vector<uint64_t>& sessions, Make make) {
    uint64_t dearest = 0;
    for (const uint64_t session : sessions) {
      dearest = std::max(dearest, Cost([&] { job_.Send(make(session)); }));
      EXPECT_LE(job_.last.size(), kDecisionsMax);
    }
    return dearest;
  }

  JobFixture& job() { return job_; }
  const std::vector<uint64_t>& sessions() const { return sessions_; }
  std::vector<uint64_t> AllBut(size_t last) const {
    return {sessions_.begin(), sessions_.end() - static_cast<long>(last)};
  }

 private:
  JobFixture job_;
  std::vector<uint64_t> sessions_;
};

Event BeatOf(uint64_t session, uint64_t epoch, int64_t step) {
  v1::Beat beat;
  beat.set_epoch(epoch);
  beat.set_min_step(step);
  beat.set_max_step(step);
  beat.mutable_progress()->set_step(step);
  return EventOf(session, MessageWith(beat));
}

Event FirstStepOf(uint64_t session, uint64_t epoch) {
  v1::FirstStep first;
  first.set_epoch(epoch);
  first.set_step(1);
  return EventOf(session, MessageWith(first));
}

Event ExitOf(uint64_t session, uint64_t epoch, v1::WorkerExited exit) {
  exit.set_epoch(epoch);
  return EventOf(session, MessageWith(exit));
}

// A job that trains, and has room for a newcomer that has just come: its place is planned, and every message asks
// whether it is time.
void StartWithNewcomer(CostJob& cost) {
  cost.Gather();
  cost.BeginRound();
  JobFixture& job = cost.job();
  ASSERT_EQ(job.Ranks().size(), kNodes);
  for (int i = 0; i < 2; ++i) job.Detach(job.Ranks().back());
  ASSERT_EQ(job.Ranks().size(), kNodes - 2);
  cost.AttachNewcomer();
  ASSERT_NE(job.state.grow_at, kNever);
}

std::vector<uint64_t> Members(CostJob& cost) { return cost.job().Ranks(); }

TEST(Cost, HelloLooksAtFewAndARoundAtEachSomeTimes) {
  CostJob cost;
  EXPECT_LE(cost.Gather(), kMessageMax);
  EXPECT_LE(cost.BeginRound(), kRoundMax);
  EXPECT_EQ(cost.job().Ranks().size(), kNodes);
}

TEST(Cost, HelloOfANodeThatComesAgainLooksAtFew) {
  CostJob cost;
  cost.Gather();
  cost.BeginRound();
  JobFixture& job = cost.job();
  for (uint32_t i = 0; i < 3; ++i) job.Detach(job.Ranks().back());  // rounds of fewer nodes, at once
  std::vector<v1::Hello> infos;
  for (const uint64_t session : Members(cost)) infos.push_back(job.state.nodes.at(session).hello);
  for (v1::Hello& info : infos) {
    *info.mutable_spec() = job.spec;
    info.mutable_live_round()->set_epoch(job.Epoch());
  }
  // Its stream was renewed while its ranks ran on.
  const v1::Hello& some = infos[kNodes / 2];
  v1::Hello back = some;
  back.mutable_live_round()->set_group_rank(kNodes / 2);
  back.mutable_live_round()->set_group_world_size(static_cast<uint32_t>(infos.size()));
  back.mutable_live_round()->set_rank_base(job.state.round->slots[kNodes / 2].rank_base);
  EXPECT_LE(cost.Cost([&] { job.Attach(back); }), 2 * kMessageMax);
  EXPECT_EQ(job.Ranks().size(), infos.size());
}

TEST(Cost, HelloOfANodeThatMayGetItsRankAgainLooksAtFew) {
  CostJob cost("", kNodes);
  cost.Gather();
  cost.BeginRound();
  JobFixture& job = cost.job();
  const std::vector<uint64_t> members = Members(cost);
  const auto again = [&](uint64_t session) {
    v1::Hello info = job.state.nodes.at(session).hello;
    *info.mutable_spec() = job.spec;
    job.Leave(session);
    job.Detach(session);
    return info;
  };
  std::vector<v1::Hello> infos;
  for (size_t rank = 1; rank <= 100; ++rank) infos.push_back(again(members[rank * 7]));
  ASSERT_EQ(job.state.phase, Phase::kGathering) << "too few nodes are left";
  EXPECT_LE(cost.Cost([&] { job.Attach(infos.back()); }), kRoundMax) << "the last round is sorted, once";
  infos.pop_back();
  for (size_t i = 1; i < infos.size(); ++i) EXPECT_LE(cost.Cost([&] { job.Attach(infos[i]); }), kMessageMax);
  job.Attach(infos.front());
  EXPECT_EQ(job.Ranks().size(), kNodes);
}

TEST(Cost, BeatsAndFirstStepsLookAtFewWhileANewcomerWaits) {
  CostJob cost;
  StartWithNewcomer(cost);
  JobFixture& job = cost.job();
  const uint64_t epoch = job.Epoch();
  EXPECT_LE(cost.Dearest(Members(cost), [&](uint64_t s) { return FirstStepOf(s, epoch); }), kMessageMax);
  EXPECT_LE(cost.Dearest(Members(cost), [&](uint64_t s) { return BeatOf(s, epoch, 2); }), kMessageMax);
  // Of the round before, from members of it and from the one that was none.
  EXPECT_LE(cost.Dearest(Members(cost), [&](uint64_t s) { return BeatOf(s, epoch - 1, 2); }), kMessageMax);
  const auto refused = [epoch](uint64_t session) {
    v1::StoreRefused told;
    told.set_epoch(epoch);
    return EventOf(session, MessageWith(told));
  };
  EXPECT_LE(cost.Dearest(Members(cost), refused), kMessageMax);
  const auto fact = [](uint64_t session) { return EventOf(session, MessageWith(v1::NodeFact())); };
  EXPECT_LE(cost.Dearest(Members(cost), fact), kMessageMax);
  const auto console = [](uint64_t session) { return EventOf(session, MessageWith(v1::ConsoleLost())); };
  EXPECT_LE(cost.Dearest(Members(cost), console), kMessageMax);
  EXPECT_NE(job.state.grow_at, kNever) << "nothing was planned any more";
  EXPECT_EQ(job.Epoch(), epoch);
}

TEST(Cost, TheJournalOfALargeJobIsWrittenBehindItsFirstStep) {
  CostJob cost;
  cost.Gather();
  cost.BeginRound();
  JobFixture& job = cost.job();
  job.Send(FirstStepOf(cost.sessions().front(), job.Epoch()));
  for (const Decision& decision : job.last) EXPECT_FALSE(std::holds_alternative<Remember>(decision.action));
  EXPECT_FALSE(job.journal_state.round->stepped);
  ASSERT_LE(NextDeadline(job.state), job.now + kNodes / kMembersPerRememberMs);
  job.Pass(kNodes / kMembersPerRememberMs);
  EXPECT_TRUE(job.journal_state.round->stepped);
  EXPECT_EQ(job.state.remember_at, kNever);
}

TEST(Cost, ReportsOfASaveLookAtFew) {
  CostJob cost;
  StartWithNewcomer(cost);
  JobFixture& job = cost.job();
  const uint64_t epoch = job.Epoch();
  const auto told = [&](uint64_t session, const auto& fill) {
    v1::CheckpointReport report;
    report.set_epoch(epoch);
    report.set_dir("/checkpoints");
    fill(report);
    return EventOf(session, MessageWith(report));
  };
  std::vector<uint64_t> members = Members(cost);
  const uint64_t last = members.back();
  members.pop_back();
  const auto held = [](v1::CheckpointReport& report) { report.mutable_held(); };
  EXPECT_LE(cost.Dearest(members, [&](uint64_t s) { return told(s, held); }), kMessageMax);
  EXPECT_LE(cost.Cost([&] { job.Send(told(last, held)); }), kRoundMax);
  const auto sealed = [epoch](v1::CheckpointReport& report) {
    report.mutable_sealed()->mutable_save()->set_epoch(epoch);
    report.mutable_sealed()->mutable_save()->set_step(10);
  };
  EXPECT_LE(cost.Dearest(members, [&](uint64_t s) { return told(s, sealed); }), kMessageMax);
  job.orders.clear();
  EXPECT_LE(cost.Cost([&] { job.Send(told(last, sealed)); }), kRoundMax);
  EXPECT_EQ(job.orders.size(), members.size() + 1) << "all are told that it is committed";
}

TEST(Cost, ReportsOfARestoreLookAtFew) {
  CostJob cost;
  StartWithNewcomer(cost);
  JobFixture& job = cost.job();
  const auto told = [&job](uint64_t session, const auto& fill) {
    v1::CheckpointReport report;
    report.set_epoch(job.Epoch());
    report.set_dir("/checkpoints");
    fill(report);
    return EventOf(session, MessageWith(report));
  };
  std::vector<uint64_t> members = Members(cost);
  for (const uint64_t member : members) {
    job.Send(told(member, [](v1::CheckpointReport& report) { report.mutable_held(); }));
  }
  const auto asked = [](v1::CheckpointReport& report) { report.mutable_restore_asked(); };
  const uint64_t first = members.front();
  job.Send(told(first, asked));
  const auto found = [](v1::CheckpointReport& report) {
    report.mutable_found()->set_step(10);
    report.mutable_found()->set_name("step-10");
    report.mutable_found()->set_world_size(1);
  };
  EXPECT_LE(cost.Cost([&] { job.Send(told(first, found)); }), kRoundMax) << "all are told to read it";
  const uint64_t last = members.back();
  members.pop_back();
  const auto checked = [](v1::CheckpointReport& report) { report.mutable_checked()->set_name("step-10"); };
  EXPECT_LE(cost.Dearest(members, [&](uint64_t s) { return told(s, checked); }), kMessageMax);
  EXPECT_LE(cost.Dearest(members, [&](uint64_t s) { return told(s, asked); }), kMessageMax);
  EXPECT_LE(cost.Cost([&] { job.Send(told(last, checked)); }), kRoundMax);
  EXPECT_EQ(job.Records("checkpoint-restore").size(), 1U);
}

TEST(Cost, ExitsLookAtFew) {
  CostJob cost;
  StartWithNewcomer(cost);
  JobFixture& job = cost.job();
  const std::vector<uint64_t> members = Members(cost);
  const uint64_t epoch = job.Epoch();
  job.Send(FirstStepOf(members.front(), epoch));
  const auto some = [&](size_t from, size_t count) {
    return std::vector<uint64_t>(members.begin() + static_cast<long>(from),
                                 members.begin() + static_cast<long>(from + count));
  };
  EXPECT_LE(cost.Dearest(some(0, 100), [&](uint64_t s) { return ExitOf(s, epoch, JobFixture::Ended(0, 0)); }),
            kMessageMax);
  // The first that fails begins the next round; all others' ends are of the round before.
  EXPECT_LE(cost.Cost([&] { job.Kill(members.front(), 1); }), kRoundMax);
  EXPECT_EQ(job.Epoch(), epoch + 1);
  EXPECT_LE(cost.Dearest(members, [&](uint64_t s) { return ExitOf(s, epoch, JobFixture::Collateral(2)); }),
            kMessageMax);
  EXPECT_EQ(job.state.last_round->ranks_ended, 100 + 1 + members.size());
}

TEST(Cost, SafePointsLookAtFew) {
  CostJob cost;
  StartWithNewcomer(cost);
  JobFixture& job = cost.job();
  const uint64_t epoch = job.Epoch();
  job.wants_safe_point = true;
  job.Pass(kGrowQuietMs);
  ASSERT_NE(job.state.round->rescale_by, kNever);
  const auto answer = [&](bool reached) {
    return [epoch, reached](uint64_t session) {
      v1::SafePoint point;
      point.set_epoch(epoch);
      point.set_asked(kRanks);
      point.set_reached(reached);
      return EventOf(session, MessageWith(point));
    };
  };
  std::vector<uint64_t> members = Members(cost);
  members.pop_back();
  EXPECT_LE(cost.Dearest(members, answer(false)), kMessageMax);
  EXPECT_LE(cost.Dearest(members, answer(true)), kMessageMax);
  EXPECT_EQ(job.Epoch(), epoch) << "one has not answered";
}

TEST(Cost, ALostStreamLooksAtFewWhereItEndsNoRound) {
  CostJob cost;
  StartWithNewcomer(cost);
  JobFixture& job = cost.job();
  std::vector<uint64_t> spares;
  for (int i = 0; i < 100; ++i) {
    v1::Hello info = job.Info(fmt::format("spare{}", i), kRanks);
    info.set_warming(true);
    spares.push_back(job.Attach(info));
  }
  const uint64_t epoch = job.Epoch();
  for (const uint64_t spare : spares) EXPECT_LE(cost.Cost([&] { job.Detach(spare); }), kMessageMax);
  EXPECT_EQ(job.Epoch(), epoch);
}

TEST(Cost, ARoundSendsItsWholeWorldToOneNodeAlone) {
  CostJob cost;
  cost.Gather();
  cost.BeginRound();
  size_t started = 0;
  for (const Decision& decision : cost.job().last) {
    const v1::StartRound* start = StartRoundIn(decision.action);
    if (start == nullptr) continue;
    ++started;
    if (start->group_rank() > 0) {
      EXPECT_LE(start->ByteSizeLong(), kStartRoundBytesMax);
    }
  }
  EXPECT_EQ(started, kNodes);
}

TEST(Cost, ARoundIsToldBeforeTheJournalIsBuilt) {
  CostJob cost;
  cost.Gather();
  cost.BeginRound();
  const std::vector<Decision>& last = cost.job().last;
  EXPECT_TRUE(std::holds_alternative<Remember>(last.back().action));
  EXPECT_EQ(cost.job().journal_state.highest_epoch, 1U);
}

// Of the divisors of 110,880, the batch of most divisors, the largest that 10,000 x 8 ranks make is 55,440: of 6,930
// nodes.
constexpr const char* kBlock =
    R"({"enabled":true,"max_train_batch_size":160000,"micro_batch_sizes":[1],"min_gpus":1,"max_gpus":100000,)"
    R"("version":0.1})";

TEST(Cost, WithAnElasticConfigMessagesLookAtFew) {
  CostJob cost(kBlock);
  EXPECT_LE(cost.Gather(), kMessageMax);
  cost.BeginRound();
  JobFixture& job = cost.job();
  ASSERT_EQ(job.state.round->world_size, 55'440U);
  const uint64_t epoch = job.Epoch();
  EXPECT_LE(cost.Dearest(cost.sessions(), [&](uint64_t s) { return BeatOf(s, epoch, 1); }), kMessageMax);
}

// Some 3,000 nodes wait for a world size that they make. Why they do changes with each that goes and comes.
TEST(Cost, SparesOfAnElasticJobComeAndGoAndLookAtFew) {
  CostJob cost(kBlock);
  cost.Gather();
  cost.BeginRound();
  JobFixture& job = cost.job();
  const std::vector<uint64_t> members = Members(cost);
  ASSERT_EQ(members.size(), 6'930U);
  const std::set<uint64_t> train(members.begin(), members.end());
  std::vector<uint64_t> spares;
  for (const uint64_t session : cost.sessions()) {
    if (!train.contains(session)) spares.push_back(session);
  }
  const uint64_t epoch = job.Epoch();
  for (int i = 0; i < 200; ++i) {
    EXPECT_LE(cost.Cost([&] { job.Detach(spares[i]); }), kMessageMax);
    EXPECT_LE(job.last.size(), kDecisionsMax);
  }
  for (int i = 0; i < 100; ++i) {
    v1::Hello info = job.Info(fmt::format("newcomer{}", i), kRanks);
    info.set_warming(true);
    uint64_t session = 0;
    EXPECT_LE(cost.Cost([&] { session = job.Attach(info); }), kMessageMax);
    EXPECT_LE(job.last.size(), kDecisionsMax) << "it alone hears why it waits";
    EXPECT_EQ(job.told[session].notices.size(), 1U);
    EXPECT_LE(cost.Cost([&] { job.Say(session, v1::Ready()); }), kMessageMax);
    EXPECT_LE(job.last.size(), kDecisionsMax);
    EXPECT_LE(cost.Cost([&] { job.Leave(session); }), kMessageMax);
    EXPECT_LE(job.last.size(), kDecisionsMax);
  }
  EXPECT_LE(cost.Dearest(members, [&](uint64_t s) { return FirstStepOf(s, epoch); }), kMessageMax);
  EXPECT_EQ(job.Epoch(), epoch);
}

}  // namespace
}  // namespace phalanx::master
