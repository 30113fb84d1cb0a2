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
    epoch_ = epoch;
    node_.OnRound(epoch, group_rank);
  }

  void Open(const SaveForm& form = kFullForm, bool at_breakpoint = false) {
    CheckpointOptions options;
    options.form = form;
    options.at_breakpoint = at_breakpoint;
    for (const int local_rank : {0, 1}) EXPECT_EQ(node_.OnOpen(local_rank, kDir, options), "");
    node_.Take();
  }

  void SealAll(int64_t step, bool store = false) {
    for (const int local_rank : {0, 1}) node_.OnSealed(local_rank, kDir, false, {0, step}, store);
  }

  v1::CheckpointOrder Order(int64_t step, uint64_t epoch = 1) const {
    v1::CheckpointOrder order;
    order.set_dir(kDir);
    order.mutable_save()->set_epoch(epoch);
    order.mutable_save()->set_step(step);
    order.set_reason("because");
    return order;
  }

  // To restore that step, of which another node lends what all ranks share.
  v1::CheckpointOrder OrderOfLent(int64_t step) const {
    v1::CheckpointOrder order = Order(step);
    order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
    order.mutable_restore()->add_elsewhere()->set_rank(kMainPage);
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

  // Its memory holds images of these saves.
  // Of a job of this node's two ranks, or of more.
  static std::vector<HeldPage> Memory(const std::vector<SaveKey>& saves, bool committed, uint32_t world_size = 2) {
    std::vector<HeldPage> pages;
    for (const SaveKey& save : saves) {
      HeldPage& page = pages.emplace_back();
      page.dir = kDir;
      page.save = save;
      page.committed = committed;
      page.world_size = world_size;
    }
    return pages;
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

TEST_F(NodeCheckpointsTest, OfEachValueTheMasterHearsOneAndOneThatDiffers) {
  Open();
  node_.OnSealed(0, kDir, false, {0, 10}, false, {{"best", 1}, {"step", 10}});
  node_.OnSealed(1, kDir, false, {0, 10}, false, {{"best", 2}, {"step", 10}});
  const v1::CheckpointSealed sealed = Reports(Report::kSealed).at(0).sealed();
  ASSERT_EQ(sealed.values_size(), 3);
  EXPECT_EQ(sealed.values(0).name(), "best");
  EXPECT_EQ(sealed.values(0).local_rank(), 0U);
  EXPECT_EQ(sealed.values(1).name(), "best");
  EXPECT_EQ(sealed.values(1).crc32(), 2U);
  EXPECT_EQ(sealed.values(1).local_rank(), 1U);
  EXPECT_EQ(sealed.values(2).name(), "step");
}

TEST_F(NodeCheckpointsTest, TheMasterHearsOfASaveWhenAllImagesAreSealed) {
  Open();
  node_.OnSealed(0, kDir, false, {0, 10}, false);
  EXPECT_TRUE(Reports(Report::kSealed).empty());
  node_.OnSealed(1, kDir, false, {0, 10}, false);
  const auto sealed = Reports(Report::kSealed);
  ASSERT_EQ(sealed.size(), 1U);
  EXPECT_EQ(sealed[0].sealed().save().step(), 10);
  EXPECT_EQ(sealed[0].epoch(), 1U);
}

// A rank has skipped the save at once, and another takes its time: its slot would be held for ever.
TEST_F(NodeCheckpointsTest, WhatIsSealedBehindItsDropIsDroppedToo) {
  Open();
  node_.OnSkipped(1, kDir, {0, 10}, "no slot is free");
  v1::CheckpointOrder order = Order(10);
  order.mutable_dropped();
  node_.OnOrder(order);
  node_.Take();
  node_.OnSealed(0, kDir, false, {0, 10}, false);
  EXPECT_EQ(TakeAll<MarkDropped>().size(), 1U);
}

TEST_F(NodeCheckpointsTest, WhoOnlyLooksChangesNoRetention) {
  CheckpointOptions options;
  options.form = kFullForm;
  options.keep_last = 3;
  options.keep_every = 1'000;
  options.trackers = {"latest"};
  ASSERT_EQ(node_.OnOpen(0, kDir, options), "");
  CheckpointOptions looker;
  looker.form = kFullForm;
  ASSERT_EQ(node_.OnOpen(0, kDir, looker), "");
  EXPECT_EQ(node_.OptionsOf(kDir).keep_last, 3);
  EXPECT_EQ(node_.OptionsOf(kDir).keep_every, 1'000);
  EXPECT_EQ(node_.OptionsOf(kDir).trackers, options.trackers);
}

TEST_F(NodeCheckpointsTest, WithDdpTheSharedImageCountsToo) {
  Open(kDdpForm);
  SealAll(10);
  EXPECT_TRUE(Reports(Report::kSealed).empty());
  node_.OnSealed(0, kDir, true, {0, 10}, false);
  EXPECT_EQ(Reports(Report::kSealed).size(), 1U);
}

TEST_F(NodeCheckpointsTest, OfAShardedSaveTheSharedImageCountsToo) {
  Open(kDcpForm);
  EXPECT_EQ(node_.FormOfDirectory(kDir), kDcpForm);
  EXPECT_EQ(node_.FormOfDirectory("/other"), kFullForm);
  SealAll(10);
  EXPECT_TRUE(Reports(Report::kSealed).empty());
  node_.OnSealed(0, kDir, true, {0, 10}, false);
  EXPECT_EQ(Reports(Report::kSealed).size(), 1U);
}

TEST_F(NodeCheckpointsTest, RanksThatDoNotAgreeAreRefused) {
  CheckpointOptions ddp;
  ddp.form = kDdpForm;
  EXPECT_EQ(node_.OnOpen(0, kDir, {}), "");
  EXPECT_THAT(node_.OnOpen(1, kDir, ddp),
              HasSubstr("of kind full in this life, by a rank of this node, and is now as of kind ddp"));
}

TEST_F(NodeCheckpointsTest, ACommittedSaveIsMarkedAndAnswered) {
  Open();
  node_.OnWait(0, 7, kDir, {0, 10}, false);
  SealAll(10);
  EXPECT_TRUE(TakeAll<AnswerWait>().empty());
  Commit(10);
  const auto actions = node_.Take();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_EQ(std::get<MarkCommitted>(actions[0]).save.step, 10);
  EXPECT_EQ(std::get<AnswerWait>(actions[1]).state, "committed");
  node_.OnWait(1, 8, kDir, {0, 10}, false);  // late
  EXPECT_EQ(TakeAll<AnswerWait>().at(0).state, "committed");
}

TEST_F(NodeCheckpointsTest, ASkippedSaveIsToldOnceAndAnsweredWithTheReason) {
  Open();
  node_.OnSkipped(0, kDir, {0, 10}, "no slot is free");
  node_.OnSkipped(1, kDir, {0, 10}, "no slot is free");
  EXPECT_EQ(Reports(Report::kSkipped).size(), 1U);
  node_.OnWait(0, 7, kDir, {0, 10}, false);
  v1::CheckpointOrder order = Order(10);
  order.mutable_dropped();
  node_.OnOrder(order);
  const auto actions = node_.Take();
  EXPECT_EQ(std::get<MarkDropped>(actions.at(0)).save.step, 10);
  EXPECT_EQ(std::get<AnswerWait>(actions.at(1)).why, "because");
}

// Whoever waits for a commit is promised that every rank of the world has an image of that step.
TEST_F(NodeCheckpointsTest, ANewerCommitMakesNoDroppedSaveACommittedOne) {
  Open();
  v1::CheckpointOrder order = Order(10);
  order.mutable_dropped();
  node_.OnOrder(order);
  node_.OnSkipped(0, kDir, {0, 15}, "no slot is free");  // the stream is down
  node_.OnWait(0, 6, kDir, {0, 15}, false);
  SealAll(20, true);
  Commit(20);
  EndStore(20, false);
  const auto skipped = TakeAll<AnswerWait>();
  ASSERT_EQ(skipped.size(), 1U);
  EXPECT_EQ(skipped[0].state, "dropped");
  EXPECT_EQ(skipped[0].why, "no slot is free");
  const auto state_of = [this](int64_t step) {
    node_.OnWait(0, 7, kDir, {0, step}, false);
    return TakeAll<AnswerWait>().at(0).state;
  };
  EXPECT_EQ(state_of(10), "dropped");
  EXPECT_EQ(state_of(15), "dropped");
  EXPECT_EQ(state_of(20), "committed") << "it is not stored, and every rank has it";
}

TEST_F(NodeCheckpointsTest, WhoWaitsForStorageOfAMemorySaveIsToldSo) {
  Open();
  node_.OnWait(0, 7, kDir, {0, 10}, true);
  SealAll(10);
  Commit(10);
  EXPECT_THAT(TakeAll<AnswerWait>().at(0).why, HasSubstr("memory only"));
}

TEST_F(NodeCheckpointsTest, AStoreIsAnsweredWhenItHasEnded) {
  Open();
  SealAll(10, true);
  node_.OnWait(0, 7, kDir, {0, 10}, true);
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
  node_.OnWait(0, 7, kDir, {0, 10}, true);
  EndStore(20, true);
  const auto answers = TakeAll<AnswerWait>();
  EXPECT_EQ(answers.at(0).state, "failed") << "it is not on storage";
  EXPECT_THAT(answers.at(0).why, HasSubstr("newer step 20 was written in its place"));
}

TEST_F(NodeCheckpointsTest, WhatIsOnStorageStaysStoredBehindNewerOnes) {
  Open();
  for (const int64_t step : {10, 20}) {
    SealAll(step, true);
    Commit(step);
    EndStore(step, true);
  }
  node_.OnWait(0, 7, kDir, {0, 10}, true);
  EXPECT_EQ(TakeAll<AnswerWait>().at(0).state, "stored");
}

TEST_F(NodeCheckpointsTest, AStoreThatFailedIsAnsweredWithTheReason) {
  Open();
  SealAll(10, true);
  Commit(10);
  node_.OnWait(0, 7, kDir, {0, 10}, true);
  EndStore(10, false);
  EXPECT_EQ(TakeAll<AnswerWait>().at(0).state, "failed");
  EXPECT_FALSE(node_.Storing());
}

TEST_F(NodeCheckpointsTest, AnEndedRankIsAnsweredNoMore) {
  Open();
  node_.OnWait(0, 7, kDir, {0, 10}, false);
  node_.OnRestore(0, 8, kDir, 0);
  node_.OnRankGone(0);
  Commit(10);
  EXPECT_TRUE(TakeAll<AnswerWait>().empty());
}

TEST_F(NodeCheckpointsTest, EachTimeThatRanksGoBackIsDecidedAnew) {
  v1::CheckpointOrder order = Order(10);
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnOrder(order);
  node_.OnRestore(0, 8, kDir, 1);
  node_.OnRestore(1, 9, kDir, 0);  // behind by one
  std::vector<AnswerRestore> answers = TakeAll<AnswerRestore>();
  ASSERT_EQ(answers.size(), 2U);
  EXPECT_EQ(answers[1].local_rank, 1);
  order = Order(20);
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  order.mutable_restore()->set_branch(1);
  node_.OnOrder(order);
  node_.OnRestore(1, 10, kDir, 1);
  answers = TakeAll<AnswerRestore>();
  ASSERT_EQ(answers.size(), 2U);
  for (const AnswerRestore& answer : answers) EXPECT_EQ(answer.order.save().step(), 20);
}

TEST_F(NodeCheckpointsTest, WhatOthersLendIsReadBeforeRanksAsk) {
  v1::CheckpointOrder committed = Order(10);
  committed.mutable_committed()->add_elsewhere()->set_rank(kMainPage);
  node_.OnOrder(committed);
  auto fetches = TakeAll<FetchImages>();
  ASSERT_EQ(fetches.size(), 1U);
  EXPECT_TRUE(fetches[0].ahead);
  EXPECT_EQ(fetches[0].order.save().step(), 10);
  EXPECT_EQ(fetches[0].order.restore().elsewhere_size(), 1);
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnOrder(OrderOfLent(10));
  fetches = TakeAll<FetchImages>();
  ASSERT_EQ(fetches.size(), 1U) << "behind the other: it finds there what that has brought, and reads the rest";
  EXPECT_FALSE(fetches[0].ahead);
  node_.OnOrder(committed);
  EXPECT_TRUE(TakeAll<FetchImages>().empty()) << "of a new stream: what is restored is decided";
  node_.OnFetched(fetches[0].epoch, kDir, 0, 0, "");
  EXPECT_EQ(TakeAll<AnswerRestore>().size(), 1U);
}

TEST_F(NodeCheckpointsTest, WhatWasReadAheadGoesWhereSomethingElseIsRestored) {
  v1::CheckpointOrder committed = Order(10);
  committed.mutable_committed()->add_elsewhere()->set_rank(kMainPage);
  node_.OnOrder(committed);
  node_.OnRestore(0, 7, kDir, 0);
  v1::CheckpointOrder order = Order(20);
  order.mutable_restore()->set_source(v1::RestoreDecided::DISK);
  node_.OnOrder(order);
  EXPECT_EQ(TakeAll<ForgetAhead>().size(), 1U);
}

TEST_F(NodeCheckpointsTest, NothingIsReadAheadOfRanksThatSave) {
  Open();
  SealAll(20);
  v1::CheckpointOrder committed = Order(10);
  committed.mutable_committed()->add_elsewhere()->set_rank(kMainPage);
  node_.OnOrder(committed);
  EXPECT_TRUE(TakeAll<FetchImages>().empty());
}

TEST_F(NodeCheckpointsTest, RanksAreAnsweredWhenWhatOthersLendIsHere) {
  const v1::CheckpointOrder order = OrderOfLent(10);
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnOrder(order);
  node_.OnOrder(order);  // of a new stream
  const auto fetches = TakeAll<FetchImages>();
  ASSERT_EQ(fetches.size(), 1U);
  EXPECT_EQ(fetches[0].order.restore().elsewhere_size(), 1);
  node_.OnRestore(1, 8, kDir, 0);
  EXPECT_TRUE(TakeAll<AnswerRestore>().empty());
  node_.OnFetched(fetches[0].epoch + 1, kDir, 0, 0, "");
  EXPECT_TRUE(TakeAll<AnswerRestore>().empty()) << "of another round";
  node_.OnFetched(fetches[0].epoch, kDir, 0, 0, "");
  const auto answers = TakeAll<AnswerRestore>();
  ASSERT_EQ(answers.size(), 2U);
  for (const AnswerRestore& answer : answers) EXPECT_EQ(answer.refused, "");
  node_.OnOrder(order);
  EXPECT_TRUE(node_.Take().empty()) << "it is here already";
}

// Of one all of it, of one a part.
const ImageParts kParts = {{3, {}}, {5, checkpoint::ByteRanges({{0, 4096}})}};

// Of sharded state: a rank asks for the images that it needs once it knows what is restored.
class ImagesAskedTest : public NodeCheckpointsTest {
 protected:
  ImagesAskedTest() {
    decision_ = Order(10);
    decision_.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
    node_.OnRestore(0, 7, kDir, 0);
    node_.OnOrder(decision_);
    node_.Take();
    node_.OnImagesAsked(0, 8, kDir, 0, kParts);
  }

  // The number that the master has been told last.
  uint64_t Told() {
    const auto asked = Reports(Report::kRestoreAsked);
    if (asked.empty()) return 0;
    EXPECT_EQ(asked.back().restore_asked().images_size(), 2);
    return asked.back().restore_asked().request();
  }

  v1::CheckpointOrder Lent(uint64_t request, std::vector<int32_t> ranks) const {
    v1::CheckpointOrder order = decision_;
    order.mutable_restore()->set_request(request);
    for (const int32_t rank : ranks) order.mutable_restore()->add_elsewhere()->set_rank(rank);
    return order;
  }

  v1::CheckpointOrder decision_;
};

TEST_F(ImagesAskedTest, AreFetchedAndHandedOut) {
  const uint64_t request = Told();
  ASSERT_NE(request, 0U);
  node_.OnOrder(Lent(request, {3, 5}));
  node_.OnOrder(Lent(request, {3, 5}));  // of a new stream
  const auto fetches = TakeAll<FetchImages>();
  ASSERT_EQ(fetches.size(), 1U);
  EXPECT_EQ(fetches[0].parts, kParts);
  node_.OnFetched(fetches[0].epoch, kDir, 0, request, "");
  const auto answers = TakeAll<AnswerImages>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].request, 8);
  EXPECT_EQ(answers[0].parts, kParts);
  EXPECT_EQ(answers[0].save.step, 10);
  EXPECT_EQ(answers[0].refused, "");
}

TEST_F(ImagesAskedTest, AreRefusedWhereNobodyLendsOneOrItCannotBeRead) {
  node_.OnOrder(Lent(Told(), {3}));
  auto answers = TakeAll<AnswerImages>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].refused,
            "no node lends the image of rank 5: what this life has saved other nodes lend from the next one on");
  node_.OnImagesAsked(0, 9, kDir, 0, kParts);
  const uint64_t request = Told();
  node_.OnOrder(Lent(request, {3, 5}));
  node_.OnFetched(TakeAll<FetchImages>().at(0).epoch, kDir, 0, request, "10.0.0.7 port 4000: connection refused");
  answers = TakeAll<AnswerImages>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].refused, "10.0.0.7 port 4000: connection refused");
  node_.OnRound(++epoch_, 0);
  node_.Take();
  node_.OnScanned(epoch_, {});
  EXPECT_EQ(Reports(Report::kHeld).at(0).held().unreadable(), "10.0.0.7 port 4000: connection refused");
}

