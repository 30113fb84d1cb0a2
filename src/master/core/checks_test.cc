#include "master/core/checks.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>
#include <string>
#include <utility>
#include <vector>

#include "master/core/job_fixture.h"
#include "master/core/platform.h"

namespace phalanx::master {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A job whose nodes are checked, and what is wrong with them.
class CheckedJob : public JobFixture {
 public:
  CheckedJob(uint32_t min_nodes, uint32_t max_nodes, uint32_t level = 1) : JobFixture(min_nodes, max_nodes) {
    spec.mutable_check()->set_level(level);
    Renew();
  }
  void Renew() {
    AdmitSpec(spec);
    state = journal_state = JobState("job", spec);
  }

  uint64_t Come(const std::string& name) {
    v1::Hello hello = Info(name);
    const auto number = static_cast<int>(names.size());
    hello.set_address(fmt::format("10.0.{}.{}", number / 250, number % 250 + 1));
    names.push_back(name);
    const uint64_t session = Attach(hello);
    name_of[session] = name;
    return session;
  }
  void ComeAll(int count) {
    for (int i = 0; i < count; ++i) Come(fmt::format("n{}", i));
  }

  void ComeAndTrain(int count) {
    ComeAll(count);
    AnswerAll();
    AllStep();
  }
  // Agents of one machine.
  void ComeFromALaptop(const std::vector<std::string>& agents) {
    for (const std::string& name : agents) {
      v1::Hello hello = Info(name);
      hello.set_hostname("laptop");
      hello.set_address("127.0.0.1");
      name_of[Attach(hello)] = name;
    }
  }

  bool Passes(const std::vector<std::string>& group) const {
    for (const std::string& name : group) {
      if (bad.contains(name)) return false;
    }
    return group.size() < 2 || !links.contains({std::min(group[0], group[1]), std::max(group[0], group[1])});
  }

