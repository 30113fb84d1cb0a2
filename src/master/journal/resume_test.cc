// What a master that is started anew still knows: decisions that agents have been told, or wait for.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "master/core/job_fixture.h"
#include "master/journal/restarted.h"

namespace phalanx::master {
namespace {

using ::testing::HasSubstr;

constexpr char kDir[] = "/data/run";

// When the journal has what the last event has changed; behind all where nothing waits for it.
Remember::When Remembered(const JobFixture& job) {
  const auto* first = std::get_if<Remember>(&job.last.front().action);
  return first == nullptr ? Remember::When::kBehind : first->when;
}

TEST(ResumeTerm, EachMasterHasOneMoreAndTheJournalKnows) {
  JobFixture job(1, 1);
  job.Attach("a");
  EXPECT_EQ(job.state.incarnation, 1U);
  Restarted second(job);
  EXPECT_EQ(second.state.incarnation, 2U);
  EXPECT_EQ(second.journal_state.incarnation, 2U) << "the third must not be the second once more";
  const Restarted third(static_cast<const JobFixture&>(second));
  EXPECT_EQ(third.state.incarnation, 3U);
}

// An agent that had been told successors takes a master for lost that says nothing, and this one waits for others.
TEST(ResumeSuccession, OneThatWaitsForTheOthersIsHeardOf) {
  JobFixture job(2, 2);
  job.state.succession = true;
  const uint64_t a = job.Attach("a");
  job.Attach("b");
  job.AllStep();
  Restarted next(job);
  next.state.succession = true;  // as its flags say
  const uint64_t back = next.ComeBack(a);
  next.Say(back, v1::Beat());
  EXPECT_EQ(next.told[back].beats_heard, 1);
  EXPECT_EQ(next.told[back].successors.places_size(), 0);
  Restarted alone(job);  // a service, which nobody succeeds
  const uint64_t there = alone.ComeBack(a);
  alone.Say(there, v1::Beat());
  EXPECT_EQ(alone.told[there].beats_heard, 0);
}

// A job that is over must not begin anew, whatever becomes of the machine.
TEST(ResumeEnd, TheDiskHasItBeforeAnybodyHears) {
  JobFixture job(1, 1);
  const uint64_t a = job.Attach("a");
  job.Exit(a, JobFixture::Ended(0, 0));
  job.Exit(a, JobFixture::Ended(1, 0));
  ASSERT_TRUE(job.told[a].outcome);
  EXPECT_EQ(Remembered(job), Remember::When::kSynced);
  Restarted next(job);
  EXPECT_EQ(next.state.phase, Phase::kFinished);
  EXPECT_EQ(next.remembered, Remember::When::kSynced) << "what takes its place must be as sure";
}

// A master without a journal has the round from its agents. One that says otherwise than the others has no place in it:
// the master to come would find a journal that contradicts itself.
TEST(ResumePlaces, RanksThatDoNotFitAreNoPlace) {
  JobFixture job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.AllStep();
  const auto come = [&](const v1::Hello& last) {
    Restarted next(job, false);
    next.ComeBack(b);
    const uint64_t session = next.Attach(last);
    const auto restored = RestoreState(SaveState(next.state, next.now), "job", next.now);
    EXPECT_TRUE(restored.ok()) << restored.status();
    return next.told[session].holds.size();
  };
  v1::Hello hello = ComingBack(job.state, a);
  EXPECT_EQ(come(hello), 0U);
  hello.set_local_world_size(1);
  EXPECT_EQ(come(hello), 1U) << "a rank is missing";
  hello.set_local_world_size(2);
  hello.mutable_live_round()->set_rank_base(1);
  EXPECT_EQ(come(hello), 1U) << "nobody is rank 0";
}

TEST(ResumePlaces, TheFirstThatTellsOfARoundHasRanksThatFitToo) {
  JobFixture job(1, 1);
  v1::Hello hello = ComingBack(job.state, job.Attach("a"));
  hello.mutable_live_round()->set_world_size(7);
  Restarted next(job, false);
  next.Attach(hello);
  const auto restored = RestoreState(SaveState(next.state, next.now), "job", next.now);
  EXPECT_TRUE(restored.ok()) << restored.status();
}

// A member that was lost goes before a newcomer, also where another master hears of its return.
TEST(ResumePlaces, ALostMemberThatComesBackIsPreferred) {
  JobFixture job(2, 3);
  const uint64_t a = job.Attach("a");
  job.Attach("b");
  job.Attach("c");
  job.AllStep();
  v1::Hello lost = ComingBack(job.state, a);
  lost.clear_live_round();
  job.Detach(a);
  ASSERT_EQ(job.Ranks().size(), 2U);
  Restarted next(job);
  next.AllComeBack();
  v1::Hello newcomer = next.Info("d");
  newcomer.set_warming(true);
  lost.set_warming(true);
  const uint64_t d = next.Attach(newcomer);
  const uint64_t back = next.Attach(lost);
  EXPECT_TRUE(next.state.nodes.at(back).came_back);
  next.wants_safe_point = true;  // the change waits for both
  for (const uint64_t session : {d, back}) next.Say(session, v1::Ready());
  next.Pass(kDefaultRescaleGraceMs + 1'000);
  ASSERT_EQ(next.Ranks().size(), 3U);
  EXPECT_EQ(next.Ranks().back(), back);
}

// Who lends goes when the master ends: ranks that were told to read there must not wait for it, nor pay.
TEST(ResumeLending, ARoundThatHasBorrowedAndNotSteppedBeginsAnew) {
  for (const bool steps : {false, true}) {
    JobFixture job(2, 2);
    const uint64_t a = job.Attach("a");
    const uint64_t b = job.Attach("b");
    if (steps) job.AllStep();
    job.state.checkpoints.dirs["/d"].borrowed = true;
    job.journal_state = job.state;
    Restarted next(job);
    next.ComeBack(a);
    next.ComeBack(b);
    next.Pass(10'000);
    EXPECT_EQ(next.Epoch(), job.Epoch() + (steps ? 0 : 1));
    EXPECT_EQ(next.state.budget.used, 0U);
  }
}

// The other agent of its machine has failed its check. That this one comes back is no reason to doubt it.
TEST(ResumeChecks, WhoTrainsOnAMachineThatIsLeftOutGoesOn) {
  JobFixture job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.AllStep();
  LeaveOut(job.state.health, {0, "another agent", "a", "10.0.0.1"}, "matmul failed", false, 600'000, job.now);
  job.journal_state = job.state;
  Restarted next(job);
  next.ComeBack(a);
  next.ComeBack(b);
  next.Pass(10'000);
  EXPECT_EQ(next.Epoch(), job.Epoch());
  EXPECT_THAT(next.state.left_out, testing::IsEmpty());
}

// A worker's failure is heard while another member is away behind the death of a master; then the next one dies, too.
TEST(ResumeChecks, ANodeThatIsToBlameIsCheckedFirstByTheNextMasterAsWell) {
  JobFixture job(2, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.AllStep();
  job.spec.mutable_check()->set_level(1);
  job.state.spec->mutable_check()->set_level(1);
  job.journal_state = job.state;
  Restarted second(job);
  const uint64_t blamed = second.ComeBack(a);
  v1::WorkerExited exit = JobFixture::Ended(0, 1);
  exit.set_blamed_on("XID 79 (GPU has fallen off the bus) on GPU 3, 0.4 s before");
  second.Exit(blamed, exit);
  ASSERT_TRUE(second.state.round.has_value()) << "it waits for the other one";
  ASSERT_EQ(second.state.unchecked, 1U);

  Restarted third(second);
  third.AllComeBack();
  third.Attach(ComingBack(job.state, b));
  EXPECT_FALSE(third.state.round);
  ASSERT_EQ(third.Records("round-held").size(), 1U);
  EXPECT_THAT(third.Records("round-held")[0], HasSubstr("node a: its hardware explains a failure"));
  EXPECT_TRUE(third.state.health.run.has_value());
}

// What its life took to come to step 5,000 an earlier master knew: that the next step takes half a minute is no stall.
TEST(ResumeStall, ALifeThatAnEarlierMasterBeganIsNotKnownByItsSteps) {
  for (const bool journal : {true, false}) {
    JobFixture job(1, 1);
    const uint64_t a = job.Attach("a");
    job.AllStep();
    Restarted next(job, journal);
    const uint64_t back = next.ComeBack(a);
    for (int64_t step = 5'000; step < 5'004; ++step) {
      v1::Beat beat;
      beat.set_epoch(next.Epoch());
      beat.set_min_step(step);
      beat.set_max_step(step);
      next.Say(back, beat);
      next.Pass(30'000);
    }
    EXPECT_THAT(next.Records("stalled"), testing::IsEmpty()) << journal;
  }
}

class ResumeRescale : public ::testing::Test {
 protected:
  // A change is announced to two ranks that train: a third node has come.
  ResumeRescale() {
    a_ = job_.Attach("a");
    b_ = job_.Attach("b");
    job_.Pass(1'000);
    job_.AllStep();
    job_.wants_safe_point = true;
    job_.Attach("c");
    job_.Pass(kGrowQuietMs);
  }

  JobFixture job_{2, 3};
  uint64_t a_ = 0;
  uint64_t b_ = 0;
};

TEST_F(ResumeRescale, AllAreAskedAgainHowFarTheyAre) {
  ASSERT_EQ(job_.announced.size(), 2U);
  Restarted next(job_);
  next.announced.clear();
  next.ComeBack(a_);
  EXPECT_TRUE(next.announced.empty()) << "one is still away";
  next.ComeBack(b_);
  ASSERT_EQ(next.announced.size(), 2U);
  EXPECT_EQ(next.announced[0].at_step, 0);
  EXPECT_EQ(next.Records("rescale-announced").size(), 0U) << "it is the same one";
}

TEST_F(ResumeRescale, TheStepThatRanksWereToldStays) {
  const auto announced = std::exchange(job_.announced, {});
  for (const ToldRescale& announce : announced) job_.SafePoint(announce, 2, false);
  EXPECT_EQ(Remembered(job_), Remember::When::kBefore);
  ASSERT_GT(job_.state.round->safe_step, 0);
  const int64_t step = job_.state.round->safe_step;
  const Instant by = job_.state.round->rescale_by;
  EXPECT_EQ(job_.journal_state.round->safe_step, step) << "before a rank has stopped there";
  Restarted next(job_);
  EXPECT_LE(next.state.round->rescale_by, by + 100);
  next.announced.clear();
  next.AllComeBack();
  ASSERT_EQ(next.announced.size(), 2U);
  for (const ToldRescale& announce : std::exchange(next.announced, {})) {
    EXPECT_EQ(announce.at_step, step);
    next.SafePoint(announce, 2, true);
  }
  EXPECT_EQ(next.Epoch(), 2U) << "all are at their safe point";
  EXPECT_EQ(next.Ranks().size(), 3U);
}

// The same master: its word may have been lost with the stream.
TEST_F(ResumeRescale, AMemberThatRenewsItsStreamHearsOfItAgain) {
  const auto first = std::exchange(job_.announced, {});
  v1::Hello info = ComingBack(job_.state, b_);
  const uint64_t again = job_.Attach(info);
  ASSERT_EQ(job_.announced.size(), 1U);
  EXPECT_EQ(job_.announced[0].session, again);
  EXPECT_EQ(job_.state.round->unanswered, 2U) << "also where its answer had come";
  job_.SafePoint(first[0], 2, false);
  job_.SafePoint({again, 1, 0}, 2, false);
  const int64_t step = job_.state.round->safe_step;
  ASSERT_GT(step, 0);
  job_.announced.clear();
  job_.Attach(ComingBack(job_.state, again));
  ASSERT_EQ(job_.announced.size(), 1U);
  EXPECT_EQ(job_.announced[0].at_step, step);
}

TEST_F(ResumeRescale, RanksThatDoNotComeToItHaveTheRestOfTheirTime) {
  Restarted next(job_);
  next.announced.clear();
  next.AllComeBack();
  next.Pass(kDefaultRescaleGraceMs + 1'000);
  EXPECT_EQ(next.Epoch(), 2U);
  EXPECT_EQ(next.Records("rescale-grace-over").size(), 1U);
}

TEST(ResumeLeaving, ANodeThatWasAboutToGoIsNotWaitedFor) {
  JobFixture job(1, 2);
  const uint64_t a = job.Attach("a");
  const uint64_t b = job.Attach("b");
  job.AllStep();
  job.wants_safe_point = true;
  v1::Leaving leaving;
  leaving.set_signal(15);
  leaving.set_waits(true);
  job.Say(a, leaving);
  ASSERT_EQ(job.Epoch(), 1U);
  Restarted next(job);
  next.ComeBack(b);
  EXPECT_EQ(next.Epoch(), 2U) << "the other one's ranks have ended with the master";
  EXPECT_EQ(next.Records("job-resumed").size(), 0U) << "ranks are restarted";
  EXPECT_EQ(next.Ranks().size(), 1U);
  EXPECT_THAT(next.state.reason, HasSubstr("node a left (SIGTERM)"));
}

class ResumeCheckpoints : public ::testing::Test {
 protected:
  ResumeCheckpoints() {
    for (const char* name : {"a", "b"}) sessions_.push_back(job_.Attach(name));
  }

  // `fill` says of what; of kDir.
  template <typename Fill>
  static void Tell(JobFixture& job, uint64_t session, Fill fill) {
    v1::CheckpointReport report;
    report.set_epoch(job.Epoch());
    report.set_dir(kDir);
    fill(report);
    job.Say(session, report);
  }
  static void HoldNothing(JobFixture& job, uint64_t session) {
    Tell(job, session, [](v1::CheckpointReport& report) {
      report.clear_dir();
      report.mutable_held();
    });
  }
  static void AskRestore(JobFixture& job, uint64_t session) {
    Tell(job, session, [](v1::CheckpointReport& report) { report.mutable_restore_asked(); });
  }
  static void Seal(JobFixture& job, uint64_t session, int64_t step, bool store = false) {
    Tell(job, session, [&](v1::CheckpointReport& report) {
      report.mutable_sealed()->mutable_save()->set_epoch(job.Epoch());
      report.mutable_sealed()->mutable_save()->set_step(step);
      report.mutable_sealed()->set_store(store);
    });
  }
  // The kinds of the orders that have been given since.
  static std::vector<v1::CheckpointOrder::BodyCase> Ordered(JobFixture& job) {
    std::vector<v1::CheckpointOrder::BodyCase> kinds;
    for (const ToldOrder& sent : std::exchange(job.orders, {})) kinds.push_back(sent.order.body_case());
    return kinds;
  }

  JobFixture job_{2, 2};
  std::vector<uint64_t> sessions_;
};

using Order = v1::CheckpointOrder;

TEST_F(ResumeCheckpoints, RanksThatAskLaterRestoreWhatTheOthersHave) {
  for (const uint64_t session : sessions_) HoldNothing(job_, session);
  AskRestore(job_, sessions_[0]);
  Tell(job_, sessions_[0], [](v1::CheckpointReport& report) { report.mutable_found()->set_step(-1); });
  ASSERT_EQ(job_.orders.back().order.body_case(), Order::kRestore);
  EXPECT_EQ(Remembered(job_), Remember::When::kBefore);
  EXPECT_TRUE(job_.journal_state.checkpoints.dirs.at(kDir).decided.contains(0)) << "before the first rank acts on it";

  Restarted next(job_);
  next.ComeBack(sessions_[0]);
  const uint64_t second = next.ComeBack(sessions_[1]);
  next.orders.clear();
  AskRestore(next, second);
  ASSERT_EQ(next.orders.size(), 1U) << "nobody is asked what storage holds, which may be more by now";
  EXPECT_EQ(next.orders[0].session, second);
  EXPECT_EQ(next.orders[0].order.restore().source(), v1::RestoreDecided::NOTHING);
}

TEST_F(ResumeCheckpoints, WhatWasSkippedStaysDropped) {
  for (const uint64_t session : sessions_) HoldNothing(job_, session);
  Tell(job_, sessions_[0], [&](v1::CheckpointReport& report) {
    report.mutable_skipped()->mutable_save()->set_epoch(job_.Epoch());
    report.mutable_skipped()->mutable_save()->set_step(10);
  });
  Restarted next(job_);
  next.ComeBack(sessions_[0]);
  const uint64_t second = next.ComeBack(sessions_[1]);
  next.orders.clear();
  Seal(next, second, 10);
  EXPECT_EQ(Ordered(next), (std::vector{Order::kDropped})) << "its memory would wait for the first node for ever";
}

TEST_F(ResumeCheckpoints, WhatIsStoredIsNotStoredAgain) {
  for (const uint64_t session : sessions_) HoldNothing(job_, session);
  for (const uint64_t session : sessions_) Seal(job_, session, 10, true);
  const auto save = [&](v1::SaveId* id) {
    id->set_epoch(job_.Epoch());
    id->set_step(10);
  };
  Tell(job_, sessions_[0], [&](v1::CheckpointReport& report) {
    save(report.mutable_store_prepared()->mutable_save());
    report.mutable_store_prepared()->set_name("10");
  });
  for (const uint64_t session : sessions_) {
    Tell(job_, session, [&](v1::CheckpointReport& report) {
      save(report.mutable_shards_written()->mutable_save());
      report.mutable_shards_written()->add_shards()->set_file("rank_0.pt");
    });
  }
  Tell(job_, sessions_[0],
       [&](v1::CheckpointReport& report) { save(report.mutable_manifest_written()->mutable_save()); });
  ASSERT_TRUE(job_.state.checkpoints.dirs.at(kDir).stored);

  Restarted next(job_);
  EXPECT_EQ(next.state.checkpoints.dirs.at(kDir).stored, job_.state.checkpoints.dirs.at(kDir).stored);
  next.AllComeBack();
  next.orders.clear();
  for (const uint64_t session : next.Ranks()) Seal(next, session, 10, true);  // said again: no answer had come
  for (const Order::BodyCase kind : Ordered(next)) EXPECT_NE(kind, Order::kPrepareStore);
}

// A save of the live round is in no node's list of what memory held when the round began: all say again that they have
// sealed it.
TEST_F(ResumeCheckpoints, AStoreThatWasUnderWayBeginsAgain) {
  for (const uint64_t session : sessions_) HoldNothing(job_, session);
  for (const uint64_t session : sessions_) Seal(job_, session, 10, true);
  ASSERT_TRUE(IsStoring(job_.state.checkpoints));
  for (const bool held_first : {true, false}) {
    Restarted next(job_);
    next.AllComeBack();
    next.orders.clear();
    const auto say = [&](bool held) {
      for (const uint64_t session : next.Ranks()) held ? HoldNothing(next, session) : Seal(next, session, 10, true);
    };
    say(held_first);
    say(!held_first);
    EXPECT_THAT(Ordered(next), ::testing::Contains(Order::kPrepareStore)) << held_first;
    EXPECT_EQ(next.state.checkpoints.dirs.at(kDir).committed->step, 10);
  }
}

// What was committed before the round began counts also where a rank of it had not sealed it by what nodes tell.
TEST_F(ResumeCheckpoints, WhatAnEarlierRoundHadCommittedStaysCommitted) {
  for (const uint64_t session : sessions_) HoldNothing(job_, session);
  for (const uint64_t session : sessions_) Seal(job_, session, 10);
  job_.Kill(sessions_[0], 0);
  ASSERT_EQ(job_.Epoch(), 2U);
  Restarted next(job_);
  EXPECT_EQ(next.state.checkpoints.dirs.at(kDir).committed, (SaveKey{1, 10}));
}

TEST_F(ResumeCheckpoints, AJobThatSkipsEverySaveHasAJournalOfUse) {
  for (const uint64_t session : sessions_) HoldNothing(job_, session);
  for (int64_t step = 1; step <= 2'000; ++step) {
    Tell(job_, sessions_[0], [&](v1::CheckpointReport& report) {
      report.mutable_skipped()->mutable_save()->set_epoch(job_.Epoch());
      report.mutable_skipped()->mutable_save()->set_step(step);
    });
  }
  Restarted next(job_);
  EXPECT_EQ(next.state.checkpoints.dirs.at(kDir).dropped.size(), kMaxDropped);
  EXPECT_TRUE(next.state.checkpoints.dirs.at(kDir).dropped.contains({1, 2'000}));
}

TEST_F(ResumeCheckpoints, WhoAsksAloneIsAnsweredAlone) {
  for (const uint64_t session : sessions_) HoldNothing(job_, session);
  for (const uint64_t session : sessions_) Seal(job_, session, 10, true);
  job_.state.checkpoints.dirs.at(kDir).store.reset();
  job_.state.checkpoints.dirs.at(kDir).stored = SaveKey{1, 10};
  job_.orders.clear();
  Seal(job_, sessions_[1], 10, true);
  ASSERT_EQ(job_.orders.size(), 2U);
  for (const ToldOrder& told : job_.orders) EXPECT_EQ(told.session, sessions_[1]);
}

}  // namespace
}  // namespace phalanx::master