TEST_F(ImagesAskedTest, AreAskedForAgainOfANewMasterAlsoWhereThatSaysTheDecisionOnly) {
  const uint64_t request = Told();
  node_.OnAttached();
  EXPECT_EQ(Told(), request);
  node_.OnOrder(decision_);
  EXPECT_EQ(Told(), request);
  node_.OnRankGone(0);
  node_.OnAttached();
  EXPECT_EQ(Told(), 0U);
}

TEST_F(ImagesAskedTest, AreRefusedWhereNothingIsRestoredFromMemory) {
  node_.Take();
  node_.OnImagesAsked(0, 9, "/other", 0, {{3, {}}});
  const auto answers = TakeAll<AnswerImages>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].refused, "no save is restored from memory");
}

TEST_F(NodeCheckpointsTest, RanksFailWhereNobodyLendsAnyMore) {
  const v1::CheckpointOrder order = OrderOfLent(10);
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnOrder(order);
  node_.OnFetched(TakeAll<FetchImages>().at(0).epoch, kDir, 0, 0, "10.0.0.7 port 4000: connection refused");
  node_.OnRestore(1, 8, kDir, 0);
  const auto answers = TakeAll<AnswerRestore>();
  ASSERT_EQ(answers.size(), 2U);
  for (const AnswerRestore& answer : answers) {
    EXPECT_EQ(answer.refused,
              "step 10 is in the memory of other nodes, and was not read from there: 10.0.0.7 port 4000: connection "
              "refused");
  }
  for (const char* why :
       {"10.0.0.7 port 4000: connection refused", ""}) {  // told to the next round, and to no later one
    node_.OnRound(++epoch_, 0);
    node_.Take();
    node_.OnScanned(epoch_, {});
    EXPECT_EQ(Reports(Report::kHeld).at(0).held().unreadable(), why);
  }
}