  // Each node that was ordered to check answers, but those in `mute`.
  void AnswerOnce() {
    for (const ToldCheck& one : std::exchange(checks, {})) {
      if (!state.nodes.contains(one.session) || mute.contains(name_of.at(one.session))) continue;
      v1::CheckReport report;
      report.set_run(one.order.run());
      report.set_part(one.order.part());
      const std::vector<std::string> group =
          one.order.kind() == v1::CheckOrder::ALONE
              ? std::vector<std::string>{name_of.at(one.session)}
              : std::vector<std::string>(one.order.names().begin(), one.order.names().end());
      v1::CheckResult& result = *report.add_results();
      result.set_check(one.order.kind() == v1::CheckOrder::ALONE ? "matmul" : "all_reduce");
      const bool alone = one.order.kind() == v1::CheckOrder::ALONE;
      if (!alone && wrong_in_pairs.contains(name_of.at(one.session))) result.set_check("matmul");
      if (alone ? bad_alone.contains(group[0]) : !Passes(group) || result.check() == "matmul") {
        result.set_outcome(v1::CheckResult::FAILED);
        result.set_sentence(result.check() + ": no answer within 10 s");
      }
      v1::CheckValue& value = *result.add_values();
      value.set_name(result.check() + "_time");
      value.set_unit("us");
      value.set_better(v1::CheckValue::LESS);
      value.set_value(slow.contains(name_of.at(one.session)) ? 900'000 : 100'000);
      Say(one.session, report);
    }
  }
  // The node of that session has ranks of that round, 0: none, while those that are not mute answer.
  void BeatFor(int seconds, uint64_t session, uint64_t epoch) {
    v1::Beat beat;
    beat.set_epoch(epoch);
    for (int second = 0; second < seconds; ++second) {
      Say(session, beat);
      AnswerOnce();
      Pass(1'000);
    }
  }
  void AnswerAll() {
    for (int i = 0; i < 50 && !checks.empty(); ++i) AnswerOnce();
    EXPECT_THAT(checks, IsEmpty());
  }

  std::set<std::string> Members() const {
    std::set<std::string> members;
    if (!state.round) return members;
    for (const Slot& slot : state.round->slots) members.insert(slot.hostname);
    return members;
  }

  std::set<std::string> bad;
  std::set<std::string> bad_alone;
  std::set<std::string> wrong_in_pairs;
  std::set<std::pair<std::string, std::string>> links;
  std::set<std::string> slow;
  std::set<std::string> mute;
  std::vector<std::string> names;
  std::map<uint64_t, std::string> name_of;
};

TEST(Checks, TheRoundBeginsWhenAllAreFoundGood) {
  CheckedJob job(4, 4);
  job.ComeAll(4);
  EXPECT_THAT(job.checks, SizeIs(4));
  EXPECT_FALSE(job.state.round);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n2", "n3"}));
  EXPECT_THAT(job.Records("nodes-checked"), ElementsAre("node check: 4 nodes, 1 round, 0.0 s: all good"));
  EXPECT_THAT(job.told[1].notices.back(), HasSubstr("all good"));
  EXPECT_THAT(job.Records("node-checked"), SizeIs(4));
  EXPECT_THAT(job.Records("node-checked").at(2), "n2: all_reduce_time 100 ms, matmul_time 100 ms");
}

TEST(Checks, WithoutThemNothingIsOrdered) {
  CheckedJob job(2, 2, 0);
  job.ComeAll(2);
  EXPECT_THAT(job.checks, IsEmpty());
  EXPECT_THAT(job.Members(), SizeIs(2));
}

TEST(Checks, APairMeetsAtTheStoreOfItsFirst) {
  CheckedJob job(2, 2);
  job.ComeAll(2);
  job.AnswerOnce();
  ASSERT_THAT(job.checks, SizeIs(2));
  const v1::CheckOrder& first = job.checks[0].order;
  const v1::CheckOrder& second = job.checks[1].order;
  EXPECT_EQ(first.kind(), v1::CheckOrder::PAIR);
  EXPECT_EQ(first.group_rank(), 0u);
  EXPECT_EQ(second.group_rank(), 1u);
  EXPECT_EQ(second.store_address(), "10.0.0.1");
  EXPECT_EQ(second.store_port(), job.state.nodes.at(1).store_port);
  EXPECT_THAT(first.member_addresses(), ElementsAre("10.0.0.1", "10.0.0.2"));
  EXPECT_THAT(second.member_addresses(), IsEmpty());
  EXPECT_THAT(second.names(), ElementsAre("n0", "n1"));
}

TEST(Checks, ABadNodeIsLeftOutAndTheRestTrain) {
  CheckedJob job(2, 8);
  job.bad = {"n5"};
  job.ComeAll(8);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n2", "n3", "n4", "n6", "n7"}));
  EXPECT_THAT(
      job.Records("nodes-checked").at(0),
      HasSubstr("8 nodes, 3 rounds, 0.0 s: n5 failed (with n0, n1, n4: all_reduce: no answer within 10 s): left "
                "out, 7 train"));
  EXPECT_THAT(job.Records("node-left-out"), SizeIs(1));
  EXPECT_EQ(NodeStateText(job.state, job.state.nodes.at(6)), "left out");
  // It stays, and takes no part when the others start anew.
  job.AllStep();
  job.Kill(1, 0);
  EXPECT_THAT(job.Members(), SizeIs(7));
  EXPECT_FALSE(job.Members().contains("n5"));
}

TEST(Checks, WhatFailsAloneIsInNoPair) {
  CheckedJob job(3, 4);
  job.bad_alone = {"n1"};
  job.ComeAll(4);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2", "n3"}));
  EXPECT_THAT(job.Records("nodes-checked").at(0), HasSubstr("n1 failed (matmul: no answer within 10 s)"));
}

TEST(Checks, ABadLinkLeavesNobodyOut) {
  CheckedJob job(4, 4);
  job.links = {{"n0", "n1"}};
  job.ComeAll(4);
  job.AnswerAll();
  EXPECT_THAT(job.Members(), SizeIs(4));
  EXPECT_THAT(job.Records("nodes-checked").at(0), HasSubstr("the link between n0 and n1 failed"));
}

TEST(Checks, OfTwoThatFailNobodyTrains) {
  CheckedJob job(2, 2);
  job.bad = {"n1"};
  job.ComeAll(2);
  job.AnswerAll();
  EXPECT_THAT(job.Members(), IsEmpty());
  EXPECT_THAT(job.Records("nodes-checked").at(0), HasSubstr("which of n0, n1 is at fault nobody can tell"));
  // Two more come: the job goes on with them.
  job.Come("n2");
  job.Come("n3");
  job.Pass(2'000);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n2", "n3"}));
}

TEST(Checks, AllBadGivesUpWithThatReason) {
  CheckedJob job(2, 4);
  job.bad = {"n0", "n1", "n2", "n3"};
  job.ComeAll(4);
  job.AnswerAll();
  EXPECT_THAT(job.Members(), IsEmpty());
  job.Pass(job.spec.join_timeout_ms() + 1'000);
  job.AnswerAll();  // they are asked again just then, and that is all
  ASSERT_TRUE(job.told[1].outcome);
  EXPECT_EQ(job.told[1].outcome->exit_code(), 1);
}

TEST(Checks, WhoDoesNotAnswerIsLeftOutAfterTheLimit) {
  CheckedJob job(2, 3);
  job.mute = {"n2"};
  job.ComeAll(3);
  job.AnswerOnce();
  EXPECT_THAT(job.Members(), IsEmpty());
  job.Pass(job.spec.check().limit_ms() + kCheckAnswerMs + 10);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1"}));
  EXPECT_THAT(job.Records("nodes-checked").at(0), HasSubstr("n2 failed (n2 has not answered within 75 s)"));
}

// They may take as long as the script was granted to save.
TEST(Checks, WhoseOldRanksAreStillEndingIsWaitedFor) {
  CheckedJob job(2, 2);
  job.ComeAll(2);
  job.mute = {"n1"};
  job.BeatFor(120, 2, 7);
  EXPECT_TRUE(job.state.health.run);
  EXPECT_THAT(job.Records("node-left-out"), IsEmpty());
  job.BeatFor(120, 2, 0);
  EXPECT_THAT(job.Records("node-left-out"),
              ElementsAre(HasSubstr("node n1 is left out for 600 s: n1 has not answered")));
}

// Its ranks were granted more time than the check has, and it comes to its order only now.
TEST(Checks, WhoseOldRanksEndJustBeforeTheLimitHasTheWholeTime) {
  CheckedJob job(2, 2);
  job.spec.mutable_check()->set_limit_ms(10'000);
  job.Renew();
  job.ComeAll(2);
  job.mute = {"n1"};
  job.BeatFor(24, 2, 7);
  job.BeatFor(20, 2, 0);
  EXPECT_THAT(job.Records("node-left-out"), IsEmpty()) << "20 s of the 25 s that an answer may take";
  job.BeatFor(10, 2, 0);
  EXPECT_THAT(job.Records("node-left-out"), SizeIs(1));
}

// Of five that trained two are silent, and of the others one fails its check: two may go on, too few without the rest.
class OutvotedJob : public CheckedJob {
 public:
  OutvotedJob() : CheckedJob(2, 5) {
    spec.set_join_timeout_ms(60'000);
    Renew();
    state.succession = state.at_endpoint = true;
    ComeAndTrain(5);
    v1::Beat beat;
    beat.set_epoch(Epoch());
    for (const uint64_t session : {1, 2, 3, 4, 5}) Say(session, beat);  // all know that the round has begun
    Pass(10'000, {3, 4, 5});  // their power is gone: nobody hears an end of theirs
    bad_alone = {"n2"};
    Come("n2");
    Pass(1'000);
    AnswerAll();
    Pass(1'000);
  }
};

TEST(Checks, TooFewOfThoseThatTrainedWaitAndSaySo) {
  OutvotedJob job;
  ASSERT_EQ(job.state.phase, Phase::kGathering);
  EXPECT_THAT(
      job.Records("waiting"),
      Contains(HasSubstr("2 of the 5 nodes that trained last may train now, too few to go on without the others")));
  job.Pass(30'000);
  ASSERT_EQ(job.state.phase, Phase::kGathering);
  job.Pass(35'000);
  ASSERT_TRUE(job.told[1].outcome) << "it waits for good";
  EXPECT_EQ(job.told[1].outcome->exit_code(), 1);
  EXPECT_THAT(job.told[1].outcome->reason(),
              HasSubstr("gave up after 60 s (--rdzv-conf join_timeout): 2 of the 5 nodes"));
}

TEST(Checks, WhoComesToTooFewOfThoseThatTrainedIsCheckedAtOnce) {
  OutvotedJob job;
  job.Come("n3");
  job.Pass(1'000);
  job.AnswerAll();
  job.Pass(1'000);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n3"}));
}

TEST(Checks, ANodeThatGoesMeanwhileHoldsNobodyUp) {
  CheckedJob job(2, 4);
  job.ComeAll(4);
  job.AnswerOnce();
  job.Detach(3);  // its partner waits for it
  job.AnswerAll();
  job.Pass(1'000);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n3"}));
}

TEST(Checks, WhenTheJobHasEndedNobodyIsToldOfTheCheck) {
  CheckedJob job(3, 3);
  job.spec.set_join_timeout_ms(1'000);
  job.Renew();
  job.ComeAll(3);
  job.Detach(3);
  const std::vector<ToldCheck> orders = job.checks;
  job.mute.insert("n1");
  job.AnswerOnce();
  job.now = job.state.join_deadline;
  job.Send(Tick{});
  ASSERT_EQ(job.state.phase, Phase::kFinished);
  job.mute.clear();
  job.checks = {orders.at(1)};  // what is owed comes late
  const size_t told = job.told[1].notices.size();
  job.AnswerOnce();
  EXPECT_EQ(job.told[1].notices.size(), told);
  EXPECT_THAT(job.checks, IsEmpty());
  EXPECT_THAT(job.Records("nodes-checked"), IsEmpty());
}

TEST(Checks, OfTwoThatMeetOneGoes) {
  CheckedJob job(1, 2);
  job.ComeAll(2);
  job.AnswerOnce();
  job.Leave(1);
  job.Detach(1);
  job.AnswerAll();
  job.Pass(1'000);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n1"}));
}

TEST(Checks, ASlowNodeIsNamedAndLeftOutWhereThatIsAskedFor) {
  for (const bool excludes : {false, true}) {
    CheckedJob job(3, 4);
    job.spec.mutable_check()->set_excludes_stragglers(excludes);
    job.Renew();
    job.slow = {"n2"};
    job.ComeAll(4);
    job.AnswerAll();
    EXPECT_THAT(job.Members(), SizeIs(excludes ? 3 : 4));
    EXPECT_THAT(job.Records("nodes-checked").at(0),
                HasSubstr("n2 slow (9.0 x the mean of the others: 1800 ms, most of it all_reduce_time)"));
    EXPECT_EQ(job.state.health.last.nodes(2).verdict(), excludes ? v1::CheckedNode::SLOW : v1::CheckedNode::NAMED);
    EXPECT_EQ(job.state.health.last.rounds(), 2u) << "the slowest meets the fastest";
  }
}

TEST(Checks, ASlowNodeStaysWhereElseTooFewWereLeft) {
  CheckedJob job(4, 4);
  job.spec.mutable_check()->set_excludes_stragglers(true);
  job.Renew();
  job.slow = {"n2"};
  job.ComeAll(4);
  job.AnswerAll();
  EXPECT_THAT(job.Members(), SizeIs(4));
  EXPECT_THAT(job.Records("nodes-checked").at(0),
              HasSubstr("all_reduce_time), which stays: without it too few were left"));
}

TEST(Checks, ASpareStepsIntoTheBadNodesPlace) {
  CheckedJob job(4, 4);
  job.bad = {"n1"};
  job.ComeAll(3);
  job.Come("n3");
  job.Come("n4");
  job.AnswerAll();
  // Four have come and are checked; the fifth came behind, and is checked with those that wait.
  job.Pass(2'000);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2", "n3", "n4"}));
}

TEST(Checks, ANewcomerIsCheckedBeforeARunningJobTakesItIn) {
  CheckedJob job(2, 4);
  job.ComeAll(2);
  job.Pass(1'000);
  job.AnswerAll();
  ASSERT_THAT(job.Members(), SizeIs(2));
  job.AllStep();
  job.Come("n2");
  EXPECT_THAT(job.checks, SizeIs(1));  // alone: members train
  job.Pass(5'000);
  EXPECT_THAT(job.Members(), SizeIs(2));
  job.AnswerAll();
  job.Pass(kGrowQuietMs + 1'000);
  EXPECT_THAT(job.Members(), SizeIs(3));
}

TEST(Checks, ABadNewcomerIsNotTakenIn) {
  CheckedJob job(2, 4);
  job.ComeAll(2);
  job.Pass(1'000);
  job.AnswerAll();
  job.AllStep();
  job.bad_alone = {"n2"};
  job.Come("n2");
  job.AnswerAll();
  job.Pass(60'000);
  EXPECT_THAT(job.Members(), SizeIs(2));
  EXPECT_EQ(job.state.rounds_begun, 1u);
}

TEST(Checks, WhoStepsInForALostNodeIsCheckedFirst) {
  CheckedJob job(2, 2);
  job.ComeAll(2);
  job.AnswerAll();
  job.AllStep();
  job.mute = {"n2"};
  job.Come("n2");
  job.Detach(2);
  job.Pass(2'000);
  EXPECT_THAT(job.Members(), IsEmpty());
  job.mute.clear();
  job.Pass(job.spec.check().limit_ms() + 2 * kCheckAnswerMs);  // the order that it did not hear
  job.AnswerAll();
  job.Pass(job.spec.check().left_out_ms());  // it is left out, and asked again
  job.AnswerAll();
  job.Pass(2'000);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2"}));
}

TEST(Checks, WhoIsLeftOutIsCheckedAgainWhenItsTimeIsOverAndLongerEachTime) {
  CheckedJob job(2, 3);
  job.bad_alone = {"n2"};
  job.ComeAndTrain(3);
  ASSERT_THAT(job.Members(), SizeIs(2));
  job.Pass(job.spec.check().left_out_ms() - 1'000);
  EXPECT_THAT(job.checks, IsEmpty());
  job.Pass(2'000);
  EXPECT_THAT(job.checks, SizeIs(1));
  job.AnswerAll();  // still bad
  job.Pass(2 * job.spec.check().left_out_ms() - 10'000);
  EXPECT_THAT(job.checks, IsEmpty()) << "twice as long";
  job.bad_alone.clear();
  job.Pass(20'000);
  job.AnswerAll();
  job.Pass(5'000);
  EXPECT_THAT(job.Members(), SizeIs(3));
  EXPECT_THAT(job.state.health.left_out, IsEmpty());
}

// By itself it passes: that says nothing of what it was left out for.
TEST(Checks, WhoFailsWithOthersIsLeftOutForLongerEachTimeThoughItPassesAlone) {
  CheckedJob job(2, 3);
  job.bad = {"n2"};
  job.ComeAndTrain(3);
  ASSERT_THAT(job.Members(), SizeIs(2));
  job.Pass(job.spec.check().left_out_ms() + 1'000);
  job.AnswerAll();
  job.Pass(2'000);
  ASSERT_THAT(job.Members(), SizeIs(3)) << "nobody is there to check it with";
  const auto& left_out = job.state.health.left_out;
  ASSERT_THAT(left_out, SizeIs(1));
  EXPECT_EQ(left_out.begin()->second.times, 1u);
  // A new master knows that, too.
  HealthState restored;
  for (const v1::LeftOut& told : LeftOutNow(job.state.health, job.now)) RestoreLeftOut(restored, told, job.now);
  EXPECT_TRUE(restored.left_out.begin()->second.needs_others);
  // It fails with another, and that is the second time.
  job.state.health.left_out.begin()->second.until = job.now;
  LeaveOut(job.state.health, {3, "n2", "n2", left_out.begin()->first.second}, "again", true, 1'000, job.now);
  EXPECT_EQ(left_out.begin()->second.times, 2u);
}

TEST(Checks, WhoPassesWithAnotherIsMended) {
  CheckedJob job(2, 4);
  job.bad = {"n2"};
  job.ComeAll(3);
  job.Pass(1'000);
  job.AnswerAll();
  job.AllStep();
  ASSERT_THAT(job.state.health.left_out, SizeIs(1));
  job.bad.clear();
  job.Pass(job.spec.check().left_out_ms() - 1'000);
  job.Come("n3");
  job.Pass(2'000);
  for (int i = 0; i < 5; ++i) {
    job.AnswerAll();
    job.Pass(2'000);
  }
  EXPECT_THAT(job.Members(), SizeIs(4));
}

// Somebody who has changed a cable knows more than a check.
TEST(Checks, WhoIsLetInNeedsNobodyToBeCheckedWith) {
  CheckedJob job(2, 3);
  job.bad = {"n2"};
  job.ComeAndTrain(3);
  job.bad.clear();
  job.Send(LetIn{"n2"});
  job.AnswerAll();
  job.Pass(2'000);
  EXPECT_THAT(job.Members(), SizeIs(3));
  EXPECT_THAT(job.state.health.left_out, IsEmpty());
}

// Whose device multiplies wrongly is known by its own word.
TEST(Checks, AFaultOfItsOwnInAPairAccusesNobodyElse) {
  CheckedJob job(1, 2);
  job.wrong_in_pairs = {"n1"};
  job.ComeAll(2);
  job.AnswerAll();
  EXPECT_EQ(job.Members(), std::set<std::string>{"n0"});
  EXPECT_THAT(job.Records("nodes-checked").at(0),
              HasSubstr("n1 failed (matmul: no answer within 10 s): left out, 1 train"));
}

TEST(Checks, OfSeveralAgentsOfAMachineThatFailTheFirstTimeIsOneTime) {
  CheckedJob job(1, 3);
  job.bad_alone = {"n0", "n1", "n2"};
  job.ComeFromALaptop({"n0", "n1", "n2"});
  job.AnswerAll();
  ASSERT_THAT(job.state.health.left_out, SizeIs(1));
  EXPECT_EQ(job.state.health.left_out.begin()->second.times, 1u);
}

TEST(Checks, WhoComesAgainIsStillLeftOut) {
  CheckedJob job(2, 3);
  job.bad_alone = {"n2"};
  job.ComeAll(3);
  job.AnswerAll();
  job.Detach(3);
  v1::Hello again = job.Info("n2");
  again.set_node_id("another life");
  again.set_address("10.0.0.3");
  const uint64_t session = job.Attach(again);
  EXPECT_THAT(job.told[session].notices.back(), HasSubstr("this node is left out for 600 s: matmul"));
  EXPECT_THAT(job.checks, IsEmpty());
}

TEST(Checks, AJobOfNothingButTheCheckEndsWithIt) {
  for (const bool is_bad : {false, true}) {
    CheckedJob job(2, 2);
    job.spec.mutable_check()->set_only(true);
    job.Renew();
    if (is_bad) job.bad_alone = {"n1"};
    job.ComeAll(2);
    job.AnswerAll();
    ASSERT_TRUE(job.told[1].outcome);
    EXPECT_EQ(job.told[1].outcome->exit_code(), is_bad ? 1 : 0);
    EXPECT_THAT(job.told[1].outcome->reason(), HasSubstr("node check: 2 nodes"));
    EXPECT_THAT(job.Members(), IsEmpty());
  }
}

TEST(Checks, AJobOfNothingButTheCheckChecksWhoComesMeanwhile) {
  for (const bool is_bad : {false, true}) {
    CheckedJob job(2, 4);
    job.spec.mutable_check()->set_only(true);
    job.Renew();
    if (is_bad) job.bad_alone = {"n2"};
    job.ComeAll(2);
    job.Pass(1'000);
    ASSERT_TRUE(job.state.health.run);
    job.Come("n2");
    job.AnswerAll();
    ASSERT_TRUE(job.told[1].outcome);
    EXPECT_EQ(job.told[3].outcome->exit_code(), is_bad ? 1 : 0) << "of a node that nobody had checked";
    EXPECT_EQ(job.state.health.runs, 2u);
  }
}

TEST(Checks, ACheckAndATrainingDoNotMeet) {
  for (const bool trains : {false, true}) {
    CheckedJob job(2, 4);
    job.spec.mutable_check()->set_only(!trains);
    job.Renew();
    job.ComeAll(1);
    job.spec.mutable_check()->set_only(trains);
    job.Come("n1");
    EXPECT_THAT(job.told[2].refused, HasSubstr(trains ? "a job trains there" : "phalanx check is there"));
  }
}

// No node is to blame, and a script that asks must not go on.
TEST(Checks, AJobOfNothingButTheCheckFailsWhereAllTogetherFail) {
  CheckedJob job(3, 3, 2);
  job.spec.mutable_check()->set_only(true);
  job.Renew();
  job.ComeAll(3);
  while (!job.checks.empty() && job.checks.front().order.kind() != v1::CheckOrder::ALL) job.AnswerOnce();
  ASSERT_THAT(job.checks, SizeIs(3));
  job.bad = {"n0"};
  job.AnswerAll();
  ASSERT_TRUE(job.told[1].outcome);
  EXPECT_EQ(job.told[1].outcome->exit_code(), 1);
  EXPECT_THAT(job.told[1].outcome->reason(), HasSubstr("all together failed: all_reduce: no answer within 10 s"));
}

TEST(Checks, LevelTwoChecksAllTogether) {
  CheckedJob job(4, 4, 2);
  job.ComeAll(4);
  job.AnswerOnce();
  job.AnswerOnce();
  ASSERT_THAT(job.checks, SizeIs(4));
  EXPECT_EQ(job.checks[3].order.kind(), v1::CheckOrder::ALL);
  EXPECT_EQ(job.checks[3].order.group_size(), 4u);
  job.AnswerAll();
  EXPECT_THAT(job.Members(), SizeIs(4));
}

TEST(Checks, ALateReportChangesNothing) {
  CheckedJob job(2, 2);
  job.ComeAll(2);
  const std::vector<ToldCheck> first = job.checks;
  job.AnswerOnce();
  v1::CheckReport report;
  report.set_run(first[0].order.run());
  report.set_part(first[0].order.part());
  report.set_ended("it hung");
  job.Say(1, report);
  job.AnswerAll();
  EXPECT_THAT(job.Members(), SizeIs(2));
  job.Say(1, report);
  EXPECT_THAT(job.Members(), SizeIs(2));
}

// A deadline of the time before must not stand still while nodes are checked: the fixture counts Ticks.
TEST(Checks, ANoticeThatFallsIntoTheCheckIsNoTickWithoutEnd) {
  CheckedJob job(2, 2);
  job.Come("n0");
  job.Pass(25'000);
  job.Come("n1");
  job.mute = {"n0"};
  job.Pass(40'000);
  EXPECT_TRUE(job.state.health.run);
}

TEST(Checks, OfTwoAgentsOfOneMachineTheBadOneCounts) {
  for (const char* bad : {"n0", "n1"}) {
    CheckedJob job(1, 2);
    job.bad_alone = {bad};
    job.ComeFromALaptop({"n0", "n1"});
    job.AnswerAll();
    job.Pass(60'000);
    EXPECT_THAT(job.checks, IsEmpty()) << "no check behind the other";
    EXPECT_EQ(job.state.health.runs, 1u);
    EXPECT_THAT(job.Ranks(), SizeIs(1));
  }
}

// Checks these, of which `bad` fails.
void CheckThem(HealthState& health, const std::vector<HealthMember>& members, const std::string& bad, Instant now) {
  v1::CheckSpec check;
  check.set_level(1);
  check.set_left_out_ms(kDefaultLeftOutMs);
  BeginCheck(health, check, members, 0, false, now);
  for (uint32_t part = health.run->part; health.run; part = health.run ? health.run->part : 0) {
    for (const HealthMember& member : members) {
      v1::CheckReport report;
      report.set_run(health.runs);
      report.set_part(part);
      if (member.name == bad) report.add_results()->set_outcome(v1::CheckResult::FAILED);
      OnCheckReport(health, member.session, report, now);
    }
    ASSERT_TRUE(!health.run || health.run->part > part);
  }
}

// That the other one passes is no reason to begin its times anew.
TEST(Checks, OfTwoAgentsOfOneMachineTheBadOneIsLeftOutForLongerEachTime) {
  const std::vector<HealthMember> both = {{1, "n0", "laptop", "127.0.0.1"}, {2, "n1", "laptop", "127.0.0.1"}};
  for (const bool first : {true, false}) {
    const std::string bad = first ? "n0" : "n1";
    HealthState health;
    Instant now = 1'000;
    for (uint32_t times = 1; times < 4; ++times) {
      CheckThem(health, both, bad, now);
      ASSERT_THAT(health.left_out, SizeIs(1));
      EXPECT_EQ(health.left_out.begin()->second.times, times);
      CheckThem(health, {both[first ? 1 : 0]}, "", now);
      ASSERT_THAT(health.left_out, SizeIs(1)) << "who waits has not been asked";
      now = health.left_out.begin()->second.until;
    }
    CheckThem(health, both, "", now);
    EXPECT_THAT(health.left_out, IsEmpty());
  }
}

TEST(Checks, WhoeverIsLeftOutKeepsTheJobAlive) {
  CheckedJob job(1, 2);
  job.bad_alone = {"n1"};
  job.ComeAll(2);
  job.AnswerAll();
  job.Pass(1'000);
  ASSERT_EQ(job.Members(), (std::set<std::string>{"n0"}));
  job.Leave(1);
  job.Detach(1);
  EXPECT_FALSE(job.told[2].outcome);
  job.bad_alone.clear();
  job.Pass(job.spec.check().left_out_ms());
  job.AnswerAll();
  job.Pass(1'000);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n1"}));
}

TEST(Checks, ANodeThatDiesOfItsCheckIsNamedAndNoPass) {
  CheckedJob job(2, 3);
  job.spec.mutable_check()->set_only(true);
  job.Renew();
  job.ComeAll(3);
  job.Detach(2);
  job.AnswerAll();
  ASSERT_TRUE(job.told[1].outcome);
  EXPECT_EQ(job.told[1].outcome->exit_code(), 1);
  EXPECT_THAT(job.told[1].outcome->reason(), HasSubstr("n1 went while it was checked"));
}

TEST(Checks, WhoComesAgainAndAgainHoldsNobodyUp) {
  CheckedJob job(2, 4);
  job.ComeAll(2);
  job.Pass(1'000);
  uint64_t flapper = 0;
  for (int i = 0; i < 20 && !job.state.round; ++i) {
    if (flapper != 0) job.Detach(flapper);
    flapper = job.Come(fmt::format("flapper{}", i));
    job.AnswerOnce();
  }
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1"}));
}

TEST(Checks, ASlowNewcomerIsLeftOutThoughTheMembersAreMore) {
  CheckedJob job(2, 8);
  job.spec.mutable_check()->set_excludes_stragglers(true);
  job.Renew();
  job.ComeAll(2);
  job.Pass(1'000);
  job.AnswerAll();
  job.AllStep();
  job.slow = {"late1"};
  job.mute = {"late0"};
  job.Come("late0");  // its check keeps the others together
  job.Come("late1");
  job.Come("late2");
  job.mute.clear();
  job.Pass(job.spec.check().limit_ms() + kCheckAnswerMs + 100);
  job.AnswerAll();
  job.Pass(10'000);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "late2"}));
}

// No node is looked at for a message that changes nothing: a check of many costs each of its reports the same.
TEST(Checks, TenThousandNodesAreCheckedInTheTimeThatTheirReportsTake) {
  CheckedJob job(1, 10'000);
  job.bad = {"n17", "n4711", "n9999"};
  job.ComeAll(10'000);
  job.AnswerAll();
  EXPECT_THAT(job.Members(), SizeIs(9'997));
  EXPECT_THAT(job.Records("nodes-checked").at(0), HasSubstr("left out, 9997 train"));
}

// A failure that is blamed on its node's hardware.
void FailByHardware(CheckedJob& job, uint64_t session) {
  v1::WorkerExited exit = CheckedJob::Ended(0, 1);
  exit.set_blamed_on("XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before");
  job.Exit(session, exit);
}

TEST(Checks, ANodeThatIsToBlameIsCheckedBeforeTheNextRound) {
  CheckedJob job(3, 3);
  job.ComeAll(3);
  job.AnswerAll();
  const uint64_t epoch = job.Epoch();
  job.AllStep();
  FailByHardware(job, job.Ranks()[1]);
  EXPECT_FALSE(job.state.round);
  EXPECT_THAT(job.checks, SizeIs(3)) << "the others are its partners";
  EXPECT_THAT(job.Records("round-held").back(),
              HasSubstr("restart 1 of 3: node n1: its hardware explains a failure: it is checked first"));
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n2"}));
  EXPECT_EQ(job.Epoch(), epoch + 1);
  EXPECT_EQ(job.state.round->reason, "checked once more: all 3 nodes are there");
  EXPECT_EQ(job.state.unchecked, 0U);
}

TEST(Checks, ANodeThatIsToBlameAndFailsItsCheckIsLeftOut) {
  CheckedJob job(2, 3);
  job.ComeAndTrain(3);
  job.bad_alone = {"n1"};
  FailByHardware(job, job.Ranks()[1]);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2"})) << "enough are left: they train meanwhile";
  job.AllStep();
  EXPECT_THAT(job.checks, SizeIs(1));
  job.AnswerAll();
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2"}));
  EXPECT_THAT(job.Records("node-left-out"), SizeIs(1));
}

TEST(Checks, ANodeThatIsToBlameAndPassesItsCheckTrainsAgain) {
  CheckedJob job(2, 3);
  job.ComeAndTrain(3);
  const uint64_t blamed = job.Ranks()[1];
  FailByHardware(job, blamed);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2"}));
  EXPECT_THAT(job.told[blamed].reason, HasSubstr("; this node is checked before it trains again"));
  job.Pass(2'000);
  ASSERT_THAT(job.checks, SizeIs(1));
  EXPECT_EQ(job.checks[0].session, blamed);
  job.Pass(10'000);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2"})) << "not before it has answered";
  job.AnswerAll();
  job.Pass(kGrowQuietMs + 2'000);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n2"}));
  EXPECT_EQ(job.state.unchecked, 0U);
}

// Another check is under way when the failure comes, and its end must not be all.
TEST(Checks, ANodeThatIsToBlameWhileANewcomerIsCheckedIsCheckedBehindIt) {
  CheckedJob job(2, 4);
  job.ComeAll(3);
  job.Pass(1'000);
  job.AnswerAll();
  job.AllStep();
  job.Come("n3");
  ASSERT_THAT(job.checks, SizeIs(1));
  const uint64_t blamed = job.Ranks()[1];
  FailByHardware(job, blamed);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2"}));
  job.AnswerAll();  // the newcomer's, and behind it this one's
  job.Pass(kGrowQuietMs + 2'000);
  job.AnswerAll();
  job.Pass(kGrowQuietMs + 2'000);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n2", "n3"}));
  EXPECT_EQ(job.state.health.runs, 3u);
}

// A spare steps in where all places are needed.
TEST(Checks, ANodeThatIsToBlameIsCheckedWhileASpareTrainsInItsPlace) {
  CheckedJob job(2, 2);
  job.ComeAll(2);
  job.AnswerAll();
  job.AllStep();
  job.Come("n2");
  job.AnswerAll();
  const uint64_t blamed = job.Ranks()[1];
  FailByHardware(job, blamed);
  EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n2"}));
  job.Pass(1'000);
  ASSERT_THAT(job.checks, SizeIs(1));
  EXPECT_EQ(job.checks[0].session, blamed);
}

TEST(Checks, AFailureOfAnotherKindOrWithoutChecksChecksNothing) {
  CheckedJob job(2, 2);
  job.ComeAll(2);
  job.AnswerAll();
  job.AllStep();
  job.Kill(job.Ranks()[1], 0);
  EXPECT_THAT(job.checks, IsEmpty());
  EXPECT_THAT(job.Members(), SizeIs(2));
  CheckedJob unchecked(2, 2, 0);
  unchecked.ComeAll(2);
  unchecked.AllStep();
  FailByHardware(unchecked, unchecked.Ranks()[1]);
  EXPECT_THAT(unchecked.checks, IsEmpty());
  EXPECT_THAT(unchecked.Members(), SizeIs(2));
}

// What a failure that is blamed on its node's hardware says of a round that is over.
void FailByHardwareIn(CheckedJob& job, uint64_t session, uint64_t epoch) {
  v1::WorkerExited exit = CheckedJob::Ended(0, 1);
  exit.set_blamed_on("XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before");
  job.Exit(session, exit, epoch);
}

// A peer that suffered from it was heard first, and the round was formed anew with all.
TEST(Checks, ANodeThatIsToBlameAndIsHeardSecondIsChecked) {
  for (const uint32_t min_nodes : {2U, 3U}) {
    CheckedJob job(min_nodes, 3);
    job.ComeAll(3);
    job.AnswerAll();
    job.AllStep();
    const uint64_t epoch = job.Epoch();
    const uint64_t blamed = job.Ranks()[1];
    job.Exit(job.Ranks()[0], CheckedJob::Collateral(0));
    ASSERT_THAT(job.Members(), SizeIs(3));
    FailByHardwareIn(job, blamed, epoch);
    const uint32_t used = job.state.budget.used;
    EXPECT_FALSE(job.Members().contains("n1")) << "it trains no further";
    job.Pass(2'000);
    EXPECT_THAT(job.checks, SizeIs(min_nodes == 2 ? 1 : 3));
    job.AnswerAll();
    job.Pass(kGrowQuietMs + 2'000);
    EXPECT_EQ(job.Members(), (std::set<std::string>{"n0", "n1", "n2"}));
    EXPECT_EQ(job.state.budget.used, used) << "the failure had cost one already";
    EXPECT_EQ(job.state.unchecked, 0U);
  }
}

TEST(Checks, ANodeThatHasBeenCheckedSinceIsNotDoubtedAgain) {
  CheckedJob job(3, 3);
  job.ComeAndTrain(3);
  const uint64_t epoch = job.Epoch();
  const uint64_t blamed = job.Ranks()[1];
  FailByHardware(job, blamed);
  job.AnswerAll();
  ASSERT_EQ(job.Epoch(), epoch + 1);
  v1::WorkerExited exit = CheckedJob::Ended(1, 1);  // of its other rank
  exit.set_blamed_on("XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before");
  job.Exit(blamed, exit, epoch);
  EXPECT_EQ(job.Epoch(), epoch + 1);
  EXPECT_EQ(job.state.unchecked, 0U);
}

// Left out for another reason, and let in again before its round has ended.
TEST(Checks, OfANodeThatIsCheckedForAnotherReasonNobodySaysThatItsHardwareIsToBlame) {
  CheckedJob job(2, 3);
  job.ComeAndTrain(3);
  const std::vector<uint64_t> ranks = job.Ranks();
  job.wants_safe_point = true;
  Turn turn(job.state, job.now);
  LeaveOutMember(turn, job.state.round->slots[2], "it is slow");
  turn.Take();
  job.Send(LetIn{"n2"});
  ASSERT_TRUE(job.state.nodes.at(ranks[2]).unchecked);
  job.Detach(ranks[1]);
  ASSERT_THAT(job.Records("round-held"), SizeIs(1));
  EXPECT_THAT(job.Records("round-held")[0], HasSubstr("nodes that have not been checked are checked first"));
}

TEST(Checks, AnEndOfAnEarlierRoundMakesNobodyDoubted) {
  CheckedJob job(2, 2);
  job.ComeAll(2);
  job.AnswerAll();
  job.AllStep();
  const uint64_t epoch = job.Epoch();
  job.Kill(job.Ranks()[0], 0);
  job.AllStep();
  job.Kill(job.Ranks()[0], 0);
  ASSERT_EQ(job.Epoch(), epoch + 2);
  FailByHardwareIn(job, job.Ranks()[1], epoch);
  EXPECT_EQ(job.state.unchecked, 0U);
  EXPECT_EQ(job.Epoch(), epoch + 2);
}

// What a platform that takes these nodes away tells, by their number.
void Takes(CheckedJob& job, const std::vector<int>& numbers) {
  v1::PlatformMessage message;
  message.mutable_view()->set_generation(1);
  for (const int number : numbers) {
    v1::Departure& departure = *message.mutable_view()->add_departures();
    departure.set_address(fmt::format("10.0.0.{}", number + 1));
    departure.set_reason("evicted");
    departure.set_left_ms(30'000);
  }
  job.Send(SaidByPlatform(std::move(message)));
}

TEST(Checks, AGoodNodeThatIsTakenAwayStaysOut) {
  CheckedJob job(1, 3);
  job.ComeAll(3);
  job.Pass(1'000);
  ASSERT_FALSE(job.checks.empty());
  Takes(job, {1});
  job.AnswerAll();
  job.Pass(1'000);
  ASSERT_TRUE(job.state.round.has_value());
  EXPECT_EQ(job.state.round->slots.size(), 2u);
  EXPECT_EQ(job.state.round->SlotOfNode("id-n1"), nullptr);
}

TEST(Checks, AMemberThatStaysAfterAllHasPassed) {
  CheckedJob job(1, 3);
  job.ComeAll(3);
  job.AnswerAll();
  job.Pass(1'000);
  job.AnswerAll();
  job.Pass(1'000);
  ASSERT_TRUE(job.state.round.has_value());
  ASSERT_EQ(job.state.round->slots.size(), 3u);
  job.wants_safe_point = true;
  job.state.spec->set_rescale_grace_ms(30'000);
  Takes(job, {1});
  Takes(job, {});
  for (const auto& [session, node] : job.state.nodes) EXPECT_FALSE(node.unchecked) << node.hello.node_id();
}

}  // namespace
}  // namespace phalanx::master
