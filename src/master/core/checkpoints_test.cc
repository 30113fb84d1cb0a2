#include "master/topics/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "master/core/job_fixture.h"
#include "master/topics/checkpoints_saved.h"

namespace phalanx::master {
namespace {

using ::testing::ElementsAre;
using ::testing::Pair;

constexpr char kDir[] = "/data/run";

// A job of two nodes with two ranks each, whose agents tell of checkpoints.
class CheckpointsTest : public ::testing::Test {
 protected:
  explicit CheckpointsTest(uint32_t min_nodes = 1) : job_(min_nodes, 2, 10) {
    a_ = job_.Attach("a");
    b_ = job_.Attach("b");
  }

  uint64_t Epoch() const { return job_.Epoch(); }

  v1::CheckpointReport Report() const {
    v1::CheckpointReport report;
    report.set_epoch(Epoch());
    report.set_dir(kDir);
    return report;
  }

  static void Set(v1::SaveId* save, uint64_t epoch, int64_t step) {
    save->set_epoch(epoch);
    save->set_step(step);
  }

  void Tell(uint64_t session, const v1::CheckpointReport& report) {
    job_.orders.clear();
    job_.Say(session, report);
  }

  void Open(const SaveForm& form, bool at_breakpoint = false) {
    v1::CheckpointReport report = Report();
    SetForm(*report.mutable_opened()->mutable_form(), form);
    report.mutable_opened()->set_at_breakpoint(at_breakpoint);
    Tell(a_, report);
  }

  void Seal(uint64_t session, int64_t step, bool store = false, uint32_t branch = 0) {
    v1::CheckpointReport report = Report();
    Set(report.mutable_sealed()->mutable_save(), Epoch(), step);
    report.mutable_sealed()->mutable_save()->set_branch(branch);
    report.mutable_sealed()->set_store(store);
    Tell(session, report);
  }

  void Skip(uint64_t session, int64_t step) {
    v1::CheckpointReport report = Report();
    Set(report.mutable_skipped()->mutable_save(), Epoch(), step);
    report.mutable_skipped()->set_why("rank 1 had no free slot");
    Tell(session, report);
  }

  struct Held {
    uint64_t epoch = 0;
    int64_t step = 0;
    std::vector<uint32_t> ranks;
    bool committed = true;
    uint32_t world_size = 4;
    SaveForm form = kFullForm;
    bool main = false;
    bool older_unread = false;
    int64_t sealed_unix_ms = 0;
  };

  // `awaited`: the step of round 1 whose store the node has not heard the end of. `lends_at`: the port where others may
  // read these saves; `unreadable`: why it could not read others'.
  void Hold(uint64_t session, const std::vector<Held>& saves, std::optional<int64_t> awaited = {},
            uint32_t lends_at = 0, const std::string& unreadable = "") {
    v1::CheckpointReport report;
    report.set_epoch(Epoch());
    report.mutable_held()->set_unreadable(unreadable);
    if (lends_at != 0) {
      v1::ImageSource& source = *report.mutable_held()->mutable_source();
      source.set_address("10.0.0.7");
      source.set_port(lends_at);
      source.set_key(std::string(32, 'k'));
    }
    if (awaited) {
      v1::AwaitedStore& store = *report.mutable_held()->add_awaited();
      store.set_dir(kDir);
      Set(store.mutable_save(), 1, *awaited);
    }
    for (const Held& held : saves) {
      v1::HeldSave& save = *report.mutable_held()->add_saves();
      save.set_dir(kDir);
      Set(save.mutable_save(), held.epoch, held.step);
      SetForm(*save.mutable_form(), held.form);
      save.set_world_size(held.world_size);
      save.set_main(held.main);
      save.set_committed(held.committed);
      save.set_older_unread(held.older_unread);
      save.set_sealed_unix_ms(held.sealed_unix_ms);
      for (const uint32_t rank : held.ranks) save.add_ranks(rank);
    }
    Tell(session, report);
  }

  void AskRestore(uint64_t session, uint32_t branch = 0) {
    v1::CheckpointReport report = Report();
    report.mutable_restore_asked()->set_branch(branch);
    Tell(session, report);
  }

  // Stored by this job, in its first round.
  void FoundOnDisk(int64_t step, const std::string& name = "", bool same_job = true) {
    v1::CheckpointReport report = Report();
    report.mutable_found()->set_step(step);
    report.mutable_found()->set_name(name);
    report.mutable_found()->set_epoch(1);
    report.mutable_found()->set_same_job(same_job);
    Tell(job_.Ranks().front(), report);
  }

  void CheckedOnDisk(uint64_t session, const std::string& name, const std::string& error = "",
                     bool unreadable = false) {
    v1::CheckpointReport report = Report();
    report.mutable_checked()->set_name(name);
    report.mutable_checked()->set_error(error);
    report.mutable_checked()->set_unreadable(unreadable);
    Tell(session, report);
  }
  void CannotReadOnDisk(uint64_t session, const std::string& name, const std::string& error) {
    CheckedOnDisk(session, name, error, true);
  }

  // A round begins with nothing in memory, and a rank wants to restore.
  void AskOfWhatStorageHas() {
    FailRound();
    Hold(a_, {});
    Hold(b_, {});
    AskRestore(b_);
  }

  // Orders of the last event of one kind, by session.
  std::map<uint64_t, v1::CheckpointOrder> Orders(v1::CheckpointOrder::BodyCase kind) const {
    std::map<uint64_t, v1::CheckpointOrder> orders;
    for (const ToldOrder& sent : job_.orders) {
      if (sent.order.body_case() == kind) orders[sent.session] = sent.order;
    }
    return orders;
  }

  // A failure ends the round; both nodes go on in the next one.
  void FailRound() {
    job_.AllStep();
    job_.orders.clear();
    job_.Kill(a_, 0);
  }

  JobFixture job_;
  uint64_t a_ = 0;
  uint64_t b_ = 0;
};

using Order = v1::CheckpointOrder;

TEST_F(CheckpointsTest, ASaveIsCommittedWhenAllNodesHaveSealedIt) {
  Seal(a_, 10);
  EXPECT_TRUE(job_.orders.empty());
  Seal(b_, 10);
  const auto committed = Orders(Order::kCommitted);
  ASSERT_EQ(committed.size(), 2U);
  EXPECT_EQ(committed.at(a_).save().step(), 10);
  EXPECT_EQ(committed.at(b_).save().epoch(), Epoch());
}

TEST_F(CheckpointsTest, WhatIsSealedOfAnOlderRoundIsNotCommitted) {
  Seal(a_, 10);
  const uint64_t before = Epoch();
  FailRound();
  v1::CheckpointReport late = Report();
  late.set_epoch(before);
  Set(late.mutable_sealed()->mutable_save(), before, 10);
  Tell(b_, late);
  EXPECT_TRUE(job_.orders.empty());
}

TEST_F(CheckpointsTest, ASaveThatARankSkippedIsDroppedEverywhere) {
  Seal(a_, 10);
  Skip(b_, 10);
  EXPECT_EQ(Orders(Order::kDropped).size(), 2U);
  EXPECT_THAT(job_.Records("checkpoint-skipped").size(), 1U);
  Seal(a_, 10);  // said again
  EXPECT_EQ(Orders(Order::kDropped).size(), 1U);
  Seal(a_, 20);
  Seal(b_, 20);
  EXPECT_EQ(Orders(Order::kCommitted).size(), 2U);
}

// The order was lost with the stream of who skipped it; others have heard it.
TEST_F(CheckpointsTest, WhoSaysAgainThatItSkippedASaveIsToldAgainThatItIsDropped) {
  Skip(b_, 10);
  Skip(b_, 10);
  const auto dropped = Orders(Order::kDropped);
  ASSERT_EQ(dropped.size(), 1U);
  EXPECT_EQ(dropped.at(b_).save().step(), 10);
  EXPECT_EQ(job_.Records("checkpoint-skipped").size(), 1U) << "it is nothing new";
}

TEST_F(CheckpointsTest, ADroppedSaveStaysDroppedBehindANewerCommit) {
  Seal(a_, 10);
  Skip(b_, 10);
  Seal(a_, 20);
  Seal(b_, 20);
  Seal(a_, 10, /*store=*/true);  // its stream broke before it heard of either
  EXPECT_TRUE(Orders(Order::kCommitted).empty()) << "step 10 is nowhere";
  EXPECT_EQ(Orders(Order::kDropped).at(a_).save().step(), 10);
  Skip(b_, 10);
  EXPECT_EQ(Orders(Order::kDropped).size(), 1U);
  EXPECT_EQ(job_.journal_state.checkpoints.dirs.at(kDir).dropped.size(), 1U) << "a new master must say the same";
}

TEST_F(CheckpointsTest, ACommittedSaveIsToldAgainToWhoSealsItAgain) {
  Seal(a_, 10);
  Seal(b_, 10);
  Seal(a_, 10);
  const auto committed = Orders(Order::kCommitted);
  ASSERT_EQ(committed.size(), 1U);
  EXPECT_TRUE(committed.contains(a_));
}

TEST_F(CheckpointsTest, TheNewestSaveThatAllHoldIsRestoredFromMemory) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}, {1, 20, {0, 1}}});
  EXPECT_TRUE(job_.orders.empty());
  Hold(b_, {{1, 10, {2, 3}}, {1, 20, {2, 3}}});
  EXPECT_EQ(Orders(Order::kCommitted).at(a_).save().step(), 20);
  AskRestore(a_);
  EXPECT_EQ(Orders(Order::kFind).size(), 1U);
  FoundOnDisk(10, "10");
  const Order order = Orders(Order::kRestore).at(a_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_EQ(order.save().step(), 20);
  AskRestore(b_);  // the same for all
  EXPECT_EQ(Orders(Order::kRestore).at(b_).save().step(), 20);
}

TEST_F(CheckpointsTest, OlderSavesAreReadOnlyWhereNoNewerOneCanBeRestored) {
  const auto unread = [](int64_t step, std::vector<uint32_t> ranks) {
    return Held{1, step, std::move(ranks), true, 4, kFullForm, false, true};
  };
  FailRound();
  Hold(a_, {unread(20, {0, 1})});
  Hold(b_, {unread(20, {2, 3})});
  EXPECT_TRUE(Orders(Order::kReadOlder).empty());
  EXPECT_EQ(Orders(Order::kCommitted).size(), 2U);

  FailRound();  // b's image of rank 3 is damaged, so that it has read all
  Hold(a_, {unread(20, {0, 1})});
  Hold(b_, {{1, 10, {2, 3}}, {1, 20, {2}}});
  auto reads = Orders(Order::kReadOlder);
  ASSERT_EQ(reads.size(), 1U);
  EXPECT_EQ(reads.at(a_).dir(), kDir);
  EXPECT_TRUE(Orders(Order::kCommitted).empty());
  AskRestore(b_);
  EXPECT_TRUE(Orders(Order::kFind).empty()) << "what memory holds is not known yet";
  Hold(a_, {{1, 10, {0, 1}}, {1, 20, {0, 1}}});
  EXPECT_EQ(Orders(Order::kCommitted).at(b_).save().step(), 10);
  FoundOnDisk(-1);
  const Order order = Orders(Order::kRestore).at(b_);
  EXPECT_EQ(order.save().step(), 10);
  EXPECT_THAT(order.reason(),
              testing::HasSubstr("step 20 in memory: the node of rank 3 does not hold that rank's image"));
}