TEST_F(NodeCheckpointsTest, ASaveBehindGoingBackIsAnother) {
  Open();
  for (const uint32_t branch : {0U, 1U}) {
    for (const int rank : {0, 1}) node_.OnSealed(rank, kDir, false, {0, 10, branch}, false);
    const std::vector<v1::CheckpointReport> sealed = Reports(Report::kSealed);
    ASSERT_EQ(sealed.size(), 1U);
    EXPECT_EQ(sealed[0].sealed().save().branch(), branch);
  }
}

TEST_F(NodeCheckpointsTest, NobodyWaitsForAMasterThatIsSilent) {
  Open();
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnWait(1, 8, kDir, {0, 10}, false);
  node_.Take();
  node_.OnMasterSilent("it is away");
  node_.OnRestore(1, 9, kDir, 0);
  node_.OnWait(0, 10, kDir, {0, 10}, true);
  const std::vector<CheckpointAction> told = node_.Take();
  EXPECT_EQ(told.size(), 4U);
  std::set<int64_t> requests;
  for (const CheckpointAction& action : told) {
    if (const auto* restore = std::get_if<AnswerRestore>(&action)) {
      EXPECT_THAT(restore->refused, HasSubstr("only the job's master can tell: it is away"));
      requests.insert(restore->request);
    } else {
      const auto& wait = std::get<AnswerWait>(action);
      EXPECT_EQ(wait.state, "") << "it may be stored all the same";
      EXPECT_EQ(wait.why, "it is away");
      requests.insert(wait.request);
    }
  }
  EXPECT_EQ(requests, (std::set<int64_t>{7, 8, 9, 10}));
  node_.OnAttached();
  node_.Take();
  node_.OnRestore(0, 11, kDir, 0);
  EXPECT_TRUE(TakeAll<AnswerRestore>().empty()) << "a master that is back is awaited";
}

