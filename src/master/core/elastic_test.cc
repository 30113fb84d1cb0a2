// Rounds of jobs with an elastic config.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "master/core/convert.h"
#include "master/core/core.h"
#include "master/core/job_fixture.h"
#include "master/rules/lease.h"

namespace phalanx::master {
namespace {

using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

// A block that grants 2 and 4 ranks.
constexpr const char* kTwoOrFour =
    R"({"enabled":true,"max_train_batch_size":4,"micro_batch_sizes":[1],"version":0.1,"min_gpus":2})";
constexpr const char* kTwoOrFourForAMinute =
    R"({"enabled":true,"max_train_batch_size":4,"micro_batch_sizes":[1],"version":0.1,"min_gpus":2,"min_time":1})";

JobFixture ElasticJob(uint32_t min_nodes, uint32_t max_nodes, const char* config = kTwoOrFour) {
  JobFixture job(min_nodes, max_nodes, /*max_restarts=*/3);
  job.UseElasticConfig(config);
  return job;
}

// Three nodes of one rank each, of which two train.
struct ThreeNodes {
  explicit ThreeNodes(const char* config = kTwoOrFour) : job(ElasticJob(1, 4, config)) {
    for (const char* name : {"a", "b", "c"}) sessions.push_back(job.Attach(name, 1));
    job.Pass(300);
  }
  JobFixture job;
  std::vector<uint64_t> sessions;
};

// What `phalanx status` says of the node: its state, and why it waits.
std::string StatusOfNode(const JobFixture& job, const std::string& name) {
  const v1::StatusReply status = StatusOf(job.state, job.now);
  for (const v1::NodeStatus& node : status.nodes()) {
    if (node.hostname() == name) return fmt::format("{}: {}", node.state(), node.waits_because());
  }
  return "not there";
}

TEST(Elastic, TheLargestValidWorldTrains) {
  ThreeNodes three;
  EXPECT_EQ(three.job.Ranks(), (std::vector<uint64_t>{three.sessions[0], three.sessions[1]}));
  EXPECT_EQ(three.job.state.round->world_size, 2U);
}

TEST(Elastic, ASpareHearsWhy) {
  ThreeNodes three;
  JobFixture& job = three.job;
  const std::string why = "3 x 1 ranks is no valid world size of the elastic config; 2 x 1 is";
  EXPECT_EQ(job.told[three.sessions[2]].notices.back(), "this node waits as a spare: " + why);
  EXPECT_THAT(job.Records("node-spare"), ElementsAre("node c waits as a spare: " + why));
  EXPECT_EQ(NodeStateText(job.state, job.state.nodes.at(three.sessions[2])), "spare");

  job.Kill(three.sessions[0], 0);  // the next life, with the same nodes, is no news for it
  EXPECT_EQ(job.Epoch(), 2U);
  EXPECT_EQ(job.Records("node-spare").size(), 1U);
}

TEST(Elastic, ASpareThatComesIsToldAlone) {
  JobFixture job = ElasticJob(1, 8);
  std::vector<uint64_t> sessions;
  for (const char* name : {"a", "b", "c", "d", "e"}) sessions.push_back(job.Attach(name, 1));
  job.Pass(300);
  const size_t told = job.told[sessions[4]].notices.size();
  const uint64_t f = job.Attach("f", 1);
  const std::string why = "6 x 1 ranks is no valid world size of the elastic config; 4 x 1 is";
  EXPECT_THAT(job.told[f].notices, ElementsAre("this node waits as a spare: " + why));
  EXPECT_EQ(job.told[sessions[4]].notices.size(), told) << "it has heard why it waits, and waits on";
  for (const char* name : {"e", "f"}) EXPECT_EQ(StatusOfNode(job, name), "spare: " + why);

  job.Kill(sessions[0], 0);
  EXPECT_EQ(job.told[sessions[4]].notices.size(), told + 1) << "with the next round";
}

TEST(Elastic, TheStatusSaysWhySparesWaitAsLongAsTheyDo) {
  JobFixture job = ElasticJob(1, 8);
  for (const char* name : {"a", "b", "c"}) job.Attach(name, 1);
  job.Pass(300);
  const std::string waits = "spare: 3 x 1 ranks is no valid world size of the elastic config; 2 x 1 is";
  EXPECT_EQ(StatusOfNode(job, "a"), "member: ");
  EXPECT_EQ(StatusOfNode(job, "c"), waits);
  const uint64_t d = job.Attach("d", 1);
  EXPECT_EQ(StatusOfNode(job, "c"), "waiting: ") << "both are about to be taken in";
  job.Detach(d);
  EXPECT_EQ(StatusOfNode(job, "c"), waits);
}

TEST(Elastic, AFourthNodeMakesFour) {
  ThreeNodes three;
  JobFixture& job = three.job;
  job.AllStep();
  const uint64_t d = job.Attach("d", 1);
  EXPECT_THAT(job.told[d].notices, IsEmpty());
  job.Pass(kGrowQuietMs);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{three.sessions[0], three.sessions[1], three.sessions[2], d}));
  EXPECT_EQ(job.state.reason, "nodes c, d joined: 2 -> 4 nodes");
  EXPECT_EQ(job.state.budget.used, 0U);
}