// Its answer went with its stream; on the new one it tells what it held first.
TEST_F(CheckpointsTest, ANodeThatReadsOlderSavesIsAskedAgainOnItsNextStream) {
  FailRound();
  Hold(b_, {{1, 10, {2, 3}}});
  const Held newest{1, 20, {0, 1}, true, 4, kFullForm, false, true};
  Hold(a_, {newest});
  ASSERT_EQ(Orders(Order::kReadOlder).size(), 1U);
  Hold(a_, {newest});
  EXPECT_EQ(Orders(Order::kReadOlder).size(), 1U);
  EXPECT_TRUE(Orders(Order::kCommitted).empty());
  Hold(a_, {{1, 10, {0, 1}}, {1, 20, {0, 1}}});
  EXPECT_EQ(Orders(Order::kCommitted).at(a_).save().step(), 10);
}

TEST_F(CheckpointsTest, ASealedSaveThatAllRanksHoldCountsAsCommitted) {
  FailRound();
  Hold(a_, {{1, 20, {0, 1}, false}});
  Hold(b_, {{1, 20, {2, 3}, false}});
  EXPECT_EQ(Orders(Order::kCommitted).size(), 2U);
}

TEST_F(CheckpointsTest, ASealedSaveThatSomeRankLacksIsDroppedAndTheOneBeforeRestored) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}, {1, 20, {0, 1}, false}});
  Hold(b_, {{1, 10, {2, 3}}, {1, 20, {2}, false}});
  EXPECT_EQ(Orders(Order::kDropped).size(), 2U);
  EXPECT_EQ(Orders(Order::kDropped).at(a_).save().step(), 20);
  EXPECT_EQ(Orders(Order::kCommitted).at(b_).save().step(), 10);
}

// Lives that go on from a save, and end before a step. Both nodes hold step 20 in memory; storage has older ones.
class DoubtedSavesTest : public CheckpointsTest {
 protected:
  DoubtedSavesTest() {
    job_.state.budget.given.reset();  // --max-restarts knows no crash loop
    Seal(a_, 20);
    Seal(b_, 20);
    FailRound();
  }

  void HoldBoth() {
    Hold(a_, {{1, 20, {0, 1}}});
    Hold(b_, {{1, 20, {2, 3}}});
  }

  void AskBoth() {
    AskRestore(a_);
    AskRestore(b_);
  }

  void Found(int64_t step, bool same_job = true) { FoundOnDisk(step, step < 0 ? "" : std::to_string(step), same_job); }

  // That step of storage is whole; what b is told.
  Order Checked(int64_t step) {
    CheckedOnDisk(a_, std::to_string(step));
    CheckedOnDisk(b_, std::to_string(step));
    return Orders(Order::kRestore).at(b_);
  }

  void GoOnFromMemory() {
    HoldBoth();
    AskBoth();
    Found(10);
    ASSERT_EQ(Orders(Order::kRestore).at(b_).restore().source(), v1::RestoreDecided::MEMORY);
  }

  void FailWithoutStep() {
    job_.orders.clear();
    job_.Exit(a_, JobFixture::Ended(0, 1));
  }

  void DoubtMemory() {
    GoOnFromMemory();
    FailWithoutStep();
    GoOnFromMemory();
    FailWithoutStep();
    ASSERT_FALSE(job_.state.outcome) << "it is no crash loop yet";
    ASSERT_EQ(job_.Records("checkpoint-doubted").size(), 1U);
  }

  const Doubts& doubts() const { return job_.state.checkpoints.dirs.at(kDir).doubts; }
};

// It would make all ranks begin anew.
TEST_F(CheckpointsTest, WhatStorageHoldsIsSaidByTheNodeThatWasAsked) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}});
  AskRestore(b_);
  v1::CheckpointReport nothing = Report();
  nothing.mutable_found()->set_step(-1);
  Tell(b_, nothing);
  EXPECT_TRUE(Orders(Order::kRestore).empty());
  FoundOnDisk(30, "30");
  EXPECT_EQ(Orders(Order::kCheck).size(), 2U);
}

TEST_F(DoubtedSavesTest, AfterTwoLivesWithoutAStepTheSaveBeforeOnStorageIsRestored) {
  DoubtMemory();
  EXPECT_THAT(job_.Records("checkpoint-doubted"),
              ElementsAre(testing::HasSubstr("step 20 of /data/run: 2 lives in a row that went on from it failed")));
  EXPECT_THAT(job_.told.at(a_).notices, testing::Contains(testing::HasSubstr("an older save is tried next")));
  HoldBoth();
  EXPECT_EQ(Orders(Order::kCommitted).at(a_).save().step(), 20) << "memory keeps it";
  AskBoth();
  Found(10);
  const Order order = Checked(10);
  EXPECT_EQ(order.restore().name(), "10");
  EXPECT_THAT(order.reason(), testing::HasSubstr("step 20 in memory: lives in a row that went on from it failed"));
  FailWithoutStep();
  EXPECT_TRUE(job_.state.phase == Phase::kBlaming || job_.state.outcome) << "a crash loop ends the job all the same";
}

TEST_F(DoubtedSavesTest, AStepInBetweenClearsASave) {
  job_.state.budget.given = 10;
  GoOnFromMemory();
  FailWithoutStep();
  GoOnFromMemory();
  FailRound();
  GoOnFromMemory();
  FailWithoutStep();
  EXPECT_TRUE(job_.Records("checkpoint-doubted").empty()) << "the first of two in a row";
}

TEST_F(DoubtedSavesTest, AStepOfALifeThatANodesLossEndsClearsItToo) {
  job_.state.budget.given = 10;
  GoOnFromMemory();
  FailWithoutStep();
  ASSERT_EQ(doubts().kept.failed_lives, 1U);
  GoOnFromMemory();
  job_.AllStep();
  const uint64_t epoch = Epoch();
  job_.Detach(b_);
  job_.Pass(60'000, {b_});
  ASSERT_NE(Epoch(), epoch);
  EXPECT_EQ(doubts().kept.failed_lives, 0U);
}

TEST_F(DoubtedSavesTest, ARankThatIsKilledSaysNothingOfTheSave) {
  job_.state.budget.given = 10;
  for (int life = 0; life < 3; ++life) {
    GoOnFromMemory();
    job_.orders.clear();
    job_.Kill(a_, 0);
  }
  EXPECT_TRUE(job_.Records("checkpoint-doubted").empty());
}

TEST_F(DoubtedSavesTest, OfTwoDirectoriesNoneGoesBackAlone) {
  job_.state.budget.given = 10;
  for (int life = 0; life < 3; ++life) {
    GoOnFromMemory();
    v1::CheckpointReport other = Report();
    other.set_dir("/data/other");
    other.mutable_restore_asked();
    Tell(a_, other);
    v1::CheckpointReport found = Report();
    found.set_dir("/data/other");
    found.mutable_found()->set_step(-1);
    Tell(job_.Ranks().front(), found);
    ASSERT_EQ(Orders(Order::kRestore).size(), 1U);
    FailWithoutStep();
  }
  EXPECT_TRUE(job_.Records("checkpoint-doubted").empty());
}

TEST_F(DoubtedSavesTest, ALifeInWhichNotAllHaveAskedSaysNothing) {
  job_.state.budget.given = 10;
  for (int life = 0; life < 3; ++life) {
    HoldBoth();
    AskRestore(a_);
    Found(10);
    EXPECT_EQ(Orders(Order::kRestore).size(), 1U);
    FailWithoutStep();
  }
  EXPECT_TRUE(job_.Records("checkpoint-doubted").empty());
}

TEST_F(DoubtedSavesTest, WhereNothingOlderIsThereItIsTriedAgain) {
  DoubtMemory();
  HoldBoth();
  AskBoth();
  Found(-1);
  EXPECT_EQ(Orders(Order::kFind).size(), 1U) << "with all that was passed over";
  Found(-1);
  const Order order = Orders(Order::kRestore).at(b_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_THAT(order.reason(), testing::HasSubstr("nothing older can be restored: it is tried again"));
  EXPECT_TRUE(doubts().kept.saves.empty());
  FailWithoutStep();
  EXPECT_TRUE(job_.state.phase == Phase::kBlaming || job_.state.outcome) << "there is nothing else to try";
}

// --older-save-after=1 as well: what is tried again is not doubted again.
TEST_F(DoubtedSavesTest, AJobThatHasNothingOlderEndsInACrashLoop) {
  job_.state.spec->set_older_save_after_lives(1);
  GoOnFromMemory();
  FailWithoutStep();
  ASSERT_FALSE(job_.state.outcome);
  HoldBoth();
  AskBoth();
  Found(-1);
  Found(-1);
  EXPECT_EQ(Orders(Order::kRestore).at(b_).save().step(), 20);
  FailWithoutStep();
  EXPECT_TRUE(job_.state.phase == Phase::kBlaming || job_.state.outcome);
}

// Longer than where memory has something that nobody doubts.
TEST_F(DoubtedSavesTest, StorageThatDoesNotAnswerIsWaitedFor) {
  DoubtMemory();
  HoldBoth();
  AskBoth();
  job_.orders.clear();
  job_.Pass(2 * kFindOnDiskMs);
  EXPECT_TRUE(Orders(Order::kRestore).empty());
  EXPECT_THAT(job_.Records("checkpoint-lag"), testing::Contains(testing::HasSubstr("that lives got on with")));
  job_.Pass(kDoubtedPatienceMs + kFindOnDiskMs);
  const Order order = Orders(Order::kRestore).at(b_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_THAT(order.reason(), testing::HasSubstr("storage has not answered"));
}

TEST_F(DoubtedSavesTest, TheSameSaveOnStorageIsPassedOverToo) {
  DoubtMemory();
  HoldBoth();
  AskBoth();
  Found(20);
  const auto finds = Orders(Order::kFind);
  ASSERT_EQ(finds.size(), 1U);
  EXPECT_THAT(finds.begin()->second.find().but(), ElementsAre("20"));
  EXPECT_THAT(finds.begin()->second.find().doubted(), ElementsAre("20")) << "a copy of it elsewhere will not do";
  Found(10);
  const Order order = Checked(10);
  EXPECT_EQ(order.restore().name(), "10");
  EXPECT_THAT(order.reason(), testing::HasSubstr("/data/run/20: lives in a row that went on from it failed"));
}

// The node that stored step 30 has a clock that is behind that of those which have sealed step 20.
TEST_F(DoubtedSavesTest, ClocksSayNothingOfWhatThisRunHasStored) {
  for (const bool is_known : {false, true}) {
    if (is_known) job_.state.checkpoints.dirs.at(kDir).stored = SaveKey{1, 30};
    Held held{1, 20, {0, 1}};
    held.sealed_unix_ms = 1'000;
    Hold(a_, {held});
    held.ranks = {2, 3};
    Hold(b_, {held});
    AskBoth();
    Found(30);
    if (is_known) {
      EXPECT_EQ(Checked(30).restore().source(), v1::RestoreDecided::DISK);
    } else {
      EXPECT_EQ(Orders(Order::kRestore).at(b_).restore().source(), v1::RestoreDecided::MEMORY) << "of a run before";
      FailWithoutStep();
    }
  }
}

TEST_F(DoubtedSavesTest, ASaveOfAnotherJobWithItsNumberIsNotTheSame) {
  DoubtMemory();
  HoldBoth();
  AskBoth();
  Found(20, /*same_job=*/false);
  EXPECT_EQ(Checked(20).restore().name(), "20");
}

TEST_F(DoubtedSavesTest, AStepOnStorageIsPassedOverAndTriedAgainWhereItIsTheOnlyOne) {
  for (int life = 0; life < 2; ++life) {
    Hold(a_, {});
    Hold(b_, {});
    AskBoth();
    Found(30);
    EXPECT_EQ(Checked(30).restore().name(), "30");
    FailWithoutStep();
  }
  Hold(a_, {});
  Hold(b_, {});
  AskBoth();
  auto finds = Orders(Order::kFind);
  EXPECT_TRUE(finds.empty()) << "the first who asked has it looked for";
  Found(-1);
  finds = Orders(Order::kFind);
  ASSERT_EQ(finds.size(), 1U) << "with all that was passed over";
  EXPECT_TRUE(finds.begin()->second.find().but().empty());
  Found(30);
  EXPECT_EQ(Checked(30).restore().name(), "30");
}

TEST_F(DoubtedSavesTest, WhatThisJobNeverSavedIsNotItsToPassOver) {
  job_.state.budget.given = 10;
  for (int life = 0; life < 3; ++life) {
    Hold(a_, {});
    Hold(b_, {});
    AskBoth();
    Found(30, /*same_job=*/false);
    EXPECT_EQ(Checked(30).restore().name(), "30");
    FailWithoutStep();
  }
  EXPECT_TRUE(job_.Records("checkpoint-doubted").empty());
}

TEST_F(DoubtedSavesTest, ALaterStoreEndsIt) {
  DoubtMemory();
  Doubts now = doubts();
  Lift(now, {1, 10, 0}, "10");
  EXPECT_EQ(now.kept.saves.size(), 1U) << "an older one is stored";
  Lift(now, {4, 15, 0}, "15");
  EXPECT_TRUE(now.kept.saves.empty()) << "memory has a newer one by then";
  now = doubts();
  Lift(now, {1, 20, 0}, "20");
  Lift(now, {4, 15, 0}, "15");
  EXPECT_THAT(now.kept.saves, ElementsAre(Pair(SaveKey{1, 20, 0}, "20")))
      << "it was on its way to storage, and is there";
}

TEST_F(DoubtedSavesTest, WhatIsDoubtedIsNotBegunToBeStored) {
  GoOnFromMemory();
  FailWithoutStep();
  Hold(a_, {{1, 20, {0, 1}}});
  Hold(b_, {{1, 20, {2, 3}}});
  AskBoth();
  Found(10);
  FailWithoutStep();
  Hold(a_, {{1, 20, {0, 1}}}, /*awaited=*/20);
  Hold(b_, {{1, 20, {2, 3}}});
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty()) << "it would be the newest on storage";
}

TEST_F(DoubtedSavesTest, TheOldestOfTooManyIsForgotten) {
  Doubts doubts;
  for (uint64_t epoch = 1; epoch <= kMaxDoubted + 1; ++epoch) {
    NoteDecided(doubts, SaveKey{epoch, 10, 0});
    EXPECT_TRUE(EndLife(doubts, LifeEnd::kFailed, /*counts=*/true, 1));
  }
  EXPECT_EQ(doubts.kept.saves.size(), kMaxDoubted);
  EXPECT_FALSE(doubts.kept.saves.contains({1, 10, 0}));
}

TEST_F(DoubtedSavesTest, ANodesLossIsTakenBack) {
  DoubtMemory();
  ReturnLife(job_.state.checkpoints);
  EXPECT_TRUE(doubts().kept.saves.empty());
  EXPECT_EQ(doubts().kept.failed_lives, 1U);
  ReturnLife(job_.state.checkpoints);
  EXPECT_EQ(doubts().kept.failed_lives, 1U) << "only the last";
}

TEST_F(DoubtedSavesTest, ANewMasterKnowsWhatIsDoubted) {
  DoubtMemory();
  v1::Snapshot::Checkpoints saved;
  SaveCheckpoints(job_.state.checkpoints, saved);
  const auto restored = RestoreCheckpoints(saved, Epoch(), 2);
  ASSERT_TRUE(restored.ok()) << restored.status();
  const Doubts& known = restored->dirs.at(kDir).doubts;
  EXPECT_EQ(known.kept.saves, doubts().kept.saves);
  EXPECT_EQ(known.kept.saves.size(), 1U);
  EXPECT_EQ(known.kept.resumed, doubts().kept.resumed);
  EXPECT_EQ(known.kept.failed_lives, 2U);
}

TEST_F(DoubtedSavesTest, WithoutTheRuleTwoLivesAreACrashLoop) {
  job_.state.spec->set_older_save_after_lives(0);
  GoOnFromMemory();
  FailWithoutStep();
  GoOnFromMemory();
  FailWithoutStep();
  EXPECT_TRUE(job_.state.phase == Phase::kBlaming || job_.state.outcome);
  EXPECT_TRUE(job_.Records("checkpoint-doubted").empty());
}

TEST_F(CheckpointsTest, ALaterStepOnStorageIsRestored) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}});
  AskRestore(b_);
  FoundOnDisk(30, "30");
  EXPECT_EQ(Orders(Order::kCheck).size(), 2U);
  CheckedOnDisk(a_, "30");
  EXPECT_TRUE(job_.orders.empty());
  CheckedOnDisk(b_, "30");
  const Order order = Orders(Order::kRestore).at(b_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::DISK);
  EXPECT_EQ(order.restore().name(), "30");
}