// What other nodes lend comes without it.
TEST_F(NodeCheckpointsTest, WhatIsOnItsWayFromOthersIsAwaitedThoughTheMasterIsSilent) {
  const v1::CheckpointOrder order = OrderOfLent(10);
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnOrder(order);
  const auto fetches = TakeAll<FetchImages>();
  node_.OnMasterSilent("it is away");
  EXPECT_TRUE(TakeAll<AnswerRestore>().empty());
  node_.OnFetched(fetches.at(0).epoch, kDir, 0, 0, "");
  const auto answers = TakeAll<AnswerRestore>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].refused, "");
}

TEST_F(NodeCheckpointsTest, AllRanksAreRestoredByOneDecision) {
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnRestore(1, 8, kDir, 0);
  EXPECT_EQ(Reports(Report::kRestoreAsked).size(), 1U);
  v1::CheckpointOrder order = Order(20);
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  node_.OnOrder(order);
  EXPECT_EQ(TakeAll<AnswerRestore>().size(), 2U);
  node_.OnRestore(1, 9, kDir, 0);  // again: as it was decided
  EXPECT_EQ(TakeAll<AnswerRestore>().size(), 1U);
}

TEST_F(NodeCheckpointsTest, WhatIsRestoredIsToldOnceOnTheNodeOfRank0) {
  v1::CheckpointOrder order = Order(20);
  order.set_reason("step 20 is restored from storage (passed over: /data/run/30: rank_0.pt is damaged)");
  order.mutable_restore()->set_source(v1::RestoreDecided::DISK);
  const auto said = [&] {
    std::vector<std::string> texts;
    node_.OnRestore(1, 7, kDir, 0);
    node_.OnOrder(order);
    node_.OnOrder(order);  // on a new stream
    node_.OnRestore(0, 8, kDir, 0);
    node_.OnRestore(0, 9, kDir, 0);
    for (const SayCheckpoint& each : TakeAll<SayCheckpoint>()) texts.push_back(each.text);
    return texts;
  };
  const std::string text =
      "checkpoint: goes on from step 20 of /data/run, on storage (passed over: /data/run/30: rank_0.pt is damaged)";
  EXPECT_THAT(said(), testing::ElementsAre(text));
  EXPECT_THAT(said(), testing::IsEmpty());
  BeginRound(8);
  order.clear_reason();
  order.mutable_restore()->set_source(v1::RestoreDecided::MEMORY);
  EXPECT_THAT(said(), testing::ElementsAre("checkpoint: goes on from step 20 of /data/run, in memory"));
  BeginRound(9, 1);
  EXPECT_THAT(said(), testing::IsEmpty());
  BeginRound(10);
  order.mutable_restore()->set_source(v1::RestoreDecided::NOTHING);
  EXPECT_THAT(said(), testing::IsEmpty());
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
  node_.OnChecked(1, kDir, "20", "", false);
  EXPECT_TRUE(TakeAll<TellMaster>().empty());
  node_.OnOrder(find);
  EXPECT_EQ(TakeAll<FindSteps>().at(0).epoch, 2U);
  node_.OnFound(2, kDir, found);
  EXPECT_EQ(Reports(Report::kFound).at(0).epoch(), 2U);
  node_.OnChecked(2, kDir, "20", "gone", true);
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
    node_.OnRestore(0, 7, kDir, 0);
    node_.OnOrder(order);
    node_.OnRestore(1, 8, kDir, 0);
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

// The master knows so many directories already that it does not look into this one.
TEST_F(NodeCheckpointsTest, ADirectoryThatTheMasterDoesNotLookIntoIsNoEmptyOne) {
  v1::CheckpointOrder order = Order(-1);
  order.set_reason("one directory too many");
  order.clear_save();
  order.mutable_restore()->set_source(v1::RestoreDecided::NOTHING);
  node_.OnRestore(0, 7, kDir, 0);
  node_.OnOrder(order);
  const std::vector<AnswerRestore> answers = TakeAll<AnswerRestore>();
  ASSERT_EQ(answers.size(), 1U);
  EXPECT_EQ(answers[0].refused, "one directory too many");
}

TEST_F(NodeCheckpointsTest, WhatIsHeldIsToldByItsSave) {
  node_.Take();
  BeginRound(2);
  ASSERT_EQ(TakeAll<ScanMemory>().size(), 1U);
  HeldPage page;
  page.dir = kDir;
  page.form = kDdpForm;
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
  EXPECT_FALSE(newest.older_unread());
}

TEST_F(NodeCheckpointsTest, AMilestoneIsHeldUntilItsStoreHasEnded) {
  CheckpointOptions options;
  options.keep_every = 10;
  node_.OnOpen(0, kDir, options);
  node_.OnOpen(1, kDir, options);
  node_.OnScanned(1, {});
  SealAll(15, true);
  EXPECT_FALSE(Reports(Report::kSealed).back().sealed().milestone());
  SealAll(20, true);
  EXPECT_TRUE(Reports(Report::kSealed).back().sealed().milestone());
  v1::CheckpointOrder committed = Order(20);
  committed.mutable_committed()->set_hold(true);
  node_.OnOrder(committed);
  node_.OnOrder(committed);  // said again
  const auto holds = TakeAll<HoldSave>();
  ASSERT_EQ(holds.size(), 1U);
  EXPECT_EQ(holds[0].save.step, 20);
  SealAll(25, true);
  node_.OnAttached();
  const auto held = Reports(Report::kHeld);
  ASSERT_EQ(held.back().held().awaited_size(), 1) << "what is newer is told as sealed";
  EXPECT_EQ(held.back().held().awaited(0).save().step(), 20);
  EXPECT_TRUE(held.back().held().awaited(0).milestone());
  v1::CheckpointOrder ended = Order(20);
  ended.mutable_store_ended()->set_stored(true);
  node_.OnOrder(ended);
  EXPECT_EQ(TakeAll<ReleaseSave>().size(), 1U);
  node_.OnOrder(committed);
  EXPECT_TRUE(TakeAll<HoldSave>().empty()) << "it is over";
}

class ArchiveTest : public NodeCheckpointsTest {
 protected:
  void Open(int64_t every = 0) {
    CheckpointOptions options;
    options.archive = "/far";
    options.archive_every = every;
    for (const int local_rank : {0, 1}) EXPECT_EQ(node_.OnOpen(local_rank, kDir, options), "");
  }
  void Close(int64_t step, const std::string& error = "") { node_.OnStepClosed(kDir, {1, step}, error); }
  std::string Said() {
    std::string said;
    for (const SayCheckpoint& each : TakeAll<SayCheckpoint>()) said += each.text + "\n";
    return said;
  }
};

TEST_F(ArchiveTest, WhatIsStoredIsCopiedAndOnceMoreWhereAStepCameMeanwhile) {
  Open();
  ASSERT_EQ(TakeAll<ArchiveSteps>().size(), 1U) << "what an agent before it has left undone";
  node_.OnArchived(kDir, {}, "");
  EXPECT_EQ(Said(), "");
  Close(10);
  EXPECT_EQ(TakeAll<ArchiveSteps>().size(), 1U);
  Close(20);
  Close(30);
  EXPECT_TRUE(TakeAll<ArchiveSteps>().empty()) << "one at a time";
  node_.OnArchived(kDir, {10}, "");
  std::vector<ArchiveSteps> again;
  std::string said;
  for (const CheckpointAction& action : node_.Take()) {
    if (const auto* each = std::get_if<ArchiveSteps>(&action)) again.push_back(*each);
    if (const auto* each = std::get_if<SayCheckpoint>(&action)) said = each->text;
  }
  ASSERT_EQ(again.size(), 1U);
  EXPECT_EQ(again[0].options.archive, "/far");
  EXPECT_EQ(said, "checkpoint: step 10 of /data/run is copied to /far");
  node_.OnArchived(kDir, {}, "EROFS");
  EXPECT_EQ(
      Said(),
      "checkpoint: /data/run is not copied to /far: EROFS; it is tried again with the next step that is stored\n");
  Close(40, "ENOSPC");
  EXPECT_TRUE(TakeAll<ArchiveSteps>().empty()) << "it does not count";
}

TEST_F(ArchiveTest, TheNodeOfGroupRank0LooksOnceForWhatIsLeftUndone) {
  BeginRound(2, 1);
  Open();
  EXPECT_TRUE(TakeAll<ArchiveSteps>().empty());
  BeginRound(3, 0);
  Open();
  EXPECT_EQ(TakeAll<ArchiveSteps>().size(), 1U);
  node_.OnArchived(kDir, {}, "");
  BeginRound(4, 0);
  Open();
  EXPECT_TRUE(TakeAll<ArchiveSteps>().empty());
}

TEST_F(ArchiveTest, OfALifeThereIsOneAndWhoOnlyLooksNeedNotNameIt) {
  BeginRound(2);
  Open(10);
  ASSERT_EQ(Reports(Report::kOpened).size(), 1U);
  EXPECT_EQ(node_.OnOpen(0, kDir, {}), "");
  EXPECT_EQ(node_.OptionsOf(kDir).archive, "/far");
  EXPECT_EQ(node_.OptionsOf(kDir).archive_every, 10);
  CheckpointOptions another;
  another.archive = "/near";
  EXPECT_THAT(node_.OnOpen(1, kDir, another), HasSubstr("its archive is /far, each 10. step"));
  BeginRound(3);
  EXPECT_EQ(node_.OnOpen(0, kDir, {}), "");
  EXPECT_EQ(node_.OptionsOf(kDir).archive, "") << "the next life names none";
  node_.Take();
  EXPECT_EQ(node_.OnOpen(1, kDir, another), "");
  const auto opened = Reports(Report::kOpened);
  ASSERT_EQ(opened.size(), 1U) << "the first did not know of it";
  EXPECT_EQ(opened[0].opened().archive(), "/near");
}

// The rank of another node has named it: this node's may come later.
TEST_F(ArchiveTest, WhereItIsTheMasterSaysToo) {
  node_.Take();
  v1::CheckpointOrder order = Order(10);
  order.mutable_find()->set_archive("/far");
  order.mutable_find()->add_but("10");
  order.mutable_find()->add_doubted("10");
  node_.OnOrder(order);
  const std::vector<FindSteps> finds = TakeAll<FindSteps>();
  ASSERT_EQ(finds.size(), 1U);
  EXPECT_EQ(finds[0].archive, "/far");
  EXPECT_EQ(finds[0].doubted, std::set<std::string>{"10"});
  order.mutable_check()->set_archive("/far");
  node_.OnOrder(order);
  EXPECT_EQ(TakeAll<CheckStep>().at(0).archive, "/far");
}

TEST_F(ArchiveTest, TheEndWaitsForWhatIsBeingCopied) {
  Open();
  EXPECT_TRUE(node_.Storing());
  EXPECT_EQ(node_.StoringText(), "/data/run, to be copied to /far");
  node_.OnArchived(kDir, {}, "");
  EXPECT_FALSE(node_.Storing());
  EXPECT_EQ(node_.StoringText(), "");
}

TEST_F(ArchiveTest, WhatIsToBeInItIsStoredItself) {
  Open(10);
  node_.Take();
  SealAll(15, true);
  EXPECT_FALSE(Reports(Report::kSealed).back().sealed().milestone());
  SealAll(20, true);
  EXPECT_TRUE(Reports(Report::kSealed).back().sealed().milestone());
}

TEST_F(NodeCheckpointsTest, KnowsWhichRanksSaveNothing) {
  using ::testing::ElementsAre;
  const auto absent = [this] {
    const AbsentRanks now = node_.AbsentFrom(kDir, {0, 10});
    return std::pair(now.unopened, now.unsaved);
  };
  BeginRound(2);
  EXPECT_THAT(absent().first, ElementsAre(0, 1));
  node_.OnOpen(0, kDir, {});
  EXPECT_THAT(absent(), ::testing::Pair(ElementsAre(1), ElementsAre(0)));
  node_.OnOpen(1, kDir, {});
  node_.OnSealed(0, kDir, false, {0, 10}, false);
  EXPECT_THAT(absent(), ::testing::Pair(ElementsAre(), ElementsAre(1)));
  node_.OnSkipped(1, kDir, {0, 10}, "no slot is free");
  EXPECT_THAT(absent(), ::testing::Pair(ElementsAre(), ElementsAre()));
  BeginRound(3);
  EXPECT_THAT(absent().first, ElementsAre(0, 1));
}

TEST_F(NodeCheckpointsTest, KnowsWhichRanksHaveNotComeToASave) {
  using ::testing::ElementsAre;
  using ::testing::IsEmpty;
  BeginRound(2);
  for (const int rank : {0, 1}) node_.OnOpen(rank, kDir, {});
  for (const int rank : {0, 1}) node_.OnSealed(rank, kDir, false, {0, 10}, false);
  EXPECT_THAT(node_.AbsentFrom(kDir, {0, 10}).behind, IsEmpty());
  node_.OnSealed(0, kDir, false, {0, 20}, false);
  EXPECT_THAT(node_.AbsentFrom(kDir, {0, 20}).behind, ElementsAre(1));
  EXPECT_THAT(node_.AbsentFrom(kDir, {0, 20}).unsaved, IsEmpty());
  node_.OnSkipped(1, kDir, {0, 30}, "no slot is free");
  EXPECT_THAT(node_.AbsentFrom(kDir, {0, 20}).behind, IsEmpty());
  // Who has gone back is behind nobody, whatever its steps.
  node_.OnSealed(1, kDir, false, {0, 5, 1}, false);
  EXPECT_THAT(node_.AbsentFrom(kDir, {0, 30}).behind, ElementsAre(0));
  EXPECT_THAT(node_.AbsentFrom(kDir, {0, 5, 1}).behind, ElementsAre(0));
}

TEST_F(NodeCheckpointsTest, OlderSavesAreReadWhenTheMasterOrdersIt) {
  BeginRound(2);
  node_.Take();
  HeldPage page;
  page.dir = kDir;
  page.save = {1, 10};
  page.world_size = 2;
  page.older_unread = true;
  node_.OnScanned(2, {page});
  EXPECT_TRUE(Reports(Report::kHeld).at(0).held().saves(0).older_unread());
  v1::CheckpointOrder order;
  order.set_dir(kDir);
  order.mutable_read_older();
  node_.OnOrder(order);
  const std::vector<ScanMemory> scans = TakeAll<ScanMemory>();
  ASSERT_EQ(scans.size(), 1U);
  EXPECT_EQ(scans[0].epoch, 2U);
  EXPECT_EQ(scans[0].older_of, kDir);
  HeldPage older = page;
  older.save = {1, 5};
  page.older_unread = older.older_unread = false;
  node_.OnScanned(2, {older, page});
  const v1::CheckpointsHeld held = Reports(Report::kHeld).at(0).held();
  ASSERT_EQ(held.saves_size(), 2);
  EXPECT_FALSE(held.saves(0).older_unread());
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
  node_.OnSkipped(0, kDir, {0, 12}, "no slot is free");
  node_.OnRestore(0, 7, kDir, 0);
  node_.Take();
  node_.OnAttached();
  std::vector<Report::BodyCase> told;
  for (const TellMaster& each : TakeAll<TellMaster>()) told.push_back(each.report.body_case());
  EXPECT_THAT(told, ::testing::ElementsAre(Report::kHeld, Report::kOpened, Report::kSealed, Report::kSkipped,
                                           Report::kRestoreAsked));
}

// What was skipped while the stream was down was told to nobody: the master would wait for it for ever.
TEST_F(NodeCheckpointsTest, ASkippedSaveIsToldAgainUntilTheMasterHasAnswered) {
  Open();
  const auto told = [this] {
    std::vector<std::pair<int64_t, std::string>> saves;
    node_.OnAttached();
    for (const auto& each : Reports(Report::kSkipped)) {
      saves.emplace_back(each.skipped().save().step(), each.skipped().why());
    }
    return saves;
  };
  node_.OnSkipped(0, kDir, {0, 10}, "no slot is free");
  node_.OnSkipped(1, kDir, {0, 12}, "");
  node_.Take();
  EXPECT_THAT(told(), ::testing::ElementsAre(::testing::Pair(10, "no slot is free"), ::testing::Pair(12, "")));
  v1::CheckpointOrder order = Order(10);
  order.mutable_dropped();
  node_.OnOrder(order);
  EXPECT_THAT(told(), ::testing::ElementsAre(::testing::Pair(12, "")));
  Commit(15);
  node_.OnSkipped(0, kDir, {0, 14}, "no slot is free");
  node_.Take();
  EXPECT_THAT(told(), ::testing::IsEmpty()) << "a newer save is committed";
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
  node_.OnWait(0, 7, kDir, {0, 10}, true);
  node_.Take();
  node_.OnJobEnded();
  EXPECT_FALSE(node_.Storing());
  const std::vector<CheckpointAction> actions = node_.Take();
  ASSERT_EQ(actions.size(), 2U);
  EXPECT_THAT(std::get<SayCheckpoint>(actions[0]).text, HasSubstr("step 10 of /data/run is not stored"));
  EXPECT_EQ(std::get<AnswerWait>(actions[1]).state, "failed");
}

TEST_F(NodeCheckpointsTest, ANodeThatLeavesWaitsForWhatIsOnlyInMemory) {
  Open(kFullForm, true);
  SealAll(10);
  Commit(10);
  EXPECT_FALSE(node_.Storing());
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 10}}, true), true), "step 10 of /data/run");
  node_.Take();
  node_.OnLeaving();
  EXPECT_TRUE(node_.Storing());
  const std::vector<CheckpointAction> asked = node_.Take();
  ASSERT_EQ(asked.size(), 2U);
  EXPECT_EQ(std::get<TellMaster>(asked[0]).report.departing().save().step(), 10);
  EXPECT_TRUE(std::get<TellMaster>(asked[1]).report.has_going());
  EndStore(10, true);
  EXPECT_FALSE(node_.Storing());
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 10}}, true), true), "");
  node_.Take();
  node_.OnEnd({}, true);
  EXPECT_EQ(std::get<SayCheckpoint>(node_.Take().at(0)).text, "checkpoint: step 10 of /data/run is on storage");
}