TEST(Elastic, ALossMakesTwoAtOnce) {
  ThreeNodes three;
  JobFixture& job = three.job;
  const uint64_t d = job.Attach("d", 1);
  job.Pass(kGrowQuietMs);
  job.Detach(three.sessions[0]);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{three.sessions[2], three.sessions[1]}));
  EXPECT_EQ(job.told[d].holds.size(), 1U);
  EXPECT_EQ(job.told[d].notices.back(),
            "this node waits as a spare: 3 x 1 ranks is no valid world size of the elastic config; 2 x 1 is");
  job.Detach(three.sessions[1]);  // the spare steps in
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{three.sessions[2], d}));
  EXPECT_EQ(job.state.reason, "node b was lost (its stream broke): node d takes over");
}

TEST(Elastic, WaitsForAValidWorldAndSaysSo) {
  JobFixture job = ElasticJob(1, 4);
  const uint64_t a = job.Attach("a", 1);
  const std::string why = "waiting for 1 more node: 1 x 1 ranks is no valid world size of the elastic config; 2 x 1 is";
  EXPECT_THAT(job.told[a].notices, ElementsAre(why));
  job.Pass(kWaitingNoticeMs);
  EXPECT_EQ(job.told[a].notices.back(), why + "; giving up in 570 s");
  job.Pass(job.spec.join_timeout_ms() - kWaitingNoticeMs);
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(job.told[a].outcome->exit_code(), 1);
  EXPECT_EQ(job.told[a].outcome->reason(), "gave up after 600 s (--rdzv-conf join_timeout): " + why);
}

TEST(Elastic, HoldsWhereWhatIsLeftIsNoValidWorld) {
  JobFixture job = ElasticJob(1, 4);
  const uint64_t a = job.Attach("a", 1);
  const uint64_t b = job.Attach("b", 1);
  job.Pass(300);
  job.Detach(b);
  EXPECT_EQ(job.state.phase, Phase::kGathering);
  EXPECT_EQ(job.state.reason,
            "node b was lost (its stream broke): waiting for 1 more node: 1 x 1 ranks is no valid world size of the "
            "elastic config; 2 x 1 is; giving up in 600 s");
  EXPECT_EQ(job.told[a].holds.size(), 1U);
  job.Attach("c", 1);
  job.Pass(300);
  EXPECT_EQ(job.Ranks().size(), 2U);
}

TEST(Elastic, NodesThatCanMakeNoValidWorldAreToldThat) {
  JobFixture job = ElasticJob(1, 4);
  const uint64_t a = job.Attach("a", 3);
  EXPECT_EQ(job.told[a].notices.back(),
            "waiting for other nodes: those that are there make no valid world size of the elastic config");
  job.Attach("b", 1);  // 3 + 1
  job.Pass(300);
  EXPECT_EQ(job.state.round->world_size, 4U);
}

TEST(Elastic, NodesOfAThirdKindAreRefused) {
  JobFixture job = ElasticJob(1, 4);
  job.Attach("a", 1);
  job.Attach("b", 2);
  EXPECT_EQ(job.told[job.Attach("c", 3)].refused,
            "3 workers on this node, and 1 or 2 on others: with --elastic-config expected one of these");
  EXPECT_EQ(job.told[job.Attach("d", 2)].refused, "");
}

TEST(Elastic, NodesThatStillImportAreCountedOn) {
  ThreeNodes three;
  JobFixture& job = three.job;
  job.AllStep();
  v1::Hello info = job.Info("d", 1);
  info.set_warming(true);
  const uint64_t d = job.Attach(info);
  job.Pass(kGrowQuietMs);
  EXPECT_EQ(job.Ranks().size(), 2U);
  job.Say(d, v1::Ready());
  job.Pass(kGrowQuietMs);
  EXPECT_EQ(job.Ranks().size(), 4U);
}

// --- min_time -----------------------------------------------------------------------------------------------------