TEST_F(CheckpointsTest, AHigherStepOfAnotherRunOnStorageIsNoLaterOne) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}});
  AskRestore(b_);
  FoundOnDisk(300, "300", false);
  EXPECT_EQ(Orders(Order::kRestore).at(b_).restore().source(), v1::RestoreDecided::MEMORY);
}

TEST_F(CheckpointsTest, WhoGoesBackRestoresTheNewestOfThatMoment) {
  Hold(a_, {});
  Hold(b_, {});
  for (const uint64_t session : {a_, b_}) AskRestore(session);
  FoundOnDisk(-1);
  EXPECT_EQ(Orders(Order::kRestore).at(a_).restore().source(), v1::RestoreDecided::NOTHING);
  for (const uint64_t session : {a_, b_}) Seal(session, 20);
  AskRestore(a_, 1);
  EXPECT_EQ(Orders(Order::kFind).size(), 1U) << "storage may have more by now";
  FoundOnDisk(-1);
  const Order back = Orders(Order::kRestore).at(a_);
  EXPECT_EQ(back.save().step(), 20);
  EXPECT_EQ(back.restore().branch(), 1U);
  AskRestore(b_, 1);
  EXPECT_EQ(Orders(Order::kRestore).at(b_).save().step(), 20) << "the same for all";
  AskRestore(b_, 0);
  EXPECT_EQ(Orders(Order::kRestore).at(b_).restore().source(), v1::RestoreDecided::NOTHING) << "as it was decided";
}

TEST_F(CheckpointsTest, ASaveBehindGoingBackIsNewerWhateverItsStep) {
  for (const uint64_t session : {a_, b_}) Seal(session, 20);
  Seal(a_, 15, false, 1);
  EXPECT_TRUE(Orders(Order::kCommitted).empty()) << "some rank has not sealed it";
  Seal(b_, 15, false, 1);
  EXPECT_EQ(Orders(Order::kCommitted).at(a_).save().step(), 15);
  EXPECT_EQ(Orders(Order::kCommitted).at(a_).save().branch(), 1U);
  Seal(a_, 20, false, 1);  // the step of before, and another save
  EXPECT_TRUE(Orders(Order::kCommitted).empty());
}

TEST_F(CheckpointsTest, WhoIsAskedHearsOfTheArchiveThatAnyNodeHasNamed) {
  FailRound();
  Hold(a_, {});
  Hold(b_, {});
  for (const std::string archive : {"/far", ""}) {  // who only looks need not name it
    v1::CheckpointReport report = Report();
    report.mutable_opened()->set_archive(archive);
    Tell(b_, report);
  }
  AskRestore(b_);
  EXPECT_EQ(Orders(Order::kFind).at(a_).find().archive(), "/far");
  FoundOnDisk(30, "archive:30");
  EXPECT_EQ(Orders(Order::kCheck).at(a_).check().archive(), "/far");
  FailRound();
  Hold(a_, {});
  Hold(b_, {});
  AskRestore(b_);
  EXPECT_EQ(Orders(Order::kFind).at(a_).find().archive(), "") << "this life's ranks name none";
}

TEST_F(CheckpointsTest, ADamagedStepOnStorageIsPassedOverByAll) {
  AskOfWhatStorageHas();
  FoundOnDisk(30, "30");
  CheckedOnDisk(a_, "30");
  CheckedOnDisk(b_, "30", "rank_2.pt is damaged");
  EXPECT_THAT(job_.journal_state.checkpoints.dirs.at(kDir).damaged, ElementsAre("30")) << "else it is read once more";
  const Order find = Orders(Order::kFind).begin()->second;
  EXPECT_THAT(find.find().but(), ElementsAre("30"));
  EXPECT_TRUE(find.find().doubted().empty()) << "a copy of it elsewhere will do";
  CheckedOnDisk(a_, "30");  // late
  FoundOnDisk(20, "20");
  CheckedOnDisk(a_, "20");
  CheckedOnDisk(b_, "20");
  const Order order = Orders(Order::kRestore).at(b_);
  EXPECT_EQ(order.save().step(), 20);
  EXPECT_NE(order.reason().find("rank_2.pt is damaged"), std::string::npos) << order.reason();
}

TEST_F(CheckpointsTest, AValueThatDiffersIsToldOnceWithTheRanksThatHaveIt) {
  const auto seal = [&](uint64_t session, int64_t step, uint32_t best) {
    v1::CheckpointReport report = Report();
    Set(report.mutable_sealed()->mutable_save(), Epoch(), step);
    v1::SharedValue& value = *report.mutable_sealed()->add_values();
    value.set_name("best");
    value.set_crc32(best);
    value.set_local_rank(1);
    Tell(session, report);
  };
  const auto told = [&] { return job_.Records("checkpoint-differs"); };
  seal(a_, 10, 1);
  seal(b_, 10, 1);
  EXPECT_TRUE(told().empty());
  seal(a_, 20, 1);
  seal(b_, 20, 2);
  ASSERT_EQ(told().size(), 1U);
  EXPECT_THAT(told()[0], testing::HasSubstr("'best' is not the same on ranks 1 and 3")) << told()[0];
  EXPECT_EQ(Orders(Order::kCommitted).size(), 2U) << "the save goes on";
  seal(a_, 30, 1);
  seal(b_, 30, 2);
  EXPECT_EQ(told().size(), 1U) << "once";
}