// A node whose memory others may need.
class LendingNodeTest : public NodeCheckpointsTest {
 protected:
  LendingNodeTest() {
    Open();
    SealAll(10);
    Commit(10);
    EndStore(10, true);
    node_.Take();
  }

  void Lend(uint64_t epoch) {
    v1::CheckpointOrder order;
    order.mutable_lend()->set_epoch(epoch);
    node_.OnOrder(order);
  }
  void EndLending() {
    v1::CheckpointOrder order;
    order.mutable_lending_ended();
    node_.OnOrder(order);
  }
};

TEST_F(LendingNodeTest, TellsWhatItHoldsToARoundThatItHasNoPlaceIn) {
  Lend(2);
  const auto scans = TakeAll<ScanMemory>();
  ASSERT_EQ(scans.size(), 1U);
  EXPECT_EQ(scans[0].epoch, 2U);
  EXPECT_TRUE(scans[0].to_lend);
  EXPECT_TRUE(node_.Lending());
  SealAll(20);
  EXPECT_TRUE(node_.Take().empty()) << "ranks of the round before that live still";
  node_.OnScanned(2, Memory({{1, 10}}, true));
  const auto held = Reports(Report::kHeld);
  ASSERT_EQ(held.size(), 1U);
  EXPECT_EQ(held[0].epoch(), 2U);
  ASSERT_EQ(held[0].held().saves_size(), 1);
  EXPECT_EQ(held[0].held().saves(0).save().step(), 10);
  Lend(2);
  EXPECT_TRUE(node_.Take().empty()) << "said twice";
  EndLending();
  EXPECT_FALSE(node_.Lending());
}

