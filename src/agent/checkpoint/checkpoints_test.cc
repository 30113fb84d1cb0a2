#include "agent/checkpoint/checkpoints.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace phalanx::agent {
namespace {

constexpr char kDir[] = "/data/run";
using ::testing::HasSubstr;

// A node of two ranks, told what ranks and the master say.
class NodeCheckpointsTest : public ::testing::Test {
 protected:
  NodeCheckpointsTest() { BeginRound(1); }

  void BeginRound(uint64_t epoch, uint32_t group_rank = 0) {
    v1::StartRound round;
    round.set_epoch(epoch);
    round.set_group_rank(group_rank);
    epoch_ = epoch;
    node_.OnRound(round);
  }

  void Open(v1::CheckpointKind kind = v1::FULL, bool at_breakpoint = false) {
    CheckpointOptions options;
    options.kind = kind;
    options.at_breakpoint = at_breakpoint;
    for (const int local_rank : {0, 1}) EXPECT_EQ(node_.OnOpen(local_rank, kDir, options), "");
    node_.Take();
  }

  void SealAll(int64_t step, bool store = false) {
    for (const int local_rank : {0, 1}) node_.OnSealed(local_rank, kDir, false, step, store);
  }

  v1::CheckpointOrder Order(int64_t step, uint64_t epoch = 1) const {
    v1::CheckpointOrder order;
    order.set_dir(kDir);
    order.mutable_save()->set_epoch(epoch);
    order.mutable_save()->set_step(step);
    order.set_reason("because");
    return order;
  }

  void Commit(int64_t step) {
    v1::CheckpointOrder order = Order(step);
    order.mutable_committed();
    node_.OnOrder(order);
  }

  void EndStore(int64_t step, bool stored) {
    v1::CheckpointOrder order = Order(step);
    order.mutable_store_ended()->set_stored(stored);
    node_.OnOrder(order);
  }

  template <typename T>
  std::vector<T> TakeAll() {
    std::vector<T> all;
    for (const CheckpointAction& action : node_.Take()) {
      if (const T* each = std::get_if<T>(&action)) all.push_back(*each);
    }
    return all;
  }

  // Reports of one kind since the last look.
  std::vector<v1::CheckpointReport> Reports(v1::CheckpointReport::BodyCase kind) {
    std::vector<v1::CheckpointReport> reports;
    for (const TellMaster& told : TakeAll<TellMaster>()) {
      if (told.report.body_case() == kind) reports.push_back(told.report);
    }
    return reports;
  }