TEST_F(CheckpointsTest, AStepThatANodeCannotReadIsNotDamagedAndNobodyBeginsAnew) {
  AskOfWhatStorageHas();
  FoundOnDisk(30, "30");
  CheckedOnDisk(a_, "30");
  CannotReadOnDisk(b_, "30", "rank_2.pt: read: Input/output error");
  const auto& journal = job_.journal_state.checkpoints.dirs;
  EXPECT_TRUE(!journal.contains(kDir) || journal.at(kDir).damaged.empty()) << "a new master asks again";
  EXPECT_EQ(Orders(Order::kFind).begin()->second.find().but(0), "30") << "an older one is looked for";
  FoundOnDisk(-1, "");
  const Order order = Orders(Order::kRestore).at(b_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::NOTHING);
  EXPECT_FALSE(order.has_save()) << "the ranks fail with the reason";
  EXPECT_THAT(order.reason(), testing::HasSubstr("rank_2.pt: read: Input/output error"));
}

TEST_F(CheckpointsTest, AnOlderStepIsRestoredWhereTheNewestCannotBeRead) {
  AskOfWhatStorageHas();
  FoundOnDisk(30, "30");
  CannotReadOnDisk(b_, "30", "EIO");
  FoundOnDisk(20, "20");
  CheckedOnDisk(a_, "20");
  CheckedOnDisk(b_, "20");
  EXPECT_EQ(Orders(Order::kRestore).at(b_).save().step(), 20);
}

class DamagedStorageTest : public CheckpointsTest {
 protected:
  // All steps are damaged, however many there are.
  void FindOnlyDamaged() {
    AskRestore(b_);
    for (int64_t step = 100'000; !Orders(Order::kFind).empty() && step > 99'000; --step) {
      FoundOnDisk(step, std::to_string(step));
      CheckedOnDisk(a_, std::to_string(step), std::to_string(step) + "/rank_2.pt is damaged");
    }
  }
  const CheckpointDir& Dir() const { return job_.state.checkpoints.dirs.at(kDir); }
};

TEST_F(DamagedStorageTest, IsReadSoFarOnlyAndNobodyBeginsAnew) {
  FailRound();
  Hold(a_, {});
  Hold(b_, {});
  FindOnlyDamaged();
  EXPECT_EQ(Dir().damaged.size(), kMaxDamaged);
  EXPECT_TRUE(Dir().damaged.contains("100000"));
  EXPECT_LE(Dir().passed_over.size(), kMaxPassedOverBytes + 16);
  EXPECT_THAT(Dir().passed_over, testing::StartsWith("100000/rank_2.pt")) << "people want the newest one's reason";
  const Order order = Orders(Order::kRestore).at(b_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::NOTHING);
  EXPECT_FALSE(order.has_save()) << "the ranks fail with the reason";
  EXPECT_THAT(order.reason(), testing::HasSubstr("more than 256 steps on storage are damaged"));
}

TEST_F(DamagedStorageTest, MemoryIsRestoredThen) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}});
  FindOnlyDamaged();
  EXPECT_EQ(Orders(Order::kRestore).at(b_).restore().source(), v1::RestoreDecided::MEMORY);
}

TEST_F(CheckpointsTest, ANodeWithoutMemorySendsAllToStorageWithTheReason) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {});
  AskRestore(a_);
  FoundOnDisk(5, "5");
  CheckedOnDisk(a_, "5");
  CheckedOnDisk(b_, "5");
  const Order order = Orders(Order::kRestore).at(a_);
  EXPECT_EQ(order.save().step(), 5);
  EXPECT_NE(order.reason().find("the node of group rank 1 does not hold it"), std::string::npos) << order.reason();
}

TEST_F(CheckpointsTest, AnotherWorldSizeCannotTakeShardsFromMemory) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1, 2, 3}, true, 8}});
  Hold(b_, {{1, 10, {0, 1, 2, 3}, true, 8}});
  EXPECT_TRUE(Orders(Order::kCommitted).empty());
}

TEST_F(CheckpointsTest, AnotherWorldSizeTakesWhatIsTheSameOnAllRanks) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}, true, 8, kDdpForm, true}});
  Hold(b_, {{1, 10, {6, 7}, true, 8, kDdpForm, true}});
  EXPECT_EQ(Orders(Order::kCommitted).size(), 2U);
}

// What one node lacks another lends.
class LendingTest : public CheckpointsTest {
 protected:
  static constexpr uint32_t kPortOfA = 71;
  static constexpr uint32_t kPortOfB = 72;

  // What the node is told to restore, where those hold that.
  std::map<uint64_t, Order> Restored(const std::vector<Held>& of_a, const std::vector<Held>& of_b) {
    FailRound();
    Hold(a_, of_a, {}, of_a.empty() ? 0 : kPortOfA);
    Hold(b_, of_b, {}, of_b.empty() ? 0 : kPortOfB);
    AskRestore(b_);
    FoundOnDisk(-1);
    std::map<uint64_t, Order> orders = Orders(Order::kRestore);
    AskRestore(a_);
    orders[a_] = Orders(Order::kRestore).at(a_);
    return orders;
  }

  // "rank: ports" of what the order names elsewhere.
  static std::string Elsewhere(const Order& order) { return Elsewhere(order.restore().elsewhere()); }
  static std::string Elsewhere(const google::protobuf::RepeatedPtrField<v1::ImageElsewhere>& all) {
    std::string text;
    for (const v1::ImageElsewhere& elsewhere : all) {
      text += fmt::format("{}{}:", text.empty() ? "" : ", ", elsewhere.rank());
      for (const v1::ImageSource& source : elsewhere.sources()) text += fmt::format(" {}", source.port());
    }
    return text;
  }
};

TEST_F(LendingTest, ANodeThatHoldsNothingReadsWhatAllRanksShare) {
  const auto orders = Restored({{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {});
  for (const uint64_t session : {a_, b_}) {
    EXPECT_EQ(orders.at(session).restore().source(), v1::RestoreDecided::MEMORY);
    EXPECT_EQ(orders.at(session).save().step(), 10);
  }
  EXPECT_EQ(Elsewhere(orders.at(a_)), "") << "it holds all that its ranks need";
  EXPECT_EQ(Elsewhere(orders.at(b_)), "-1: 71") << "its ranks were not there, and have nothing of their own";
}

TEST_F(LendingTest, WhatANodeLacksItIsToldBeforeItsRanksAsk) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {}, kPortOfA);
  Hold(b_, {});
  const auto orders = Orders(Order::kCommitted);
  EXPECT_EQ(Elsewhere(orders.at(a_).committed().elsewhere()), "") << "it holds all that its ranks need";
  EXPECT_EQ(Elsewhere(orders.at(b_).committed().elsewhere()), "-1: 71");
}