TEST_F(LendingNodeTest, AsksWhetherItMayGo) {
  node_.OnLeaving();
  EXPECT_EQ(Reports(Report::kGoing).size(), 1U);
  EXPECT_FALSE(node_.Storing());
  EXPECT_TRUE(node_.Lending());
  EndLending();
  EXPECT_FALSE(node_.Lending());
}

TEST_F(LendingNodeTest, DoesNotStayForAJobThatIsOver) {
  Lend(2);
  node_.OnJobEnded();
  EXPECT_FALSE(node_.Lending());
  node_.Take();
  node_.OnLeaving();
  EXPECT_TRUE(node_.Take().empty());
  EXPECT_FALSE(node_.Lending());
}

TEST_F(LendingNodeTest, LendsNoMoreWhenItHasAPlaceAgain) {
  Lend(2);
  BeginRound(3);
  EXPECT_FALSE(node_.Lending());
}

TEST_F(NodeCheckpointsTest, TheMasterHearsWhenAllLocalRanksHaveReadWhatTheyNeed) {
  Open();
  node_.OnRestoreDone(0, kDir, 1);
  node_.OnRestoreDone(0, kDir, 1);
  EXPECT_TRUE(Reports(Report::kRestoreDone).empty());
  node_.OnRestoreDone(1, kDir, 0);
  EXPECT_TRUE(Reports(Report::kRestoreDone).empty()) << "of what was restored before";
  node_.OnRestoreDone(1, kDir, 1);
  auto done = Reports(Report::kRestoreDone);
  ASSERT_EQ(done.size(), 1U);
  EXPECT_EQ(done[0].restore_done().branch(), 1U);
  node_.OnAttached();
  EXPECT_EQ(Reports(Report::kRestoreDone).size(), 1U) << "the master may be another";
  node_.OnRestoreDone(1, kDir, 2);
  EXPECT_TRUE(Reports(Report::kRestoreDone).empty());
}