TEST(ElasticMinTime, ARoundIsNotMadeLargerBefore) {
  ThreeNodes three(kTwoOrFourForAMinute);
  JobFixture& job = three.job;
  job.Pass(10'000);
  const uint64_t d = job.Attach("d", 1);
  EXPECT_EQ(job.told[d].notices.back(),
            "the job trains; this node is taken in when the round has run for 60 s, in 50 s: min_time of the elastic "
            "config");
  job.Pass(49'999);
  EXPECT_EQ(job.Epoch(), 1U);
  job.Pass(1);
  EXPECT_EQ(job.Epoch(), 2U);
  EXPECT_EQ(job.Ranks().size(), 4U);
}

TEST(ElasticMinTime, FailuresAndLossesAreAnsweredAtOnce) {
  ThreeNodes three(kTwoOrFourForAMinute);
  JobFixture& job = three.job;
  job.Detach(three.sessions[0]);
  EXPECT_EQ(job.Epoch(), 2U);
  EXPECT_EQ(job.Ranks(), (std::vector<uint64_t>{three.sessions[2], three.sessions[1]}));
  job.Attach("d", 1);
  job.Attach("e", 1);
  job.Kill(three.sessions[1], 0);
  EXPECT_EQ(job.Epoch(), 3U);
  EXPECT_EQ(job.Ranks().size(), 4U);  // who waits is taken in, as a new round begins anyway
}

TEST(ElasticMinTime, ALongRoundTakesNodesInAsAlways) {
  ThreeNodes three(kTwoOrFourForAMinute);
  JobFixture& job = three.job;
  job.Pass(60'000);
  job.Attach("d", 1);  // of four, so that no further one is waited for
  EXPECT_EQ(job.Epoch(), 2U);
}

// --- the door -----------------------------------------------------------------------------------------------------

TEST(ElasticDoor, AllNodesHaveTheSameConfig) {
  JobFixture job = ElasticJob(1, 4);
  v1::Hello other = job.Info("a", 1);
  other.mutable_spec()->set_elastic_config(kTwoOrFourForAMinute);
  EXPECT_EQ(job.told[job.Attach(other)].refused,
            "--elastic-config: the job has one, and this node another: give the same on all nodes");
  other.mutable_spec()->clear_elastic_config();
  EXPECT_EQ(job.told[job.Attach(other)].refused,
            "--elastic-config: the job has one, and this node none: give the same on all nodes");
  JobFixture plain(1, 4);
  other.mutable_spec()->set_elastic_config(kTwoOrFour);
  EXPECT_EQ(plain.told[plain.Attach(other)].refused,
            "--elastic-config: the job has none, and this node one: give the same on all nodes");
}

TEST(ElasticDoor, TheFirstNodesConfigIsChecked) {
  const auto refused = [](const std::string& config, uint32_t min_nodes = 1) {
    JobFixture job(min_nodes, 4);
    job.state = JobState();
    job.state.job_id = "job";
    job.spec.set_elastic_config(config);
    return job.told[job.Attach("a", 1)].refused;
  };
  EXPECT_EQ(refused(kTwoOrFour), "");
  EXPECT_THAT(refused("{"), HasSubstr("--elastic-config: JSONDecodeError"));
  EXPECT_THAT(refused("{}"), HasSubstr("Elasticity is disabled"));
  EXPECT_EQ(refused(kTwoOrFour, 5), "--nnodes=5:4: expected 0 < MIN <= MAX <= 1000000");
  EXPECT_EQ(refused(R"({"enabled":true,"max_train_batch_size":2,"micro_batch_sizes":[1],"version":0.1})", 4),
            "--elastic-config: no valid world size is as large as the fewest nodes of --nnodes=4");
  EXPECT_EQ(refused(std::string(70'000, ' ')), "--elastic-config: at most 4096 bytes are allowed");
}

// --- every order --------------------------------------------------------------------------------------------------

// What must hold whenever everything has had its time: with 2 or 3 nodes two train, with 4 or 5 four.
void ExpectLargest(const JobFixture& job) {
  const size_t there = job.state.census.candidates();
  const size_t wanted = there >= 4 ? 4 : there >= 2 ? 2 : 0;
  EXPECT_EQ(job.state.phase, wanted > 0 ? Phase::kRunning : Phase::kGathering);
  EXPECT_EQ(job.Ranks().size(), wanted);
  EXPECT_TRUE(wanted > 0 || there == 0 || job.state.join_deadline != kNever);
}

// Five nodes come and go in every order: after each move, settled or not, no round has another size than 2 or 4.
TEST(Elastic, EveryOrderOfJoinsAndLosses) {
  std::vector<int> order = {0, 1, 2, 3, 4};
  int lives = 0;
  do {
    for (const int64_t gap_ms : {int64_t{0}, kGrowQuietMs, kGrowLimitMs}) {
      JobFixture job = ElasticJob(1, 5);
      std::map<int, uint64_t> there;
      const auto move = [&](int node) {
        const auto found = there.extract(node);
        if (found) {
          job.Detach(found.mapped());
        } else {
          there[node] = job.Attach(fmt::format("n{}", node), 1);
        }
        job.Pass(gap_ms);
        for (const auto& [session, told] : job.told) {
          for (const v1::StartRound& round : told.rounds)
            ASSERT_TRUE(round.world_size() == 2 || round.world_size() == 4);
        }
        if (gap_ms == kGrowLimitMs) ExpectLargest(job);
      };
      for (const int node : order) move(node);
      for (const int node : {order[2], order[0], order[4], order[2], order[1], order[0]}) move(node);
      job.Pass(kGrowLimitMs);
      ExpectLargest(job);
      ASSERT_FALSE(::testing::Test::HasFailure()) << "order " << testing::PrintToString(order) << " gap " << gap_ms;
      ++lives;
    }
  } while (std::next_permutation(order.begin(), order.end()));
  EXPECT_EQ(lives, 360);
}

}  // namespace
}  // namespace phalanx::master