// As of an open job: who came to wait as a spare has no part in the round's memory, on either side.
TEST_F(LendingTest, WhoIsNoMemberIsToldNoKeyAndLendsNothing) {
  const uint64_t spare = job_.Attach("spare");
  FailRound();
  Hold(a_, {{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {}, kPortOfA);
  Hold(b_, {});
  Hold(spare, {{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {}, 73);
  AskRestore(spare);
  AskRestore(b_);
  FoundOnDisk(-1);
  const auto orders = Orders(Order::kRestore);
  EXPECT_FALSE(orders.contains(spare));
  EXPECT_EQ(Elsewhere(orders.at(b_)), "-1: 71");
  AskRestore(spare);
  EXPECT_TRUE(job_.orders.empty());
}

TEST_F(LendingTest, RanksThatAreOnAnotherNodeNowFindTheirImages) {
  const auto orders = Restored({{1, 10, {2, 3}}}, {{1, 10, {0, 1}}});
  EXPECT_EQ(Elsewhere(orders.at(a_)), "0: 72, 1: 72");
  EXPECT_EQ(Elsewhere(orders.at(b_)), "2: 71, 3: 71");
}

// Sharded state: which images a rank needs its planner says.
class ShardedLendingTest : public LendingTest {
 protected:
  // What the node is told that asks for those images.
  std::string Asked(uint64_t session, std::vector<uint32_t> ranks) {
    v1::CheckpointReport report = Report();
    v1::RestoreAsked& asked = *report.mutable_restore_asked();
    asked.set_request(7);
    for (const uint32_t rank : ranks) asked.add_images(rank);
    job_.orders.clear();
    Tell(session, report);
    const auto orders = Orders(Order::kRestore);
    if (!orders.contains(session)) return "nothing";
    EXPECT_EQ(orders.at(session).restore().request(), 7U);
    return Elsewhere(orders.at(session));
  }
};

TEST_F(ShardedLendingTest, ImagesAreLentAsTheyAreAskedFor) {
  const auto orders = Restored({{1, 10, {0, 1, 2, 3}, true, 4, kDcpForm, true}}, {});
  EXPECT_EQ(orders.at(b_).restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_EQ(Elsewhere(orders.at(a_)), "");
  EXPECT_EQ(Elsewhere(orders.at(b_)), "-1: 71") << "what names all parts";
  EXPECT_EQ(Asked(b_, {3, 0}), "3: 71, 0: 71");
  EXPECT_EQ(Asked(b_, {4}), "") << "nobody lends it";
}

TEST_F(ShardedLendingTest, AWorldOfAnotherSizeSharesThemOut) {
  const auto orders =
      Restored({{1, 10, {0, 1, 2}, true, 6, kDcpForm, true}}, {{1, 10, {3, 4, 5}, true, 6, kDcpForm, true}});
  EXPECT_EQ(orders.at(a_).restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_EQ(orders.at(a_).restore().world_size(), 6U);
  EXPECT_EQ(Elsewhere(orders.at(a_)), "") << "its own names the others' parts, too";
  EXPECT_EQ(Asked(a_, {5}), "5: 72");
  EXPECT_FALSE(job_.state.checkpoints.dirs.at(kDir).lenders.empty());
}

// Each node has what its ranks have saved, and a rank wants another one's all the same: a file by its name, say.
TEST_F(ShardedLendingTest, WhereNobodyLacksAnythingImagesAreLentToWhoAsks) {
  const auto orders =
      Restored({{1, 10, {0, 1}, true, 4, kFilesForm, true}}, {{1, 10, {2, 3}, true, 4, kFilesForm, true}});
  EXPECT_EQ(Elsewhere(orders.at(a_)), "");
  EXPECT_TRUE(job_.state.checkpoints.dirs.at(kDir).lenders.empty()) << "of large worlds only where it is needed";
  EXPECT_EQ(Asked(a_, {3}), "3: 72");
  EXPECT_TRUE(job_.state.checkpoints.dirs.at(kDir).lenders.empty()) << "of another save they would be wrong";
}

TEST_F(ShardedLendingTest, RanksThatAreOnAnotherNodeNow) {
  const auto orders = Restored({{1, 10, {2, 3}, true, 4, kDcpForm, true}}, {{1, 10, {0, 1}, true, 4, kDcpForm, true}});
  EXPECT_EQ(orders.at(a_).restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_EQ(Asked(a_, {0}), "0: 72");
  EXPECT_FALSE(job_.state.checkpoints.dirs.at(kDir).covered) << "each node would store another one's ranks";
}

TEST_F(ShardedLendingTest, APartThatNobodyHoldsSendsAllToStorage) {
  const auto reason = [this](const std::vector<Held>& of_a, const std::vector<Held>& of_b) {
    const Order order = Restored(of_a, of_b).at(b_);
    EXPECT_EQ(order.restore().source(), v1::RestoreDecided::NOTHING);
    return order.reason();
  };
  EXPECT_THAT(reason({{1, 10, {0, 1, 2}, true, 4, kDcpForm, true}}, {}),
              testing::HasSubstr("the image of rank 3 is not in the memory of this round's nodes"));
  EXPECT_THAT(reason({{1, 10, {0, 1}, true, 4, kDcpForm, false}}, {{1, 10, {2, 3}, true, 4, kDcpForm, false}}),
              testing::HasSubstr("the node of group rank 0 holds a part of it"));
}

TEST_F(ShardedLendingTest, ANewMasterAnswersWhenItKnowsWhoHoldsWhat) {
  Restored({{1, 10, {0, 1, 2, 3}, true, 4, kDcpForm, true}}, {});
  CheckpointState& state = job_.state.checkpoints;
  state.settled = false;
  state.held.clear();
  EXPECT_EQ(Asked(b_, {3}), "nothing");
}

// Node b goes behind a save of sharded state, and stays for node a, which trains on without it.
class LeavingLenderTest : public ShardedLendingTest {
 protected:
  LeavingLenderTest() {
    Open(kDcpForm);
    Seal(a_, 10);
    Seal(b_, 10);
    job_.AllStep();
    before_ = Epoch();
    job_.orders.clear();
    job_.Leave(b_);
  }

  void HoldOfA() { Hold(a_, {{before_, 10, {0, 1}, true, 4, kDcpForm, true}}, {}, kPortOfA); }
  void HoldOfB() { Hold(b_, {{before_, 10, {2, 3}, true, 4, kDcpForm, true}}, {}, kPortOfB); }

  void Go() {
    v1::CheckpointReport report;
    report.mutable_going();
    Tell(b_, report);
  }

  void RestoreOfA() {
    HoldOfA();
    HoldOfB();
    AskRestore(a_);
    FoundOnDisk(-1);
    ASSERT_EQ(Orders(Order::kRestore).at(a_).restore().source(), v1::RestoreDecided::MEMORY);
  }

  // What storage takes as the node goes.
  void Store() {
    job_.PrepareStore(a_, before_, 10);
    job_.WriteShards(b_, before_, 10);
    job_.WriteShards(a_, before_, 10);
    job_.WriteManifest(a_, before_, 10);
  }

  void RestoreDone() {
    v1::CheckpointReport report = Report();
    report.mutable_restore_done();
    Tell(a_, report);
  }

  uint64_t before_ = 0;
};

TEST_F(LeavingLenderTest, WhatItHoldsIsAwaitedAndReadUntilAllHaveMadeAStep) {
  ASSERT_EQ(Orders(Order::kLend).size(), 1U);
  EXPECT_EQ(Orders(Order::kLend).at(b_).lend().epoch(), Epoch());
  HoldOfA();
  AskRestore(a_);
  EXPECT_TRUE(job_.orders.empty()) << "node b has not told what it holds";
  HoldOfB();
  EXPECT_EQ(Orders(Order::kFind).size(), 1U);
  FoundOnDisk(-1);
  const Order order = Orders(Order::kRestore).at(a_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_EQ(order.save().step(), 10);
  EXPECT_EQ(Asked(a_, {2, 3}), "2: 72, 3: 72");
  Go();
  EXPECT_TRUE(Orders(Order::kLendingEnded).empty());
  RestoreDone();
  EXPECT_TRUE(Orders(Order::kLendingEnded).empty()) << "it may load once more before its first step";
  AskRestore(a_, 1);
  FoundOnDisk(-1);
  EXPECT_EQ(Orders(Order::kRestore).at(a_).restore().source(), v1::RestoreDecided::MEMORY);
  job_.orders.clear();
  job_.AllStep();
  EXPECT_EQ(Orders(Order::kLendingEnded).size(), 1U);
  EXPECT_TRUE(Orders(Order::kLendingEnded).contains(b_));
  Store();
  AskRestore(a_, 2);
  FoundOnDisk(10, "some");
  CheckedOnDisk(a_, "some");
  EXPECT_EQ(Orders(Order::kRestore).at(a_).restore().source(), v1::RestoreDecided::DISK) << "nobody lends it";
}

TEST_F(LeavingLenderTest, ANewerSaveEndsItAsWell) {
  RestoreOfA();
  Seal(a_, 20);
  EXPECT_TRUE(Orders(Order::kLendingEnded).contains(b_));
}

TEST_F(LeavingLenderTest, WhoIsNotNeededHearsSoAtOnce) {
  Hold(a_, {{before_, 10, {0, 1, 2, 3}, true, 4, kDcpForm, true}}, {}, kPortOfA);
  EXPECT_TRUE(Orders(Order::kLendingEnded).contains(b_)) << "nobody waits until it has read what it holds";
  HoldOfB();
  Go();
  EXPECT_TRUE(Orders(Order::kLendingEnded).contains(b_)) << "as does whoever asks behind that";
}

TEST_F(LeavingLenderTest, WhereItGoesTooEarlyAllBeginAnewAndNobodyPays) {
  RestoreOfA();
  const uint64_t epoch = Epoch();
  job_.Detach(b_);
  EXPECT_EQ(Epoch(), epoch + 1);
  EXPECT_THAT(job_.told.at(a_).reason, testing::HasSubstr("had read what they go on from in its memory"));
  EXPECT_EQ(job_.state.budget.used, 0U);
  HoldOfA();
  AskRestore(a_);
  FoundOnDisk(5, "5");
  CheckedOnDisk(a_, "5");
  EXPECT_EQ(Orders(Order::kRestore).at(a_).restore().source(), v1::RestoreDecided::DISK);
}

TEST_F(LeavingLenderTest, WhoHasReadWhatItNeedsDoesNotMissIt) {
  RestoreOfA();
  RestoreDone();
  const uint64_t epoch = Epoch();
  job_.Detach(b_);
  EXPECT_EQ(Epoch(), epoch);
}

TEST_F(LeavingLenderTest, WhereItGoesBeforeAnythingIsDecidedStorageIsAsked) {
  HoldOfA();
  HoldOfB();
  const uint64_t epoch = Epoch();
  job_.Detach(b_);
  EXPECT_EQ(Epoch(), epoch);
  AskRestore(a_);
  FoundOnDisk(-1);
  const Order order = Orders(Order::kRestore).at(a_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::NOTHING);
  EXPECT_THAT(order.reason(), testing::HasSubstr("step 10 in memory: a node that lent a part of it has gone"));
}

TEST_F(LeavingLenderTest, OneThatDoesNotTellIsWaitedForAsLongAsThePlannedChangeMayTake) {
  Store();
  HoldOfA();
  AskRestore(a_);
  job_.Pass(job_.state.spec->rescale_grace_ms() - 1);
  EXPECT_TRUE(Orders(Order::kFind).empty());
  job_.Pass(1);
  EXPECT_EQ(Orders(Order::kFind).size(), 1U);
  EXPECT_TRUE(Orders(Order::kLendingEnded).contains(b_));
  HoldOfB();
  EXPECT_TRUE(job_.orders.empty()) << "it is too late";
}

// What is on its way to storage, and whose parts of the lost node are there, is worth the wait.
TEST_F(LeavingLenderTest, WhereMemoryHasNothingAStoreUnderWayIsAwaited) {
  ASSERT_TRUE(Orders(Order::kPrepareStore).contains(a_)) << "as node b goes";
  job_.PrepareStore(a_, before_, 10);
  job_.WriteShards(b_, before_, 10);
  job_.Detach(b_);
  HoldOfA();
  AskRestore(a_);
  EXPECT_TRUE(Orders(Order::kFind).empty());
  job_.WriteShards(a_, before_, 10);
  job_.WriteManifest(a_, before_, 10);
  EXPECT_EQ(Orders(Order::kFind).size(), 1U);
}

// Its image server may live.
TEST_F(LendingTest, ALenderWhoseStreamIsBrokenJustNowStaysOne) {
  FailRound();
  Hold(a_, {});
  Hold(b_, {{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {}, kPortOfB);
  AskRestore(a_);
  CheckpointState state = job_.state.checkpoints;
  OnCheckpointSessionLost(state, b_, 0);
  v1::CheckpointReport found = Report();
  found.mutable_found()->set_step(-1);
  const CheckpointOrders orders = OnCheckpointReport(state, a_, found, 0);
  ASSERT_EQ(orders.orders.size(), 1U);
  EXPECT_EQ(Elsewhere(orders.orders[0].order), "-1: 72, 0: 72, 1: 72");
}

TEST_F(LendingTest, ARankWhoseImageNobodyHoldsIsNotRestoredFromMemory) {
  EXPECT_THAT(Restored({{1, 10, {0, 1, 2}}}, {}).at(b_).reason(),
              testing::HasSubstr("the node of group rank 1 does not hold it"));
}

TEST_F(LendingTest, OfASaveThatNobodyCommittedAHalfIsNothing) {
  const auto orders =
      Restored({{1, 10, {0, 1}, false, 4, kDdpForm, true}}, {{1, 10, {2, 3}, false, 4, kDdpForm, false}});
  EXPECT_THAT(orders.at(b_).reason(), testing::HasSubstr("group rank 1 holds a part of it"));
}

TEST_F(LendingTest, AnOlderSaveThatAllHoldIsPassedOver) {
  const Held older{1, 5, {0, 1}, true, 4, kDdpForm, true}, newer{1, 10, {0, 1}, true, 4, kDdpForm, true};
  const auto orders = Restored({older, newer}, {{1, 5, {2, 3}, true, 4, kDdpForm, true}});
  EXPECT_EQ(orders.at(b_).save().step(), 10);
  EXPECT_EQ(Elsewhere(orders.at(b_)), "-1: 71") << "ranks 2 and 3 have lost what they had for themselves";
}

TEST_F(LendingTest, WhatIsLentIsNotStored) {
  Open(kDdpForm);
  Restored({{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {});
  v1::CheckpointReport report = Report();
  Set(report.mutable_sealed()->mutable_save(), Epoch(), 10);
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
  EXPECT_FALSE(job_.state.checkpoints.dirs.at(kDir).covered);
}

// It is not tried for ever, and a job does not begin anew because a node could not read what others hold.
TEST_F(LendingTest, WhatANodeCouldNotReadIsPassedOver) {
  for (const int64_t on_disk : {5, -1}) {
    FailRound();
    Hold(a_, {{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {}, kPortOfA);
    Hold(b_, {}, {}, 0, "10.0.0.7 port 4000: no byte for 10 s");
    AskRestore(b_);
    FoundOnDisk(on_disk, on_disk < 0 ? "" : "5");
    if (on_disk > 0) CheckedOnDisk(a_, "5");
    if (on_disk > 0) CheckedOnDisk(b_, "5");
    const Order order = Orders(Order::kRestore).at(b_);
    EXPECT_EQ(order.restore().source(), on_disk < 0 ? v1::RestoreDecided::NOTHING : v1::RestoreDecided::DISK);
    EXPECT_EQ(order.has_save(), on_disk > 0) << "else load() fails";
    EXPECT_THAT(order.reason(), testing::HasSubstr("the node of group rank 1 could not read it from those that hold "
                                                   "it: 10.0.0.7 port 4000: no byte for 10 s"));
  }
}

// The one that it was restored from is nobody's any more.
TEST_F(LendingTest, ANewerSaveIsLentByNobody) {
  Restored({{1, 10, {0, 1}, true, 2, kDdpForm, true}}, {});
  Seal(a_, 20);
  Seal(b_, 20);
  AskRestore(b_, 1);
  FoundOnDisk(-1);
  EXPECT_EQ(Elsewhere(Orders(Order::kRestore).at(b_)), "");
  EXPECT_EQ(Orders(Order::kRestore).at(b_).save().step(), 20);
}

class ShardedTest : public CheckpointsTest {
 protected:
  Order Restored() {
    FailRound();
    Hold(a_, {first_});
    Hold(b_, {second_});
    AskRestore(a_);
    FoundOnDisk(-1);
    return Orders(Order::kRestore).at(a_);
  }

  Held first_{1, 10, {0, 1}, true, 4, kDcpForm, true};
  Held second_{1, 10, {2, 3}, true, 4, kDcpForm, true};
};

TEST_F(ShardedTest, AllShardsAndWhatNamesThemAreRestoredFromMemory) {
  EXPECT_EQ(Restored().restore().source(), v1::RestoreDecided::MEMORY);
}

TEST_F(ShardedTest, WithoutWhatNamesThemShardsAreNothing) {
  second_.main = false;
  EXPECT_THAT(Restored().reason(), testing::HasSubstr("group rank 1 holds a part of it"));
}

TEST_F(ShardedTest, EveryRanksShardIsNeeded) {
  second_.ranks = {3};
  EXPECT_THAT(Restored().reason(), testing::HasSubstr("nobody lends the image of rank 0 to the node of group rank 1"));
  first_.ranks = {0};
  EXPECT_THAT(Restored().reason(), testing::HasSubstr("the image of rank 1 is not in the memory of this round's node"));
}

TEST_F(ShardedTest, AnotherWorldTakesThemOnlyWhereTheyAreLent) {
  first_.ranks = second_.ranks = {0, 1, 2, 3, 4, 5};
  first_.world_size = second_.world_size = 6;
  EXPECT_EQ(Restored().restore().source(), v1::RestoreDecided::MEMORY) << "each node has all of them";
  second_.ranks = {3, 4, 5};
  EXPECT_THAT(Restored().reason(), testing::HasSubstr("nobody lends the image of rank 0 to the node of group rank 1"));
}

TEST_F(CheckpointsTest, StorageThatDoesNotAnswerDoesNotKeepMemoryFromBeingRestored) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}});
  AskRestore(a_);
  job_.orders.clear();
  job_.Pass(kFindOnDiskMs);
  EXPECT_EQ(Orders(Order::kRestore).at(a_).restore().source(), v1::RestoreDecided::MEMORY);
}

TEST_F(CheckpointsTest, WithoutMemoryStorageThatDoesNotAnswerIsWaitedFor) {
  AskRestore(a_);
  Hold(a_, {});
  Hold(b_, {});
  for (int i = 0; i < 3; ++i) job_.Pass(kFindOnDiskMs);
  EXPECT_TRUE(Orders(Order::kRestore).empty()) << "the job would begin anew";
  EXPECT_EQ(job_.Records("checkpoint-lag").size(), 3U);
  FoundOnDisk(20, "20");
  job_.orders.clear();
  CheckedOnDisk(a_, "20");
  CheckedOnDisk(b_, "20");
  EXPECT_EQ(Orders(Order::kRestore).at(a_).save().step(), 20);
}

TEST_F(CheckpointsTest, ANodeWhoseStorageHangsWhileItReadsIsNamed) {
  Hold(a_, {});
  Hold(b_, {});
  AskRestore(a_);
  FoundOnDisk(20, "20");
  CheckedOnDisk(a_, "20");
  job_.Pass(kCheckOnDiskMs + 1);
  const std::vector<std::string> lags = job_.Records("checkpoint-lag");
  ASSERT_EQ(lags.size(), static_cast<size_t>(kCheckOnDiskMs / kStoreLagNoticeMs));
  EXPECT_EQ(lags[0], "step 20 of /data/run is read on storage for 60 s, and the node of group rank 1 has not answered");
  EXPECT_TRUE(Orders(Order::kRestore).empty()) << "the job would begin anew";
  CheckedOnDisk(b_, "20");
  EXPECT_EQ(Orders(Order::kRestore).at(a_).save().step(), 20);
  job_.Pass(kCheckOnDiskMs);
  EXPECT_EQ(job_.Records("checkpoint-lag").size(), lags.size());
}

TEST_F(CheckpointsTest, StorageThatIsNotReadDoesNotKeepMemoryFromBeingRestored) {
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}});
  AskRestore(a_);
  FoundOnDisk(30, "30");
  CheckedOnDisk(a_, "30");
  job_.orders.clear();
  job_.Pass(kCheckOnDiskMs - 1);
  EXPECT_TRUE(Orders(Order::kRestore).empty()) << "large parts take long";
  job_.Pass(1);
  const Order order = Orders(Order::kRestore)[a_];
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::MEMORY);
  EXPECT_THAT(order.reason(), testing::HasSubstr("the node of group rank 1 has not answered"));
  CheckedOnDisk(b_, "30");  // late
  EXPECT_TRUE(job_.orders.empty());
}

TEST_F(CheckpointsTest, NothingIsRestoredWhereNothingIs) {
  AskRestore(a_);  // before the nodes have told what they hold
  Hold(a_, {});
  Hold(b_, {});
  EXPECT_EQ(Orders(Order::kFind).size(), 1U);
  FoundOnDisk(-1);
  const Order order = Orders(Order::kRestore).at(a_);
  EXPECT_EQ(order.restore().source(), v1::RestoreDecided::NOTHING);
  EXPECT_EQ(order.save().step(), -1);
}

// A stream breaks while its agent restores, and the agent comes back on another one.
TEST(RestoringTest, ANodeThatComesBackIsAskedAgainWhatStorageHolds) {
  CheckpointState state;
  BeginCheckpoints(state, {1, 2, {{1, 0, 1}, {2, 1, 1}}, {}, kNever}, 0);
  CheckpointOrders told;
  const auto tell = [&](uint64_t session, const auto& fill) {
    v1::CheckpointReport report;
    report.set_epoch(1);
    report.set_dir(kDir);
    fill(report);
    told = OnCheckpointReport(state, session, report, 0);
  };
  const auto sent = [&] {
    std::vector<std::pair<uint64_t, v1::CheckpointOrder::BodyCase>> orders;
    for (const auto& [sessions, order] : told.orders) {
      for (const uint64_t session : sessions) orders.emplace_back(session, order.body_case());
    }
    return orders;
  };
  const auto come_back = [&](uint64_t was, uint64_t session, uint32_t group_rank) {
    OnCheckpointSessionLost(state, was, 0);
    OnCheckpointSessionBack(state, group_rank, {session, group_rank, 1});
    tell(session, [](auto& report) { report.mutable_restore_asked(); });
  };
  const auto whole = [](auto& report) { report.mutable_checked()->set_name("20"); };
  for (const uint64_t session : {1, 2}) tell(session, [](auto& report) { report.mutable_held(); });
  tell(1, [](auto& report) { report.mutable_restore_asked(); });
  come_back(1, 3, 0);
  EXPECT_THAT(sent(), ElementsAre(Pair(3, Order::kFind)));
  tell(3, [](auto& report) {
    report.mutable_found()->set_step(20);
    report.mutable_found()->set_name("20");
  });
  tell(2, whole);
  come_back(2, 4, 1);
  EXPECT_THAT(sent(), ElementsAre(Pair(4, Order::kCheck))) << "the other one reads its part already";
  tell(3, whole);
  tell(4, whole);
  EXPECT_THAT(sent(), ElementsAre(Pair(3, Order::kRestore), Pair(4, Order::kRestore)));
}

TEST(RestoringTest, ANewMasterDoesNotSayTwiceWhatWasPassedOver) {
  CheckpointState state;
  BeginCheckpoints(state, {2, 2, {{1, 0, 1}, {2, 1, 1}}, {}, kNever}, 0);
  const auto hold = [&](uint64_t session, bool holds) {
    v1::CheckpointReport report;
    report.set_epoch(2);
    report.mutable_held();
    if (holds) {
      v1::HeldSave& save = *report.mutable_held()->add_saves();
      save.set_dir(kDir);
      save.mutable_save()->set_epoch(1);
      save.set_world_size(2);
      save.add_ranks(0);
    }
    OnCheckpointReport(state, session, report, 0);
  };
  hold(1, true);
  hold(2, false);
  const std::string passed_over = state.dirs.at(kDir).passed_over;
  EXPECT_FALSE(passed_over.empty());
  v1::Snapshot::Checkpoints saved;
  SaveCheckpoints(state, saved);
  state = *RestoreCheckpoints(saved, 2, 2);
  OnCheckpointSessionBack(state, 0, {3, 0, 1});
  OnCheckpointSessionBack(state, 1, {4, 1, 1});
  hold(3, true);
  hold(4, false);
  EXPECT_TRUE(state.settled);
  EXPECT_EQ(state.dirs.at(kDir).passed_over, passed_over);
}

// A rank of two nodes wants to restore, and storage does not answer.
class StorageIsAsked : public ::testing::Test {
 protected:
  StorageIsAsked() {
    v1::CheckpointReport report;
    report.set_epoch(job_.Epoch());
    report.mutable_held();
    for (const uint64_t session : {a_, b_}) job_.Say(session, report);
    report.set_dir(kDir);
    report.mutable_restore_asked();
    job_.Say(a_, report);
    EXPECT_NE(NextCheckpointDeadline(job_.state.checkpoints), kNever);
  }

  JobFixture job_{2, 2, 0};
  uint64_t a_ = job_.Attach("a");
  uint64_t b_ = job_.Attach("b");
};

// No rank waits any more for what storage holds.
TEST_F(StorageIsAsked, NothingIsDueFromItWhenTheRoundIsOver) {
  job_.Detach(b_);
  EXPECT_EQ(job_.state.phase, Phase::kGathering);
  EXPECT_EQ(NextCheckpointDeadline(job_.state.checkpoints), kNever);
}

TEST_F(StorageIsAsked, NothingIsDueFromItWhenTheJobIsOver) {
  job_.Kill(b_, 0);
  EXPECT_EQ(job_.state.phase, Phase::kFinished);
  EXPECT_EQ(NextCheckpointDeadline(job_.state.checkpoints), kNever);
}

class ManyDirectoriesTest : public CheckpointsTest {
 protected:
  static std::string Dir(size_t i) { return "/data/" + std::to_string(i); }

  void OpenIn(const std::string& dir) {
    v1::CheckpointReport report = Report();
    report.set_dir(dir);
    report.mutable_opened();
    Tell(a_, report);
  }
  void SealIn(const std::string& dir) {
    v1::CheckpointReport report = Report();
    report.set_dir(dir);
    Set(report.mutable_sealed()->mutable_save(), Epoch(), 10);
    Tell(a_, report);
  }
  void AskIn(const std::string& dir) {
    v1::CheckpointReport report = Report();
    report.set_dir(dir);
    report.mutable_restore_asked();
    Tell(a_, report);
  }
};

TEST_F(ManyDirectoriesTest, WhatIsAskedOfOneTooManyIsAnswered) {
  for (size_t i = 0; i < kMaxCheckpointDirs; ++i) OpenIn(Dir(i));
  const std::string late = Dir(kMaxCheckpointDirs);
  AskIn(late);
  const Order restore = Orders(Order::kRestore)[a_];
  EXPECT_EQ(restore.dir(), late);
  EXPECT_EQ(restore.reason(), "/data/256 is one directory too many: a job saves to at most 256");
  EXPECT_FALSE(restore.has_save()) << "the job would begin anew";
  SealIn(late);
  const Order dropped = Orders(Order::kDropped)[a_];
  EXPECT_EQ(dropped.save().step(), 10);
  EXPECT_EQ(dropped.reason(), restore.reason());
  Hold(a_, {}, {});
  v1::CheckpointReport awaits;
  awaits.set_epoch(Epoch());
  v1::AwaitedStore& awaited = *awaits.mutable_held()->add_awaited();
  awaited.set_dir(late);
  Set(awaited.mutable_save(), 1, 10);
  Tell(a_, awaits);
  EXPECT_EQ(Orders(Order::kStoreEnded)[a_].reason(), restore.reason());
  EXPECT_EQ(job_.Records("checkpoint-skipped").size(), 1U) << "once a round";
  AskIn(Dir(0));
  EXPECT_TRUE(Orders(Order::kRestore).empty()) << "the others go on";
}

TEST_F(ManyDirectoriesTest, TheNextRoundHasRoomForOthers) {
  for (size_t i = 0; i < kMaxCheckpointDirs; ++i) OpenIn(Dir(i));
  SealIn(Dir(0));
  Seal(a_, 20);  // one too many
  FailRound();
  Seal(a_, 20);
  Seal(b_, 20);
  EXPECT_EQ(Orders(Order::kCommitted).size(), 2U);
  FailRound();
  EXPECT_EQ(job_.state.checkpoints.dirs.size(), 1U) << "what is committed is not forgotten";
}

// --- storing ---

class StoringTest : public CheckpointsTest {
 protected:
  using CheckpointsTest::CheckpointsTest;

  void Prepared(int64_t step, const std::string& error = "") { PreparedBy(a_, step, error); }
  void PreparedBy(uint64_t session, int64_t step, const std::string& error) {
    v1::CheckpointReport report = Report();
    Set(report.mutable_store_prepared()->mutable_save(), 1, step);
    report.mutable_store_prepared()->set_name(std::to_string(step));
    report.mutable_store_prepared()->set_error(error);
    Tell(session, report);
  }
  void Written(uint64_t session, int64_t step, const std::string& error = "", const std::string& name = "") {
    v1::CheckpointReport report = Report();
    Set(report.mutable_shards_written()->mutable_save(), 1, step);
    report.mutable_shards_written()->set_name(name.empty() ? std::to_string(step) : name);
    report.mutable_shards_written()->set_error(error);
    report.mutable_shards_written()->add_shards()->set_file("rank_0.pt");
    Tell(session, report);
  }
  void Closed(int64_t step) { ClosedBy(a_, step); }
  void ClosedBy(uint64_t session, int64_t step) {
    v1::CheckpointReport report = Report();
    Set(report.mutable_manifest_written()->mutable_save(), 1, step);
    Tell(session, report);
  }
  void Depart(uint64_t session, int64_t step) {
    v1::CheckpointReport report = Report();
    Set(report.mutable_departing()->mutable_save(), 1, step);
    Tell(session, report);
  }
  void SealAll(int64_t step, bool store) {
    Seal(a_, step, store);
    Seal(b_, step, store);
  }
};

TEST_F(StoringTest, ACommittedSaveGoesToStorageInThreeSteps) {
  SealAll(10, true);
  EXPECT_EQ(Orders(Order::kPrepareStore).size(), 1U);
  EXPECT_TRUE(Orders(Order::kPrepareStore).contains(a_));
  Prepared(10);
  EXPECT_EQ(Orders(Order::kStoreShards).size(), 2U);
  Written(b_, 10);
  Written(b_, 10);  // said again
  EXPECT_TRUE(job_.orders.empty());
  Written(a_, 10);
  EXPECT_EQ(Orders(Order::kWriteManifest).at(a_).write_manifest().shards_size(), 2);
  Closed(10);
  const auto ended = Orders(Order::kStoreEnded);
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_TRUE(ended.at(b_).store_ended().stored());
  EXPECT_EQ(job_.Records("checkpoint-stored").size(), 1U);
}

// A spare, a node that waits, or a member that is not asked.
TEST_F(StoringTest, NobodyElseAnswersForTheFolderOrWritesAPart) {
  const uint64_t spare = job_.Attach("spare");
  SealAll(10, true);
  PreparedBy(b_, 10, "no room");
  PreparedBy(spare, 10, "");
  EXPECT_TRUE(Orders(Order::kStoreShards).empty());
  Prepared(10);
  job_.orders.clear();
  Written(spare, 10, "no room");
  Written(spare, 10);
  Written(a_, 10);
  EXPECT_TRUE(job_.orders.empty());
  Written(b_, 10);
  EXPECT_EQ(Orders(Order::kWriteManifest).at(a_).write_manifest().shards_size(), 2);
  ClosedBy(b_, 10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).empty());
  Closed(10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).at(b_).store_ended().stored());
}

TEST_F(StoringTest, WhatIsAskedForMeanwhileIsTheNewestOneAfterwards) {
  SealAll(10, true);
  Prepared(10);
  SealAll(20, true);
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
  SealAll(30, false);
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 30);
}

TEST_F(StoringTest, AnErrorOfStorageEndsTheStoreAndTheNextIsTried) {
  SealAll(10, true);
  Prepared(10, "/data/run/10: Read-only file system");
  const auto ended = Orders(Order::kStoreEnded);
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_FALSE(ended.at(a_).store_ended().stored());
  EXPECT_EQ(ended.at(a_).reason(), "/data/run/10: Read-only file system");
  SealAll(20, true);
  EXPECT_EQ(Orders(Order::kPrepareStore).size(), 1U);
}

TEST_F(StoringTest, WhatADepartingNodeHasInMemoryIsStored) {
  Open(kFullForm);
  SealAll(10, false);
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
  Depart(a_, 10);
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).empty());
  Depart(b_, 10);
  EXPECT_TRUE(job_.orders.empty()) << "it takes part, and hears of the end";
  Prepared(10);
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).at(b_).store_ended().stored());
  Depart(b_, 10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).at(b_).store_ended().stored()) << "said again";
}