TEST_F(NodeCheckpointsTest, ANodeThatLeavesWaitsNoLongerThanItIsWorth) {
  Open();
  SealAll(10);
  Commit(10);
  node_.OnLeaving();
  EndStore(10, false);
  EXPECT_FALSE(node_.Storing()) << "the master has said that it will not be";
  node_.OnJobEnded();
  node_.OnLeaving();
  EXPECT_FALSE(node_.Storing()) << "nobody would say so any more";
}

// The master may have died behind the last image: nobody commits it, and the next master would.
TEST_F(NodeCheckpointsTest, WhatAllLocalRanksHaveSealedIsOnlyInMemoryBeforeItIsCommitted) {
  Open();
  SealAll(10, true);
  Commit(10);
  EndStore(10, true);
  SealAll(20);
  node_.OnSealed(0, kDir, false, {0, 30}, false);
  const std::vector<HeldPage> memory = Memory({{1, 10}, {1, 20}, {1, 30}}, false);
  EXPECT_EQ(node_.UnstoredText(memory, true), "step 20 of /data/run") << "of step 30 it has one image of two";
}

// Another node may have failed before it had sealed its part: a new phalanx-run goes on from the step before then.
TEST_F(NodeCheckpointsTest, WhatOtherNodesMayNotHaveSealedIsNotPromised) {
  Open();
  SealAll(10);
  Commit(10);
  SealAll(20);
  const std::vector<HeldPage> sealed = Memory({{1, 20}}, false, 4);
  EXPECT_EQ(node_.UnstoredText(sealed, true), "step 20 of /data/run (if all nodes have sealed it)");
  std::vector<HeldPage> both = Memory({{1, 10}}, true, 4);
  both.push_back(sealed[0]);
  EXPECT_EQ(node_.UnstoredText(both, true), "step 10 of /data/run, or step 20 if all nodes have sealed it,");
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 10}}, true, 4), true), "step 10 of /data/run");
}

// An agent may end before its first round, or the round may not be able to go on from what was taken up.
TEST_F(NodeCheckpointsTest, WhatAnEarlierRoundHasLeftIsOnlyInMemoryUntilStorageHoldsMore) {
  const std::vector<HeldPage> left = Memory({{1, 18}, {2, 12}}, false);
  const NodeCheckpoints fresh(2);
  EXPECT_EQ(fresh.UnstoredText(left, true), "step 12 of /data/run") << "the newest is that of the later round";
  EXPECT_EQ(fresh.UnstoredText({}, true), "");

  BeginRound(3);
  node_.OnScanned(3, left);
  Open();
  EXPECT_EQ(node_.UnstoredText(left, true), "step 12 of /data/run");
  SealAll(13, true);
  v1::CheckpointOrder stored = Order(13, 3);
  stored.mutable_store_ended()->set_stored(true);
  node_.OnOrder(stored);
  EXPECT_EQ(node_.UnstoredText(left, true), "");
}

// The script has asked for a step on disk, and ends with 0 without it.
TEST_F(NodeCheckpointsTest, AJobThatEndsWellKeepsWhatStorageHasNotTaken) {
  const std::vector<HeldPage> memory = Memory({{1, 10}, {1, 12}}, true);
  const auto unstored = [&] { return node_.UnstoredText(memory, false); };
  Open();
  SealAll(9);
  Commit(9);
  EXPECT_EQ(unstored(), "") << "nothing was to be stored";
  SealAll(10, true);
  Commit(10);
  SealAll(12);
  Commit(12);
  EXPECT_EQ(unstored(), "step 12 of /data/run") << "storage has not answered";
  EndStore(10, false);
  EXPECT_EQ(unstored(), "step 12 of /data/run") << "storage has failed";
  EndStore(12, true);
  EXPECT_EQ(unstored(), "") << "a newer one was stored";
}

TEST_F(NodeCheckpointsTest, WhatTheJobsEndLeavesUnstoredIsKept) {
  Open();
  SealAll(10, true);
  Commit(10);
  node_.OnJobEnded();
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 10}}, true), false), "step 10 of /data/run");
  EndStore(10, true);
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 10}}, true), false), "");
  SealAll(11, true);  // behind the end
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 11}}, false), false), "step 11 of /data/run");
}

// Of one world: a node that has come since holds images of later saves.
TEST_F(NodeCheckpointsTest, AStoreThatFailedIsOwedByAllNodes) {
  Open();
  EndStore(10, false);
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 12}}, true), false), "step 12 of /data/run");
}

TEST_F(NodeCheckpointsTest, ADroppedStoreIsNotOwed) {
  Open();
  SealAll(10, true);
  v1::CheckpointOrder order = Order(10);
  order.mutable_dropped();
  node_.OnOrder(order);
  EXPECT_EQ(node_.UnstoredText(Memory({{1, 9}}, true), false), "") << "of step 10 there is no image";
}

TEST_F(NodeCheckpointsTest, WhatStorageWasReadForIsNotOnlyInMemory) {
  const std::vector<HeldPage> left = Memory({{1, 18}}, true);
  v1::CheckpointOrder order = Order(18, 0);
  order.mutable_restore()->set_source(v1::RestoreDecided::DISK);
  for (const auto& [step, text] : {std::pair(17, "step 18 of /data/run"), std::pair(18, "")}) {
    BeginRound(2);
    order.mutable_save()->set_step(step);
    node_.OnOrder(order);
    BeginRound(3);
    EXPECT_EQ(node_.UnstoredText(left, true), text) << step;
  }
  EXPECT_EQ(node_.UnstoredText(Memory({{2, 15}}, true), true), "step 15 of /data/run") << "saved since";
}