  NodeCheckpoints node_{2};
  uint64_t epoch_ = 0;
};

using Report = v1::CheckpointReport;

TEST_F(NodeCheckpointsTest, TheMasterHearsOfASaveWhenAllImagesAreSealed) {
  Open();
  node_.OnSealed(0, kDir, false, 10, false);
  EXPECT_TRUE(Reports(Report::kSealed).empty());
  node_.OnSealed(1, kDir, false, 10, false);
  const auto sealed = Reports(Report::kSealed);
  ASSERT_EQ(sealed.size(), 1U);
  EXPECT_EQ(sealed[0].sealed().save().step(), 10);
  EXPECT_EQ(sealed[0].epoch(), 1U);
}

TEST_F(NodeCheckpointsTest, WithDdpTheSharedImageCountsToo) {
  Open(v1::DDP);
  SealAll(10);
  EXPECT_TRUE(Reports(Report::kSealed).empty());
  node_.OnSealed(0, kDir, true, 10, false);
  EXPECT_EQ(Reports(Report::kSealed).size(), 1U);
}

TEST_F(NodeCheckpointsTest, OfAShardedSaveTheSharedImageCountsToo) {
  Open(v1::DCP);
  EXPECT_EQ(node_.KindOf(kDir), v1::DCP);
  EXPECT_EQ(node_.KindOf("/other"), v1::FULL);
  SealAll(10);
  EXPECT_TRUE(Reports(Report::kSealed).empty());
  node_.OnSealed(0, kDir, true, 10, false);
  EXPECT_EQ(Reports(Report::kSealed).size(), 1U);
}

TEST_F(NodeCheckpointsTest, RanksThatDoNotAgreeAreRefused) {
  CheckpointOptions ddp;
  ddp.kind = v1::DDP;
  EXPECT_EQ(node_.OnOpen(0, kDir, {}), "");
  EXPECT_THAT(node_.OnOpen(1, kDir, ddp), HasSubstr("do not agree"));
}

TEST_F(NodeCheckpointsTest, ACommittedSaveIsMarkedAndAnswered) {
  Open();
  node_.OnWait(0, 7, kDir, 10, false);
  SealAll(10);
  EXPECT_TRUE(TakeAll<AnswerWait>().empty());
  Commit(10);
  const auto actions = node_.Take();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(std::get<MarkCommitted>(actions[0]).save.step, 10);
  EXPECT_EQ(std::get<AnswerWait>(actions[1]).state, "committed");
  node_.OnWait(1, 8, kDir, 10, false);  // late
  EXPECT_EQ(TakeAll<AnswerWait>().at(0).state, "committed");
}

TEST_F(NodeCheckpointsTest, ASkippedSaveIsToldOnceAndAnsweredWithTheReason) {
  Open();
  node_.OnSkipped(0, kDir, 10, "no slot is free");
  node_.OnSkipped(1, kDir, 10, "no slot is free");
  EXPECT_EQ(Reports(Report::kSkipped).size(), 1U);
  node_.OnWait(0, 7, kDir, 10, false);
  v1::CheckpointOrder order = Order(10);
  order.mutable_dropped();
  node_.OnOrder(order);
  const auto actions = node_.Take();
  EXPECT_EQ(std::get<MarkDropped>(actions.at(0)).save.step, 10);
  EXPECT_EQ(std::get<AnswerWait>(actions.at(1)).why, "because");
}

TEST_F(NodeCheckpointsTest, WhoWaitsForStorageOfAMemorySaveIsToldSo) {
  Open();
  node_.OnWait(0, 7, kDir, 10, true);
  SealAll(10);
  Commit(10);
  EXPECT_THAT(TakeAll<AnswerWait>().at(0).why, HasSubstr("memory only"));
}

TEST_F(NodeCheckpointsTest, AStoreIsAnsweredWhenItHasEnded) {
  Open();
  SealAll(10, true);
  node_.OnWait(0, 7, kDir, 10, true);
  Commit(10);
  EXPECT_TRUE(node_.Storing());
  EXPECT_TRUE(TakeAll<AnswerWait>().empty());
  EndStore(10, true);
  EXPECT_EQ(TakeAll<AnswerWait>().at(0).state, "stored");
  EXPECT_FALSE(node_.Storing());
}

TEST_F(NodeCheckpointsTest, AnOlderStoreEndsWithTheNewerOneThatTookItsPlace) {
  Open();
  SealAll(10, true);
  Commit(10);
  SealAll(20, true);
  Commit(20);
  node_.OnWait(0, 7, kDir, 10, true);
  EndStore(20, true);
  const auto answers = TakeAll<AnswerWait>();
  EXPECT_EQ(answers.at(0).state, "stored");
  EXPECT_THAT(answers.at(0).why, HasSubstr("newer step 20"));
}

TEST_F(NodeCheckpointsTest, AStoreThatFailedIsAnsweredWithTheReason) {
  Open();
  SealAll(10, true);
  Commit(10);
  node_.OnWait(0, 7, kDir, 10, true);
  EndStore(10, false);
  EXPECT_EQ(TakeAll<AnswerWait>().at(0).state, "failed");
  EXPECT_FALSE(node_.Storing());
}

TEST_F(NodeCheckpointsTest, AnEndedRankIsAnsweredNoMore) {
  Open();
  node_.OnWait(0, 7, kDir, 10, false);
  node_.OnRestore(0, 8, kDir);
  node_.OnRankGone(0);
  Commit(10);
  EXPECT_TRUE(TakeAll<AnswerWait>().empty());
}

TEST_F(NodeCheckpointsTest, AllRanksAreRestoredByOneDecision) {
  node_.OnRestore(0, 7, kDir);
  node_.OnRestore(1, 8, kDir);
  EXPECT_EQ(Reports(Report::kRestoreAsked).size(), 1U);
  v1::CheckpointOrder order = Order(20);
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  node_.OnOrder(order);
  EXPECT_EQ(TakeAll<AnswerRestore>().size(), 2U);
  node_.OnRestore(1, 9, kDir);  // again: as it was decided
  EXPECT_EQ(TakeAll<AnswerRestore>().size(), 1U);
}

// The master would take what was read for the ranks of one round as what those of the next one can read.
TEST_F(NodeCheckpointsTest, AnAnswerBelongsToTheRoundThatHasAsked) {
  v1::CheckpointOrder find = Order(0);
  find.mutable_find();
  node_.OnOrder(find);
  EXPECT_EQ(TakeAll<FindSteps>().at(0).epoch, 1U);
  v1::CheckpointOrder check = Order(20);
  check.mutable_check()->set_name("20");
  node_.OnOrder(check);
  EXPECT_EQ(TakeAll<CheckStep>().at(0).epoch, 1U);
  FoundSteps found;
  found.found.set_step(20);
  BeginRound(2);
  node_.OnFound(1, kDir, found);
  node_.OnChecked(1, kDir, "20", "");
  EXPECT_TRUE(TakeAll<TellMaster>().empty());
  node_.OnOrder(find);
  EXPECT_EQ(TakeAll<FindSteps>().at(0).epoch, 2U);
  node_.OnFound(2, kDir, found);
  EXPECT_EQ(Reports(Report::kFound).at(0).epoch(), 2U);
  node_.OnChecked(2, kDir, "20", "gone");
  EXPECT_EQ(Reports(Report::kChecked).at(0).checked().error(), "gone");
}

// A job must not begin anew because nobody could read what it has saved.
TEST_F(NodeCheckpointsTest, ADirectoryThatCannotBeReadIsNoEmptyOne) {
  const std::string why = "/data/run: opendir: Input/output error";
  FoundSteps none;
  none.found.set_step(-1);
  none.found.set_why(why);
  none.unreadable = why;
  v1::CheckpointOrder order = Order(-1);
  order.mutable_restore()->set_source(v1::RestoreDecided::NOTHING);
  const auto restore = [&] {  // one rank asks before it is decided, and one behind that
    node_.OnRestore(0, 7, kDir);
    node_.OnOrder(order);
    node_.OnRestore(1, 8, kDir);
    return TakeAll<AnswerRestore>();
  };
  node_.OnFound(1, kDir, none);
  const std::vector<CheckpointAction> actions = node_.Take();
  ASSERT_EQ(actions.size(), 3U);  // the scan of the round first
  EXPECT_EQ(std::get<SayCheckpoint>(actions[1]).text, "checkpoint: /data/run cannot be read: " + why);
  EXPECT_EQ(std::get<TellMaster>(actions[2]).report.found().why(), why);
  const std::vector<AnswerRestore> refused = restore();
  ASSERT_EQ(refused.size(), 2U);
  for (const AnswerRestore& answer : refused) EXPECT_THAT(answer.refused, HasSubstr(why));

  BeginRound(2);  // it can be read again
  none.unreadable.clear();
  node_.OnFound(2, kDir, none);
  for (const AnswerRestore& answer : restore()) EXPECT_EQ(answer.refused, "");

  BeginRound(3);  // memory holds a step
  none.unreadable = why;
  node_.OnFound(3, kDir, none);
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  for (const AnswerRestore& answer : restore()) EXPECT_EQ(answer.refused, "");
}

TEST_F(NodeCheckpointsTest, WhatIsHeldIsToldByItsSave) {
  node_.Take();
  BeginRound(2);
  ASSERT_EQ(TakeAll<ScanMemory>().size(), 1U);
  HeldPage page;
  page.dir = kDir;
  page.kind = v1::DDP;
  page.save = {1, 10};
  page.world_size = 4;
  page.rank = 2;
  HeldPage main = page;
  main.page = kMainPage;
  main.committed = true;
  HeldPage older = page;
  older.save = {1, 5};
  node_.OnScanned(1, {page});  // of an older round
  EXPECT_TRUE(Reports(Report::kHeld).empty());
  node_.OnScanned(2, {older, page, main});
  const auto held = Reports(Report::kHeld);
  ASSERT_EQ(held.size(), 1U);
  ASSERT_EQ(held[0].held().saves_size(), 2);
  const v1::HeldSave& newest = held[0].held().saves(1);
  EXPECT_TRUE(newest.main());
  EXPECT_TRUE(newest.committed());
  EXPECT_EQ(newest.ranks_size(), 1);
}

// A new master would take up a save whose slots have been given to later ones since.
TEST_F(NodeCheckpointsTest, WhatASaveOfTheRoundWasCommittedOverIsNotTold) {
  BeginRound(2);
  HeldPage page;
  page.dir = kDir;
  page.save = {1, 10};
  page.world_size = 2;
  node_.OnScanned(2, {page});
  Open();
  SealAll(11);
  node_.OnAttached();
  EXPECT_EQ(Reports(Report::kHeld).at(0).held().saves_size(), 1) << "it may still be restored";
  v1::CheckpointOrder committed = Order(11, 2);
  committed.mutable_committed();
  node_.OnOrder(committed);
  node_.OnAttached();
  EXPECT_EQ(Reports(Report::kHeld).at(0).held().saves_size(), 0);
}

TEST_F(NodeCheckpointsTest, ANewMasterIsToldAgain) {
  node_.OnScanned(1, {});
  Open();
  SealAll(10, true);
  node_.OnRestore(0, 7, kDir);
  node_.Take();
  node_.OnAttached();
  std::vector<Report::BodyCase> told;
  for (const TellMaster& each : TakeAll<TellMaster>()) told.push_back(each.report.body_case());
  EXPECT_THAT(told, ::testing::ElementsAre(Report::kHeld, Report::kOpened, Report::kSealed, Report::kRestoreAsked));
}

TEST_F(NodeCheckpointsTest, ANewRoundForgetsWhatWasNotCommitted) {
  Open();
  SealAll(10, true);
  EXPECT_TRUE(node_.Storing());
  BeginRound(2);
  EXPECT_FALSE(node_.Storing());
}

std::vector<int64_t> AwaitedSteps(const std::vector<v1::CheckpointReport>& held) {
  std::vector<int64_t> steps;
  for (const v1::CheckpointReport& report : held) {
    for (const v1::AwaitedStore& awaited : report.held().awaited()) steps.push_back(awaited.save().step());
  }
  return steps;
}

// The master that was to store it may have died with the round: the next one would not know of it.
TEST_F(NodeCheckpointsTest, WhatItAwaitsOfAnOlderRoundIsToldWithWhatIsHeld) {
  Open();
  SealAll(10, true);
  Commit(10);
  BeginRound(2);
  EXPECT_TRUE(node_.Storing());
  node_.Take();
  node_.OnScanned(2, {});
  EXPECT_THAT(AwaitedSteps(Reports(Report::kHeld)), ::testing::ElementsAre(10));
  node_.OnAttached();
  EXPECT_THAT(AwaitedSteps(Reports(Report::kHeld)), ::testing::ElementsAre(10));
  EXPECT_TRUE(node_.Storing());
  EndStore(10, true);
  node_.OnAttached();
  EXPECT_THAT(AwaitedSteps(Reports(Report::kHeld)), ::testing::IsEmpty());
}

// What was held when the round began may have been written over since.
TEST_F(NodeCheckpointsTest, WhatItAwaitsOfAnOlderRoundGoesWithTheNewestSave) {
  Open();
  SealAll(10, true);
  Commit(10);
  BeginRound(2);
  node_.OnScanned(2, {});
  Open();
  SealAll(11);
  SealAll(12);
  node_.Take();
  node_.OnAttached();
  std::vector<std::pair<int64_t, bool>> sealed;
  for (const TellMaster& told : TakeAll<TellMaster>()) {
    EXPECT_EQ(told.report.held().awaited_size(), 0);
    if (told.report.has_sealed()) {
      sealed.emplace_back(told.report.sealed().save().step(), told.report.sealed().store());
    }
  }
  EXPECT_THAT(sealed, ::testing::ElementsAre(::testing::Pair(11, false), ::testing::Pair(12, true)));
}

TEST_F(NodeCheckpointsTest, NoStoreIsAwaitedFromAJobThatHasEnded) {
  Open();
  SealAll(10, true);
  Commit(10);
  node_.OnWait(0, 7, kDir, 10, true);
  node_.Take();
  node_.OnJobEnded();
  EXPECT_FALSE(node_.Storing());
  const std::vector<CheckpointAction> actions = node_.Take();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_THAT(std::get<SayCheckpoint>(actions[0]).text, HasSubstr("step 10 of /data/run is not stored"));
  EXPECT_EQ(std::get<AnswerWait>(actions[1]).state, "failed");
}

TEST_F(NodeCheckpointsTest, ANodeThatLeavesWaitsForWhatIsOnlyInMemory) {
  Open(v1::FULL, true);
  SealAll(10);
  Commit(10);
  EXPECT_FALSE(node_.Storing());
  EXPECT_THAT(node_.UnstoredText(), HasSubstr("step 10"));
  node_.OnLeaving();
  EXPECT_TRUE(node_.Storing());
  EndStore(10, true);
  EXPECT_FALSE(node_.Storing());
  EXPECT_EQ(node_.UnstoredText(), "");
}

// Its ranks may seal until they have ended; nobody would ever tell what became of that.
TEST_F(NodeCheckpointsTest, WhatIsSealedBehindTheJobsEndIsNotAwaited) {
  Open();
  node_.OnJobEnded();
  SealAll(10, true);
  EXPECT_FALSE(node_.Storing());
}

// The store goes on into the next round, in which another node may have group rank 0.
TEST_F(NodeCheckpointsTest, TheSharedImageIsWrittenByTheNodeThatMadeTheFolder) {
  Open(v1::DDP);
  v1::CheckpointOrder prepare = Order(10);
  prepare.mutable_prepare_store();
  v1::CheckpointOrder write = Order(10);
  write.mutable_store_shards()->set_name("10");
  node_.OnOrder(prepare);
  BeginRound(2, 1);
  node_.Take();
  node_.OnOrder(write);
  EXPECT_TRUE(TakeAll<WriteImages>().at(0).main);
  BeginRound(3, 0);
  node_.Take();
  write.mutable_save()->set_step(11);
  node_.OnOrder(write);
  EXPECT_FALSE(TakeAll<WriteImages>().at(0).main) << "another node was asked for this one's folder";
}

}  // namespace
}  // namespace phalanx::agent