TEST_F(StoringTest, WhatWillNotBeStoredIsSaidAtOnceToWhoDeparts) {
  SealAll(10, false);
  Depart(a_, 10);
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(a_).store_ended().stored()) << "no rank has opened the directory";
  Open(kFullForm);
  const uint64_t spare = job_.Attach("spare");
  Depart(spare, 10);
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(spare).store_ended().stored());
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
  v1::CheckpointReport other = Report();
  other.set_dir("/data/other");
  Set(other.mutable_departing()->mutable_save(), 1, 7);
  Tell(a_, other);
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(a_).store_ended().stored());
}

TEST_F(StoringTest, WhatFollowsAStoreUnderWayIsWaitedFor) {
  Open(kFullForm);
  SealAll(10, true);
  Prepared(10);
  SealAll(20, false);
  Depart(a_, 20);
  EXPECT_TRUE(job_.orders.empty());
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 20);
}

TEST_F(StoringTest, AJobThatEndsWellLeavesNothingInMemoryAlone) {
  Open(kFullForm);
  SealAll(10, false);
  job_.orders.clear();
  for (const uint64_t session : {a_, b_}) {
    for (int rank = 0; rank < 2; ++rank) job_.Exit(session, JobFixture::Ended(rank, 0));
  }
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 10);
  EXPECT_FALSE(job_.told[a_].outcome) << "its end waits for storage";
  job_.Pass(kStoreAtEndToldMs);
  EXPECT_EQ(job_.told[b_].notices.back(),
            "checkpoint: the job has ended; storage is waited for, to take step 10 of /data/run, for up to 598 s");
  Prepared(10);
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  EXPECT_EQ(job_.told[a_].outcome->exit_code(), 0);
}