class PastTest : public NodeCheckpointsTest {
 protected:
  v1::CheckpointOrder Order(const SaveKey& save) {
    v1::CheckpointOrder order;
    order.set_dir(kDir);
    SetKey(*order.mutable_save(), save);
    return order;
  }
  void Restores(v1::RestoreDecided::Source source, const SaveKey& save, const std::string& folder = "",
                uint32_t branch = 0) {
    v1::CheckpointOrder order = Order(save);
    order.mutable_restore()->set_source(source);
    order.mutable_restore()->set_name(folder);
    order.mutable_restore()->set_branch(branch);
    node_.OnOrder(order);
  }
  // What the step's manifest is to say; then it is stored.
  std::optional<std::string> Stores(const SaveKey& save, const std::string& folder) {
    v1::CheckpointOrder order = Order(save);
    order.mutable_write_manifest()->set_name(folder);
    node_.Take();
    node_.OnOrder(order);
    const std::vector<CloseStep> closed = TakeAll<CloseStep>();
    EXPECT_EQ(closed.size(), 1U);
    Stored(save, folder);
    return closed.empty() ? std::nullopt : closed[0].goes_on_from;
  }
  void Stored(const SaveKey& save, const std::string& folder) {
    v1::CheckpointOrder order = Order(save);
    order.mutable_store_ended()->set_stored(true);
    order.mutable_store_ended()->set_name(folder);
    node_.OnOrder(order);
  }
};

TEST_F(PastTest, IsWhatWasRestoredAndThenWhatWasStored) {
  Restores(v1::RestoreDecided::DISK, {0, 20}, "20");
  EXPECT_EQ(Stores({1, 30}, "30"), "20");
  EXPECT_EQ(Stores({1, 40}, "40"), "30");
  Restores(v1::RestoreDecided::DISK, {1, 30}, "30", 1);
  EXPECT_EQ(Stores({1, 45}, "45"), "30") << "an older one than 40";
  Stored({1, 41, 0}, "41");  // of before, and late
  EXPECT_EQ(Stores({1, 50, 1}, "50"), "30") << "which was stored beside it";
}

TEST_F(PastTest, GoesOnThroughMemory) {
  Restores(v1::RestoreDecided::NOTHING, {0, -1});
  EXPECT_EQ(Stores({1, 10}, "10"), "");
  BeginRound(2);
  Restores(v1::RestoreDecided::MEMORY, {1, 15});
  Stored({1, 15}, "15");  // at the breakpoint
  EXPECT_EQ(Stores({2, 20}, "20"), "15");
  Stored({2, 20}, "");  // said again
  EXPECT_EQ(Stores({2, 30}, "30"), "20");
  Stored({2, 35}, "");  // of a store that this node has not heard of
  EXPECT_EQ(Stores({2, 40}, "40"), std::nullopt);
}

TEST_F(PastTest, IsNothingWhereTheScriptHasGoneBackByItself) {
  Restores(v1::RestoreDecided::DISK, {0, 20}, "20");
  EXPECT_EQ(Stores({1, 30}, "30"), "20");
  EXPECT_EQ(Stores({1, 40, 1}, "40"), "") << "load(step=..), say";
  EXPECT_EQ(Stores({1, 50, 1}, "50"), "40");
  BeginRound(2);
  EXPECT_EQ(Stores({2, 60}, "60"), "") << "it has loaded nothing";
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
  Open(kDdpForm);
  v1::CheckpointOrder prepare = Order(10);
  prepare.mutable_prepare_store();
  v1::CheckpointOrder write = Order(10);
  write.mutable_store_shards()->set_name("10");
  node_.OnOrder(prepare);
  node_.OnFolderMade(kDir, {1, 10}, "10", "");
  BeginRound(2, 1);
  node_.Take();
  node_.OnOrder(write);
  EXPECT_TRUE(TakeAll<WriteImages>().at(0).main);
  BeginRound(3, 0);
  node_.Take();
  write.mutable_store_shards()->set_name("10.1");
  node_.OnOrder(write);
  EXPECT_FALSE(TakeAll<WriteImages>().at(0).main) << "another node was asked for this one's folder";
}

TEST_F(NodeCheckpointsTest, StorageIsTidiedUpWhenNothingIsOnItsWayThere) {
  Open();
  SealAll(10, true);
  Commit(10);
  node_.Take();
  node_.OnTidy();
  EXPECT_TRUE(TakeAll<TidyUp>().empty());
  EXPECT_TRUE(node_.Storing());
  EndStore(10, true);
  const std::vector<TidyUp> tidied = TakeAll<TidyUp>();
  ASSERT_EQ(tidied.size(), 1U);
  EXPECT_EQ(tidied[0].dir, kDir);
  EXPECT_TRUE(node_.Storing());
  EXPECT_EQ(node_.StoringText(), "") << "only files that cost room";
  node_.OnTidied(kDir, "EACCES");
  EXPECT_EQ(TakeAll<SayCheckpoint>().at(0).text, "checkpoint: EACCES");
  EXPECT_FALSE(node_.Storing());
  EXPECT_TRUE(TakeAll<TidyUp>().empty()) << "once is enough";
}

TEST_F(NodeCheckpointsTest, OneNodeTidiesUpForAll) {
  BeginRound(1, 1);
  Open();
  SealAll(10, true);
  Commit(10);
  EndStore(10, true);
  node_.Take();
  node_.OnTidy();
  EXPECT_TRUE(TakeAll<TidyUp>().empty());
  EXPECT_FALSE(node_.Storing());
}

TEST_F(NodeCheckpointsTest, MemoryStaysWhereASaveIsNowhereElse) {
  Open();
  SealAll(10);
  Commit(10);
  node_.Take();
  node_.OnEnd(Memory({{1, 10}}, true), true);
  const std::vector<LeaveMemory> left = TakeAll<LeaveMemory>();
  ASSERT_EQ(left.size(), 1U);
  EXPECT_EQ(left[0].unstored, "step 10 of /data/run");
  node_.OnEnd(Memory({{1, 10}}, true), false);
  EXPECT_EQ(TakeAll<RemoveMemory>().size(), 1U);
}

// The second order is for a store that was cut off before its folder was told of, and has begun again: the master takes
// the first name that it hears.
TEST_F(NodeCheckpointsTest, TheSharedImageGoesIntoAnyFolderThatTheNodeMadeForIt) {
  Open(kDdpForm);
  v1::CheckpointOrder prepare = Order(10);
  prepare.mutable_prepare_store();
  node_.OnOrder(prepare);
  node_.OnOrder(prepare);
  node_.OnFolderMade(kDir, {1, 10}, "10", "");
  node_.OnFolderMade(kDir, {1, 10}, "10.1", "");
  node_.Take();
  for (const char* const name : {"10", "10.1"}) {
    v1::CheckpointOrder write = Order(10);
    write.mutable_store_shards()->set_name(name);
    node_.OnOrder(write);
    const auto asked = TakeAll<WriteImages>();
    EXPECT_TRUE(asked.at(0).main);
    node_.OnImagesWritten(kDir, {1, 10}, name, {}, "");
    EXPECT_EQ(TakeAll<TellMaster>().at(0).report.shards_written().name(), name);
  }
}

}  // namespace
}  // namespace phalanx::agent