// It would be the newest on storage, where a later step lies.
TEST_F(StoringTest, WhatStorageWasNewerThanIsNotStored) {
  Open(kFullForm);
  SealAll(10, false);
  FailRound();
  Open(kFullForm);
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}});
  AskRestore(b_);
  FoundOnDisk(30, "30");
  CheckedOnDisk(a_, "30");
  CheckedOnDisk(b_, "30");
  Depart(a_, 10);
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(a_).store_ended().stored());
}

// Its own part is written, but nobody else would write the manifest: the job's end waits for the store.
TEST_F(StoringTest, TheNodeThatWritesTheManifestEndsTheStoreWhenItIsLost) {
  SealAll(10, true);
  Prepared(10);
  Written(a_, 10);
  job_.orders.clear();
  job_.Detach(a_);
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(b_).store_ended().stored());
  EXPECT_FALSE(Orders(Order::kStoreEnded).contains(a_)) << "it hears nothing any more";
}

TEST_F(StoringTest, TheManifestsWriterIsLostWhileItWrites) {
  SealAll(10, true);
  Prepared(10);
  Written(a_, 10);
  Written(b_, 10);
  job_.orders.clear();
  job_.Detach(a_);
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(b_).store_ended().stored());
}

// A newer step waits for storage when the store under way ends with its node: it must not begin with that one.
TEST_F(StoringTest, NoStoreBeginsWithTheNodeThatWasLost) {
  SealAll(10, true);
  Prepared(10);
  SealAll(20, true);
  job_.orders.clear();
  job_.Detach(b_);
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(a_).store_ended().stored());
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
}

TEST_F(StoringTest, ANodeThatIsLostBeforeItsPartIsWrittenEndsTheStore) {
  SealAll(10, true);
  Prepared(10);
  Written(a_, 10);
  job_.orders.clear();
  job_.Detach(b_);
  EXPECT_FALSE(Orders(Order::kStoreEnded).at(a_).store_ended().stored());
}

// What keep_every asks for is stored itself, whatever is committed meanwhile.
class MilestoneTest : public StoringTest {
 protected:
  void SealMilestone(int64_t step) {
    for (const uint64_t session : {a_, b_}) {
      v1::CheckpointReport report = Report();
      Set(report.mutable_sealed()->mutable_save(), Epoch(), step);
      report.mutable_sealed()->set_store(true);
      report.mutable_sealed()->set_milestone(true);
      Tell(session, report);
    }
  }

  void Store(int64_t step) {
    Prepared(step);
    Written(a_, step);
    Written(b_, step);
    Closed(step);
  }

  // A node that has come back tells that it holds them still.
  void HoldMilestone(uint64_t session, int64_t step, uint64_t epoch = 1) {
    v1::CheckpointReport report = Report();
    v1::AwaitedStore& store = *report.mutable_held()->add_awaited();
    store.set_dir(kDir);
    Set(store.mutable_save(), epoch, step);
    store.set_milestone(true);
    Tell(session, report);
  }

  // The step whose folder is asked for last.
  int64_t Prepares() {
    const auto orders = Orders(Order::kPrepareStore);
    return orders.empty() ? -1 : orders.begin()->second.save().step();
  }
};

TEST_F(MilestoneTest, IsStoredBeforeTheNewest) {
  SealAll(5, true);
  EXPECT_EQ(Prepares(), 5);
  EXPECT_TRUE(Orders(Order::kCommitted).at(b_).committed().hold()) << "it is on its way";
  SealMilestone(10);
  EXPECT_EQ(Prepares(), -1);
  EXPECT_TRUE(Orders(Order::kCommitted).at(a_).committed().hold());
  SealAll(15, true);
  EXPECT_FALSE(Orders(Order::kCommitted).at(a_).committed().hold());
  SealMilestone(20);
  SealAll(25, true);
  const std::vector<std::pair<int64_t, int64_t>> then = {{5, 10}, {10, 20}, {20, 25}, {25, -1}};
  for (const auto& [step, next] : then) {
    Store(step);
    EXPECT_TRUE(Orders(Order::kStoreEnded).at(b_).store_ended().stored()) << step;
    EXPECT_EQ(Prepares(), next);
  }
}

TEST_F(MilestoneTest, BeginsAgainWhenANodeIsBackThatHasItsImages) {
  SealMilestone(10);
  Prepared(10);
  SealAll(15, false);
  CheckpointState state = job_.state.checkpoints;
  const CheckpointOrders lost = OnCheckpointSessionLost(state, b_, 0);
  EXPECT_TRUE(lost.orders.empty()) << "nobody lets go of it";
  EXPECT_FALSE(IsStoring(state));
  constexpr uint64_t kBack = 99;
  OnCheckpointSessionBack(state, 1, {kBack, 2, 2});
  v1::CheckpointReport report;
  report.set_epoch(1);
  v1::AwaitedStore& store = *report.mutable_held()->add_awaited();
  store.set_dir(kDir);
  Set(store.mutable_save(), 1, 10);
  store.set_milestone(true);
  OnCheckpointReport(state, a_, report, 0);
  EXPECT_FALSE(IsStoring(state));
  OnCheckpointReport(state, kBack, report, 0);
  const CheckpointDir& dir = state.dirs.at(kDir);
  ASSERT_TRUE(dir.store);
  EXPECT_EQ(dir.store->save.step, 10);
}

TEST_F(MilestoneTest, NeverComesBehindAnythingNewer) {
  CheckpointDir& dir = job_.state.checkpoints.dirs[kDir];
  dir.stored = SaveKey{1, 15};
  HoldMilestone(a_, 10);
  HoldMilestone(b_, 10);
  EXPECT_EQ(Prepares(), -1);
  EXPECT_TRUE(dir.milestones.empty());
}

TEST_F(MilestoneTest, OfARoundThatTheMasterHasNotSeenIsNone) {
  FailRound();
  HoldMilestone(a_, 10);
  HoldMilestone(b_, 10);
  EXPECT_TRUE(job_.state.checkpoints.dirs[kDir].milestones.empty());
}

TEST_F(MilestoneTest, OutlivesARoundOfTheSameNodes) {
  SealAll(5, true);
  SealMilestone(10);
  FailRound();
  Store(5);
  EXPECT_EQ(Prepares(), -1) << "who holds it has to say so";
  HoldMilestone(a_, 10);
  EXPECT_EQ(Prepares(), -1);
  HoldMilestone(b_, 10);
  EXPECT_EQ(Prepares(), 10);
}

// A job that needs both nodes, which loses one while storage takes its save; the next agent takes up the memory.
class LostWriterTest : public StoringTest {
 protected:
  LostWriterTest() : StoringTest(2) {
    SealAll(10, true);
    Prepared(10);
  }

  void BothHold() {
    const std::vector<uint64_t> ranks = job_.Ranks();
    Hold(ranks.at(0), {{1, 10, {0, 1}}});
    Hold(ranks.at(1), {{1, 10, {2, 3}}});
  }
};

TEST_F(LostWriterTest, TheStoreBeginsAgainWhenTheManifestsWriterIsBack) {
  job_.Detach(a_);
  job_.Attach("a");
  EXPECT_TRUE(job_.journal_state.checkpoints.dirs.at(kDir).wanted) << "a new master must know";
  BothHold();
  EXPECT_EQ(Orders(Order::kPrepareStore).at(job_.Ranks().at(0)).save().step(), 10);
}

TEST_F(LostWriterTest, TheStoreBeginsAgainWhenAnotherNodeIsBack) {
  Written(a_, 10);
  job_.Detach(b_);
  job_.Attach("b");
  BothHold();
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 10);
}

TEST_F(LostWriterTest, NothingIsOwedWhereTheMemoryIsLostToo) {
  job_.Detach(b_);
  job_.Attach("b");
  Hold(job_.Ranks().at(0), {{1, 10, {0, 1}}});
  Hold(job_.Ranks().at(1), {});
  EXPECT_TRUE(job_.orders.empty()) << "all have been told that it is not stored";
  EXPECT_FALSE(job_.state.checkpoints.dirs.at(kDir).wanted);
}

// The node that was here all the time may still write into the first folder.
TEST_F(LostWriterTest, WhatIsWrittenForTheFirstStoreDoesNotCountForTheNext) {
  job_.Detach(b_);
  const uint64_t back = job_.Attach("b");
  BothHold();
  v1::CheckpointReport prepared = Report();
  Set(prepared.mutable_store_prepared()->mutable_save(), 1, 10);
  prepared.mutable_store_prepared()->set_name("10.2");
  Tell(a_, prepared);
  Written(a_, 10);
  Written(back, 10, "", "10.2");
  EXPECT_TRUE(Orders(Order::kWriteManifest).empty()) << "10.2 has no part of a";
  Written(a_, 10, "", "10.2");
  EXPECT_EQ(Orders(Order::kWriteManifest).at(a_).write_manifest().name(), "10.2");
  Closed(10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).at(back).store_ended().stored());
}

TEST_F(StoringTest, AStoreGoesOnWhenTheRoundEnds) {
  SealAll(10, true);
  Prepared(10);
  FailRound();
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).at(b_).store_ended().stored());
}

TEST_F(StoringTest, ABreakpointStoresWhatIsOnlyInMemory) {
  Open(kFullForm, true);
  SealAll(10, false);
  FailRound();
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 10);
}

TEST_F(StoringTest, WithoutThatOptionABreakpointStoresNothing) {
  Open(kFullForm, false);
  SealAll(10, false);
  FailRound();
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
}

TEST_F(StoringTest, ANodeThatLeavesStoresFirst) {
  Open(kFullForm, true);
  SealAll(10, false);
  job_.orders.clear();
  job_.Leave(b_);
  EXPECT_EQ(Orders(Order::kPrepareStore).size(), 1U);
}

// The master that was to store step 10 is gone: this one hears of it from the nodes alone, one by one.
TEST_F(StoringTest, ANewMasterStoresWhatTheNodesAwait) {
  Hold(a_, {{1, 10, {0, 1}}}, 10);
  EXPECT_TRUE(job_.orders.empty());
  Hold(b_, {{1, 10, {2, 3}}}, 10);
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 10);
}

TEST_F(StoringTest, ANewMasterStoresTheNewestSaveInPlaceOfWhatTheNodesAwait) {
  Hold(a_, {{1, 12, {0, 1}}}, 10);
  Hold(b_, {{1, 12, {2, 3}}});
  EXPECT_EQ(Orders(Order::kPrepareStore).at(a_).save().step(), 12);
}

TEST_F(StoringTest, AwaitedStoresEndWhenMemoryHasNothingAnyMore) {
  Hold(a_, {{1, 10, {0, 1}}}, 10);
  Hold(b_, {});
  const auto ended = Orders(Order::kStoreEnded);
  ASSERT_EQ(ended.size(), 2U);
  EXPECT_FALSE(ended.at(a_).store_ended().stored());
  EXPECT_EQ(ended.at(a_).save().step(), 10);
  EXPECT_EQ(job_.Records("checkpoint-failed").size(), 1U);
}

// Else a node that awaits many could be sent more in one step than its stream bears with.
TEST_F(StoringTest, OneAnswerADirectoryEndsAllThatIsAwaitedThere) {
  SealAll(10, true);
  Prepared(10);
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  FailRound();
  v1::CheckpointReport report;
  report.set_epoch(Epoch());
  for (int64_t step = 1; step <= 10; ++step) {
    v1::AwaitedStore& awaited = *report.mutable_held()->add_awaited();
    awaited.set_dir(kDir);
    Set(awaited.mutable_save(), 1, step);
  }
  Tell(b_, report);
  ASSERT_EQ(job_.orders.size(), 1U);
  EXPECT_TRUE(job_.orders[0].order.store_ended().stored());
  EXPECT_EQ(job_.orders[0].order.save().step(), 10);
}

// The order that said so was lost with the node's stream.
TEST_F(StoringTest, AnAwaitedStoreThatHasEndedIsToldAgain) {
  SealAll(10, true);
  Prepared(10);
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  FailRound();
  Hold(a_, {{1, 10, {0, 1}}});
  Hold(b_, {{1, 10, {2, 3}}}, 10);
  EXPECT_TRUE(Orders(Order::kStoreEnded).at(b_).store_ended().stored());
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
}

// Nothing is told again by a node that was here all the time: the one that comes back completes the job.
TEST_F(StoringTest, WhatIsWantedIsStoredWhenTheLastNodeIsBack) {
  CheckpointState state;
  BeginCheckpoints(state, {2, 2, {{1, 0, 1}, {2, 1, 1}}, {}, kNever}, 0);
  const auto hold = [&](uint64_t session, uint32_t rank) {
    v1::CheckpointReport report;
    report.set_epoch(2);
    v1::HeldSave& held = *report.mutable_held()->add_saves();
    held.set_dir(kDir);
    Set(held.mutable_save(), 1, 10);
    SetForm(*held.mutable_form(), kFullForm);
    held.set_world_size(2);
    held.set_committed(true);
    held.add_ranks(rank);
    v1::AwaitedStore& awaited = *report.mutable_held()->add_awaited();
    awaited.set_dir(kDir);
    Set(awaited.mutable_save(), 1, 10);
    return OnCheckpointReport(state, session, report, 0);
  };
  hold(1, 0);
  EXPECT_EQ(hold(2, 1).orders.back().order.body_case(), Order::kPrepareStore);
  OnCheckpointSessionLost(state, 1, 0);  // it was to make the folder
  EXPECT_FALSE(IsStoring(state));
  OnCheckpointSessionBack(state, 0, {3, 0, 1});
  const CheckpointOrders told = hold(3, 0);
  ASSERT_EQ(told.orders.size(), 2U);
  EXPECT_EQ(told.orders[0].order.body_case(), Order::kCommitted) << "all hold it until it is stored";
  EXPECT_EQ(told.orders[1].sessions, std::vector<uint64_t>{3});
  EXPECT_EQ(told.orders[1].order.body_case(), Order::kPrepareStore);
}

TEST_F(StoringTest, SlowStorageIsTold) {
  SealAll(10, true);
  job_.Pass(2 * kStoreLagNoticeMs + 1);
  EXPECT_EQ(job_.Records("checkpoint-lag").size(), 2U);
}

TEST_F(StoringTest, AStoredSaveIsNotStoredAgain) {
  SealAll(10, true);
  Prepared(10);
  Written(a_, 10);
  Written(b_, 10);
  Closed(10);
  Seal(a_, 10, true);
  EXPECT_TRUE(Orders(Order::kPrepareStore).empty());
  EXPECT_TRUE(Orders(Order::kStoreEnded).at(a_).store_ended().stored());
}

}  // namespace
}  // namespace phalanx::master
